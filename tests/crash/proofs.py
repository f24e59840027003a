# SPDX-License-Identifier: Apache-2.0
"""The proofs as tests, for whichever module has a list `SCENARIOS`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crashlab.crew import Findings
from crashlab.explore import Line, Scenario


class Proofs:
    """Subclass it with `SCENARIOS` and `SOURCES`, the sources whose syncs must all be needed."""

    SCENARIOS: tuple[Scenario, ...]
    SOURCES: tuple[str, ...]

    @pytest.fixture
    def lab(self, request: pytest.FixtureRequest, laboratory: Callable[[Scenario], Findings]) -> Findings:
        return laboratory(request.param)

    def test_killed_at_any_call(self, lab):
        lab.kill().require()

    def test_killed_done_anew_and_power_lost(self, lab):
        lab.kill_again().require()

    def test_power_lost_at_any_call(self, lab):
        lab.lose_power().require()

    def test_any_call_fails(self, lab):
        lab.fail().require()

    def test_no_sync_can_be_missing(self, laboratory):
        called: set[Line] = set()
        needed: set[Line] = set()
        for scenario in self.SCENARIOS:
            lines, needless = laboratory(scenario).needless()
            called |= lines
            needed |= lines - needless
        assert not called - needed, f"syncs whose absence nothing shows: {sorted(called - needed)}"
        from syncs import written

        called |= {line for scenario in self.SCENARIOS for line in laboratory(scenario).sync_lines()}
        unseen = written(self.SOURCES) - called
        assert not unseen, f"syncs that no scenario comes to: {sorted(unseen)}"
