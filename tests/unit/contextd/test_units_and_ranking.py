# SPDX-License-Identifier: Apache-2.0
"""Unit files of a small machine, and the timeline that is made of what happened on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.contextd import context, difference, ranking, unitfiles
from syntrop.contextd.chronology import Event
from syntrop.contextd.elf import Libraries
from syntrop.contextd.ownership import Owners
from syntrop.contextd.unitfiles import Unit, is_name, load

SECOND = 1_000_000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    return tmp_path  # type: ignore[return-value]


def write(root: Path, inside: str, text: str = "") -> None:
    path = root / inside.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_unit_s_files_and_what_they_name(root: Path) -> None:
    write(
        root,
        "/usr/lib/systemd/system/web@.service",
        "[Unit]\nRequires=db.service\nAfter=net.target \\\n  db.service\n# ExecStart=/no\n[Service]\n"
        "ExecStartPre=-/usr/bin/check\nExecStart=@/usr/sbin/web web --conf=/etc/web/%i.conf -f /opt/w.ini\n"
        "EnvironmentFile=-/etc/default/%p\nReadOnlyPaths=-/srv/data /srv/more\n",
    )
    write(root, "/etc/systemd/system/web@a.service.d/one.conf", "[Service]\nEnvironmentFile=/etc/web/env\n")
    write(root, "/run/systemd/system/web@.service.d/two.conf")
    write(root, "/etc/systemd/system/service.d/all.conf")
    write(root, "/etc/systemd/system/web@a.service.d/ignored.txt")
    (root / "etc/systemd/system/multi-user.target.wants").mkdir()
    (root / "etc/systemd/system/multi-user.target.wants/web@a.service").symlink_to(
        "/usr/lib/systemd/system/web@.service"
    )
    (root / "etc/systemd/system/web@a.service.wants").mkdir()
    (root / "etc/systemd/system/web@a.service.wants/log.service").symlink_to("/x")
    unit = load("web@a.service")
    assert unit.fragment == "/usr/lib/systemd/system/web@.service"
    assert unit.files == {
        "/usr/lib/systemd/system/web@.service": "unit file",
        "/etc/systemd/system/web@a.service.d/one.conf": "drop-in",
        "/run/systemd/system/web@.service.d/two.conf": "drop-in",
        "/etc/systemd/system/service.d/all.conf": "drop-in",
        "/etc/systemd/system/multi-user.target.wants/web@a.service": "link that enables",
    }
    assert unit.named == {
        "/usr/bin/check": "program",
        "/usr/sbin/web": "program",
        "/etc/web/a.conf": "configuration",
        "/opt/w.ini": "configuration",
        "/etc/default/web": "environment file",
        "/etc/web/env": "environment file",
        "/srv/data": "configuration",
        "/srv/more": "configuration",
    }
    assert unit.dependencies == {
        "db.service": "requires",
        "net.target": "starts after",
        "log.service": "wants",
    }


def test_stronger_folders_aliases_and_dashes(root: Path) -> None:
    write(root, "/usr/lib/systemd/system/a-b-c.service", "[Service]\nExecStart=/weak\n")
    write(root, "/etc/systemd/system/a-b-c.service", "[Service]\nExecStart=/strong\n")
    write(root, "/etc/systemd/system/a-.service.d/x.conf")
    write(root, "/etc/systemd/system/a-b-.service.d/y.conf")
    (root / "etc/systemd/system/other.service").symlink_to("a-b-c.service")
    unit = load("other.service")
    assert unit.aliases == {"other.service", "a-b-c.service"}
    assert unit.programs == ["/strong"]
    assert set(unit.files) == {
        "/etc/systemd/system/other.service",
        "/etc/systemd/system/a-b-c.service",
        "/etc/systemd/system/a-.service.d/x.conf",
        "/etc/systemd/system/a-b-.service.d/y.conf",
    }
    index = unitfiles.Index()
    assert set(unitfiles.all_names(index)) == {"other.service", "a-b-c.service"}


def test_a_unit_without_files(root: Path) -> None:
    unit = load("none.service")
    assert (unit.files, unit.named, unit.dependencies, unit.fragment) == ({}, {}, {}, None)


@pytest.mark.parametrize(
    "name", ["../x.service", "a/b.service", ".service", "a b.service", "x", "x.conf", "a\n.service"]
)
def test_what_is_no_unit_name(name: str) -> None:
    assert not is_name(name)


@given(st.text(max_size=200))
def test_any_text_is_a_unit_file(text: str) -> None:
    for section, name, value in unitfiles.settings(text):
        assert isinstance(section + name + value, str)
    unit = Unit("x.service")
    unitfiles._collect(unit, f"[Service]\nExecStart={text}", "/x")


# --- ranking -----------------------------------------------------------------------------------------------


def event(number: int, seconds: float, source: str, unit: str | None = None, **extra: Any) -> Event:
    head = {"n": number, "t": int(seconds * SECOND), "s": source, "m": f"event {number}", "u": unit, "x": extra}
    return Event(number, head, False, "", 0)


def surroundings(relation: Any = lambda event: None) -> ranking.Surroundings:
    unit = Unit("web.service")
    unit.files = {"/etc/systemd/system/web.service.d/x.conf": unitfiles.DROP_IN}
    unit.named = {"/usr/sbin/web": unitfiles.PROGRAM, "/etc/web/web.conf": unitfiles.CONFIGURATION}
    unit.dependencies = {"db.service": "requires"}
    database = Unit("db.service")
    database.named = {"/etc/db.ini": unitfiles.CONFIGURATION}
    return ranking.Surroundings(unit, {"db.service": database}, relation)


def order(events: list[Event], failed: float | None = 1000.0) -> list[int]:
    at = None if failed is None else int(failed * SECOND)
    return [item.event.number for item in ranking.rank(surroundings(), events, at, 2000 * SECOND, 50)]


def test_structure_and_time_decide_together() -> None:
    events = [
        event(1, 999, "file", path="/etc/unrelated"),
        event(2, 400, "file", path="/etc/systemd/system/web.service.d/x.conf"),
        event(3, 990, "file", path="/etc/web/web.conf"),
        event(4, 990, "file", path="/etc/db.ini"),
        event(5, 995, "unit", "db.service", k="failed"),
        event(6, 1000, "unit", "web.service", k="failed"),
        event(7, 1001, "file", path="/etc/systemd/system/web.service.d/x.conf"),
        event(8, 998, "package", n="unrelated", v="1"),
        event(9, 999, "unit", "stranger.service", k="failed"),
    ]
    found = order(events)
    assert found[:2] == [3, 5]
    assert 9 not in found
    assert found.index(2) < found.index(1)
    assert found.index(2) < found.index(7)
    assert found.index(6) < found.index(1)


def test_what_touched_the_unit_yesterday_is_before_what_touched_another_now() -> None:
    events = [event(1, 999, "file", path="/etc/x"), event(2, 1000 - 86400, "file", path="/etc/web/web.conf")]
    assert order(events) == [2, 1]


def test_every_item_has_a_reason() -> None:
    events = [
        event(1, 990, "file", path="/etc/web/web.conf"),
        event(2, 999, "kernel", "web.service", k="oom"),
        event(3, 990, "kernel", k="io"),
        event(4, 1005, "coredump", "web.service", k="coredump"),
        event(5, 990, "machine", k="boot"),
        event(6, 990, "file", path="/etc/web/other.conf"),
    ]
    items = ranking.rank(surroundings(), events, 1000 * SECOND, 0, 50)
    reasons = {item.event.number: item.reason for item in items}
    assert reasons[1] == "configuration of web.service, 10 s before it failed"
    assert reasons[2] == "the kernel acted on web.service, 1 s before it failed"
    assert reasons[3] == "a device or file system failed, 10 s before it failed"
    assert reasons[4] == "a process of web.service crashed, 5 s after it failed"
    assert reasons[6].startswith("beside the configuration of web.service")
    assert len(items) == 6
    assert items[0].event.number == 2


def test_a_breakdown_begins_with_its_first_failure() -> None:
    def failed(seconds: float) -> Event:
        return event(1, seconds, "unit", "web.service", k="failed")

    assert ranking.failure_time("web.service", []) is None
    assert (
        ranking.failure_time("web.service", [failed(5000), failed(5005), failed(5300), failed(100)])
        == 5000 * SECOND
    )
    assert ranking.failure_time("other.service", [failed(5000)]) is None


def test_the_context_in_a_few_words(root: Path) -> None:
    write(root, "/etc/systemd/system/web.service", "[Service]\n")
    unit = load("web.service")
    change = ranking.Item(
        event(1, 990, "file", path="/etc/web/web.conf"), 0.8, "configuration, 10 s before it failed"
    )
    package = ranking.Item(event(2, 980, "package", n="web"), 0.5, "package")
    failure = event(3, 1000, "unit", "web.service", k="failed", result="exit-code")
    told = context.summarise(unit, [change, package, package], 1000 * SECOND, [failure])
    cause = "Likeliest cause: event 1 (configuration, 10 s before it failed)."
    assert told.startswith("web.service failed at ") and f" (exit-code). {cause}" in told
    assert told.endswith("In all 1 file and 2 packages changed.")
    change.reason = "configuration, 10 s ago"
    assert context.summarise(unit, [change], None, []) == (
        "web.service has not failed in this time. Nearest change: event 1 (configuration, 10 s ago)."
        " In all 1 file and 0 packages changed."
    )
    assert context.summarise(unit, [], None, []) == (
        "web.service has not failed in this time. Nothing that is near to it changed."
    )
    assert context.summarise(Unit("none.service"), [change], None, []) == (
        "There is no file of a unit none.service, and nothing is on record of it."
    )


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_nearer_in_time_is_never_less(one: int, other: int) -> None:
    near, far = sorted((one, other))
    assert 0 < ranking.temporal(far) <= ranking.temporal(near) <= 1


def test_packages_of_programs_and_of_their_libraries(root: Path) -> None:
    (root / "usr/sbin").mkdir(parents=True)
    shutil.copy("/bin/ls", root / "usr/sbin/web")
    unit = Unit("web.service")
    unit.named = {"/usr/sbin/web": unitfiles.PROGRAM}
    write(root, "/var/lib/dpkg/info/web-server.list", "/.\n/usr/sbin\n/sbin/web\n")
    write(root, "/var/lib/dpkg/info/libc6:amd64.list", "/lib/x86_64-linux-gnu/libc.so.6\n")
    write(root, "/var/lib/dpkg/info/tzdata.list", "/usr/share/zoneinfo\n")
    owners = Owners(Libraries())

    def relation(name: str, architecture: str) -> Any:
        return owners.relation(unit, event(1, 1, "package", n=name, r=architecture, v="1"))

    assert relation("web-server", "amd64") == (0.85, "package of /usr/sbin/web, the program of web.service")
    assert relation("libc6", "amd64") == (0.75, "package of libc.so.6, which /usr/sbin/web loads")
    assert relation("tzdata", "all") is None
    assert relation("../../x", "all") is None


def test_libraries_are_read_from_the_program() -> None:
    libraries = Libraries()
    assert "libc.so.6" in libraries.of("/bin/ls")
    assert libraries.of("/etc/passwd") == set()
    assert libraries.of("/nonexistent") == set()


# --- differences -------------------------------------------------------------------------------------------

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=14).map("\n".join)


@given(TEXTS, TEXTS)
def test_a_diff_is_what_patch_takes(old: str, new: str) -> None:
    diff = difference.unified(old, new, "/x")
    assert (diff == "") == (old == new)
    assert apply(old, diff) == new


def apply(old: str, diff: str) -> str:
    """An independent patch(1) of a few lines: lines carry their ends, which a backslash row takes away."""
    rows: list[str] = []
    for row in diff.split("\n")[2:-1]:
        if row.startswith("\\"):
            rows[-1] = rows[-1][:-1]
        else:
            rows.append(row + "\n")
    lines = old.split("\n")
    before = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    out: list[str] = []
    at = 0
    for row in rows:
        if row.startswith("@@"):
            start, _, count = row.split(" ")[1][1:].partition(",")
            first = int(start) - (count != "0")
            out += before[at:first]
            at = first
        elif row.startswith("+"):
            out.append(row[1:])
        else:
            assert before[at] == row[1:]
            out += [before[at]] if row.startswith(" ") else []
            at += 1
    return "".join(out + before[at:])


def test_a_diff_reads_as_usual() -> None:
    old = "".join(f"line {n}\n" for n in range(20))
    new = old.replace("line 5\n", "line five\n").replace("line 15\n", "")
    assert difference.unified(old, new, "/etc/x") == (
        "--- a/etc/x\n+++ b/etc/x\n"
        "@@ -3,7 +3,7 @@\n line 2\n line 3\n line 4\n-line 5\n+line five\n line 6\n line 7\n line 8\n"
        "@@ -13,7 +13,6 @@\n line 12\n line 13\n line 14\n-line 15\n line 16\n line 17\n line 18\n"
    )
    assert difference.unified("", "a\n", "/x", created=True) == "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n"
    assert difference.unified("a", "a\n", "/x").endswith("-a\n\\ No newline at end of file\n+a\n")


def test_a_unit_file_that_is_none_is_not_read(root: Path) -> None:
    write(root, "/etc/systemd/system/odd.service.d/ok.conf", "[Service]\nEnvironmentFile=/etc/ok\n")
    os.mkfifo(root / "etc/systemd/system/odd.service")
    os.mkfifo(root / "etc/systemd/system/odd.service.d/fifo.conf")
    (root / "etc/systemd/system/odd.service.d/device.conf").symlink_to("/dev/zero")
    (root / "etc/systemd/system/odd.service.d/folder.conf").mkdir()
    assert load("odd.service").named == {"/etc/ok": "environment file"}


def test_a_setting_of_very_many_lines_is_one() -> None:
    # Time in the square of the lines would take minutes here.
    [(section, name, value)] = unitfiles.settings("[Service]\nExecStart=/x \\\n" + "a \\\n" * 1_000_000 + "b\n")
    assert (section, name, len(value)) == ("Service", "ExecStart", 3 + 3 * 1_000_000 + 2)


def test_two_texts_of_the_same_few_lines_are_compared_in_no_time() -> None:
    # Time in the cube of the lines would take many minutes here.
    old = "".join(f"{'xy'[i % 2]}\n" for i in range(1490))
    new = "".join(f"{'yzx'[i % 3]}\n" for i in range(1490))
    assert apply(old, difference.unified(old, new, "/f")) == new


def test_lines_that_are_too_common_to_match_by_are_still_the_same_lines() -> None:
    old = "".join(f"key{i} = {i}\n\n" for i in range(600))
    new = "first\n" + old.replace("key300 = 300", "key300 = 301") + "last\n"
    diff = difference.unified(old, new, "/f")
    lines = diff.splitlines()[2:]
    assert [one for one in lines if one[0] in "+-"] == ["+first", "-key300 = 300", "+key300 = 301", "+last"]


def test_two_long_files_that_differ_in_all_take_no_time() -> None:
    old, new = (os.linesep.join(f"{letter}{n % 7}" for n in range(40_000)) for letter in "ab")
    assert difference.unified(old, new, "/x").count("\n") > 80_000
