# SPDX-License-Identifier: Apache-2.0
"""The answer to `List` that one process leaves to the next: believed only while it is true."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import listing, naming
from syntrop.modeld.rows import Listing
from syntrop.modeld.store import Store

Make = Callable[..., bytes]


def add(store: Store, folder: Path, data: bytes, name: str) -> None:
    path = folder / "source"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        store.register(handle, name, "latest", None, lambda: True)
    finally:
        os.close(handle)


def ids(answer: bytes | None) -> list[str]:
    assert answer is not None
    reply: dict[str, Any] = json.loads(answer)
    return [entry["id"] for entry in reply["parameters"]["models"]]


@pytest.fixture
def root(tmp_path: Path, gguf_file: Make) -> str:
    store = Store(str(tmp_path / "store"))
    for name in ("one", "two"):
        add(store, tmp_path, gguf_file(name), name)
    return store.root


def leave(root: str) -> bytes:
    """What a process that was asked for the list leaves behind."""
    known = Listing(Store(root))
    answer = known.answer().encoded
    known.keep()
    assert answer is not None
    return answer


def test_the_next_process_reads_one_file(root: str) -> None:
    answer = leave(root)
    assert ids(answer) == ["one:latest", "two:latest"]
    store = Store(root)
    assert store.kept(store.stamp()) == answer
    assert Listing(store).answer().encoded == answer
    assert store._index is None  # nothing else was looked at
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_whatever_is_changed_is_told(root: str, tmp_path: Path, gguf_file: Make) -> None:
    changes: list[Callable[[Store], object]] = [
        lambda store: add(store, tmp_path, gguf_file("three"), "three"),
        lambda store: store.tag(store.find(naming.parse("two")).digest, "one", "latest"),
        lambda store: store.pin(naming.parse("two")),
        lambda store: store.unpin(naming.parse("two")),
        lambda store: store.prune(0),
    ]
    for change in changes:
        leave(root)
        store = Store(root)
        known = Listing(store)
        known.answer()
        change(store)
        assert not os.path.exists(store.listing)
        fresh = Listing(Store(root)).answer().encoded
        assert known.answer().encoded == fresh
        # It is left again by the process that took it away, without having been asked for it since.
        known.keep()
        again = Store(root)
        assert again.kept(again.stamp()) == fresh


def test_one_who_was_never_asked_leaves_nothing(root: str, tmp_path: Path, gguf_file: Make) -> None:
    store = Store(root)
    add(store, tmp_path, gguf_file("three"), "three")
    Listing(store).keep()
    assert not os.path.exists(store.listing)
    Listing(Store(str(tmp_path / "nowhere"))).keep()
    assert not (tmp_path / "nowhere").exists()


def test_what_was_changed_by_hand_is_seen(root: str) -> None:
    leave(root)
    store = Store(root)
    os.unlink(os.path.join(store.tags, "one", "latest"))
    os.rmdir(os.path.join(store.tags, "one"))
    assert len(ids(Listing(store).answer().encoded)) == 2
    assert "two:latest" in ids(Listing(store).answer().encoded)
    assert "one:latest" not in ids(Listing(store).answer().encoded)


def test_one_that_came_too_late_is_not_left(root: str) -> None:
    store, other = Store(root), Store(root)
    stamp = store.stamp()
    other.pin(naming.parse("one"))
    store.keep(stamp, b"{}")
    assert not os.path.exists(store.listing)


def test_nothing_is_left_of_a_change_that_was_broken_off(root: str) -> None:
    store = Store(root)
    with pytest.raises(OSError, match="no"), store.locked():
        raise OSError("no")
    store.keep(store.stamp(), b"{}")
    assert not os.path.exists(store.listing)


def test_one_that_cannot_be_written_leaves_none(root: str) -> None:
    known = Listing(Store(root))
    known.answer()
    os.mkdir(os.path.join(root, ".listing"))
    with pytest.raises(IsADirectoryError):
        known.keep()
    assert not os.path.exists(os.path.join(root, "listing"))


@given(st.data())
def test_damage_is_not_believed(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "listing")
        listing.write(path, (2, 7), b'{"parameters": {"models": []}}')
        assert listing.read(path) == ((2, 7), b'{"parameters": {"models": []}}')
        whole = Path(path).read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        end = data.draw(st.booleans())
        broken = (
            whole[:at]
            if end
            else whole[:at] + bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))]) + whole[at + 1 :]
        )
        Path(path).write_bytes(broken)
        known = listing.read(path)
        # The stamp alone may be another one, which is then not that of the store.
        assert known is None or known[0] != (2, 7) or known[1] == b'{"parameters": {"models": []}}'
