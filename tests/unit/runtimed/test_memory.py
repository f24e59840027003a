# SPDX-License-Identifier: Apache-2.0
"""How much memory is there, by trees of /proc and cgroupfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from syntrop.runtimed import memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """8 GB available; our group is /a/b, whose parent may have 3 GB and has 1 GB, a third of it page cache."""
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path / "proc"))
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path / "sys"))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    folder = tmp_path / "sys/fs/cgroup"
    for group, limit, current in (("a", "3000000000", 1_000_000_000), ("a/b", "max", 500_000_000)):
        (folder / group).mkdir(parents=True)
        (folder / group / "memory.max").write_text(limit + "\n")
        (folder / group / "memory.current").write_text(f"{current}\n")
        (folder / group / "memory.stat").write_text("anon 600000000\ninactive_file 300000000\n")
    (folder / "cgroup.controllers").write_text("memory\n")
    return tmp_path


def test_the_tightest_group_above_us_decides(machine: Path) -> None:
    assert memory.available() == 3_000_000_000 - 1_000_000_000 + 300_000_000
    (machine / "sys/fs/cgroup/a/memory.max").write_text("max\n")
    assert memory.available() == 8_000_000 * 1024
    (machine / "sys/fs/cgroup/a/b/memory.max").write_text("100\n")
    assert memory.available() == 0


def test_what_does_not_tell_is_left_out(machine: Path) -> None:
    (machine / "sys/fs/cgroup/cgroup.controllers").unlink()
    assert memory.available() == 8_000_000 * 1024
    (machine / "proc/meminfo").write_text("MemAvailable: many\n")
    assert memory.available() is None


def test_this_machine_has_some() -> None:
    assert (memory.available() or 0) > 1 << 20
