# SPDX-License-Identifier: Apache-2.0
"""The laboratory (`crashlab/`), one for each scenario and session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from crashlab.explore import Laboratory, Scenario


@pytest.fixture(scope="session")
def laboratory() -> Iterator[Callable[[Scenario], Laboratory]]:
    """The laboratory of a scenario: its recording and verdicts serve all proofs."""
    made: dict[str, Laboratory] = {}

    def get(scenario: Scenario) -> Laboratory:
        if scenario.name not in made:
            made[scenario.name] = Laboratory(scenario)
        return made[scenario.name]

    yield get
    for one in made.values():
        one.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each proof for each scenario of its class (see `proofs.py`)."""
    if "lab" in metafunc.fixturenames:
        scenarios = metafunc.cls.SCENARIOS
        metafunc.parametrize("lab", scenarios, indirect=True, ids=[one.name for one in scenarios])
