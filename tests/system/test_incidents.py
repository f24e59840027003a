# SPDX-License-Identifier: Apache-2.0
"""The catalogue on the real systemd: for each incident the right cause, the right action or the right restraint,
no wrong write, and every change taken back to the byte. `incidents/README.md` has the form.
"""

from __future__ import annotations

import catalogue
import playing
import pytest
from machine import Machine

CASES = catalogue.cases()


@pytest.fixture(scope="module")
def stage(machine: Machine) -> Machine:
    playing.prepare(machine, CASES)
    return machine


@pytest.fixture(scope="module")
def played() -> list[playing.Played]:
    """What came of the incidents so far."""
    return []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_incident(stage: Machine, case: catalogue.Case, played: list[playing.Played]) -> None:
    try:
        # What signatures leave open is asked of each alone, as `make incidents` does for all.
        one = playing.play(stage, case, ask=case.model)
        played.append(one)
        assert not one.wrong, stage.run(["syntropctl", "explain", case.unit], check=False).stdout
    finally:
        catalogue.clean(stage, case)


def test_the_model_settles_what_signatures_leave_open_and_spoils_nothing(played: list[playing.Played]) -> None:
    for one in played:
        assert one.combined.right or not one.signatures.right, one.case.name
    asked = [one for one in played if one.model is not None]
    combined = sum(one.combined.right for one in asked)
    assert combined >= sum(one.model is not None and one.model.right for one in asked), playing.table(played)
    settled = [one.case.name for one in played if one.combined.right and not one.signatures.right]
    assert len(settled) >= 2 or len(played) < len(CASES), playing.table(played)
