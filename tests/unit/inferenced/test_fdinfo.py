# SPDX-License-Identifier: Apache-2.0
"""What drivers write of their clients, and who is looked at: fixture trees, and this process itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.inferenced import fdinfo
from syntrop.inferenced.fdinfo import Stats

AMDGPU = """pos:\t0
flags:\t02100002
mnt_id:\t26
ino:\t685
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:06:00.0
pasid:\t32771
drm-total-vram:\t{total} KiB
drm-shared-vram:\t16 KiB
drm-active-vram:\t0
drm-resident-vram:\t{vram} KiB
drm-total-gtt:\t96 MiB
drm-resident-gtt:\t64 MiB
drm-memory-vram:\t{vram} KiB
drm-memory-gtt: \t65536 KiB
amd-evicted-vram:\t0 KiB
drm-engine-gfx:\t1000 ns
"""
AMDGPU_OLD = "drm-driver:\tamdgpu\ndrm-pdev:\t0000:06:00.0\ndrm-client-id:\t7\ndrm-memory-vram:\t2048 KiB\n"
XE = """drm-driver:\txe
drm-client-id:\t3
drm-pdev:\t0000:03:00.0
drm-total-system:\t0
drm-resident-system:\t0
drm-total-gtt:\t192 KiB
drm-resident-gtt:\t192 KiB
drm-total-vram0:\t23992 KiB
drm-shared-vram0:\t16 MiB
drm-resident-vram0:\t20 MiB
drm-total-stolen:\t8 MiB
drm-resident-stolen:\t8 MiB
drm-cycles-rcs:\t28257900
"""
I915 = """drm-driver: i915
drm-pdev: 0000:00:02.0
drm-client-id: 41
drm-total-system0: 12 MiB
drm-resident-system0: 8 MiB
drm-total-stolen-system0: 4 MiB
drm-engine-render: 9 ns
"""
INTEL_LOCAL = """drm-driver: i915
drm-pdev: 0000:03:00.0
drm-client-id: 1
drm-total-local0: 3 MiB
drm-total-system0: 1 MiB
"""


def test_parsing() -> None:
    text = AMDGPU.format(client=7, total=9000, vram=2048)
    assert fdinfo.parse(text) == Stats("amdgpu", "0000:06:00.0", 7, 2 << 20, 64 << 20)
    assert fdinfo.parse(AMDGPU_OLD) == Stats("amdgpu", "0000:06:00.0", 7, 2 << 20, 0)
    assert fdinfo.parse(XE) == Stats("xe", "0000:03:00.0", 3, 20 << 20, 192 << 10)
    assert fdinfo.parse(I915) == Stats("i915", "0000:00:02.0", 41, 0, 8 << 20)
    assert fdinfo.parse(INTEL_LOCAL) == Stats("i915", "0000:03:00.0", 1, 3 << 20, 1 << 20)
    # A driver that tells no memory is unknown, not empty.
    assert fdinfo.parse("drm-driver:\tnvidia-drm\ndrm-pdev:\t0000:01:00.0\n") == Stats(
        "nvidia-drm", "0000:01:00.0", None, None, None
    )
    assert fdinfo.parse("pos:\t0\nflags:\t02\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "drm-resident-vram: -1 KiB",
        "drm-resident-vram: 1 TiB",
        "drm-resident-vram: 1 KiB KiB",
        "drm-resident-vram:",
        "drm-resident-vram: 9223372036854775807 MiB",
        "drm-resident-vram: 99999999999999999999",
        "drm-resident-vram: ٣",
        "drm-resident-: 5",
        "drm-resident-" + "v" * 40 + ": 5",
        "drm-shared-vram: 5",
        "drm-resident-vram 5",
    ],
)
def test_lines_of_other_forms_are_left_out(line: str) -> None:
    found = fdinfo.parse(f"drm-driver: amdgpu\n{line}\n")
    assert found is not None
    assert (found.own, found.host) == (None, None)


@given(st.text(st.sampled_from("drm-resident:vam 0123KiB\n\t\0é٣"), max_size=80))
def test_any_text(text: str) -> None:
    fdinfo.parse(text)
    found = fdinfo.parse(f"drm-driver: x\n{text}")
    assert found is not None
    for value in (found.own, found.host):
        assert value is None or 0 <= value < 1 << 63


# --- looking -------------------------------------------------------------------------------------------------


class Tree:
    """A /proc of processes with open files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, pid: int, fd: int, target: str, text: str = "") -> None:
        for name in ("fd", "fdinfo"):
            (self.folder / str(pid) / name).mkdir(parents=True, exist_ok=True)
        (self.folder / str(pid) / "fd" / str(fd)).symlink_to(target)
        (self.folder / str(pid) / "fdinfo" / str(fd)).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    return Tree(tmp_path)


RENDER = "/dev/dri/renderD128"
SLOT = "0000:06:00.0"


def test_use_by_process(proc: Tree) -> None:
    proc.open(10, 3, RENDER, AMDGPU.format(client=7, total=1, vram=1024))
    proc.open(10, 4, RENDER, AMDGPU.format(client=7, total=1, vram=1024))  # dup(2)
    proc.open(10, 5, "/dev/dri/card1", AMDGPU.format(client=8, total=1, vram=2048))
    proc.open(10, 6, "/dev/null", AMDGPU.format(client=9, total=1, vram=4096))  # no device node: not read
    proc.open(11, 3, RENDER, AMDGPU.format(client=7, total=1, vram=1024))  # inherited
    proc.open(11, 9, "/dev/dri/renderD129", XE)
    proc.open(12, 3, "socket:[123]", "")
    (proc.folder / "meminfo").write_text("")
    (proc.folder / "self").symlink_to("10")
    found = fdinfo.usage(fdinfo.look())
    assert found.complete(SLOT) and not found.refused
    assert found.by_process() == {SLOT: {10: 3 << 20}, "0000:03:00.0": {11: 20 << 20}}
    assert found.of(SLOT, {11}) == 1 << 20
    assert found.others(SLOT, {11}) == 2 << 20
    assert found.of(SLOT, {10, 11}) == 3 << 20
    assert found.others(SLOT, {12}) == 3 << 20
    assert found.of(SLOT, {10}, host=True) == 128 << 20
    assert found.others("0000:03:00.0", set(), host=True) == 192 << 10
    assert fdinfo.usage(fdinfo.look({11, 99})).by_process() == {
        SLOT: {11: 1 << 20},
        "0000:03:00.0": {11: 20 << 20},
    }


def test_a_driver_that_tells_nothing_is_partly_unknown(proc: Tree) -> None:
    proc.open(10, 3, RENDER, "drm-driver:\tnvidia-drm\ndrm-pdev:\t0000:01:00.0\ndrm-client-id:\t1\n")
    found = fdinfo.usage(fdinfo.look())
    assert not found.complete("0000:01:00.0")
    assert found.complete(SLOT)
    assert found.by_process() == {"0000:01:00.0": {10: 0}}


def test_files_without_numbers_count_each(proc: Tree) -> None:
    text = "drm-driver:\tamdgpu\ndrm-pdev:\t0000:06:00.0\ndrm-memory-vram:\t1 MiB\n"
    proc.open(10, 3, RENDER, text)
    proc.open(10, 4, RENDER, text)
    assert fdinfo.usage(fdinfo.look()).of(SLOT, {10}) == 2 << 20


def test_it_ends_when_there_is_too_much(proc: Tree) -> None:
    for pid in (10, 11, 12):
        for fd in range(20):
            proc.open(pid, fd, RENDER, AMDGPU.format(client=f"{pid}{fd}", total=1, vram=1024))
    found = fdinfo.usage(fdinfo.look(files_max=45))
    assert found.cut and not found.complete(SLOT)
    assert found.by_process() == {SLOT: {10: 20 << 20, 11: 20 << 20}}
    assert fdinfo.usage(fdinfo.look(seconds=-1)).cut


def test_files_and_processes_that_go_meanwhile(proc: Tree) -> None:
    proc.open(10, 3, RENDER, AMDGPU_OLD)
    proc.open(10, 4, RENDER, AMDGPU_OLD)
    (proc.folder / "10/fdinfo/4").unlink()
    (proc.folder / "11").mkdir()
    (proc.folder / "12/fd").mkdir(parents=True)
    (proc.folder / "13/fd").mkdir(parents=True)
    (proc.folder / "13/fd/5").write_text("no link")
    (proc.folder / "14").write_text("no folder")
    found = fdinfo.usage(fdinfo.look())
    assert found.by_process() == {SLOT: {10: 2 << 20}}
    assert found.complete(SLOT)


def test_a_file_that_would_block_or_leads_to_itself(proc: Tree) -> None:
    proc.open(10, 3, RENDER, "")
    proc.open(10, 4, RENDER, "")
    (proc.folder / "10/fdinfo/3").unlink()
    os.mkfifo(proc.folder / "10/fdinfo/3")
    (proc.folder / "10/fdinfo/4").unlink()
    (proc.folder / "10/fdinfo/4").symlink_to("4")
    assert fdinfo.usage(fdinfo.look()).clients == {}


NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from syntrop.inferenced import fdinfo
os.setgroups([]); os.setgid(65534); os.setuid(65534)
found = fdinfo.usage(fdinfo.look())
print(found.refused > 0, found.cut, found.complete("0000:06:00.0"))
print(fdinfo.usage(fdinfo.look({os.getpid()})).complete("0000:06:00.0"), fdinfo.usage(fdinfo.look({2})).refused)
"""


@pytest.mark.root
def test_what_may_not_be_looked_into_is_unknown() -> None:
    """As a daemon without privileges, on this machine's processes."""
    source = Path(fdinfo.__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", NOBODY, str(source)], capture_output=True, text=True, timeout=60, check=False
    )
    lines = found.stdout.splitlines()
    assert lines and lines[0] == "True False False", found.stderr
    refused = int(lines[1].split()[1])
    assert lines[1].startswith("True ")
    try:
        kernels = "kthreadd" in Path("/proc/2/comm").read_text()
    except OSError:
        kernels = True  # a container has no such process
    assert refused == (0 if kernels else 1)
