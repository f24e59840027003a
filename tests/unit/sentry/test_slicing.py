# SPDX-License-Identifier: Apache-2.0
"""What is read of a failure: a real journal by its indexes, properties, counters, copies."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.sentry import causes, evidence, measures, signatures, slicing
from syntrop.sentry.evidence import Change, Evidence, Exit
from syntrop.sentry.excerpts import Excerpts
from syntrop.sentry.slicing import Slicer

DATA = Path(__file__).parents[2] / "data/journal/failures.journal.xz"
KEY = b"k" * 32
SECOND = 1_000_000
BEFORE, FAILED, RUNNING = "1" * 32, "2" * 32, "3" * 32
STARTED_US = 20 * SECOND


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    (folder / "system.journal").write_bytes(lzma.decompress(DATA.read_bytes()))
    return folder


@pytest.fixture(autouse=True)
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot of the journal, and a machine without pressure files."""
    place = tmp_path / "proc/sys/kernel/random/boot_id"
    place.parent.mkdir(parents=True)
    place.write_text("bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb\n")
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path / "proc"))
    monkeypatch.setenv("SYNTROP_SYS_ROOT", str(tmp_path / "sys"))


@pytest.fixture
def excerpts(folder: Path) -> Iterator[Excerpts]:
    excerpts = Excerpts(str(folder))
    yield excerpts
    excerpts.close()


def messages(entries: list[dict[str, str]]) -> list[str]:
    return [one["MESSAGE"] for one in entries]


def test_the_failed_invocation_is_told_and_nothing_else(excerpts: Excerpts) -> None:
    found = excerpts.read("web.service", FAILED, STARTED_US)
    told = messages(found.entries)
    assert found.missing == "" and found.ended
    assert told[-2:] == [
        "web.service: Main process exited, code=killed, status=11/SEGV",
        "web.service: Failed with result 'signal'.",
    ]
    # A flood of its own is cut, and pushes out neither the manager nor the kernel.
    assert [one for one in told if one.startswith("request ")] == [f"request {n}" for n in range(37, 100)]
    assert "Started web.service." in told
    assert "last words, by a process that was gone" in told
    assert "web.service: Failed at step EXEC spawning /usr/bin/x: No such file or directory" in told
    assert any("10-x.conf:2: Unknown key" in one for one in told)
    for foreign in ("earlier", "another boot", "runs again", "forged", "not about it", "before it started", "usb"):
        assert not [one for one in told if foreign in one], foreign


def test_the_kernels_words_are_those_about_its_processes(excerpts: Excerpts) -> None:
    told = messages(excerpts.read("web.service", FAILED, STARTED_US).entries)
    assert [one.split(":")[0] for one in told if "segfault" in one] == ["web[700]"]
    assert [one for one in told if one.startswith("oom-kill:")]


def test_an_invocation_is_found_without_its_start(excerpts: Excerpts) -> None:
    """It was started again since, so the manager tells another one's times."""
    found = excerpts.read("web.service", FAILED)
    assert found.ended
    told = messages(found.entries)
    assert told[-1] == "web.service: Failed with result 'signal'."
    assert "Started web.service." in told
    assert not [one for one in told if "earlier" in one or "runs again" in one]


def test_entries_are_in_order_and_cite_themselves(excerpts: Excerpts) -> None:
    entries = excerpts.read("web.service", FAILED, STARTED_US).entries
    times = [int(one["__MONOTONIC_TIMESTAMP"]) for one in entries]
    assert times == sorted(times)
    assert len({one["__CURSOR"] for one in entries}) == len(entries)


def test_the_core_dump_is_the_one_of_the_invocation(excerpts: Excerpts) -> None:
    found = excerpts.read("web.service", FAILED, STARTED_US)
    dumps = [evidence.coredump(1, one, KEY) for one in found.coredumps]
    assert [(one.executable, one.signal, one.frames) for one in dumps] == [
        ("/usr/bin/web", "SIGSEGV", ("#0  0x1 in main ()",))
    ]
    assert excerpts.read("web.service", RUNNING, 30 * SECOND).coredumps == []


def test_a_unit_that_never_started_is_told_of(excerpts: Excerpts) -> None:
    found = excerpts.read("app.service", "")
    assert messages(found.entries) == ["Dependency failed for app.service - App."]
    assert found.ended


def test_the_end_is_seen_as_soon_as_it_is_there(excerpts: Excerpts) -> None:
    assert excerpts.ended("web.service", FAILED)
    assert excerpts.ended("app.service", "")
    assert not excerpts.ended("web.service", RUNNING)
    assert not excerpts.ended("absent.service", "")


def test_the_kernels_lines_of_late(excerpts: Excerpts) -> None:
    told = messages(excerpts.kernel(STARTED_US))
    assert len(told) == 4 and told[-1].startswith("usb ")
    assert messages(excerpts.kernel(0, limit=1)) == told[-1:]


def test_no_journal_is_said(tmp_path: Path) -> None:
    found = Excerpts(str(tmp_path / "absent")).read("web.service", FAILED)
    assert found.entries == [] and "journal cannot be read" in found.missing


# The whole, over a manager that is a table.


class Table:
    def __init__(self, **units: dict[str, Any]) -> None:
        self.known = {f"{name}.service": properties for name, properties in units.items()}

    async def unit(self, name: str) -> dict[str, Any]:
        return dict(self.known.get(name, {"Id": name, "LoadState": "not-found"}))

    async def units(self, names: list[str], wanted: object = None) -> dict[str, dict[str, Any]]:
        return {name: await self.unit(name) for name in names}

    async def states(self, names: list[str]) -> dict[str, str]:
        return {name: self.known.get(name, {}).get("ActiveState", "inactive") for name in names}


CRASHED = {
    "Id": "web.service",
    "LoadState": "loaded",
    "ActiveState": "failed",
    "Type": "simple",
    "Result": "signal",
    "ExecMainCode": 2,
    "ExecMainStatus": 11,
    "ExecMainPID": 700,
    "InvocationID": FAILED,
    "InactiveExitTimestampMonotonic": STARTED_US,
    "StateChangeTimestampMonotonic": 22 * SECOND + 8,
    "Requires": ["db.service", "sysinit.target", "system.slice"],
    "BindsTo": ["db.service"],
}


def sliced(folder: Path, table: Table, unit: str = "web.service", **more: Any) -> slicing.Slice:
    async def main() -> slicing.Slice:
        slicer = Slicer(str(folder))
        try:
            return await slicer(table, unit, KEY, **more)  # type: ignore[arg-type]
        finally:
            slicer.close()

    return loop.run(main())


def test_a_slice_is_what_evidence_takes(folder: Path) -> None:
    table = Table(web=CRASHED, db={"ActiveState": "failed", "Result": "exit-code"})
    taken = sliced(folder, table)
    assert taken.missing == ()
    assert taken.properties["InvocationID"] == FAILED
    found = Evidence("web.service", **taken.arguments())
    assert found.invocation == FAILED
    assert found.exit == Exit("signal", "killed", 11)
    assert found.failed_us == 1_790_000_000_000_000 + 22 * SECOND + 8
    assert [(one.unit, one.active, one.result, one.relation) for one in found.neighbours] == [
        ("db.service", "failed", "exit-code", "requires")
    ]
    assert len({one.id for one in found._all()}) == len(list(found._all()))
    assert causes.candidates(found, signatures.scan(found))


def test_what_was_started_again_since_is_told_from_the_journal(folder: Path) -> None:
    now = {**CRASHED, "ActiveState": "active", "Result": "success", "InvocationID": RUNNING, "ExecMainCode": 0,
           "InactiveExitTimestampMonotonic": 30 * SECOND}  # fmt: skip
    taken = sliced(folder, Table(web=now), invocation=FAILED).arguments()
    assert taken["exit"] == Exit("signal", "killed", 11)
    assert taken["facts"].active == "active"
    found = Evidence("web.service", **taken)
    assert causes.candidates(found, signatures.scan(found))[0].fault_class == signatures.RECOVERED


def test_a_unit_that_is_not_there(folder: Path) -> None:
    taken = sliced(folder, Table(), "absent.service").arguments()
    assert (taken["facts"].load, taken["exit"].result, taken["entries"]) == ("not-found", "", [])
    assert taken["failed_us"] is None


def test_slices_side_by_side_take_turns_and_one_that_was_given_up_does_not_disturb(folder: Path) -> None:
    async def main() -> list[int]:
        slicer = Slicer(str(folder))
        table = Table(web=CRASHED)
        given_up = loop.spawn(slicer(table, "web.service", KEY))  # type: ignore[arg-type]
        await loop.sleep(0)
        given_up.cancel()
        work = [slicer(table, "web.service", KEY) for _ in range(8)]  # type: ignore[arg-type]
        taken = await loop.gather(*work)
        slicer.close()
        return [len(one.arguments()["entries"]) for one in taken]

    counts = loop.run(main())
    assert len(counts) == 8 and len(set(counts)) == 1 and counts[0] > 64


def test_how_it_ended_where_only_the_journal_tells() -> None:
    said = [
        {"_PID": "1", "MESSAGE_ID": "98e322203f7a4ed290d09fe03c09fe15", "EXIT_CODE": "exited", "EXIT_STATUS": "7"},
        {"_PID": "900", "UNIT_RESULT": "oom-kill"},
        {"_PID": "1", "UNIT_RESULT": "exit-code"},
    ]
    assert slicing.leaving({}, said) == Exit("exit-code", "exited", 7)
    # A program before the main one failed: the manager tells the result and no process.
    assert slicing.leaving({"Result": "exit-code", "ExecMainCode": 0}, said) == Exit("exit-code", "exited", 7)
    assert slicing.leaving({"Result": "success"}, said) == Exit("success", "", 0)
    assert slicing.leaving({}, []) is None
    # A unit that was collected: what the manager tells of it is of one that never was.
    stub = {"LoadState": "not-found", "ActiveState": "inactive", "Result": "success", "ExecMainCode": 0}
    assert slicing.leaving(stub, said) == Exit("exit-code", "exited", 7)
    assert slicing.leaving(stub, []) == Exit("success", "", 0)
    # One whose file is gone, and which is there still.
    failed = {"LoadState": "not-found", "Result": "signal", "ExecMainCode": 2, "ExecMainStatus": 11}
    assert slicing.leaving(failed, said) == Exit("signal", "killed", 11)
    named = [{"_PID": "1", "MESSAGE_ID": said[0]["MESSAGE_ID"], "EXIT_CODE": "killed", "EXIT_STATUS": "SEGV"}]
    assert slicing.leaving({}, named) == Exit("", "killed", 11)


def test_copies_are_older_than_the_change_and_lie_beside_it(tmp_path: Path) -> None:
    for name, age in (("app.conf", 0), ("app.conf~", 50), ("app.conf.bak", 30), ("app.conf.orig", -10)):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "app.conf.old").symlink_to("app.conf")

    def copies(path: Path, time_us: int) -> dict[str, str]:
        return slicing.copies([Change("d1", path=str(path), time_us=time_us, diff="")])

    changed = tmp_path / "app.conf"
    assert copies(changed, 1000 * SECOND) == {str(changed): "app.conf.bak"}
    assert copies(changed, 960 * SECOND) == {str(changed): "app.conf~"}
    assert copies(changed, 10 * SECOND) == {}
    assert copies(tmp_path / "nothing", 1000 * SECOND) == {}


# Counters.


def test_events_of_a_group_that_stands_and_of_one_that_is_gone(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/system.slice/web.service"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nmax 12\noom 3\noom_kill 2\n")
    properties = {"ControlGroup": "/system.slice/web.service"}
    found = {one.name: one.value for one in measures.counters(properties)}
    assert found["memory.events oom_kill"] == 2 and found["memory.events low"] == 0
    for gone in ("/system.slice/x.service", "", "/../../etc", "relative"):
        assert measures.events(gone) == {}


def test_the_folders_of_a_unit() -> None:
    properties = {
        "StateDirectory": ["app", "app/more:linked"],
        "CacheDirectory": ["app"],
        "WorkingDirectory": "!/srv/app",
        "ReadWritePaths": ["-/data", "+relative"],
    }
    found = measures.folders(properties)
    assert found == ["/var/lib/app", "/var/lib/app/more", "/var/cache/app", "/srv/app", "/data"]
    assert measures.folders({"WorkingDirectory": "/"}) == []


def test_a_file_system_with_room_is_not_full(tmp_path: Path) -> None:
    assert measures.spaces([str(tmp_path), str(tmp_path / "absent")]) == []


def test_a_full_file_system_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_blocks, f_bavail, f_bfree, f_files, f_favail, f_ffree = 100, 0, 5, 0, 0, 0

    monkeypatch.setattr(os, "statvfs", lambda _path: Full)
    (tmp_path / "deeper").mkdir()
    assert measures.spaces([str(tmp_path), str(tmp_path / "deeper")]) == [f"free_bytes {tmp_path}"]
    Full.f_bfree = (
        0  # not even root has room: on an image, which is full by nature, and on a disk that is filled up
    )
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    line = f"36 35 {number} / / rw,noatime master:1 - ext4 /dev/sda1 {{}},errors=continue\n"
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir()
    mounts.write_text(line.format("ro"))
    assert measures.spaces([str(tmp_path)]) == []
    mounts.write_text(line.format("rw"))
    assert measures.spaces([str(tmp_path)]) == [f"free_bytes {tmp_path}"]
