# SPDX-License-Identifier: Apache-2.0
"""The laboratory tells a careful program from a careless one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import specimens
from crashlab.explore import Laboratory, Scenario


@pytest.fixture
def specimen() -> Iterator[Callable[[Callable[[str], None]], Laboratory]]:
    made: list[Laboratory] = []

    def get(function: Callable[[str], None]) -> Laboratory:
        def operate(root: str, acknowledge: Callable[[str], None]) -> None:
            function(root)
            acknowledge("replaced")

        made.append(Laboratory(Scenario(function.__name__, specimens.prepare, operate, specimens.check)))
        return made[-1]

    yield get
    for one in made:
        one.close()


def test_careful_replacement_survives_everything(specimen):
    careful = specimen(specimens.replace_well)
    careful.kill().require()
    careful.lose_power().require()
    careful.fail().require()
    lines, needless = careful.needless()
    assert len(lines) == 3 and not needless  # two syncs, and the line that calls both


@pytest.mark.parametrize(
    "careless",
    [
        specimens.replace_without_file_sync,
        specimens.replace_without_folder_sync,
        specimens.replace_in_place,
        specimens.replace_by_removal,
    ],
)
def test_careless_replacement_is_found(specimen, careless):
    assert specimen(careless).lose_power().wrong


def test_kill_alone_finds_removal_and_torn_writes_but_no_missing_sync(specimen):
    assert specimen(specimens.replace_by_removal).kill().wrong
    assert specimen(specimens.replace_in_place).kill().wrong
    assert not specimen(specimens.replace_without_file_sync).kill().wrong
