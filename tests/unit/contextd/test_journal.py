# SPDX-License-Identifier: Apache-2.0
"""A real journal, read through libsystemd: what is new by cursor, the slice of an invocation, and the timeline."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntrop.common.sdjournal import Reader
from syntrop.contextd import context, happenings, imports, unitfiles
from syntrop.contextd.chronology import Event
from syntrop.contextd.context import Composer
from syntrop.contextd.keeper import Keeper, Options

DATA = Path(__file__).parents[2] / "data/journal/system.journal.xz"
BEGAN = 1_790_000_000_000_000  # when the first of its entries was logged
SECOND = 1_000_000
NOW = BEGAN + 200 * SECOND
FIRST_BOOT, SECOND_BOOT = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below a host's root, as `paths.host()` has it."""
    host = tmp_path_factory.mktemp("host")
    (host / "var/log/journal").mkdir(parents=True)
    (host / "var/log/journal/system.journal").write_bytes(lzma.decompress(DATA.read_bytes()))
    return host


@pytest.fixture
def reader(folder: Path) -> Iterator[Reader]:
    with Reader(str(folder / "var/log/journal")) as reader:
        yield reader


@pytest.fixture
def keeper(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """Whose clock stands at `NOW`."""
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(folder))
    for module in (imports, context):
        monkeypatch.setattr(module, "now_us", lambda: NOW)
    return again(tmp_path)


def again(tmp_path: Path) -> Keeper:
    keeper = Keeper(str(tmp_path / "state"), Options(("/etc",)))
    keeper.open()
    return keeper


def take_in(keeper: Keeper) -> list[Event]:
    with keeper.lock.urgent, keeper.journals.open() as reader:
        return keeper.take_in(reader)


def test_everything_notable_is_recorded_once_with_its_time_and_boot(tmp_path: Path, keeper: Keeper) -> None:
    events = take_in(keeper)
    told = [
        ((event.time_us - BEGAN) // SECOND, event.source, event.extra.get("k"), event.unit) for event in events
    ]
    assert told == [
        (1, "machine", "boot", None),
        (2, "unit", "started", "web.service"),
        (40, "machine", "shutdown", None),
        (60, "machine", "boot", None),
        (62, "unit", "started", "web.service"),
        (95, "kernel", "oom", "web.service"),
        (96, "kernel", "gpu", None),
        (97, "kernel", "io", None),
        (98, "coredump", "coredump", "web.service"),
        (99, "unit", "exited", "web.service"),
        (100, "unit", "failed", "web.service"),
        (101, "package", None, None),
    ]
    assert [event.boot for event in events] == [FIRST_BOOT] * 3 + [SECOND_BOOT] * 9
    by_kind = {event.extra.get("k"): event for event in events}
    assert by_kind["oom"].summary == "kernel: out of memory, killed web (process 700) of web.service"
    assert by_kind["coredump"].summary == "/usr/sbin/web (process 701) dumped core on SIGABRT"
    assert keeper.chronology.details(by_kind["coredump"]) == "#0  0x0 raise (libc.so.6)\n#1  0x1 main (web)"
    assert by_kind["failed"].extra["result"] == "core-dump"
    package = events[-1].extra
    assert (package["a"], package["n"], package["r"]) == ("upgrade", "org.my-app.App", "x86_64")
    assert (package["v"], package["o"]) == ("stable " + "c" * 12, "stable " + "d" * 12)
    assert take_in(keeper) == []
    # As after a crash: recorded, and the place up to which was read is lost.
    (tmp_path / "state/progress.json").unlink()
    assert take_in(again(tmp_path)) == []


def test_a_slice_is_of_the_latest_invocation_and_the_newest_of_it(reader: Reader) -> None:
    entries = imports.invocation(reader, "web.service", 6)
    assert [entry.get("MESSAGE") for entry in entries] == [
        "second run, request 26",
        "second run, request 27",
        "second run, request 28",
        "second run, request 29",
        "web.service: Main process exited, code=dumped, status=6/ABRT",
        "web.service: Failed with result 'core-dump'.",
    ]
    assert {entry.boot for entry in entries} == {SECOND_BOOT}
    assert [entry.time_us for entry in entries] == sorted(entry.time_us for entry in entries)
    assert len(imports.invocation(reader, "web.service", 1000)) == 33  # nothing of the first run
    assert imports.invocation(reader, "none.service", 5) == []


def test_reading_goes_on_behind_a_cursor(reader: Reader) -> None:
    reader.match({"_SYSTEMD_UNIT": "web.service"})
    reader.seek_time(BEGAN + 10 * SECOND)
    first, second = list(reader.forwards(("MESSAGE",), 2))
    assert [first.get("MESSAGE"), second.get("MESSAGE")] == ["first run, request 7", "first run, request 8"]
    assert reader.seek_after(first.cursor)
    assert reader.seek_after(second.cursor)
    assert [one.get("MESSAGE") for one in reader.forwards(("MESSAGE",), 1)] == ["first run, request 9"]


def test_all_that_an_event_is_made_of_is_read(reader: Reader) -> None:
    """The few fields that are asked for give the same event as all of them would."""
    names = {name for kind in ("", *happenings.MESSAGE_IDS) for name in happenings.fields(kind)}
    reader.match(*happenings.matches())
    reader.seek_time(0)
    count = 0
    while reader.next():
        some = happenings.notable(reader.entry(happenings.fields(reader.field("MESSAGE_ID") or "")))
        every = happenings.notable(reader.entry(names))
        assert (some is None) == (every is None)
        if some is not None and every is not None:
            count += 1
            assert (some.summary, some.unit, some.details, some.extra) == (
                every.summary, every.unit, every.details, every.extra,
            )  # fmt: skip
    assert count == 12


def test_the_timeline_of_a_breakdown(keeper: Keeper) -> None:
    told = Composer(keeper).compose("web.service", 86400 * SECOND, operator=True)
    # The breakdown began with what the kernel did; its consequences come after it.
    assert told["failed_us"] == BEGAN + 95 * SECOND
    first = told["events"][0]
    assert first["summary"] == "kernel: out of memory, killed web (process 700) of web.service"
    assert first["reason"].startswith("the kernel acted on web.service, ")
    assert [entry["message"] for entry in told["entries"]][-1] == "web.service: Failed with result 'core-dump'."
    assert len(told["entries"]) == context.ENTRIES_MAX
    stranger = Composer(keeper).compose("web.service", 86400 * SECOND, operator=False)
    assert "entries" not in stranger
    secret = {one["source"] for one in stranger["events"] if one["details"] is not None}
    assert not secret & {"kernel", "coredump"}
    assert unitfiles.is_name(told["unit_name"])
