# SPDX-License-Identifier: Apache-2.0
"""Counting cores by a tree of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from syntrop.runtimed.processors import cores


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path))
    for number, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    return tmp_path


@pytest.mark.parametrize(("allowed", "count"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1)])
def test_threads_of_one_core_count_once(tree: Path, allowed: set[int], count: int) -> None:
    assert cores(allowed) == count


def test_processors_without_topology_stand_for_themselves(tree: Path) -> None:
    assert cores({0, 7, 8}) == 3


def test_this_machine_has_some() -> None:
    assert cores() >= 1
