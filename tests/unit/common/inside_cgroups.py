# SPDX-License-Identifier: Apache-2.0
"""Runs in a mount namespace of its own, as root: the real unified hierarchy, one group of ours in it.

`python inside_cgroups.py MOUNTPOINT`; `test_cgroup.py` starts it and expects `ok` as the last line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from syntrop.common import cgroup, loop, psi


def busy(group: cgroup.Group) -> subprocess.Popen[bytes]:
    """A child and its grandchild that count, both in `group`: the child forks only once it is in there."""
    script = "read _; while :; do :; done & while :; do :; done"
    child = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE)
    assert child.stdin is not None
    group.add(child.pid)
    child.stdin.write(b"\n")
    child.stdin.close()
    return child


def ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


async def freeze_and_thaw(group: cgroup.Group) -> None:
    child = busy(group)
    try:
        assert cgroup.of_pid(child.pid) == group
        assert child.pid in group.pids()
        assert group.is_populated() and not group.is_frozen()
        started = time.monotonic()
        await group.freeze(timeout=60)
        print(f"frozen in {(time.monotonic() - started) * 1000:.2f} ms")
        assert group.is_frozen()
        before = ticks(child.pid)
        await loop.sleep(0.2)
        assert ticks(child.pid) == before
        await group.freeze(timeout=60)  # again: nothing to wait for
        await group.thaw(timeout=60)
        assert not group.is_frozen()
        with loop.deadline(60):
            while ticks(child.pid) == before:
                await loop.sleep(0.01)
        assert group.cpu_stat()["usage_usec"] > 0
        assert group.pressure("cpu").some.total >= 0
        await group.freeze(timeout=60)
        await group.kill(timeout=60)  # a frozen group dies all the same
        assert not group.is_populated()
        await group.thaw(timeout=60)
    finally:
        child.kill()
        child.wait()


async def a_frozen_parent_keeps_its_children(group: cgroup.Group) -> None:
    inner = group.child("inner")
    child = busy(inner)
    try:
        await group.freeze(timeout=60)
        assert inner.is_frozen()
        with pytest.raises(cgroup.NotInTime):
            await inner.thaw(timeout=0.1)
        await group.thaw(timeout=60)
        with pytest.raises(cgroup.CgroupError, match="still holds"):
            inner.remove()
        await group.kill(timeout=60)
    finally:
        child.kill()
        child.wait()
    inner.remove()
    inner.remove()


async def a_removed_group_ends_its_waits(group: cgroup.Group) -> None:
    doomed = group.child("doomed")
    lost = loop.Event()
    trigger = psi.Trigger("cpu", lambda: None, group=doomed.folder, lost=lost.set)
    doomed.remove()
    with loop.deadline(60):
        await lost.wait()
    assert trigger.fileno() == -1
    for act in (doomed.freeze, doomed.thaw, doomed.kill):
        with pytest.raises(cgroup.NoSuchGroup):
            await act(timeout=60)
    with pytest.raises(cgroup.NoSuchGroup):
        doomed.events()
    with pytest.raises(cgroup.NoSuchGroup):
        doomed.add(0)
    with pytest.raises(psi.PressureUnavailable):
        doomed.pressure("cpu")


async def own_group_and_delegation(group: cgroup.Group) -> None:
    home = cgroup.of_pid(0)
    group.add(0)
    try:
        with pytest.raises(cgroup.WouldFreezeSelf):
            await group.freeze()
        assert cgroup.delegated_subtree() == group
        assert cgroup.of_pid(0).path == group.path + "/main"
        assert cgroup.delegated_subtree() == group
        with pytest.raises(cgroup.WouldFreezeSelf):
            await group.freeze()
        worker = group.child("worker")
        await worker.freeze(timeout=60)
        assert worker.is_frozen()
        await worker.thaw(timeout=60)
        worker.remove()
        with pytest.raises(cgroup.ControllerUnavailable, match="memory"):
            group.enable("memory")
    finally:
        home.add(0)
    group.child("main").remove()


async def files_of_missing_controllers(group: cgroup.Group) -> None:
    for read in (group.memory_current, group.memory_max, group.pids_current, group.io_stat, group.cpu_max):
        with pytest.raises(cgroup.ControllerUnavailable):
            read()


async def units_are_found(group: cgroup.Group) -> None:
    outer = group.child("syntroptest.slice")
    inner = outer.child(f"syntroptest-{os.getpid()}.slice")
    service = inner.child("echo@1.service")
    try:
        assert service.unit() is None  # `group` itself is no slice, so the path leads through no unit
    finally:
        for one in (service, inner, outer):
            one.remove()


async def main() -> None:
    before = len(os.listdir("/proc/self/fd"))
    group = cgroup.Group("/").child(f"syntrop-test-{os.getpid()}")
    try:
        for step in (
            freeze_and_thaw,
            a_frozen_parent_keeps_its_children,
            a_removed_group_ends_its_waits,
            own_group_and_delegation,
            files_of_missing_controllers,
            units_are_found,
        ):
            await step(group)
    finally:
        await group.kill(timeout=60)
        group.remove()
    with pytest.raises(cgroup.WouldFreezeSelf):
        await cgroup.Group("/").freeze()
    assert len(os.listdir("/proc/self/fd")) == before


if __name__ == "__main__":
    sys_root = sys.argv[1]
    os.makedirs(os.path.join(sys_root, "fs", "cgroup"))
    subprocess.run(["mount", "-t", "cgroup2", "none", os.path.join(sys_root, "fs", "cgroup")], check=True)
    os.environ["SYNTROP_SYS_ROOT"] = sys_root
    loop.run(main())
    print("ok")
