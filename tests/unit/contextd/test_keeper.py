# SPDX-License-Identifier: Apache-2.0
"""The keeper on a small machine: what is found, once, and what a crash in mid-writing leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syntrop.contextd import ledger
from syntrop.contextd.baseline import shard_of
from syntrop.contextd.context import Composer
from syntrop.contextd.keeper import Keeper, Options

DAY = 86400 * 1_000_000


class Crash(BaseException):
    """The process ends here: nobody catches it."""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(tmp_path / "host"))
    write(tmp_path / "host", "/etc/app/app.conf", "one\n")
    write(tmp_path / "host", "/etc/app/other.conf", "other\n")
    return tmp_path / "host"


def write(host: Path, inside: str, text: str) -> None:
    path = host / inside.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def opened(tmp_path: Path, **options: Any) -> Keeper:
    keeper = Keeper(str(tmp_path / "state"), Options(("/etc",), ("*~",), **options))
    keeper.open()
    return keeper


def scan(keeper: Keeper) -> list[str]:
    before = len(keeper.chronology.events)
    keeper.scan(lambda: True, lambda folder, names: None)
    return [event.summary for event in keeper.chronology.events[before:]]


def test_the_first_look_tells_of_nothing_and_the_second_of_what_changed(tmp_path: Path, host: Path) -> None:
    assert scan(opened(tmp_path)) == []
    assert scan(opened(tmp_path)) == []
    write(host, "/etc/app/app.conf", "two\n")
    write(host, "/etc/app/backup~", "two\n")
    (host / "etc/app/other.conf").unlink()
    (host / "etc/app/link").symlink_to("app.conf")
    found = scan(opened(tmp_path))
    assert sorted(found) == [
        "/etc/app/app.conf changed",
        "/etc/app/link was created (symbolic link)",
        "/etc/app/other.conf was removed (6 bytes)",
    ]
    assert scan(opened(tmp_path)) == []


def test_mode_owner_and_attributes_are_changes(tmp_path: Path, host: Path) -> None:
    scan(opened(tmp_path))
    path = host / "etc/app/app.conf"
    path.chmod(0o600)
    os.setxattr(path, "user.note", b"x")
    keeper = opened(tmp_path)
    assert scan(keeper) == ["/etc/app/app.conf mode 0644 became 0600, attribute user.note: absent became x"]
    assert keeper.chronology.events[-1].private


@pytest.mark.root
def test_an_owner_is_a_change(tmp_path: Path, host: Path) -> None:
    scan(opened(tmp_path))
    status = os.stat(host / "etc/app/app.conf")
    os.chown(host / "etc/app/app.conf", 12, 34)
    was = f"{status.st_uid}:{status.st_gid}"
    assert scan(opened(tmp_path)) == [f"/etc/app/app.conf owner {was} became 12:34"]


def test_what_is_binary_large_or_secret_is_told_by_digest(tmp_path: Path, host: Path) -> None:
    kinds = {"binary": "binary content", "large": "large content", "tls.key": "secret content"}
    before = {"binary": b"a\0b", "large": b"x" * 300_000, "tls.key": b"hunter2"}
    for name, data in before.items():
        (host / "etc/app" / name).write_bytes(data)
    scan(opened(tmp_path))
    for name, data in before.items():
        (host / "etc/app" / name).write_bytes(data[::-1] + b"!")
    keeper = opened(tmp_path)
    assert sorted(scan(keeper)) == [f"/etc/app/{name} changed" for name in sorted(before)]
    for event in keeper.chronology.events:
        name = event.extra["path"].rpartition("/")[2]
        old, new = (keeper.chronology.details(event) or "").split("\n")
        size = len(before[name])
        assert old.startswith(f"before: {kinds[name]}, {size} bytes, keyed digest ")
        assert new.startswith(f"after: {kinds[name]}, {size + 1} bytes, keyed digest ")
        assert old.split()[-1] != new.split()[-1]


def test_a_look_that_was_interrupted_tells_of_nothing_later(tmp_path: Path) -> None:
    answers = iter([True, True, False])
    opened(tmp_path).scan(lambda: next(answers, False), lambda folder, names: None)
    assert scan(opened(tmp_path)) == []


def test_a_folder_that_goes_takes_its_files(tmp_path: Path, host: Path) -> None:
    scan(opened(tmp_path))
    (host / "etc/app").rename(host / "gone")
    assert sorted(scan(opened(tmp_path))) == [
        "/etc/app was removed (folder)",
        "/etc/app/app.conf was removed (4 bytes)",
        "/etc/app/other.conf was removed (6 bytes)",
    ]


def test_a_full_store_tells_by_digest(tmp_path: Path, host: Path) -> None:
    scan(opened(tmp_path, contents_max=1))
    write(host, "/etc/app/app.conf", "two\n")
    keeper = opened(tmp_path, contents_max=1)
    assert scan(keeper) == ["/etc/app/app.conf changed"]
    assert keeper.objects.size() < 300
    write(host, "/etc/app/app.conf", "three\n")  # what it was is not kept any more
    assert scan(keeper) == ["/etc/app/app.conf changed"]
    assert "keyed digest" in (keeper.chronology.details(keeper.chronology.events[-1]) or "")


def test_contents_that_nobody_names_are_swept(tmp_path: Path, host: Path) -> None:
    for number in range(12):
        write(host, "/etc/app/app.conf", os.urandom(60_000).hex() + str(number))
        scan(opened(tmp_path, contents_max=300_000))
    assert opened(tmp_path).objects.size() < 300_000


def crash_points(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], at: int) -> bool:
    """Run until the call number `at` that changes the disk, and end there; False when there is none any more."""
    count = 0
    for name in ("pwrite", "fsync", "ftruncate", "mkdir", "rename", "write", "unlink", "fchmod"):
        real = getattr(os, name)

        def step(*arguments: Any, real: Any = real, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count > at:
                raise Crash
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, step)
    try:
        run()
    except Crash:
        return True
    finally:
        monkeypatch.undo()
    return False


def test_a_crash_at_any_call_loses_and_doubles_nothing(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(host)
    for at in range(200):
        base = tmp_path / f"run{at}"
        write(host, "/etc/app/app.conf", "one\n")
        monkeypatch.setenv("SYNTROP_HOST_ROOT", root)
        scan(opened(base))
        write(host, "/etc/app/app.conf", "two\n")
        write(host, "/etc/app/new.conf", "new\n")
        crashed = crash_points(monkeypatch, lambda base=base: scan(opened(base)), at)
        monkeypatch.setenv("SYNTROP_HOST_ROOT", root)
        keeper = opened(base)
        scan(keeper)
        told = [event.summary for event in keeper.chronology.events]
        assert sorted(told) == ["/etc/app/app.conf changed", "/etc/app/new.conf was created (4 bytes)"], at
        details = [keeper.chronology.details(event) for event in keeper.chronology.events]
        assert any("-one\n+two\n" in (text or "") for text in details)
        (host / "etc/app/new.conf").unlink()
        if not crashed:
            break
    assert at > 10


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_is_told_of_and_survived(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    keeper = opened(tmp_path)
    scan(keeper)
    write(host, "/etc/app/app.conf", "two\n")
    monkeypatch.setattr(ledger, "_write", _fail(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        scan(keeper)
    monkeypatch.undo()
    monkeypatch.setenv("SYNTROP_HOST_ROOT", str(host))
    assert scan(keeper) == ["/etc/app/app.conf changed"]
    assert scan(opened(tmp_path)) == []


def _fail(number: int) -> Any:
    def fail(handle: int, data: bytes, at: int) -> None:
        os.pwrite(handle, data[:7], at)
        raise OSError(number, os.strerror(number))

    return fail


def test_the_context_names_the_removed_drop_in(tmp_path: Path, host: Path) -> None:
    write(host, "/etc/systemd/system/app.service", "[Service]\nExecStart=/bin/app /etc/app/app.conf\n")
    write(host, "/etc/systemd/system/app.service.d/x.conf", "[Service]\nMemoryMax=1G\n")
    scan(opened(tmp_path))
    (host / "etc/systemd/system/app.service.d/x.conf").unlink()
    (host / "etc/systemd/system/app.service.d").rmdir()
    context = Composer(opened(tmp_path)).compose("app.service", DAY, operator=True)
    first = context["config_diffs"][0]
    assert first["file_path"] == "/etc/systemd/system/app.service.d/x.conf"
    assert first["diff_content"].endswith("-[Service]\n-MemoryMax=1G\n")
    assert first["reason"].startswith("drop-in of app.service")


def test_what_others_looked_at_meanwhile_is_told_once_and_in_order(tmp_path: Path, host: Path) -> None:
    keeper = opened(tmp_path)
    scan(keeper)
    write(host, "/etc/app/app.conf", "two\n")
    later = next(f"/etc/z{n}" for n in range(999) if shard_of(f"/etc/z{n}") > shard_of("/etc/app"))
    write(host, f"{later}/last.conf", "x\n")

    def between(folder: str, names: set[str] | None) -> None:
        # The scan has seen the change above, and has not told of it yet.
        if folder == later and not done:
            done.append(folder)
            write(host, "/etc/app/app.conf", "three\n")
            with keeper.lock.urgent:
                keeper.look(["/etc/app/app.conf"])

    done: list[str] = []
    for _ in range(2):
        keeper.scan(lambda: True, between)
    told = [event for event in keeper.chronology.events if event.extra["path"] == "/etc/app/app.conf"]
    assert done and [(keeper.chronology.details(one) or "")[-12:] for one in told] == ["-one\n+three\n"]
    assert scan(keeper) == []


def test_what_was_told_and_not_kept_is_not_told_again(tmp_path: Path, host: Path) -> None:
    scan(opened(tmp_path))
    write(host, "/etc/app/app.conf", "two\n")
    keeper = opened(tmp_path)
    assert [one.summary for one in keeper.survey(["/etc/app/app.conf"], ["/etc/app"], None)] == [
        "/etc/app/app.conf changed"
    ]
    again = opened(tmp_path)  # as after a crash: it had no time to finish
    assert scan(again) == []
    again.close()
    write(host, "/etc/app/app.conf", "three\n")
    third = opened(tmp_path)
    assert [one.summary for one in third.survey(["/etc/app/app.conf"], [], None)] == ["/etc/app/app.conf changed"]
    assert (third.chronology.details(third.chronology.events[-1]) or "").endswith("-two\n+three\n")
    write(host, "/etc/app/app.conf", "four\n")
    third.survey(["/etc/app/app.conf"], [], None)  # finishes what was left first
    assert (third.chronology.details(third.chronology.events[-1]) or "").endswith("-three\n+four\n")


def test_a_file_beside_the_root_has_one_name(tmp_path: Path, host: Path) -> None:
    write(host, "/etc/systemd/system/app.service", "[Service]\nExecStart=/app --image=/root.img\n")
    write(host, "/app", "#!/bin/sh\n")
    scan(opened(tmp_path))
    write(host, "/app", "#!/bin/bash\n")
    keeper = opened(tmp_path)
    assert scan(keeper) == ["/app changed"]
    with keeper.lock.urgent:
        assert keeper.look(["/app"]) == []


def test_a_lost_key_begins_again(tmp_path: Path) -> None:
    scan(opened(tmp_path))
    (tmp_path / "state/key").unlink()
    assert scan(opened(tmp_path)) == []


def test_packages_are_imported_once(tmp_path: Path, host: Path) -> None:
    from time import strftime

    write(host, "/var/log/dpkg.log", strftime("%Y-%m-%d %H:%M:%S") + " upgrade a-b:amd64 1:1-1 1:1-2\n")
    for _ in range(2):
        keeper = opened(tmp_path)
        keeper.take_in(None)
        (tmp_path / "state/progress.json").unlink(missing_ok=True)
        assert [event.summary for event in keeper.chronology.events] == [
            "dpkg: upgrade of a-b from 1:1-1 to 1:1-2"
        ]
