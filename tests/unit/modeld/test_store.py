# SPDX-License-Identifier: Apache-2.0
"""The store on a real file system."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syntrop.modeld import disk, naming
from syntrop.modeld.catalogue import Entry
from syntrop.modeld.faults import DigestMismatch, NoSuchModel, Stopped, Unsuitable
from syntrop.modeld.store import Store

Make = Callable[..., bytes]


def yes() -> bool:
    return True


@contextmanager
def source(folder: Path, data: bytes) -> Iterator[int]:
    path = folder / f"source-{hashlib.sha256(data).hexdigest()[:16]}-{threading.get_ident()}"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def add(
    models: Store, folder: Path, data: bytes, name: str = "m", tag: str = "latest", digest: str | None = None
) -> Entry:
    with source(folder, data) as handle:
        return models.register(handle, name, tag, digest, yes)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


@pytest.fixture
def models(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_an_empty_store_is_not_even_made(models: Store, tmp_path: Path) -> None:
    assert models.entries() == []
    assert models.stats() == (0, 0, 0)
    assert models.prune(0) == (0, [])
    with pytest.raises(NoSuchModel):
        models.find(naming.parse("m"))
    assert not (tmp_path / "store").exists()


def test_register_and_look(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    data = gguf_file()
    hexadecimal = hashlib.sha256(data).hexdigest()
    entry = add(models, tmp_path, data, "smol", "135m", hexadecimal)
    assert (entry.id, entry.digest, entry.size) == ("smol:135m", hexadecimal, len(data))
    assert (entry.format, entry.pinned) == ("gguf", False)
    for identifier in ("smol", "smol:135m", f"sha256:{hexadecimal}"):
        found = models.find(naming.parse(identifier))
        assert (found.id, found.digest, found.size) == ("smol:135m", hexadecimal, len(data))
    for identifier in ("smol:other", "other", "sha256:" + "0" * 64):
        with pytest.raises(NoSuchModel):
            models.find(naming.parse(identifier))
    assert [one.id for one in models.entries()] == ["smol:135m"]
    assert models.metadata(hexadecimal)["architecture"] == "llama"
    assert models.stats() == (len(data), 1, 0)
    blob = tmp_path / "store/blobs/sha256" / hexadecimal
    assert blob.read_bytes() == data
    assert blob.stat().st_mode & 0o777 == 0o440
    assert blob.stat().st_nlink == 1
    assert (tmp_path / "store/tags/smol/135m").resolve() == blob


def test_open_is_the_blob_itself_and_cannot_be_written(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    data = gguf_file()
    entry = add(models, tmp_path, data)
    handle, size, digest = models.open(naming.parse("m"))
    try:
        assert (size, digest) == (len(data), entry.digest)
        assert os.path.samestat(os.fstat(handle), os.stat(tmp_path / "store/blobs/sha256" / entry.digest))
        assert not os.get_inheritable(handle)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(handle, b"x")
    finally:
        os.close(handle)


def test_a_store_that_is_read_only_still_opens(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_path: object, **_times: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    data = gguf_file()
    add(models, tmp_path, data)
    monkeypatch.setattr(os, "utime", read_only)
    handle, size, _ = models.open(naming.parse("m"))
    try:
        assert os.read(handle, size + 1) == data
    finally:
        os.close(handle)


def test_writing_the_source_later_changes_nothing(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    data = gguf_file()
    path = tmp_path / "mine"
    path.write_bytes(data)
    handle = os.open(path, os.O_RDWR)
    entry = models.register(handle, "m", "latest", None, yes)
    os.pwrite(handle, b"\0" * len(data), 0)
    os.close(handle)
    assert (tmp_path / "store/blobs/sha256" / entry.digest).read_bytes() == data


def test_the_sources_position_is_left_alone(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    with source(tmp_path, gguf_file()) as handle:
        os.lseek(handle, 7, os.SEEK_SET)
        models.register(handle, "m", "latest", None, yes)
        assert os.lseek(handle, 0, os.SEEK_CUR) == 7


def test_the_same_content_is_stored_once(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    data = gguf_file()
    add(models, tmp_path, data, "a", "1")
    add(models, tmp_path, data, "a", "2")
    add(models, tmp_path, data, "b", "latest")
    assert [entry.id for entry in models.entries()] == ["a:1", "a:2", "b:latest"]
    assert models.stats() == (len(data), 1, 0)
    # Two tags, none of them latest: the bare name is nobody's.
    with pytest.raises(NoSuchModel):
        models.find(naming.parse("a"))


def test_a_tag_moves(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    first = add(models, tmp_path, gguf_file("one"))
    second = add(models, tmp_path, gguf_file("two"))
    assert models.find(naming.parse("m")).digest == second.digest
    assert [entry.id for entry in models.entries()] == ["m:latest", f"sha256:{first.digest}"]
    moved = models.tag(first.digest, "m", "latest")
    assert (moved.id, moved.digest) == ("m:latest", first.digest)
    assert models.find(naming.parse("m")).digest == first.digest
    with pytest.raises(NoSuchModel):
        models.tag("0" * 64, "m", "latest")


def test_a_registration_without_a_name(models: Store, tmp_path: Path, safetensors_file: Make) -> None:
    with source(tmp_path, safetensors_file()) as handle:
        entry = models.register(handle, None, None, None, yes)
    assert entry.id == f"sha256:{entry.digest}"
    assert entry.format == "safetensors"
    assert [one.id for one in models.entries()] == [entry.id]


def test_another_digest_leaves_nothing(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    with pytest.raises(DigestMismatch) as caught:
        add(models, tmp_path, gguf_file(), digest="0" * 64)
    assert caught.value.expected == "sha256:" + "0" * 64
    assert caught.value.actual == "sha256:" + hashlib.sha256(gguf_file()).hexdigest()
    assert files(tmp_path / "store") == set()
    assert models.entries() == []


def test_a_damaged_file_leaves_nothing(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    with pytest.raises(Unsuitable, match="GGUF"):
        add(models, tmp_path, gguf_file()[:-40])
    assert files(tmp_path / "store") == set()


def test_an_asker_who_leaves_leaves_nothing(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CHUNK", 64)
    answers = iter([True, True, False])
    with source(tmp_path, gguf_file(padding=1000)) as handle, pytest.raises(Stopped):
        models.register(handle, "m", "latest", None, lambda: next(answers))
    assert files(tmp_path / "store") == set()


def test_sources_that_are_no_files(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "model").write_bytes(gguf_file())
    (tmp_path / "other").write_bytes(b"#!/bin/sh\n")
    read, write = os.pipe()
    opened = {
        "not a regular file": [read, os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)],
        "not open for reading": [
            os.open(tmp_path / "model", os.O_WRONLY),
            os.open(tmp_path / "model", os.O_PATH),
        ],
        "empty": [os.open(tmp_path / "empty", os.O_RDONLY)],
        "neither a GGUF nor": [os.open(tmp_path / "other", os.O_RDONLY)],
    }
    for reason, handles in opened.items():
        for handle in handles:
            with pytest.raises(Unsuitable, match=reason):
                models.register(handle, "m", "latest", None, yes)
            os.close(handle)
    os.close(write)
    assert not (tmp_path / "store").exists()


def test_a_source_cut_short_while_read(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CHUNK", 64)
    monkeypatch.setattr(disk, "clone", lambda _source, _target: False)
    path = tmp_path / "shrinking"
    path.write_bytes(gguf_file(padding=1000))

    def shrink() -> bool:
        os.truncate(path, 100)
        return True

    handle = os.open(path, os.O_RDONLY)
    with pytest.raises(Unsuitable, match="shorter"):
        models.register(handle, "m", "latest", None, shrink)
    os.close(handle)
    assert files(tmp_path / "store") == set()


def test_a_full_disk_leaves_nothing(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int, _data: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "clone", lambda _source, _target: False)
    monkeypatch.setattr(os, "pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        add(models, tmp_path, gguf_file())
    assert len(os.listdir("/proc/self/fd")) == before
    assert files(tmp_path / "store") == set()


def test_a_file_system_without_nameless_files(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_)
    entry = add(models, tmp_path, gguf_file())
    with pytest.raises(DigestMismatch):
        add(models, tmp_path, gguf_file("other"), digest="0" * 64)
    assert os.listdir(tmp_path / "store/blobs/sha256") == [entry.digest]
    assert os.stat(tmp_path / "store/blobs/sha256" / entry.digest).st_nlink == 1


def test_blocks_are_shared_only_when_all_are(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf_file(padding=5000)

    def clone(handle: int, request: int, argument: int) -> int:
        os.pwrite(handle, os.pread(argument, len(data), 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    entry = add(models, tmp_path, data)
    assert entry.digest == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "store/blobs/sha256" / entry.digest).read_bytes() == data


def test_a_source_that_grew_before_its_blocks_were_shared(
    models: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf_file(padding=5000)

    def clone(handle: int, request: int, argument: int) -> int:
        os.pwrite(handle, os.pread(argument, len(data), 0) + b"more", 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    entry = add(models, tmp_path, data)
    assert entry.digest == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "store/blobs/sha256" / entry.digest).read_bytes() == data


def test_many_register_at_once(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    same, faults = gguf_file("same", 100_000), []

    def run(index: int) -> None:
        try:
            add(models, tmp_path, same, "same", "latest")
            add(models, tmp_path, gguf_file(f"own-{index}"), f"own{index}", "latest")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert len(models.entries()) == 9
    assert models.stats()[1] == 9
    assert not [path for path in files(tmp_path / "store") if "incoming" in path or "/." in path]


def test_a_lost_note_is_made_again(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    digest = add(models, tmp_path, gguf_file()).digest
    note = tmp_path / f"store/notes/{digest}.json"
    for damage in (None, "", "{", "[]", '{"format": "gguf"}', '{"format": 1, "metadata": {}}'):
        if damage is None:
            note.unlink()
        else:
            note.write_text(damage)
        again = Store(str(tmp_path / "store"))
        assert again.find(naming.parse("m")).format == "gguf"
        assert again.metadata(digest)["parameter_count"] == 8
        assert json.loads(note.read_text())["format"] == "gguf"


def test_rubbish_in_the_folders_is_passed_over(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    entry = add(models, tmp_path, gguf_file())
    root = tmp_path / "store"
    (root / "blobs/sha256/README").write_text("x")
    (root / "tags/.hidden").mkdir()
    (root / "tags/m/.1-2").symlink_to("../../blobs/sha256/" + entry.digest)
    (root / "tags/m/file").write_text("x")
    (root / "tags/m/dangling").symlink_to("../../blobs/sha256/" + "0" * 64)
    (root / "tags/m/away").symlink_to("/etc/passwd")
    (root / "tags/plain").write_text("x")
    assert [one.id for one in models.entries()] == ["m:latest"]
    for name in ("m:dangling", "m:away", "m:file", "plain"):
        with pytest.raises(NoSuchModel):
            models.find(naming.parse(name))


def test_pins(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    data = gguf_file()
    add(models, tmp_path, data)
    identifier = naming.parse("m")
    for _ in range(2):
        models.pin(identifier)
        assert models.find(identifier).pinned
    assert models.entries()[0].pinned
    assert models.stats() == (len(data), 1, 1)
    assert models.prune(0) == (0, [])
    for _ in range(2):
        models.unpin(identifier)
        assert not models.find(identifier).pinned
    with pytest.raises(NoSuchModel):
        models.pin(naming.parse("other"))
    with pytest.raises(NoSuchModel):
        models.unpin(naming.parse("other"))


def test_prune_takes_what_was_used_longest_ago(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    entries = [add(models, tmp_path, gguf_file(name), name) for name in ("a", "b", "c")]
    for age, entry in enumerate(entries):
        # Neither who reads nor who touches the file itself makes it any younger.
        os.utime(tmp_path / "store/blobs/sha256" / entry.digest, (2000 - age, 3000 - age))
    os.close(models.open(naming.parse("a"))[0])
    reclaimed, removed = models.prune(sum(entry.size for entry in entries[:2]))
    assert (reclaimed, removed) == (entries[1].size, [entries[1].digest])
    assert [entry.id for entry in models.entries()] == ["a:latest", "c:latest"]
    assert not (tmp_path / "store/tags/b").exists()
    assert models.prune(10**12) == (0, [])


def test_prune_leaves_what_is_open(models: Store, tmp_path: Path, gguf_file: Make) -> None:
    entry = add(models, tmp_path, gguf_file())
    handle = models.open(naming.parse("m"))[0]
    assert models.prune(0) == (0, [])
    os.close(handle)
    assert models.prune(0) == (entry.size, [entry.digest])
    assert models.entries() == []
    assert files(tmp_path / "store") == {"lock", "listing", "uses/newest"}
