# SPDX-License-Identifier: Apache-2.0
"""modeld as a process: models come in by descriptor and go out by descriptor."""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from syntrop.common.varlink import idl

MODEL1 = "io.syntrop.Model1."
INVALID = MODEL1 + "InvalidParameter"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def model(name: str = "tiny", padding: int = 0) -> bytes:
    """A small GGUF file; another name makes another digest."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("general.name") + struct.pack("<I", 8) + text(name)
    head += text("w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head += bytes(-len(head) % 32)
    return head + bytes(32 + padding)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def until(condition: Callable[[], bool]) -> None:
    end = monotonic() + 60
    while not condition():
        assert monotonic() < end
        sleep(0.02)


class Modeld:
    def __init__(self, launch: Any, folder: Path) -> None:
        self.unit = launch("modeld")
        self.launch = launch
        self.folder = folder
        self.client = self.another()

    def another(self) -> Any:
        return self.launch.client(self.unit, "io.syntrop.Model1")

    def call(self, method: str, **parameters: Any) -> Any:
        return self.client.call(MODEL1 + method, **parameters)

    def register(self, data: bytes, id: str = "tiny:latest", client: Any = None, **parameters: Any) -> Any:
        path = self.folder / f"source-{threading.get_ident()}"
        path.write_bytes(data)
        handle = os.open(path, os.O_RDONLY)
        try:
            return (client or self.client).call(MODEL1 + "Register", [handle], id=id, fd=0, **parameters)
        finally:
            os.close(handle)

    def fds(self) -> int:
        """Descriptors of the daemon, between two calls."""
        assert self.call("GetStorageStats").error is None
        return len(os.listdir(f"/proc/{self.unit.process.pid}/fd"))

    def stored(self) -> set[str]:
        """Files in the store, but for those that only tell of others."""
        files = (path for path in self.unit.state.rglob("*") if path.is_file() and path.parent.name != "uses")
        return {path.name for path in files if path.name not in ("lock", "listing")}


@pytest.fixture
def modeld(launch: Any, tmp_path: Path) -> Modeld:
    return Modeld(launch, tmp_path)


def test_in_by_descriptor_and_out_by_descriptor(modeld: Modeld) -> None:
    data = model()
    reply = modeld.register(data, "tiny:135m", digest=digest_of(data))
    assert reply.error is None, reply.parameters
    entry = {
        "id": "tiny:135m",
        "digest": digest_of(data),
        "name": "tiny",
        "tag": "135m",
        "size_bytes": len(data),
        "pinned": False,
        "format": "gguf",
    }
    assert reply.parameters["entry"] == entry
    assert modeld.call("List").parameters == {"models": [entry]}
    inspected = modeld.call("Inspect", id="tiny").parameters
    assert inspected["info"] == entry
    metadata = json.loads(inspected["metadata"])
    assert (metadata["architecture"], metadata["name"], metadata["parameter_count"]) == ("llama", "tiny", 8)
    stats = modeld.call("GetStorageStats").parameters
    assert (stats["total_bytes"], stats["model_count"], stats["pinned_count"]) == (len(data), 1, 0)
    assert stats["free_bytes"] > 0
    assert "quota_bytes" not in stats
    for id in ("tiny", "tiny:135m", digest_of(data)):
        opened = modeld.call("Open", id=id)
        assert opened.parameters == {"fd": 0, "size": len(data), "digest": digest_of(data)}
        (handle,) = opened.fds
        with mmap.mmap(handle, 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == data
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(handle, b"x")
        os.close(handle)


def test_the_store_outlives_the_process(modeld: Modeld) -> None:
    assert modeld.register(model()).error is None
    modeld.unit.process.kill()
    modeld.unit.process.wait()
    modeld.unit.start()
    assert [one["id"] for one in modeld.another().call(MODEL1 + "List").parameters["models"]] == ["tiny:latest"]


def test_the_list_is_left_to_the_next_process(modeld: Modeld) -> None:
    data = model("one")
    modeld.register(data, "one")
    modeld.register(model("two"), "two")
    told = modeld.call("List").parameters["models"]
    assert modeld.call("Check").error is None  # which writes it anew
    # Even what only the list knows: nothing is read but what changed, be it that a process was killed.
    note = modeld.unit.state / "notes" / f"{digest_of(data)[7:]}.json"
    note.write_text('{"format": "changed", "metadata": {}}')
    for method, pinned, end in (
        (None, False, signal.SIGTERM),
        ("Pin", True, signal.SIGKILL),
        ("Unpin", False, signal.SIGTERM),
        (None, False, signal.SIGKILL),
    ):
        if method is not None:
            assert modeld.call(method, id="two").error is None
        modeld.unit.process.send_signal(end)
        modeld.unit.process.wait(30)
        modeld.unit.start()
        modeld.client = modeld.another()
        told[1]["pinned"] = pinned
        assert modeld.call("List").parameters["models"] == told


def test_a_lost_list_is_made_again_before_anybody_asks(modeld: Modeld) -> None:
    data = model("one")
    modeld.register(data, "one")
    kept = modeld.unit.state / "listing"
    for damage in (kept.unlink, lambda: kept.write_bytes(b"torn")):
        damage()
        assert modeld.call("Pin", id="one").error is None
        until(lambda: kept.exists() and kept.read_bytes().startswith(b'{"format"'))
        modeld.unit.process.kill()
        modeld.unit.process.wait(30)
        modeld.unit.start()
        modeld.client = modeld.another()
        assert [one["pinned"] for one in modeld.call("List").parameters["models"]] == [True]
    kept.unlink()
    assert modeld.call("Open", id="one").error is None
    modeld.unit.process.terminate()
    assert modeld.unit.process.wait(60) == 0
    assert kept.exists()


def test_by_path_and_by_name_alone(modeld: Modeld, tmp_path: Path) -> None:
    data = model()
    (tmp_path / "file.gguf").write_bytes(data)
    reply = modeld.call("Register", id="tiny", path=str(tmp_path / "file.gguf"))
    assert reply.parameters["entry"]["id"] == "tiny:latest"
    # A model that is there takes another name by its digest: the published form of the call.
    reply = modeld.call("Register", id="other", tag="v2", digest=digest_of(data))
    assert reply.parameters["entry"]["id"] == "other:v2"
    assert modeld.call("Register", id="other:v2").parameters["entry"]["digest"] == digest_of(data)
    assert modeld.call("Register", id=digest_of(data)).error is None
    assert modeld.call("GetStorageStats").parameters["model_count"] == 1
    absent = "sha256:" + "0" * 64
    reply = modeld.call("Register", id="third", digest=absent)
    assert (reply.error, reply.parameters) == (MODEL1 + "NoSuchModel", {"id": absent})
    reply = modeld.call("Register", id="third")
    assert (reply.error, reply.parameters["parameter"]) == (INVALID, "fd")


def test_a_wrong_digest_is_refused_and_leaves_nothing(modeld: Modeld) -> None:
    data = model()
    wrong = "sha256:" + "0" * 64
    reply = modeld.register(data, digest=wrong)
    assert reply.error == MODEL1 + "DigestMismatch"
    assert reply.parameters == {"expected": wrong, "actual": digest_of(data)}
    reply = modeld.register(data, id=wrong)
    assert reply.error == MODEL1 + "DigestMismatch"
    assert modeld.stored() == set()
    assert modeld.call("List").parameters == {"models": []}


@pytest.mark.parametrize("id", ["", "../etc", "a/b", "a..b", "a\0b", "a\nb", "x" * 200, "a:b:c", "sha256:12"])
def test_identifiers_that_none_can_have(modeld: Modeld, id: str) -> None:
    for method in ("Inspect", "Open", "Pin", "Unpin", "Register"):
        reply = modeld.call(method, id=id)
        assert (reply.error, reply.parameters) == (MODEL1 + "InvalidIdentifier", {"id": id}), method
    for method, more in (
        ("OpenSealed", {"offset": 0, "length": 1}),
        ("Import", {"path": "/nowhere"}),
        ("Pull", {"reference": "smol"}),
    ):
        reply = modeld.call(method, id=id, **more)
        if (method, id) != ("Pull", ""):  # that is as good as none
            assert (reply.error, reply.parameters) == (MODEL1 + "InvalidIdentifier", {"id": id}), method
    assert modeld.register(model(), id="tiny", tag="../x").error == MODEL1 + "InvalidIdentifier"
    assert modeld.stored() == set()


def test_files_that_no_model_has(modeld: Modeld) -> None:
    modeld.register(model())
    for file in ("", "../x", "/etc/passwd", "a//b", "a/../b", "a\0", "a\n", ".hidden", "x" * 300, "a/b/c/d/e"):
        reply = modeld.call("Open", id="tiny", file=file)
        assert (reply.error, reply.parameters) == (MODEL1 + "InvalidIdentifier", {"id": file})
    assert modeld.call("Open", id="tiny", file="config.json").error == MODEL1 + "NoSuchModel"


@pytest.mark.parametrize("method", ["Inspect", "Open", "Pin", "Unpin"])
def test_models_that_are_not_there(modeld: Modeld, method: str) -> None:
    reply = modeld.call(method, id="nobody:home")
    assert (reply.error, reply.parameters) == (MODEL1 + "NoSuchModel", {"id": "nobody:home"})


def test_parameters_that_do_not_go_together(modeld: Modeld, tmp_path: Path) -> None:
    digest = "sha256:" + "1" * 64
    cases: list[tuple[dict[str, Any], str]] = [
        ({"id": "a", "digest": "12"}, "digest"),
        ({"id": "a", "digest": "b:c"}, "digest"),
        ({"id": "a:b", "tag": "c"}, "tag"),
        ({"id": digest, "tag": "c"}, "tag"),
        ({"id": digest, "digest": "sha256:" + "2" * 64}, "digest"),
        ({"id": "a", "path": "relative"}, "path"),
        ({"id": "a", "path": str(tmp_path / "missing")}, "path"),
        ({"id": "a", "path": str(tmp_path)}, "path"),
        ({"id": "a", "path": "/dev/zero"}, "path"),
        ({"id": "a", "path": "/\0"}, "path"),
        ({"id": "a", "path": "/x", "fd": 0}, "path"),
    ]
    for parameters, name in cases:
        reply = modeld.call("Register", **parameters)
        assert (reply.error, reply.parameters["parameter"]) == (INVALID, name), parameters
    for index in (0, 1, -1):
        reply = modeld.call("Register", id="a", fd=index)
        assert reply.error == "org.varlink.service.InvalidParameter"
    assert modeld.call("Prune", max_bytes=-1).error == INVALID


def test_descriptors_that_are_no_model(modeld: Modeld, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "script").write_text("#!/bin/sh\nexit 0\n" * 10)
    (tmp_path / "cut").write_bytes(model()[:-20])
    (tmp_path / "whole").write_bytes(model())
    read, write = os.pipe()
    before = modeld.fds()
    for handle in (
        read,
        os.open(tmp_path, os.O_RDONLY),
        os.open("/dev/null", os.O_RDWR),
        os.open(tmp_path / "empty", os.O_RDONLY),
        os.open(tmp_path / "script", os.O_RDONLY),
        os.open(tmp_path / "cut", os.O_RDONLY),
        os.open(tmp_path / "whole", os.O_WRONLY),
    ):
        reply = modeld.client.call(MODEL1 + "Register", [handle], id="a", fd=0)
        assert (reply.error, reply.parameters["parameter"]) == (INVALID, "fd")
        assert reply.parameters["reason"]
        os.close(handle)
    os.close(write)
    assert modeld.fds() == before
    assert modeld.stored() == set()


def test_no_descriptor_is_left_behind(modeld: Modeld) -> None:
    data = model()
    assert modeld.register(data).error is None
    before = modeld.fds()
    for _ in range(20):
        assert modeld.register(data).error is None
        assert modeld.register(data, id="/").error == MODEL1 + "InvalidIdentifier"
        assert modeld.register(data, path="/x").error == INVALID
        opened = modeld.call("Open", id="tiny")
        os.close(opened.fds[0])
    assert modeld.fds() == before


def test_one_that_hangs_up_gets_nothing_stored_half(modeld: Modeld, tmp_path: Path) -> None:
    # Sparse, so that it is large at once; hashing it takes a while.
    (tmp_path / "large").write_bytes(model())
    os.truncate(tmp_path / "large", 2 << 30)
    handle = os.open(tmp_path / "large", os.O_RDONLY)
    before = modeld.fds()
    for _ in range(3):
        leaver = modeld.another()
        leaver.send(MODEL1 + "Register", [handle], id="large", fd=0)
        leaver.close()
    os.close(handle)
    # The loop is free meanwhile, and the copies end without anybody waiting for them.
    assert modeld.call("List").parameters == {"models": []}
    for _ in range(1200):
        if modeld.fds() == before:
            break
        assert modeld.call("List").parameters == {"models": []}
        threading.Event().wait(0.05)
    assert modeld.fds() == before
    assert modeld.stored() == set()


def test_others_are_answered_while_one_registers(modeld: Modeld, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(model())
    os.truncate(tmp_path / "large", 256 << 20)
    handle = os.open(tmp_path / "large", os.O_RDONLY)
    busy = modeld.another()
    busy.send(MODEL1 + "Register", [handle], id="large", fd=0)
    os.close(handle)
    answered = 0
    busy.socket.settimeout(0)
    while True:
        assert modeld.call("GetStorageStats").error is None
        answered += 1
        try:
            busy.socket.recv(1, socket.MSG_PEEK)
            break
        except BlockingIOError:
            continue
    assert answered > 10
    busy.socket.settimeout(20)
    assert busy.receive().parameters["entry"]["size_bytes"] == 256 << 20


def test_many_register_the_same_at_once(modeld: Modeld) -> None:
    data = model("same", 3_000_000)
    replies = []

    def run(index: int) -> None:
        replies.append(modeld.register(data, f"same{index % 3}", client=clients[index]))

    clients = [modeld.another() for _ in range(8)]
    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [reply.error for reply in replies] == [None] * 8
    assert {one["id"] for one in modeld.call("List").parameters["models"]} == {f"same{i}:latest" for i in range(3)}
    assert modeld.call("GetStorageStats").parameters["model_count"] == 1


def test_pins_and_pruning(modeld: Modeld) -> None:
    sizes = {}
    for name in ("a", "b"):
        data = model(name)
        sizes[name] = len(data)
        assert modeld.register(data, name).error is None
    assert modeld.call("Pin", id="a", allowInteractiveAuthentication=False).error is None
    assert [one["pinned"] for one in modeld.call("List").parameters["models"]] == [True, False]
    opened = modeld.call("Open", id="b")
    assert modeld.call("Prune", max_bytes=0).parameters == {"reclaimed_bytes": 0, "removed": [], "entries": []}
    os.close(opened.fds[0])
    pruned = modeld.call("Prune", max_bytes=0).parameters
    assert [one["id"] for one in pruned.pop("entries")] == ["b:latest"]
    assert pruned == {"reclaimed_bytes": sizes["b"], "removed": [digest_of(model("b"))]}
    assert modeld.call("Unpin", id="a").error is None
    assert modeld.call("Prune", max_bytes=10**15).parameters["reclaimed_bytes"] == 0
    assert [one["id"] for one in modeld.call("List").parameters["models"]] == ["a:latest"]


@pytest.mark.root
def test_a_stranger_may_look_but_not_change(modeld: Modeld, tmp_path: Path, launch: Any) -> None:
    data = model()
    assert modeld.register(data).error is None
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    os.chmod(modeld.unit.run / "syntrop/io.syntrop.Model1", 0o666)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        outcome: dict[str, str | None] = {}
        client = modeld.another()
        calls: dict[str, dict[str, Any]] = {
            "List": {},
            "Inspect": {"id": "tiny"},
            "Open": {"id": "tiny"},
            "GetStorageStats": {},
            "Register": {"id": "mine"},
            "Pin": {"id": "tiny"},
            "Unpin": {"id": "tiny"},
            "Prune": {"max_bytes": 0},
            # Memory that is charged to modeld for as long as the asker likes.
            "OpenSealed": {"id": "tiny", "offset": 0, "length": 1},
        }
        for method, parameters in calls.items():
            outcome[method] = client.call(MODEL1 + method, **parameters).error
        os.write(write, json.dumps(outcome).encode())
        os._exit(0)
    os.close(write)
    raw = b""
    while piece := os.read(read, 65536):
        raw += piece
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    denied = "org.varlink.service.PermissionDenied"
    assert json.loads(raw) == {
        "List": None,
        "Inspect": None,
        "Open": None,
        "GetStorageStats": None,
        "Register": denied,
        "Pin": denied,
        "Unpin": denied,
        "Prune": denied,
        "OpenSealed": denied,
    }


def folder_files(folder: Path) -> dict[str, bytes]:
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    files = {
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(range(64)),
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "run.py": b"raise SystemExit",
    }
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


def test_a_folder_by_descriptors_and_by_path(modeld: Modeld, tmp_path: Path) -> None:
    files = folder_files(tmp_path / "folder")
    handles = [os.open(tmp_path / "folder" / name, os.O_RDONLY) for name in files]
    before = modeld.fds()
    listed = [{"path": name, "fd": index} for index, name in enumerate(files)]
    reply = modeld.client.call(MODEL1 + "Import", handles, id="f", files=listed)
    assert reply.error is None, reply.parameters
    entry = reply.parameters["entry"]
    assert (entry["id"], entry["format"]) == ("f:latest", "safetensors")
    assert entry["size_bytes"] == sum(len(data) for name, data in files.items() if name != "run.py")
    assert reply.parameters["done_bytes"] == entry["size_bytes"]
    assert json.loads(reply.parameters["metadata"])["files"] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    again = modeld.call("Import", id=entry["digest"], path=str(tmp_path / "folder"))
    assert again.parameters["entry"]["digest"] == entry["digest"]
    for parameters, name in (
        ({}, "path"),
        ({"path": "/x", "files": []}, "path"),
        ({"files": []}, "files"),
        ({"files": [{"path": "a.safetensors", "fd": 0}, {"path": "a.safetensors", "fd": 1}]}, "files"),
        ({"path": str(tmp_path / "missing")}, "path"),
        ({"path": "/proc"}, "path"),
    ):
        reply = modeld.client.call(MODEL1 + "Import", handles[:2], id="g", **parameters)
        assert (reply.error, reply.parameters["parameter"]) == (INVALID, name), parameters
    evil = [{"path": "../../x.safetensors", "fd": 0}]
    assert (
        modeld.client.call(MODEL1 + "Import", handles[:1], id="g", files=evil).error
        == MODEL1 + "InvalidIdentifier"
    )
    for handle in handles:
        os.close(handle)
    assert modeld.fds() == before


def test_progress_of_an_import(modeld: Modeld, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(model())
    os.truncate(tmp_path / "large", 1 << 30)
    handle = os.open(tmp_path / "large", os.O_RDONLY)
    message = {"method": MODEL1 + "Import", "more": True, "parameters": {"id": "large", "fd": 0}}
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", handle))]
    modeld.client.socket.sendmsg([json.dumps(message).encode() + b"\0"], rights)
    os.close(handle)
    data = b""
    while not (data.endswith(b"\0") and b'"entry"' in data):
        data += modeld.client.socket.recv(65536)
    replies = [json.loads(one) for one in data[:-1].split(b"\0")]
    done = [one["parameters"]["done_bytes"] for one in replies]
    assert done == sorted(done)
    assert done[-1] == 1 << 30
    assert all(one.get("continues") is True for one in replies[:-1])
    assert "continues" not in replies[-1]


def test_a_part_in_sealed_memory_is_shared(modeld: Modeld, tmp_path: Path) -> None:
    data = model("sealed", 100_000)
    assert modeld.register(data).error is None
    before = modeld.fds()
    parts = [modeld.call("OpenSealed", id="tiny", offset=100, length=5000) for _ in range(3)]
    for part in parts:
        assert part.parameters == {"fd": 0, "size": 5000, "digest": digest_of(data)}
        assert os.pread(part.fds[0], 10_000, 0) == data[100:5100]
        assert fcntl.fcntl(part.fds[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        with pytest.raises(OSError):
            os.pwrite(part.fds[0], b"x", 0)
    assert len({os.fstat(part.fds[0]).st_ino for part in parts}) == 1
    for part in parts:
        os.close(part.fds[0])
    assert modeld.fds() == before + 1  # the one that is kept
    for offset, length, name in (
        (-1, 5, "offset"),
        (0, 0, "length"),
        (0, len(data) + 1, "length"),
        (0, 1 << 40, "length"),
    ):
        reply = modeld.call("OpenSealed", id="tiny", offset=offset, length=length)
        assert (reply.error, reply.parameters["parameter"]) == (INVALID, name)
    assert modeld.call("OpenSealed", id="tiny", offset=1 << 62, length=10).error == INVALID
    assert modeld.call("OpenSealed", id="nobody", offset=0, length=10).error == MODEL1 + "NoSuchModel"
    folder_files(tmp_path / "folder")
    assert modeld.call("Import", id="f", path=str(tmp_path / "folder")).error is None
    part = modeld.call("OpenSealed", id="f", file="config.json", offset=2, length=10)
    assert os.pread(part.fds[0], 100, 0) == b"model_type"
    os.close(part.fds[0])


def test_many_ask_for_the_same_part_at_once(modeld: Modeld) -> None:
    assert modeld.register(model("sealed", 50_000_000)).error is None
    clients = [modeld.another() for _ in range(8)]
    for client in clients:
        client.send(MODEL1 + "OpenSealed", id="tiny", offset=0, length=50_000_000)
    clients.pop().close()
    handles = [client.receive().fds[0] for client in clients]
    assert len({os.fstat(handle).st_ino for handle in handles}) == 1
    for handle in handles:
        os.close(handle)


def test_a_check_finds_damage(modeld: Modeld) -> None:
    for name in ("good", "bad"):
        assert modeld.register(model(name), name).error is None
    assert modeld.call("Check").parameters["damaged"] == []
    blob = modeld.unit.state / "blobs/sha256" / digest_of(model("bad"))[7:]
    blob.chmod(0o600)
    blob.write_bytes(model("worse"))
    checked = modeld.call("Check").parameters
    assert checked["damaged"] == [digest_of(model("bad"))]
    assert [one["id"] for one in modeld.call("List").parameters["models"]] == ["good:latest"]
    # Whoever stored it can store it again.
    assert modeld.register(model("bad"), "bad").error is None
    assert modeld.call("Check").parameters["damaged"] == []


def test_progress_of_a_check(modeld: Modeld) -> None:
    for name in ("a", "b"):
        modeld.register(model(name, 30_000_000), name)
    message = {"method": MODEL1 + "Check", "more": True}
    modeld.client.socket.sendall(json.dumps(message).encode() + b"\0")
    data = b""
    while not data.endswith(b"\0") or json.loads(data.split(b"\0")[-2]).get("continues"):
        data += modeld.client.socket.recv(65536)
    replies = [json.loads(one)["parameters"] for one in data.split(b"\0")[:-1]]
    seen = [one["checked_bytes"] for one in replies]
    assert seen == sorted(seen)
    assert len(replies) >= 2
    assert (replies[-1]["checked_bytes"], replies[-1]["damaged"]) == (replies[-1]["total_bytes"], [])
    assert replies[-1]["total_bytes"] > 60_000_000


def test_every_built_method_is_in_the_interface() -> None:
    from syntrop.modeld.service import Model1

    built = {name for name in vars(Model1) if name[0].isupper()}
    assert built == set(idl.load("io.syntrop.Model1").methods)
