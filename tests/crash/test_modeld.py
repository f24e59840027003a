# SPDX-License-Identifier: Apache-2.0
"""modeld's store: no half model, no dangling tag, no lost pin, whenever it was cut short."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator

import pytest
from crashlab.explore import Scenario
from proofs import Proofs

from syntrop.modeld import fsck, listing, naming
from syntrop.modeld.faults import NoSuchModel
from syntrop.modeld.rows import Listing
from syntrop.modeld.store import Store

Acknowledge = Callable[[str], None]


def gguf(name: str) -> bytes:
    """A whole model file of one tensor."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    pairs = {"general.architecture": "llama", "general.name": name}
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs))
    for key, value in pairs.items():
        head += text(key) + struct.pack("<I", 8) + text(value)
    head += text("blk.0.w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<8f", *range(1, 9))


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(12))


FILES = {name: gguf(name) for name in ("one", "two", "three")}
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": safetensors(),
    "tokenizer.json": b'{"version": "1.0"}',
}
WEIGHTS = hashlib.sha256(FOLDER["model.safetensors"]).hexdigest()
ONE, TWO, THREE = (hashlib.sha256(data).hexdigest() for data in FILES.values())


def open_store(root: str) -> Store:
    return Store(os.path.join(root, "store"))


@contextlib.contextmanager
def sources(root: str, *names: str) -> Iterator[list[int]]:
    handles = [os.open(os.path.join(root, "sources", name), os.O_RDONLY) for name in names]
    try:
        yield handles
    finally:
        for handle in handles:
            os.close(handle)


def register(root: str, store: Store, name: str) -> None:
    with sources(root, name) as [handle]:
        store.register(handle, name, "latest", None, lambda: True)


def prepare(root: str) -> None:
    os.mkdir(os.path.join(root, "sources"))
    for name, data in {**FILES, **FOLDER}.items():
        with open(os.path.join(root, "sources", name), "wb") as file:
            file.write(data)


def prepare_stocked(root: str) -> None:
    prepare(root)
    store = open_store(root)
    register(root, store, "one")
    register(root, store, "two")
    store.pin(naming.parse("one"))


def take_in(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    register(root, store, "one")
    acknowledge("one")
    store.tag(ONE, "alias", "v1")
    acknowledge("alias")
    store.pin(naming.parse("one"))
    acknowledge("pinned")
    os.close(store.open(naming.parse("one"))[0])


def take_in_folder(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    with sources(root, *FOLDER) as handles:
        entry = store.register_folder(
            dict(zip(FOLDER, handles, strict=True)), "folder", "latest", None, lambda: True
        )
    acknowledge(f"folder {entry.digest}")
    # One of its files as a model of its own, under no name: only its note tells that it is one.
    with sources(root, "model.safetensors") as [handle]:
        store.register(handle, None, None, None, lambda: True)
    acknowledge("part")


def rename(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    store.tag(TWO, "one", "latest")
    acknowledge("moved")
    store.unpin(naming.parse(f"sha256:{ONE}"))
    acknowledge("unpinned")
    store.pin(naming.parse("two"))
    acknowledge("two pinned")


def prune(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    with contextlib.suppress(NoSuchModel):  # when it is done again
        store.tag(TWO, "other", "v2")
    store.prune(0)
    acknowledge("pruned")
    register(root, store, "three")
    acknowledge("three")


def prepare_shared(root: str) -> None:
    """Three models of the same files: a pinned folder, a part of it as another folder, and one of its files."""
    prepare(root)
    store = open_store(root)
    with sources(root, *FOLDER) as handles:
        files = dict(zip(FOLDER, handles, strict=True))
        store.register_folder(files, "whole", "latest", None, lambda: True)
        store.pin(naming.parse("whole"))
        del files["tokenizer.json"]
        store.register_folder(files, "part", "latest", None, lambda: True)
        store.register(files["model.safetensors"], None, None, None, lambda: True)


def prune_shared(root: str, acknowledge: Acknowledge) -> None:
    open_store(root).prune(0)
    acknowledge("pruned")


def withdraw(root: str, acknowledge: Acknowledge) -> None:
    open_store(root).withdraw(TWO)
    acknowledge("withdrawn")


def withdraw_shared(root: str, acknowledge: Acknowledge) -> None:
    open_store(root).withdraw(WEIGHTS)
    acknowledge("withdrawn")


def prepare_listed(root: str) -> None:
    prepare_stocked(root)
    Listing(open_store(root)).keep()


def change_listed(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    store.unpin(naming.parse(f"sha256:{ONE}"))
    acknowledge("unpinned")
    Listing(store).keep()
    acknowledge("kept")
    store.pin(naming.parse("two"))
    acknowledge("two pinned")


def prepare_disbelieved(root: str) -> None:
    """Somebody changed something by hand, so that the next change removes the listing."""
    prepare_listed(root)
    os.mkdir(os.path.join(root, "store/tags/other"))


def change_disbelieved(root: str, acknowledge: Acknowledge) -> None:
    open_store(root).tag(TWO, "one", "latest")
    acknowledge("moved")


def check_listed(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    assert "moved" not in acked or digests(store)["one:latest"] == TWO, "the name went back"
    goes_on(root, store)
    listed_truly(store)


def listed_truly(store: Store) -> None:
    """What is kept is true whatever the folders' times say: a power failure may have brought old ones back."""
    kept = listing.read(store.listing)
    if kept is not None and kept.times is not None:
        rows = json.loads(Listing(store).revised(kept).encoded or b"")["parameters"]["models"]
        told = [[one["id"], one["digest"], one["pinned"]] for one in rows]
        assert told == [[entry.id, naming.digest_id(entry.digest), entry.pinned] for entry in store.entries()], (
            "an answer is believed that is not true"
        )


LITTER = ("blobs/sha256/" + "ab" * 32, f"notes/{'cd' * 32}.json", "notes/.half.tmp", "tags/two/gone")


def prepare_littered(root: str) -> None:
    prepare_stocked(root)
    for one in LITTER[:-1]:
        with open(os.path.join(root, "store", one), "wb") as file:
            file.write(b"{}")
    os.symlink(f"../../blobs/sha256/{'ef' * 32}", os.path.join(root, "store", LITTER[-1]))
    Listing(open_store(root)).keep()


def tidy(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    fsck.tidy(store, fsck.Report(0))
    acknowledge("tidied")
    store.pin(naming.parse("two"))


def check_tidied(root: str, acked: tuple[str, ...]) -> None:
    listed_truly(open_store(root))
    left = [one for one in LITTER if os.path.lexists(os.path.join(root, "store", one))]
    assert not acked or not left, f"what was removed came back: {left}"
    fsck.tidy(open_store(root), fsck.Report(0))
    store = sound(root)
    assert set(digests(store)) == {"one:latest", "two:latest"}
    assert any(entry.pinned for entry in store.entries())
    goes_on(root, store)


def sound(root: str) -> Store:
    """The store, opened, with all that must hold whatever happened; and it goes on working."""
    store = open_store(root)
    listed_truly(store)
    entries = store.entries()
    for entry in entries:
        assert entry.format in ("gguf", "safetensors"), f"{entry.id} is {store.metadata(entry.digest)}"
        assert store.metadata(entry.digest)["parameter_count"] > 0
        handle, _, _ = store.open(naming.parse(entry.id))
        os.close(handle)
    if os.path.isdir(store.blobs):
        for name in filter(naming.is_hex, os.listdir(store.blobs)):
            with open(os.path.join(store.blobs, name), "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == name, f"blob {name} is damaged"
    known = {entry.id for entry in entries}
    for name in os.listdir(store.tags) if os.path.isdir(store.tags) else ():
        for tag in os.listdir(os.path.join(store.tags, name)):
            if not tag.startswith("."):
                assert f"{name}:{tag}" in known, f"tag {name}:{tag} dangles"
    return store


def goes_on(root: str, store: Store) -> None:
    register(root, store, "three")
    assert store.find(naming.parse("three")).digest == THREE
    store.pin(naming.parse("three"))
    store.prune(0)
    assert THREE in {entry.digest for entry in sound(root).entries()}


def digests(store: Store) -> dict[str, str]:
    return {entry.id: entry.digest for entry in store.entries()}


def check_taken_in(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert set(found.values()) <= {ONE}
    assert "one" not in acked or found.get("one:latest") == ONE, "the model is lost"
    assert "alias" not in acked or found.get("alias:v1") == ONE, "the second name is lost"
    assert "pinned" not in acked or all(entry.pinned for entry in store.entries()), "the pin is lost"
    goes_on(root, store)
    assert "pinned" not in acked or ONE in digests(open_store(root)).values(), "a pinned model was pruned"


def check_folder(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert "part" not in acked or WEIGHTS in found.values(), "the model of one file is lost"
    for one in acked[:1]:
        assert found.get("folder:latest") == one.split()[1], "the model is lost"
        for path, data in FOLDER.items():
            handle, size, _ = store.open(naming.parse("folder"), path)
            with open(handle, "rb") as file:
                assert file.read() == data and size == len(data)
    goes_on(root, store)


def check_renamed(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert {ONE, TWO} == set(found.values()), "a model is lost"
    assert found["one:latest"] in ((TWO,) if "moved" in acked else (ONE, TWO)), "the name went back"
    assert found["two:latest"] == TWO
    pinned = {entry.digest for entry in store.entries() if entry.pinned}
    if "moved" not in acked:
        assert ONE in pinned, "the pin is lost"
    assert "unpinned" not in acked or ONE not in pinned, "the pin came back"
    assert "two pinned" not in acked or TWO in pinned, "the new pin is lost"
    goes_on(root, store)


def check_pruned(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert found["one:latest"] == ONE, "a pinned model is lost"
    if "pruned" in acked:
        assert TWO not in found.values(), "what was removed came back"
        assert "two:latest" not in found and "other:v2" not in found
        with pytest.raises(NoSuchModel):
            store.find(naming.Identifier(digest=TWO))
        assert store.stats()[0] <= len(FILES["one"]) + len(FILES["three"]), "the room was not given back"
    assert "three" not in acked or found["three:latest"] == THREE, "the model is lost"
    goes_on(root, store)


def check_shared(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert "whole:latest" in found, "a pinned model is lost"
    assert not acked or list(found) == ["whole:latest"], "what was removed came back"
    goes_on(root, store)


def check_withdrawn(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = digests(store)
    assert found["one:latest"] == ONE
    aside = os.listdir(store.quarantine) if os.path.isdir(store.quarantine) else []
    kept = TWO in os.listdir(store.blobs) or any(name.startswith(TWO) for name in aside)
    assert kept, "neither here nor there"
    assert "withdrawn" not in acked or TWO not in found.values(), "what was put aside came back"
    goes_on(root, store)


def check_withdrawn_shared(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    aside = os.listdir(store.quarantine) if os.path.isdir(store.quarantine) else []
    kept = WEIGHTS in os.listdir(store.blobs) or any(name.startswith(WEIGHTS) for name in aside)
    assert kept, "neither here nor there"
    assert not acked or not digests(store), "what was put aside came back"
    assert not acked or WEIGHTS not in os.listdir(store.blobs), "the damaged file is still there"
    with sources(root, "model.safetensors") as [handle]:
        store.register(handle, "again", "latest", None, lambda: True)
    # Only what was given again: a manifest that came back would take the file for its own.
    assert not acked or set(digests(store)) == {"again:latest"}, "a model that was put aside came back"
    goes_on(root, store)


class TestStore(Proofs):
    SCENARIOS = (
        Scenario("take in", prepare, take_in, check_taken_in),
        Scenario("take in a folder", prepare, take_in_folder, check_folder),
        Scenario("rename", prepare_stocked, rename, check_renamed),
        Scenario("change what is listed", prepare_listed, change_listed, check_listed),
        Scenario("change what is disbelieved", prepare_disbelieved, change_disbelieved, check_listed),
        Scenario("prune", prepare_stocked, prune, check_pruned),
        Scenario("prune what is shared", prepare_shared, prune_shared, check_shared),
        Scenario("tidy", prepare_littered, tidy, check_tidied),
        Scenario("withdraw", prepare_stocked, withdraw, check_withdrawn),
        Scenario("withdraw what is shared", prepare_shared, withdraw_shared, check_withdrawn_shared),
    )
    SOURCES = tuple(f"src/syntrop/modeld/{name}.py" for name in ("catalogue", "disk", "fsck", "listing", "store"))
