# SPDX-License-Identifier: Apache-2.0
"""Watches on a real kernel, and the decoding of what it sends."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.contextd import watches
from syntrop.contextd.watches import Watcher


@pytest.fixture(params=[False, True], ids=["inotify", "fanotify"])
def watcher(request: pytest.FixtureRequest) -> Iterator[Watcher]:
    """Where there is no capability for fanotify the second is inotify too: what is tested holds for either."""
    one = Watcher(fanotify=request.param)
    yield one
    one.close()


def changes(watcher: Watcher, wanted: set[str]) -> dict[str, int]:
    """What was told until all of `wanted` was."""
    found: dict[str, int] = {}
    while not wanted <= found.keys():
        ready, _, _ = select.select([watcher.fd], [], [], 20)
        assert ready, f"only {found}"
        changed, _, lost = watcher.read()
        assert not lost
        found.update(changed)
    return found


def test_writes_moves_and_removals(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path))
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    Path(one).write_text("x")
    changes(watcher, {one})
    os.rename(one, two)
    changes(watcher, {one, two})
    os.chmod(two, 0o600)
    changes(watcher, {two})
    os.unlink(two)
    found = changes(watcher, {two})
    assert set(found.values()) <= {0, os.getpid()}
    assert not watcher.fanotify or found[two] == os.getpid()


def test_links_and_folders(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path))
    (tmp_path / "link").symlink_to("x")
    changes(watcher, {str(tmp_path / "link")})
    (tmp_path / "folder").mkdir()
    fresh: set[str] = set()
    while not fresh:
        assert select.select([watcher.fd], [], [], 20)[0]
        fresh = watcher.read()[1]
    assert fresh == {str(tmp_path / "folder")}


def test_only_some_names(watcher: Watcher, tmp_path: Path) -> None:
    watcher.add(str(tmp_path), {"a"})
    watcher.add(str(tmp_path), {"b"})
    for name in ("c", "a", "b"):
        (tmp_path / name).write_text("x")
    assert set(changes(watcher, {str(tmp_path / "b")})) == {str(tmp_path / "a"), str(tmp_path / "b")}
    watcher.add(str(tmp_path))
    (tmp_path / "c").write_text("y")
    changes(watcher, {str(tmp_path / "c")})


def test_a_file_that_is_being_written_is_told_of_when_it_is_closed(tmp_path: Path) -> None:
    watcher = Watcher(fanotify=False)
    watcher.add(str(tmp_path))
    with open(tmp_path / "one", "w") as file:
        file.write("half")
        file.flush()
        assert watcher.read()[0] == {}
    assert set(watcher.read()[0]) == {str(tmp_path / "one")}
    watcher.close()


def test_what_is_not_there_cannot_be_watched(watcher: Watcher, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        watcher.add(str(tmp_path / "none"))
    assert len(watcher) == 0


@given(st.binary(max_size=200))
def test_nothing_that_is_read_breaks_the_decoder(data: bytes) -> None:
    list(watches.decode_inotify(data))
    # A descriptor in an event is ours to close: none here.
    masked = bytearray(data)
    for at in range(16, len(masked) - 3, 4):
        masked[at : at + 4] = b"\xff" * 4
    list(watches.decode_fanotify(bytes(masked)))
