# SPDX-License-Identifier: Apache-2.0
"""The proofs (`crashlab/`): made once in a session, and then looked at test by test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from crashlab import crew
from crashlab.crew import Findings
from crashlab.explore import Scenario


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> dict[str, Findings]:
    """What came of the proofs of the scenarios that this session has to do with; the first test waits for all."""
    modules = {
        item.path.stem for item in request.session.items if hasattr(getattr(item, "cls", None), "SCENARIOS")
    }
    return crew.prove(sorted(modules))


@pytest.fixture
def laboratory(findings: dict[str, Findings]) -> Callable[[Scenario], Findings]:
    """The findings of a scenario."""
    return lambda scenario: findings[scenario.name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each proof for each scenario of its class (see `proofs.py`)."""
    if "lab" in metafunc.fixturenames:
        scenarios = metafunc.cls.SCENARIOS
        metafunc.parametrize("lab", scenarios, indirect=True, ids=[one.name for one in scenarios])
