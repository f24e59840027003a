# SPDX-License-Identifier: Apache-2.0
"""Package managers' records, in the formats that they document (`tests/data/packages`)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.contextd import package_logs, packages
from syntrop.contextd.package_logs import PackageLogs
from syntrop.contextd.packages import Transaction, compare_debian, iso_us, nevra

DATA = Path(__file__).parents[2] / "data" / "packages"
WHEN = 1793607240  # 2026-11-02 08:14:00 UTC


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logs without an offset are in the machine's own time zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lines(name: str) -> list[str]:
    return (DATA / name).read_text().splitlines()


def short(found: list[Transaction]) -> list[tuple[int, str, str, str, str | None, str]]:
    return [
        (one.time_us // 10**6 - WHEN, one.action, one.name, one.version, one.old, one.architecture)
        for one in found
    ]


def test_dpkg() -> None:
    assert short(list(packages.dpkg(lines("dpkg.log")))) == [
        (2, "install", "libnginx-mod-http-echo", "1:0.63-5", None, "amd64"),
        (4, "upgrade", "libc6", "2.36-9+deb12u8", "2.36-9+deb12u7", "i386"),
        (4, "downgrade", "libssl3", "3.0.11-1~deb12u2", "3.0.15-1~deb12u1", "amd64"),
        (8, "remove", "python3-foo-bar", "2.0~rc1-3", "2.0~rc1-3", "all"),
        (9, "install", "tzdata", "2024b-0+deb12u1", None, "all"),
        (10, "reinstall", "vim", "2:9.0-1", "2:9.0-1", "amd64"),
    ]


def test_apt() -> None:
    found = list(packages.apt(lines("apt-history.log")))
    assert found[0][1] == "apt-get install libnginx-mod-http-echo"
    assert short([one for one, _ in found]) == [
        (0, "install", "libnginx-mod-http-echo", "1:0.63-5", None, "amd64"),
        (0, "install", "nginx-common", "1.22.1-9", None, "all"),
        (0, "upgrade", "libc6", "2.36-9+deb12u8", "2.36-9+deb12u7", "i386"),
        (0, "upgrade", "libstdc++6", "12.2.0-15", "12.2.0-14", "amd64"),
        (0, "remove", "python3-foo-bar", "2.0~rc1-3", "2.0~rc1-3", "all"),
        (56760, "downgrade", "openssl", "3.0.11-1", "3.0.15-1", "amd64"),
    ]


def test_dnf_log() -> None:
    assert short(list(packages.dnf_log(lines("dnf.rpm.log")))) == [
        (2, "upgrade", "openssl-libs", "1:3.0.7-25.el9_3", "1:3.0.7-24.el9", "x86_64"),
        (2, "install", "python3-dnf-plugin-post-transaction-actions", "4.3.0-13.el9", None, "noarch"),
        (4, "remove", "kernel-core", "5.14.0-362.el9", "5.14.0-362.el9", "x86_64"),
        (5, "downgrade", "vim-minimal", "2:8.2.2637-20.el9", "2:8.2.2637-21.el9", "x86_64"),
    ]


def test_pacman() -> None:
    assert short(list(packages.pacman(lines("pacman.log"))))[:5] == [
        (2, "upgrade", "linux", "6.5.8.arch1-1", "6.5.7.arch1-1", ""),
        (3, "install", "lib32-gcc-libs", "13.2.1-3", None, ""),
        (4, "remove", "xorg-server-xwayland-git", "1:21.1-2", "1:21.1-2", ""),
        (5, "downgrade", "mesa", "1:23.1.9-1", "1:23.2.1-2", ""),
        (5, "reinstall", "vim", "9.0-1", None, ""),
    ]
    assert [one.name for one in packages.pacman(lines("pacman.log"))][5:] == ["glibc"]


def test_zypper() -> None:
    assert short(list(packages.zypper(lines("zypp-history"))))[1:] == [
        (1, "upgrade", "libopenssl3", "3.1.4-2.1", "3.1.4-1.1", "x86_64"),
        (2, "install", "python311-foo-bar", "2:1.0-1.1", None, "noarch"),
        (3, "remove", "python311-foo-bar", "2:1.0-1.1", "2:1.0-1.1", "noarch"),
    ]


def test_snap() -> None:
    assert short(list(packages.snap(json.loads((DATA / "snapd-state.json").read_text())))) == [
        (1, "upgrade", "firefox", "4100", "4090", ""),
        (60, "install", "core22", "1122", None, ""),
        (120, "remove", "hello-world", "29", "29", ""),
    ]


def test_flatpak() -> None:
    fields = {
        "OPERATION": "deploy update",
        "REF": "app/org.example.App/x86_64/stable",
        "COMMIT": "b" * 64,
        "OLD_COMMIT": "a" * 64,
    }
    one = packages.flatpak(fields, WHEN * 10**6)
    assert one is not None
    assert short([one]) == [
        (0, "upgrade", "org.example.App", f"stable {'b' * 12}", f"stable {'a' * 12}", "x86_64")
    ]
    assert packages.flatpak({**fields, "OPERATION": "pull"}, 0) is None
    assert packages.flatpak({"OPERATION": "uninstall", "REF": "nonsense"}, 0) is None


def dnf4(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE trans (id INTEGER PRIMARY KEY, dt_begin INTEGER NOT NULL, dt_end INTEGER, releasever TEXT);"
        "CREATE TABLE trans_item (id INTEGER PRIMARY KEY, trans_id INTEGER, item_id INTEGER, repo_id INTEGER,"
        " action INTEGER NOT NULL, reason INTEGER, state INTEGER);"
        "CREATE TABLE rpm (item_id INTEGER, name TEXT, epoch INTEGER, version TEXT, release TEXT, arch TEXT);"
    )
    items = [
        (1, "openssl-libs", 1, "3.0.7", "25.el9_3", "x86_64", 6),
        (2, "openssl-libs", 1, "3.0.7", "24.el9", "x86_64", 7),
        (3, "python3-a-b", 0, "1.0", "1", "noarch", 1),
        (4, "kernel-core", 0, "5.14.0", "362", "x86_64", 8),
        (5, "newname", 0, "2", "1", "noarch", 4),
        (6, "oldname", 0, "1", "1", "noarch", 5),
    ]
    database.execute("INSERT INTO trans VALUES (7, ?, ?, '9')", (WHEN, WHEN + 3))
    for number, name, epoch, version, release, architecture, action in items:
        row = (number, name, epoch, version, release, architecture)
        database.execute("INSERT INTO rpm VALUES (?, ?, ?, ?, ?, ?)", row)
        database.execute("INSERT INTO trans_item VALUES (?, 7, ?, 1, ?, 1, 1)", (number, number, action))
    database.commit()
    database.close()


def dnf5(path: Path) -> None:
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE trans (id INTEGER PRIMARY KEY, dt_begin INTEGER NOT NULL, dt_end INTEGER, state_id INTEGER);"
        "CREATE TABLE trans_item (id INTEGER PRIMARY KEY, trans_id INTEGER, item_id INTEGER, repo_id INTEGER,"
        " action_id INTEGER NOT NULL, reason_id INTEGER, state_id INTEGER);"
        "CREATE TABLE trans_item_action (id INTEGER PRIMARY KEY, name TEXT);"
        "INSERT INTO trans_item_action VALUES (1, 'Install'), (2, 'Upgrade'), (3, 'Downgrade'), (4, 'Reinstall'),"
        " (5, 'Remove'), (6, 'Replaced'), (7, 'Reason Change');"
        "CREATE TABLE pkg_name (id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE arch (id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE rpm (item_id INTEGER, name_id INTEGER, epoch INTEGER, version TEXT, release TEXT,"
        " arch_id INTEGER);"
        "INSERT INTO arch VALUES (1, 'x86_64'), (2, 'noarch');"
        "INSERT INTO pkg_name VALUES (1, 'vim-minimal'), (2, 'foo-bar');"
        "INSERT INTO rpm VALUES (1, 1, 2, '9.0', '2.fc41', 1), (2, 1, 2, '9.1', '1.fc41', 1),"
        " (3, 2, 0, '1', '1', 2);"
        f"INSERT INTO trans VALUES (1, {WHEN}, {WHEN + 5}, 2);"
        "INSERT INTO trans_item VALUES (1, 1, 1, 1, 3, 1, 1), (2, 1, 2, 1, 6, 1, 1), (3, 1, 3, 1, 7, 1, 1);"
    )
    database.commit()
    database.close()


def place(root: Path, inside: str) -> Path:
    path = root / inside.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_dnf_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    dnf4(place(tmp_path, "/var/lib/dnf/history.sqlite"))
    cursors: dict[str, object] = {}
    assert sorted(short(PackageLogs(cursors).read())) == [
        (3, "install", "newname", "2-1", None, "noarch"),
        (3, "install", "python3-a-b", "1.0-1", None, "noarch"),
        (3, "remove", "kernel-core", "5.14.0-362", "5.14.0-362", "x86_64"),
        (3, "remove", "oldname", "1-1", "1-1", "noarch"),
        (3, "upgrade", "openssl-libs", "1:3.0.7-25.el9_3", "1:3.0.7-24.el9", "x86_64"),
    ]
    assert PackageLogs(cursors).read() == []
    assert os.listdir(tmp_path / "var/lib/dnf") == ["history.sqlite"]
    dnf5(place(tmp_path, "/usr/lib/sysimage/libdnf5/transaction_history.sqlite"))
    assert short(PackageLogs(cursors).read()) == [
        (5, "downgrade", "vim-minimal", "2:9.0-2.fc41", "2:9.1-1.fc41", "x86_64")
    ]


@pytest.mark.parametrize(("make", "done", "failed"), [(dnf4, 1, 2), (dnf5, 2, 3)])
def test_dnf_history_tells_what_ended_well(
    make: Callable[[Path], None], done: int, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    inside = "/var/lib/dnf/history.sqlite" if make is dnf4 else package_logs.DNF_HISTORY[0]
    path = place(tmp_path, inside)
    make(path)
    cursors: dict[str, object] = {}
    assert PackageLogs(cursors).read()
    database = sqlite3.connect(path)

    def begin(number: int, states: list[int], end: int | None) -> None:
        database.execute("INSERT INTO trans VALUES (?, ?, ?, '')", (number, WHEN, end))
        for index, state in enumerate(states):
            item = 1000 * number + index
            rpm = (item, f"p{item}", 0, "1", "1", "noarch") if make is dnf4 else (item, item, 0, "1", "1", 2)
            database.execute("INSERT INTO rpm VALUES (?, ?, ?, ?, ?, ?)", rpm)
            if make is dnf5:
                database.execute("INSERT INTO pkg_name VALUES (?, ?)", (item, f"p{item}"))
            database.execute("INSERT INTO trans_item VALUES (?, ?, ?, 1, 1, 1, ?)", (item, number, item, state))
        database.commit()

    def names() -> list[str]:
        return [one.name for one in PackageLogs(cursors).read()]

    # One that runs is not told of before it has ended; what failed in it did not happen.
    begin(10, [done, failed], None)
    assert names() == []
    database.execute("UPDATE trans SET dt_end = ? WHERE id = 10", (WHEN + 9,))
    database.commit()
    assert names() == ["p10000"]
    # Of one that was killed, what it had done is told once another has ended.
    begin(11, [done, 0 if make is dnf4 else 1], None)
    assert names() == []
    begin(12, [done], WHEN + 20)
    assert names() == ["p11000", "p12000"]
    # Of more than can be kept it is the newest that are told, be they in one transaction or in many.
    monkeypatch.setattr(package_logs, "_DNF_ITEMS_MAX", 5)
    for number in range(13, 17):
        begin(number, [done] * 2, WHEN + 30)
    assert names() == ["p15000", "p15001", "p16000", "p16001"]
    begin(17, [done] * 8, WHEN + 40)
    assert len(names()) == 8
    assert names() == []
    database.close()


def test_logs_are_read_on_and_across_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    log = place(tmp_path, "/var/log/dpkg.log")
    shutil.copy(DATA / "dpkg.log", log)
    cursors: dict[str, object] = {}
    assert len(PackageLogs(cursors).read()) == 6
    assert PackageLogs(cursors).read() == []
    entry = "2026-11-02 10:00:00 install new{n}:amd64 <none> 1.{n}\n"
    with open(log, "a") as file:
        file.write(entry.format(n=1) + entry.format(n=2)[:-9])
    assert [one.name for one in PackageLogs(cursors).read()] == ["new1"]
    with open(log, "a") as file:
        file.write(entry.format(n=2)[-9:] + entry.format(n=3))
    log.rename(f"{log}.1")
    log.write_text(entry.format(n=4))
    cursors = json.loads(json.dumps(cursors))
    assert [one.name for one in PackageLogs(cursors).read()] == ["new2", "new3", "new4"]
    # By its date, as others have it.
    with open(log, "a") as file:
        file.write(entry.format(n=5))
    log.rename(f"{log}-20261102")
    log.write_text(entry.format(n=6))
    assert [one.name for one in PackageLogs(cursors).read()] == ["new5", "new6"]


def test_a_damaged_database_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path))
    place(tmp_path, "/var/lib/dnf/history.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    place(tmp_path, "/var/lib/snapd/state.json").write_text("{")
    shutil.copy(DATA / "pacman.log", place(tmp_path, "/var/log/pacman.log"))
    assert len(PackageLogs({}).read()) == 6


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("openssl-libs-1:3.0.7-24.el9.x86_64", ("openssl-libs", "1:3.0.7-24.el9", "x86_64")),
        ("a-b-c-0:1.0-1.noarch", ("a-b-c", "1.0-1", "noarch")),
        ("glibc-2.34-83.el9.i686", ("glibc", "2.34-83.el9", "i686")),
        ("nonsense", None),
    ],
)
def test_nevra(text: str, parts: tuple[str, str, str] | None) -> None:
    assert nevra(text) == parts


# The order that deb-version(7) gives, smallest first.
ORDER = [
    "1.0~~",
    "1.0~~a",
    "1.0~",
    "1.0",
    "1.0-1",
    "1.0-1+b1",
    "1.0-2",
    "1.0a",
    "1.0+x",
    "1.2",
    "1.10",
    "2.0",
    "1:0.1",
]


@pytest.mark.parametrize("index", range(len(ORDER) - 1))
def test_debian_versions_are_ordered(index: int) -> None:
    assert compare_debian(ORDER[index], ORDER[index + 1]) < 0
    assert compare_debian(ORDER[index + 1], ORDER[index]) > 0
    assert compare_debian(ORDER[index], ORDER[index]) == 0


@pytest.mark.parametrize(
    "text",
    ["2026-11-02T08:14:00Z", "2026-11-02T09:14:00+0100", "2026-11-02 09:14", "2026-11-02T03:14:00-05:00",
     "2026-11-02T08:14:00.25Z", "2026-11-02 09:14:00"],
)  # fmt: skip
def test_times(text: str) -> None:
    assert iso_us(text) == WHEN * 10**6


@given(st.lists(st.text(max_size=80), max_size=20))
def test_no_line_breaks_a_parser(given_lines: list[str]) -> None:
    for parse in (packages.dpkg, packages.apt, packages.dnf_log, packages.pacman, packages.zypper):
        list(parse(given_lines))  # type: ignore[operator]
