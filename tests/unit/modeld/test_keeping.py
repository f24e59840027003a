# SPDX-License-Identifier: Apache-2.0
"""Folders, quota, verification and downloads in a store on a real file system."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from syntrop.common import memfd
from syntrop.modeld import disk, fsck, incoming, naming, sealed
from syntrop.modeld.catalogue import Entry, Index
from syntrop.modeld.faults import InUse, NoSuchModel, OutOfSpace, Stopped, Unsuitable
from syntrop.modeld.incoming import Incoming
from syntrop.modeld.store import Store

Make = Callable[..., bytes]
FREE = 1_000_000


def yes() -> bool:
    return True


@contextmanager
def opened(folder: Path, files: dict[str, bytes]) -> Iterator[dict[str, int]]:
    handles = {}
    for index, (path, data) in enumerate(files.items()):
        (folder / f"file-{index}").write_bytes(data)
        handles[path] = os.open(folder / f"file-{index}", os.O_RDONLY)
    try:
        yield handles
    finally:
        for handle in handles.values():
            os.close(handle)


def add(store: Store, folder: Path, data: bytes, name: str) -> Entry:
    with opened(folder, {"": data}) as handles:
        return store.register(handles[""], name, "latest", None, yes)


def add_folder(store: Store, folder: Path, files: dict[str, bytes], name: str = "f") -> Entry:
    with opened(folder, files) as handles:
        return store.register_folder(handles, name, "latest", None, yes)


def tensors(name: str) -> bytes:
    header = json.dumps({name: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def whole(name: str = "w") -> dict[str, bytes]:
    return {"model.safetensors": tensors(name), "config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def files(root: str) -> list[str]:
    return sorted(os.listdir(os.path.join(root, "blobs/sha256")))


def test_a_folder_is_one_model(store: Store, tmp_path: Path) -> None:
    entry = add_folder(store, tmp_path, {**whole(), "run.py": b"x", "weights.bin": b"x"})
    size = sum(map(len, whole().values()))
    assert (entry.id, entry.format, entry.size) == ("f:latest", "safetensors", size)
    assert [one.id for one in store.entries()] == ["f:latest"]
    assert store.stats() == (size, 1, 0)
    assert store.metadata(entry.digest)["architecture"] == "llama"
    for identifier in ("f", f"sha256:{entry.digest}"):
        assert store.find(naming.parse(identifier)).digest == entry.digest
    handle, length, digest = store.open(naming.parse("f"), "config.json")
    assert os.pread(handle, 100, 0) == whole()["config.json"]
    assert (length, digest) == (len(whole()["config.json"]), hashlib.sha256(whole()["config.json"]).hexdigest())
    os.close(handle)
    handle, _, digest = store.open(naming.parse("f"))
    assert digest == entry.digest == hashlib.sha256(os.pread(handle, 10000, 0)).hexdigest()
    os.close(handle)
    for missing in ("run.py", "../lock", ""):
        with pytest.raises(NoSuchModel):
            store.open(naming.parse("f"), missing)
    # A file that is only part of it is no model.
    with pytest.raises(NoSuchModel):
        store.find(naming.parse("sha256:" + files(store.root)[0]))
    again = Store(store.root)
    assert add_folder(again, tmp_path, whole(), "g").digest == entry.digest
    assert [one.id for one in again.entries()] == ["f:latest", "g:latest"]


def test_a_folder_that_is_not_whole_leaves_nothing(store: Store, tmp_path: Path) -> None:
    for broken in (
        {"config.json": b"{}"},
        {**whole(), "config.json": b"["},
        {**whole(), "model.safetensors": b"x"},
    ):
        with pytest.raises(Unsuitable):
            add_folder(store, tmp_path, broken)
    assert store.entries() == []
    assert not os.path.isdir(store.blobs) or files(store.root) == []


def test_files_that_models_share_stay_for_as_long_as_one_needs_them(store: Store, tmp_path: Path) -> None:
    first, second = whole("a"), whole("b")
    add_folder(store, tmp_path, first, "a")
    add_folder(store, tmp_path, second, "b")
    alone = add(store, tmp_path, first["model.safetensors"], "alone")
    assert len(files(store.root)) == 4
    store.pin(naming.parse("alone"))
    reclaimed, gone = store.prune(store.stats()[0] - 1)
    assert alone.digest not in gone
    # The first went, but gave back nothing that another needs; so the second went too.
    assert [entry.id for entry in store.entries()] == ["alone:latest"]
    assert files(store.root) == [alone.digest]
    assert reclaimed == sum(map(len, second.values()))
    assert store.open(naming.parse("alone"))[1] == alone.size


def test_one_open_file_keeps_its_folder(store: Store, tmp_path: Path) -> None:
    add_folder(store, tmp_path, whole())
    handle = store.open(naming.parse("f"), "tokenizer.json")[0]
    assert store.prune(0) == (0, [])
    os.close(handle)
    assert store.prune(0)[0] == sum(map(len, whole().values()))
    assert files(store.root) == []


def test_a_quota_makes_room_by_last_use(tmp_path: Path, gguf_file: Make) -> None:
    sizes = {name: len(gguf_file(name, 1000)) for name in "abcd"}
    store = Store(str(tmp_path / "store"), quota=3 * max(sizes.values()))
    for name in "abc":
        add(store, tmp_path, gguf_file(name, 1000), name)
    os.close(store.open(naming.parse("a"))[0])
    add(store, tmp_path, gguf_file("d", 1000), "d")
    assert [entry.name for entry in store.entries()] == ["a", "c", "d"]
    store.pin(naming.parse("c"))
    held = store.open(naming.parse("d"))[0]
    with pytest.raises(OutOfSpace) as caught:
        add(store, tmp_path, gguf_file("e", 2500), "e")
    refusal = caught.value
    assert (refusal.requested, refusal.removable) == (len(gguf_file("e", 2500)), sizes["a"])
    assert (refusal.pinned, refusal.in_use) == (sizes["c"], sizes["d"])
    assert [entry.name for entry in store.entries()] == ["a", "c", "d"]
    os.close(held)
    with pytest.raises(OutOfSpace):
        add(Store(str(tmp_path / "other"), quota=100), tmp_path, gguf_file("e", 2500), "e")


def test_nothing_that_is_open_is_removed_however_they_race(tmp_path: Path, gguf_file: Make) -> None:
    """Who has opened a model has it in the store until it is closed; who comes too late is told so."""
    root = str(tmp_path / "store")
    store, other = Store(root), Store(root)
    data = gguf_file("raced")
    folder = whole()
    digest = add(store, tmp_path, data, "raced").digest
    opened_ = threading.Event()
    over = threading.Event()
    faults: list[object] = []
    counts = {"opened": 0, "late": 0}

    def opening(store: Store, identifier: naming.Identifier, file: str | None) -> None:
        try:
            while not over.is_set():
                try:
                    handle, _, digest = store.open(identifier, file)
                except NoSuchModel:
                    counts["late"] += 1
                    continue
                try:
                    opened_.set()
                    counts["opened"] += 1
                    if not os.fstat(handle).st_nlink or not os.path.exists(store._blob(digest)):
                        faults.append(f"{identifier} was removed while it was open")
                finally:
                    os.close(handle)
        except BaseException as error:
            faults.append(error)
            raise

    askers = [
        threading.Thread(target=opening, args=asker)
        for asker in (
            (store, naming.parse("raced"), None),
            (other, naming.parse(naming.digest_id(digest)), None),
            (other, naming.parse("folder"), "model.safetensors"),
        )
    ]
    for asker in askers:
        asker.start()
    try:
        for _ in range(20):
            add(store, tmp_path, data, "raced")
            add_folder(store, tmp_path, folder, "folder")
            opened_.clear()
            opened_.wait(60)
            other.prune(0)
    finally:
        over.set()
        for asker in askers:
            asker.join()
    assert not faults
    assert counts["opened"]
    # Alone, there is nothing that keeps them.
    store.prune(0)
    assert store.entries() == []
    assert files(root) == []


def test_what_was_found_closed_cannot_be_opened_before_it_is_gone(tmp_path: Path, gguf_file: Make) -> None:
    opener = Store(str(tmp_path / "store"))
    digest = add(opener, tmp_path, gguf_file(), "m").digest
    identifier = naming.Identifier(digest=digest)
    got: list[int] = []
    late: list[NoSuchModel] = []

    def open_it() -> None:
        try:
            got.append(opener.open(identifier)[0])
        except NoSuchModel as error:
            late.append(error)

    asker = threading.Thread(target=open_it)

    class Watched(Store):
        def _remove(self, index: Index, models: list[str]) -> None:
            asker.start()
            asker.join(0.3)  # all the time that it needs, if only it could
            super()._remove(index, models)

    Watched(opener.root).prune(0)
    asker.join()
    assert (got, len(late)) == ([], 1)


def test_more_models_go_than_can_be_held_at_once(
    store: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.Leases, "HELD_MAX", 4)
    entries = [add(store, tmp_path, gguf_file(str(number)), f"m{number}") for number in range(9)]
    shared = add_folder(store, tmp_path, whole(), "folder")
    reclaimed, removed = store.prune(shared.size)
    assert (reclaimed, removed) == (sum(one.size for one in entries), [one.digest for one in entries])
    assert [one.id for one in store.entries()] == ["folder:latest"]


def test_the_order_holds_where_files_are_shared(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    first = add_folder(store, tmp_path, whole(), "first")
    second = add_folder(store, tmp_path, {**whole(), "LICENSE": b"free"}, "second")
    third = add(store, tmp_path, gguf_file(), "third")
    # Only both together give back what they share.
    assert store.prune(third.size) == (second.size, [first.digest, second.digest])


def test_a_floor_of_free_space(tmp_path: Path, gguf_file: Make) -> None:
    store = Store(str(tmp_path / "store"), floor=FREE, free=lambda _: FREE + 3000)
    add(store, tmp_path, gguf_file("a", 1000), "a")
    with pytest.raises(OutOfSpace):
        add(store, tmp_path, gguf_file("b", 5000), "b")
    tight = Store(store.root, floor=FREE, free=lambda _: FREE + 100)
    add(tight, tmp_path, gguf_file("b", 200), "b")
    assert [entry.name for entry in tight.entries()] == ["b"]


def test_a_quota_holds_for_all_who_come_at_once(tmp_path: Path, gguf_file: Make) -> None:
    """Room that one was given while it copies, nobody else is given; what it has written it needs no more."""
    datas = {name: gguf_file(name, 100_000) for name in "abc"}
    size = max(map(len, datas.values()))
    floor = 1000 * size
    free = [floor + 2 * size]
    store = Store(str(tmp_path / "store"), quota=2 * size, floor=floor, free=lambda _: free[0])
    refused: list[OutOfSpace] = []
    inside: list[str] = []

    def coming(name: str) -> Callable[[int], object]:
        def progress(count: int) -> None:
            inside.append(name)
            free[0] -= count
            if name != "c":
                following = chr(ord(name) + 1)
                with opened(tmp_path / following, {"": datas[following]}) as handles:
                    store.register(handles[""], following, "latest", None, yes, coming(following))

        return progress

    for name in "abc":
        (tmp_path / name).mkdir()
    with opened(tmp_path / "a", {"": datas["a"]}) as handles, pytest.raises(OutOfSpace) as caught:
        store.register(handles[""], "a", "latest", None, yes, coming("a"))
    refused.append(caught.value)
    # `c` found no room beside `a` and `b`, whose copying that ended: and with it their claims.
    assert (inside, refused[0].available) == (["a", "b"], 0)
    assert refused[0].promised == len(datas["a"]) + len(datas["b"])
    free[0] = floor + 2 * size
    for name in "ab":
        add(store, tmp_path, datas[name], name)
        free[0] -= size
    assert [entry.name for entry in store.entries()] == ["a", "b"]
    assert store.stats()[0] <= store.quota


def test_many_at_once_keep_to_the_quota(tmp_path: Path, gguf_file: Make) -> None:
    datas = [gguf_file(str(number), 50_000) for number in range(6)]
    store = Store(str(tmp_path / "store"), quota=3 * max(map(len, datas)))
    for number in range(6):
        (tmp_path / str(number)).mkdir()
    faults: list[BaseException] = []

    def run(number: int) -> None:
        for _ in range(5):
            try:
                add(store, tmp_path / str(number), datas[number], f"m{number}")
            except OutOfSpace:
                pass
            except BaseException as error:
                faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        total = 0
        for name in files(store.root) if os.path.isdir(store.blobs) else ():
            try:
                total += os.stat(Path(store.blobs, name)).st_size
            except FileNotFoundError:
                pass
        if total > store.quota:
            faults.append(AssertionError(f"{total} bytes"))
            break
    for thread in threads:
        thread.join()
    assert faults == []
    assert not store._promises


def test_downloads_of_nobody_count_and_go_first(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    entry = add(store, tmp_path, gguf_file("kept", 1000), "kept")
    for age, source in ((30, "older"), (20, "newer"), (40, "held")):
        one = Incoming(store.incoming, source)
        one.resume(yes)
        one.append(b"x" * 1000)
        one.checkpoint()
        for path in (one.path, one.path + ".json"):
            os.utime(path, (1e9 - age, 1e9 - age))
        if source != "held":
            one.close()
    tight = Store(store.root, quota=entry.size + 2100)
    tight.release(tight.promise(1000))
    assert [incoming.left(store.incoming), len(store.entries())] == [1000, 1]
    # When nothing makes enough, nothing goes.
    with pytest.raises(OutOfSpace) as caught:
        tight.promise(entry.size + 2101)
    assert caught.value.removable == entry.size + 1000
    assert incoming.left(store.incoming) == 1000
    assert store.prune(entry.size) == (1000, [])
    assert store.prune(0) == (entry.size, [entry.digest])
    # Somebody is at this one.
    assert os.path.getsize(one.path) == 1000
    one.close()


def test_the_order_of_use_holds_though_the_clock_is_put_back(
    store: Store, tmp_path: Path, gguf_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    for name in "abc":
        add(store, tmp_path, gguf_file(name), name)
    monkeypatch.setattr(time, "time_ns", lambda: now - 10**18)
    woken = Store(store.root)
    os.close(woken.open(naming.parse("a"))[0])
    woken = Store(store.root)
    os.close(woken.open(naming.parse("b"))[0])
    fsck.tidy(woken, fsck.Report(0))
    index = woken.index()
    order = sorted(index.models, key=Store(store.root)._last_used)
    assert [index.names[one][0] for one in order] == ["c", "a", "b"]


def test_two_stores_of_one_folder_see_each_other(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    other = Store(store.root)
    for number in range(20):
        add(store, tmp_path, gguf_file(str(number)), f"m{number}")
        assert len(other.entries()) == number + 1
        store.pin(naming.parse(f"m{number}"))
        assert all(entry.pinned for entry in other.entries())
    assert other.index() is other.index()


def check(store: Store, workers: int = 2) -> fsck.Report:
    return fsck.check(store, yes, lambda _report: None, workers)


def test_damage_is_found_and_put_aside(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    good, bad = (add(store, tmp_path, gguf_file(name, 5000), name) for name in ("good", "bad"))
    folder = add_folder(store, tmp_path, whole())
    total = store.stats()[0]
    report = check(store)
    assert (report.models, report.files, report.leftovers) == ([], [], [])
    assert report.checked == report.total > total  # the manifest too
    shard = hashlib.sha256(whole()["model.safetensors"]).hexdigest()
    for digest in (bad.digest, shard):
        path = Path(store.blobs, digest)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
    report = check(store)
    assert set(report.models) == {bad.digest, folder.digest}
    assert set(report.files) == {bad.digest, shard}
    assert [entry.digest for entry in store.entries()] == [good.digest]
    assert not Path(store.tags, "bad").exists()
    assert {name[:64] for name in os.listdir(store.quarantine)} == {bad.digest, shard, folder.digest}
    # What is left of the folder is nobody's, and goes.
    assert files(store.root) == [good.digest]
    # Given again, it is whole again.
    assert add_folder(store, tmp_path, whole()).digest == folder.digest
    assert check(store).models == []


def test_a_damaged_manifest_and_a_missing_file(store: Store, tmp_path: Path) -> None:
    first, second = add_folder(store, tmp_path, whole("a"), "a"), add_folder(store, tmp_path, whole("b"), "b")
    manifest = Path(store.manifests, first.digest)
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes()[:-3])
    Path(store.blobs, hashlib.sha256(whole("b")["model.safetensors"]).hexdigest()).unlink()
    again = Store(store.root)
    assert again.entries() == []
    assert first.digest in check(again).models
    assert os.listdir(again.tags) == []
    assert second.digest not in {entry.digest for entry in again.entries()}


def test_what_is_no_file_is_no_model_and_is_put_aside(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    entry = add(store, tmp_path, gguf_file(), "m")
    odd = [letter * 64 for letter in "1234"]
    os.mkfifo(Path(store.blobs, odd[0]))  # to open it would be to wait for ever
    Path(store.blobs, odd[1]).mkdir()
    Path(store.blobs, odd[2]).symlink_to("/dev/zero")
    os.mkfifo(Path(store.manifests, odd[3]))
    for one in odd[:3]:
        Path(store.tags, "m", f"tag{one[0]}").symlink_to(f"../../blobs/sha256/{one}")
    Path(store.notes, f"{entry.digest}.json").write_text("[" * 200_000)
    again = Store(store.root)
    assert [one.id for one in again.entries()] == ["m:latest"]
    assert again.entries()[0].format == "gguf"
    for text in ("m:tag1", "m:tag2", "m:tag3", *(naming.digest_id(one) for one in odd)):
        with pytest.raises(NoSuchModel):
            again.open(naming.parse(text))
    assert set(check(again).files) == set(odd)
    assert {name[:64] for name in os.listdir(again.quarantine)} == set(odd)
    assert os.listdir(Path(again.tags, "m")) == ["latest"]
    assert check(again).files == []


def test_what_a_crash_left_is_cleared_away(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    entry = add(store, tmp_path, gguf_file(), "m")
    Path(store.blobs, ".incoming-0123").write_bytes(b"half")
    Path(store.incoming, ".incoming-4567").write_bytes(b"half")
    Path(store.blobs, hashlib.sha256(b"never told of").hexdigest()).write_bytes(b"never told of")
    Path(store.notes, "1" * 64 + ".json").write_text("{}")
    Path(store.uses, "1" * 64).touch()
    Path(store.tags, "m", ".1-ab").symlink_to("x")
    Path(store.tags, "m", "gone").symlink_to("../../blobs/sha256/" + "1" * 64)
    again = Store(store.root)
    assert [one.id for one in again.entries()] == ["m:latest"]
    report = check(again)
    assert len(report.leftovers) == 7
    assert files(store.root) == [entry.digest]
    assert os.listdir(Path(store.tags, "m")) == ["latest"]
    assert check(again).leftovers == []


def test_files_are_read_side_by_side(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    for name in ("a", "b", "c"):
        add(store, tmp_path, gguf_file(name), name)
    meeting = threading.Barrier(3)
    waited = threading.local()
    main = threading.get_ident()

    def wanted() -> bool:
        if threading.get_ident() != main and not hasattr(waited, "yes"):
            waited.yes = True
            meeting.wait(60)  # which fewer than three never get past
        return True

    report = fsck.check(store, wanted, lambda _: None, workers=3)
    assert report.checked == report.total
    assert not meeting.broken


def test_a_check_can_be_stopped(store: Store, tmp_path: Path, gguf_file: Make) -> None:
    add(store, tmp_path, gguf_file(), "m")
    assert fsck.check(store, lambda: False, lambda _report: None).checked == 0
    assert fsck.check(Store(str(tmp_path / "nothing")), yes, lambda _report: None).total == 0


def test_a_download_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "CHECKPOINT", 1000)
    store.prepare()
    one = Incoming(store.incoming, "source")
    assert one.resume(yes) == 0
    with pytest.raises(InUse):
        Incoming(store.incoming, "source")
    one.validator = '"v"'
    for _ in range(5):
        one.append(b"x" * 300)
    # As a kill leaves it: only what was made safe is used again.
    os.close(one.handle)
    two = Incoming(store.incoming, "source")
    assert two.resume(yes) == 1200
    assert (two.validator, two.digest()) == ('"v"', hashlib.sha256(b"x" * 1200).hexdigest())
    two.append(b"y")
    two.close()
    three = Incoming(store.incoming, "source")
    with pytest.raises(Stopped):
        three.resume(lambda: False)
    three.close()
    three = Incoming(store.incoming, "source")
    assert three.resume(yes) == 1201
    three.restart()
    three.append(b"z")
    os.close(three.handle)
    # The first bytes were of something else: nothing that was said of them holds for these.
    four = Incoming(store.incoming, "source")
    assert four.resume(yes) == 0
    four.discard()
    assert os.listdir(store.incoming) == []


def test_a_download_that_was_stored_is_never_written_again(store: Store, gguf_file: Make) -> None:
    store.prepare()
    data = gguf_file()
    one = Incoming(store.incoming, "source")
    one.resume(yes)
    one.append(data)
    one.checkpoint()
    blob = Path(store.blobs, one.digest())
    os.link(one.path, blob)
    os.close(one.handle)  # killed before it was discarded
    two = Incoming(store.incoming, "source")
    two.resume(yes)
    two.append(b"other")
    two.close()
    assert blob.read_bytes() == data


def test_old_downloads_are_swept_away(store: Store) -> None:
    store.prepare()
    one = Incoming(store.incoming, "old")
    one.resume(yes)
    one.append(b"x" * 10)
    one.close()
    now = os.stat(one.path).st_mtime
    assert incoming.sweep(store.incoming, now + 10) == 0
    held = Incoming(store.incoming, "held")
    assert incoming.sweep(store.incoming, now + 2 * incoming.STALE_SEC) > 10
    assert os.listdir(store.incoming) == [os.path.basename(held.path)]
    held.close()


def test_parts_in_sealed_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4)
    cache = sealed.Cache(1000)

    def part(offset: int, length: int) -> int:
        return sealed.cut(os.open(tmp_path / "file", os.O_RDONLY), offset, length)

    before = len(os.listdir("/proc/self/fd"))
    handle = part(10, 600)
    assert memfd.verify(handle, 600) == 600
    assert os.pread(handle, 3, 0) == bytes([10, 11, 12])
    cache.put(("d", 10, 600), handle)
    os.close(handle)
    shared = cache.get(("d", 10, 600))
    assert shared is not None
    other = part(0, 500)
    cache.put(("d", 0, 500), other)  # the older one makes room
    assert cache.get(("d", 10, 600)) is None
    assert os.pread(shared, 1, 0) == bytes([10])
    for one in (shared, other):
        os.close(one)
    cache.put(("d", 0, 2000), shared)  # too large to keep
    cache.clear()
    with pytest.raises(Unsuitable):
        part(1000, 500)
    assert len(os.listdir("/proc/self/fd")) == before
