# SPDX-License-Identifier: Apache-2.0
"""Downloads: the store and its puller, a process a connection as systemd has it, against a server that breaks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SOURCE = str(Path(__file__).parents[3] / "src")
CERTIFICATE = Path(__file__).parents[2] / "data" / "tls" / "certificate.pem"
MODEL1 = "io.syntrop.Model1."
FAILED = MODEL1 + "PullFailed"
PATIENCE = 60.0


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(name: str = "tiny", padding: int = 2_000_000) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("general.name") + struct.pack("<I", 8) + text(name)
    head += text("w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    head += bytes(-len(head) % 32)
    return head + bytes(32) + os.urandom(padding)


def safetensors(tensor: str = "w") -> bytes:
    header = json.dumps({tensor: {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(12)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Resource:
    """What a path answers, and how it breaks: one fault a request, then none.

    `("cut", n)` closes after n bytes, `("stall", n)` says nothing more after n, `("status", 429, headers)` answers
    that, `("redirect", to)` sends elsewhere, `("flip",)` sends other bytes, `("whole",)` ignores the range,
    `("shift", n)` sends another one, `("header", name, value)` adds a header, `("rubbish",)` is no HTTP.
    """

    def __init__(self, data: bytes, *, etag: str | None = None, length: bool = True) -> None:
        self.data = data
        self.etag = etag
        self.length = length
        self.faults: list[tuple[Any, ...]] = []
        self.always: tuple[Any, ...] | None = None
        self.secret: str | None = None
        self.requests: list[tuple[str | None, str | None]] = []
        """Range and Authorization of each."""
        self.sent = 0


class Server:
    def __init__(self, tls: bool = False) -> None:
        self.resources: dict[str, Resource] = {}
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    outer.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.http.server_address[1]}"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def put(self, path: str, data: bytes, **options: Any) -> Resource:
        resource = self.resources[path] = Resource(data, **options)
        return resource

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        resource = self.resources.get(request.path)
        if resource is None:
            self.head(request, 404, {"Content-Length": "0"})
            return
        wanted = request.headers["range"]
        resource.requests.append((wanted, request.headers["authorization"]))
        if resource.secret is not None and request.headers["authorization"] != f"Bearer {resource.secret}":
            challenge = f'Bearer realm="{self.url}/token",service="test",scope="pull"'
            self.head(request, 401, {"WWW-Authenticate": challenge, "Content-Length": "0"})
            return
        fault = resource.faults.pop(0) if resource.faults else resource.always or ("none",)
        if fault[0] == "status":
            self.head(request, fault[1], {"Content-Length": "0", **fault[2]})
            return
        if fault[0] == "redirect":
            self.head(request, 302, {"Location": fault[1], "Content-Length": "0"})
            return
        if fault[0] == "rubbish":
            request.wfile.write(os.urandom(100_000))
            return
        data = resource.data
        start = int(wanted[6:-1]) if wanted and fault[0] != "whole" else 0
        if start and request.headers["if-range"] not in (None, resource.etag):
            start = 0
        if start and fault[0] == "shift":
            start += fault[1]
        if start >= len(data):
            self.head(request, 416, {"Content-Length": "0"})
            return
        headers = {"Connection": "close"}
        if resource.length:
            headers["Content-Length"] = str(len(data) - start)
        if resource.etag:
            headers["ETag"] = resource.etag
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        if fault[0] == "header":
            headers[fault[1]] = fault[2]
        self.head(request, 206 if start else 200, headers)
        body = data[start:]
        if fault[0] == "flip":
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault[0] in ("cut", "stall"):
            body = body[: fault[1]]
        request.wfile.write(body)
        request.wfile.flush()
        resource.sent += len(body)
        if fault[0] == "stall":
            self.released.wait(PATIENCE)

    @staticmethod
    def head(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()

    def close(self) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


class Puller:
    """`modeld-pull.socket`, Accept=yes: a process for every connection, which is passed to it."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.environment = environment
        self.processes: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            command = f'LISTEN_PID=$$ exec "$@" 3<&{connection.fileno()}'
            self.processes.append(
                subprocess.Popen(
                    ["/bin/bash", "-c", command, "-", sys.executable, "-P", "-m", "syntrop.modeld.pull"],
                    env={**self.environment, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "connection"},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[connection.fileno()],
                )
            )
            connection.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for process in self.processes:
            # Nobody is left who is connected to them: they go by themselves.
            assert process.wait(PATIENCE) in (0, -signal.SIGKILL)


class World:
    """A store, its puller and a server."""

    def __init__(self, launch: Any, server: Server, root: Path, settings: str = "") -> None:
        self.launch, self.server, self.root = launch, server, root
        self.config = root / "modeld" / "etc"
        self.config.mkdir(parents=True)
        (self.config / "modeld.toml").write_text(settings)
        self.credentials = root / "credentials"
        self.credentials.mkdir()
        self.configure()
        self.unit = launch("modeld")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": SOURCE,
            "SYNTROP_RUN_ROOT": str(self.unit.run),
            "SYNTROP_CONFIG_ROOT": str(self.config),
            "CREDENTIALS_DIRECTORY": str(self.credentials),
        }
        self.puller = Puller(self.unit.run / "syntrop/io.syntrop.Fetch1", environment)
        self.client = self.another()

    def configure(self, **more: object) -> None:
        settings: dict[str, object] = {
            "hub": self.server.url + "/hub",
            "library": self.server.url,
            # Long, so that a busy machine is not taken for a server that stalls.
            "stall_sec": PATIENCE,
            "tries": 3,
            "longest_wait_sec": 0.05,
            **more,
        }
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (self.config / "modeld-pull.toml").write_text("[pull]\n" + lines)

    def another(self) -> Any:
        return self.launch.client(self.unit, "io.syntrop.Model1")

    def pull(self, reference: str, **parameters: Any) -> Any:
        return self.client.call(MODEL1 + "Pull", reference=reference, **parameters)

    def start(self, reference: str, client: Any = None, **parameters: Any) -> Any:
        """Ask for progress; the client to read it from."""
        client = client or self.another()
        message = {"method": MODEL1 + "Pull", "more": True, "parameters": {"reference": reference, **parameters}}
        client.socket.sendall(json.dumps(message).encode() + b"\0")
        return client

    def read(self, client: Any) -> list[dict[str, Any]]:
        """All replies of a stream."""
        data = b""
        while True:
            while b"\0" not in data:
                piece = client.socket.recv(65536)
                assert piece
                data += piece
            *whole, data = data.split(b"\0")
            replies = getattr(client, "replies", [])
            replies += [json.loads(one) for one in whole]
            client.replies = replies
            if not replies[-1].get("continues"):
                return replies  # type: ignore[no-any-return]

    def stored(self, entry: dict[str, Any]) -> bytes:
        return (self.unit.state / "blobs/sha256" / entry["digest"][7:]).read_bytes()

    def incoming(self) -> int:
        """Bytes of downloads that are not whole."""
        return sum(one.stat().st_size for one in (self.unit.state / "incoming").glob("*") if one.suffix != ".json")

    def models(self) -> list[str]:
        return [one["id"] for one in self.client.call(MODEL1 + "List").parameters["models"]]

    def library(self, name: str, data: bytes, **options: Any) -> Resource:
        """Put a model into the library; the resource of its file."""
        layers = [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64, "size": 3},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest_of(data), "size": len(data)},
        ]
        repository, _, tag = name.partition(":")
        manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
        self.server.put(f"/v2/library/{repository}/manifests/{tag or 'latest'}", manifest)
        return self.server.put(f"/v2/library/{repository}/blobs/{digest_of(data)}", data, **options)

    def close(self) -> None:
        self.server.close()
        self.unit.stop()
        self.puller.close()


@pytest.fixture
def world(launch: Any, tmp_path: Path) -> Iterator[World]:
    world = World(launch, Server(), tmp_path)
    yield world
    world.close()


def test_from_the_library_with_progress(world: World) -> None:
    data = gguf()
    file = world.library("smol:135m", data)
    replies = world.read(world.start("smol:135m"))
    last = replies[-1]["parameters"]
    assert (last["phase"], last["received_bytes"], last["total_bytes"]) == ("done", len(data), len(data))
    assert (last["entry"]["id"], last["entry"]["digest"]) == ("smol:135m", digest_of(data))
    assert replies[0]["parameters"]["phase"] == "resolving"
    assert all("entry" not in one["parameters"] for one in replies[:-1])
    assert world.stored(last["entry"]) == data
    assert world.incoming() == 0
    # What is there already is not fetched again, under whatever name.
    assert world.pull("smol:135m", id="again").parameters["entry"]["id"] == "again:latest"
    assert len(file.requests) == 1
    assert world.models() == ["again:latest", "smol:135m"]


def test_from_a_hub_a_file_or_a_folder(world: World) -> None:
    files = {
        "model-Q4_K_M.gguf": gguf("q4"),
        "model-Q8_0.gguf": gguf("q8"),
        "model.safetensors": safetensors(),
        "config.json": b'{"model_type": "llama", "max_position_embeddings": 2048}',
        "tokenizer.json": b"{}",
        "../../etc/passwd": b"x",
        "pytorch_model.bin": b"pickle",
    }
    siblings = [
        {"rfilename": path, "size": len(data)}
        | ({"lfs": {"sha256": digest_of(data)[7:]}} if len(data) > 99 else {})
        for path, data in files.items()
    ]
    commit = "a" * 40
    listing = json.dumps({"sha": commit, "siblings": siblings}).encode()
    world.server.put("/hub/api/models/org/Model-GGUF/revision/main?blobs=true", listing)
    for path, data in files.items():
        world.server.put(f"/hub/org/Model-GGUF/resolve/{commit}/{path}", data)
    entry = world.pull("org/Model-GGUF").parameters["entry"]
    assert (entry["id"], entry["digest"]) == ("model:latest", digest_of(files["model-Q4_K_M.gguf"]))
    entry = world.pull("hf:org/Model-GGUF:Q8_0").parameters["entry"]
    assert (entry["id"], entry["digest"]) == ("model:q8_0", digest_of(files["model-Q8_0.gguf"]))
    reply = world.pull("org/Model-GGUF:Q2_K")
    assert reply.error == FAILED
    assert "model-Q4_K_M.gguf" in reply.parameters["reason"]
    entry = world.pull("org/Model-GGUF", format="safetensors", id="folder").parameters["entry"]
    assert (entry["id"], entry["format"]) == ("folder:latest", "safetensors")
    inspected = json.loads(world.client.call(MODEL1 + "Inspect", id="folder").parameters["metadata"])
    assert inspected["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (inspected["architecture"], inspected["context_length"]) == ("llama", 2048)
    opened = world.client.call(MODEL1 + "Open", id="folder", file="config.json")
    assert os.pread(opened.fds[0], 1000, 0) == files["config.json"]
    os.close(opened.fds[0])


def test_shards_at_a_revision(world: World) -> None:
    weights = {f"w{number}": f"model-{number:05}-of-00002.safetensors" for number in (1, 2)}
    files = {name: safetensors(tensor) for tensor, name in weights.items()}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weights}).encode()
    files["config.json"] = b'{"model_type": "llama"}'
    commit = "b" * 40
    siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
    listing = json.dumps({"sha": commit, "siblings": siblings}).encode()
    world.server.put("/hub/api/models/org/Sharded/revision/v2?blobs=true", listing)
    sources = {
        path: world.server.put(f"/hub/org/Sharded/resolve/{commit}/{path}", data) for path, data in files.items()
    }
    name = "model-00002-of-00002.safetensors"
    sources[name].faults = [("status", 503, {})] * 3
    assert world.pull("org/Sharded@v2", format="safetensors").error == FAILED
    assert world.models() == []
    entry = world.pull("org/Sharded@v2", format="safetensors").parameters["entry"]
    assert entry["size_bytes"] == sum(map(len, files.values()))
    opened = world.client.call(MODEL1 + "Open", id=entry["id"], file=name)
    assert os.pread(opened.fds[0], 1000, 0) == files[name]
    os.close(opened.fds[0])


def test_from_any_registry_and_any_address(world: World) -> None:
    data = gguf()
    host = world.server.url.removeprefix("http://")
    title = {"org.opencontainers.image.title": "model.gguf"}
    layer = {"mediaType": "application/octet-stream", "digest": digest_of(data), "annotations": title}
    manifest = json.dumps({"layers": [layer]}).encode()
    world.server.put("/v2/team/model/manifests/v1", manifest)
    world.server.put(f"/v2/team/model/manifests/{digest_of(manifest)}", manifest)
    world.server.put(f"/v2/team/model/manifests/{digest_of(data)}", manifest)
    world.server.put(f"/v2/team/model/blobs/{digest_of(data)}", data)
    assert world.pull(f"oci:{host}/team/model:v1").parameters["entry"]["id"] == "model:v1"
    assert world.pull(f"oci:{host}/team/model@{digest_of(manifest)}").parameters["entry"]["id"] == "model:latest"
    assert "another digest" in world.pull(f"oci:{host}/team/model@{digest_of(data)}").parameters["reason"]
    # An index of manifests leads to the first of them.
    listed = {"digest": digest_of(manifest), "platform": {"os": "any"}}
    world.server.put("/v2/team/model/manifests/many", json.dumps({"manifests": [listed]}).encode())
    assert world.pull(f"oci:{host}/team/model:many").parameters["entry"]["digest"] == digest_of(data)
    world.server.put("/files/Some%20Model.gguf", data)
    reply = world.pull(f"{world.server.url}/files/Some%20Model.gguf", digest=digest_of(data))
    assert reply.parameters["entry"]["id"] == "some-model:latest"


def test_what_is_no_reference(world: World) -> None:
    for reference in (
        "",
        "../x",
        "a b",
        "http://192.0.2.1/x.gguf",
        "https://user:pass@host/x",
        "file:///etc/passwd",
        "a/b/c/d:e:f",
        "https://host:99999/x",
        "oci:nohost",
        "x" * 3000,
        "a\nb",
    ):
        assert world.pull(reference).error == FAILED, reference[:80]


def test_parameters_that_cannot_be_honoured(world: World) -> None:
    for name in ("../x", "", "a/b", "a\0b", "a\x1b", "x" * 129, "x:" + "y" * 65):
        assert world.pull("smol", id=name).error == MODEL1 + "InvalidIdentifier"
    assert world.pull("smol", digest="12").parameters["parameter"] == "digest"
    assert world.pull("smol", format="pickle").parameters["parameter"] == "format"
    reply = world.pull("smol:135m")
    assert (reply.error, "404" in reply.parameters["reason"]) == (FAILED, True)


def test_a_connection_that_breaks_is_taken_up_where_it_broke(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    # More often than it would be tried without progress.
    file.faults = [("cut", 300_000)] * 6
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    assert [wanted for wanted, _ in file.requests] == [None, *(f"bytes={300_000 * n}-" for n in range(1, 7))]
    assert file.sent == len(data)


def test_one_that_never_gets_on_is_given_up_and_kept(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("cut", 500_000)]
    file.always = ("cut", 0)
    reply = world.pull("smol")
    assert (reply.error, reply.parameters["reference"]) == (FAILED, "smol")
    assert "broke off" in reply.parameters["reason"]
    assert world.models() == []
    assert world.incoming() == 500_000
    # Another time, and another process, goes on from there.
    world.unit.process.kill()
    world.unit.process.wait()
    world.unit.start()
    world.client = world.another()
    file.always = None
    file.requests.clear()
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    assert [wanted for wanted, _ in file.requests] == ["bytes=500000-"]
    assert world.incoming() == 0


def test_a_wrong_digest(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.always = ("flip",)
    reply = world.pull("smol")
    assert reply.error == MODEL1 + "DigestMismatch"
    assert reply.parameters["expected"] == digest_of(data)
    assert world.models() == []
    assert world.incoming() == 0
    file.always = None
    assert world.pull("smol").error is None


def test_what_came_before_and_was_wrong_is_fetched_again(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.data = bytes(len(data))
    file.faults = [("cut", 500_000), *[("cut", 0)] * 3]
    assert world.pull("smol").error == FAILED
    file.data = data
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)


def test_a_server_that_does_not_do_ranges(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("cut", 700_000), ("whole",)]
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    plain = world.server.put("/plain.gguf", gguf("plain"), etag='"1"')
    plain.faults = [("cut", 700_000), ("whole",)]
    entry = world.pull(world.server.url + "/plain.gguf").parameters["entry"]
    assert world.stored(entry) == plain.data


def test_content_that_changes_meanwhile(world: World) -> None:
    file = world.server.put("/plain.gguf", gguf("old"), etag='"old"')
    file.faults = [("cut", 700_000), ("status", 503, {}), ("status", 503, {})]
    file.always = ("cut", 0)
    assert world.pull(world.server.url + "/plain.gguf").error == FAILED
    file.data, file.etag, file.always = gguf("new"), '"new"', None
    entry = world.pull(world.server.url + "/plain.gguf").parameters["entry"]
    assert world.stored(entry) == file.data


def test_without_size_and_digest_nobody_could_tell_if_all_came(world: World) -> None:
    file = world.server.put("/plain.gguf", gguf(), length=False)
    reply = world.pull(world.server.url + "/plain.gguf")
    assert "tells no size" in reply.parameters["reason"]
    assert world.pull(world.server.url + "/plain.gguf", digest=digest_of(file.data)).error is None


def test_redirects(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    world.server.put("/elsewhere", data)
    file.always = ("redirect", "/elsewhere")
    assert world.pull("smol").error is None
    for target, reason in (
        ("/loop", "circle"),
        ("http://192.0.2.1/x", "https"),
        ("file:///etc/passwd", "not an address"),
        ("/1", "redirects"),
    ):
        world.server.put("/loop", data).always = ("redirect", "/loop")
        for number in range(1, 20):
            world.server.put(f"/{number}", data).always = ("redirect", f"/{number + 1}")
        world.server.put("/start.gguf", data).always = ("redirect", target)
        reply = world.pull(world.server.url + "/start.gguf")
        assert (reply.error, reason in reply.parameters["reason"]) == (FAILED, True), reply.parameters


def test_a_server_that_talks_nonsense(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    for faults, reason in (
        ([("rubbish",)] * 3, "3 times"),
        ([("header", "Content-Encoding", "gzip")], "did not ask for"),
        ([("cut", 300_000), ("shift", 1)], "another range"),
        ([("cut", 300_000), ("shift", -1)], "another range"),
    ):
        file.faults = [*faults]
        reply = world.pull("smol")
        assert (reply.error, reason in reply.parameters["reason"]) == (FAILED, True), reply.parameters
        assert world.models() == []
    # What came of it is gone on with all the same.
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    assert file.requests[-1][0] == "bytes=600000-"


def test_more_than_was_told_is_not_taken(world: World) -> None:
    data = gguf()
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest_of(data), "size": 1_000_000}
    world.server.put("/v2/library/smol/manifests/latest", json.dumps({"layers": [layer]}).encode())
    world.server.put(f"/v2/library/smol/blobs/{digest_of(data)}", data)
    reply = world.pull("smol")
    assert (reply.error, "more came" in reply.parameters["reason"]) == (FAILED, True)
    assert world.models() == []


def test_what_is_no_manifest(world: World) -> None:
    model = "application/vnd.ollama.image.model"
    outside = json.dumps({"layers": [{"digest": "sha256:../../x", "mediaType": model}]}).encode()
    for manifest in (
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"null",
        b'{"layers": 1}',
        b'{"layers": []}',
        b'{"layers": [1]}',
        b'{"manifests": [{"digest": 1}]}',
        outside,
    ):
        world.server.put("/v2/library/smol/manifests/latest", manifest)
        world.server.put("/hub/api/models/org/model/revision/main?blobs=true", manifest)
        for reference in ("smol", "org/model"):
            assert world.pull(reference).error == FAILED, manifest[:80]
    assert world.models() == []


def test_a_server_that_stalls(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("stall", 400_000), ("stall", 400_000)]
    world.configure(stall_sec=1.0, tries=10)
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    # At least these: on a busy machine we may be as slow as that ourselves.
    assert not file.faults
    assert file.requests[0][0] is None
    assert len(file.requests) >= 3
    # One that never says anything is given up.
    other = world.library("other", gguf("other"))
    other.always = ("stall", 0)
    world.configure(stall_sec=0.2, tries=2)
    reply = world.pull("other")
    assert (reply.error, "2 times" in reply.parameters["reason"]) == (FAILED, True)


def test_a_server_that_wants_to_be_left_alone(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("status", 429, {"Retry-After": "0"}), ("status", 503, {})]
    assert world.pull("smol").error is None
    other = world.library("other", gguf("other"))
    other.always = ("status", 429, {"Retry-After": "0"})
    reply = world.pull("other")
    assert re.search(r"429 .*3 times", reply.parameters["reason"])
    other.always = ("status", 429, {"Retry-After": "3600"})
    other.requests.clear()
    assert "3600 s" in world.pull("other").parameters["reason"]
    assert len(other.requests) == 1


def test_one_download_for_many(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("stall", 500_000)]
    world.configure(stall_sec=PATIENCE)
    askers = [world.start("smol", id=f"name{number}") for number in range(4)]
    wait_for(lambda: world.client.call(MODEL1 + "List").error is None and world.incoming() == 500_000)
    # The first who leaves takes nothing from the others.
    askers.pop(0).close()
    world.client.call(MODEL1 + "List")
    world.server.released.set()
    replies = [world.read(asker)[-1]["parameters"]["entry"]["id"] for asker in askers]
    assert replies == ["name1:latest", "name2:latest", "name3:latest"]
    assert [wanted for wanted, _ in file.requests] == [None, "bytes=500000-"]
    assert world.models() == replies


def test_one_download_whatever_it_is_called(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    elsewhere = world.server.put("/files/smol.gguf", data)
    file.faults = [("stall", 500_000)]
    first = world.start("smol")
    wait_for(lambda: world.incoming() == 500_000)
    others = [
        world.start("smol:latest", id="tagged"),
        world.start("ollama:smol", id="prefixed"),
        world.start(world.server.url + "/files/smol.gguf", id="addressed", digest=digest_of(data)),
    ]
    # They are told how far it is, which is how we know that they wait.
    for one in others:
        wait_for(lambda one=one: b"500000" in one.socket.recv(65536))  # type: ignore[misc]
    # Who began it may leave.
    first.close()
    world.server.released.set()
    names = [world.read(one)[-1]["parameters"]["entry"]["id"] for one in others]
    assert names == ["tagged:latest", "prefixed:latest", "addressed:latest"]
    assert world.models() == sorted(names)
    assert [wanted for wanted, _ in file.requests] == [None, "bytes=500000-"]
    assert elsewhere.requests == []
    assert world.incoming() == 0


def test_whose_source_fails_has_ones_own_left(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    bad = world.server.put("/files/smol.gguf", data)
    bad.faults = [("stall", 300_000)]
    bad.always = ("status", 404, {})
    first = world.start(world.server.url + "/files/smol.gguf", id="bad", digest=digest_of(data))
    wait_for(lambda: world.incoming() == 300_000)
    second = world.start("smol")
    wait_for(lambda: b"300000" in second.socket.recv(65536))
    world.server.released.set()
    assert "404" in world.read(first)[-1]["parameters"]["reason"]
    assert world.read(second)[-1]["parameters"]["entry"]["id"] == "smol:latest"
    assert [wanted for wanted, _ in file.requests] == ["bytes=300000-"]


def test_models_that_share_a_file_and_one_that_has_it_twice(world: World) -> None:
    shared = {"tokenizer.model": b"t" * 100_000, "original/tokenizer.model": b"t" * 100_000}
    config = b'{"model_type": "llama"}'
    held = None
    for name in ("one", "two"):
        files = {**shared, "model.safetensors": safetensors(name), "config.json": config}
        siblings = [
            {"rfilename": path, "size": len(data), "lfs": {"sha256": digest_of(data)[7:]}}
            for path, data in files.items()
        ]
        listing = json.dumps({"sha": "a" * 40, "siblings": siblings}).encode()
        world.server.put(f"/hub/api/models/org/{name}/revision/main?blobs=true", listing)
        for path, data in files.items():
            resource = world.server.put(f"/hub/org/{name}/resolve/{'a' * 40}/{path}", data)
            if (name, path) == ("one", "original/tokenizer.model"):
                held = resource
    assert held is not None
    held.faults = [("stall", 50_000)]
    askers = [world.start("org/one", format="safetensors")]
    wait_for(lambda: world.incoming() >= 50_000)
    askers.append(world.start("org/two", format="safetensors"))
    wait_for(lambda: b"downloading" in askers[1].socket.recv(65536))
    world.server.released.set()
    replies = [world.read(asker)[-1]["parameters"] for asker in askers]
    assert [one["entry"]["id"] for one in replies] == ["one:latest", "two:latest"]
    assert all(one["received_bytes"] == one["total_bytes"] == one["entry"]["size_bytes"] for one in replies)
    fetched = [path for path, one in world.server.resources.items() if "tokenizer" in path and one.requests]
    assert len(fetched) == 1
    assert world.incoming() == 0


def test_the_last_who_leaves_ends_it(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.faults = [("stall", 500_000)]
    world.configure(stall_sec=PATIENCE)
    askers = [world.start("smol") for _ in range(2)]
    wait_for(lambda: world.incoming() == 500_000)
    for asker in askers:
        asker.close()
    wait_for(lambda: all(process.poll() is not None for process in world.puller.processes))
    # What has arrived is not lost, and whoever comes next goes on from there.
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    assert [wanted for wanted, _ in file.requests] == [None, "bytes=500000-"]


def test_a_puller_that_is_killed(world: World) -> None:
    data = gguf()
    world.library("smol", data).faults = [("stall", 500_000)]
    world.configure(stall_sec=PATIENCE)
    asker = world.start("smol")
    wait_for(lambda: world.incoming() == 500_000)
    for process in world.puller.processes:
        process.kill()
    assert world.read(asker)[-1]["error"] == FAILED
    assert world.pull("smol").error is None


def test_without_a_puller(world: World) -> None:
    (world.unit.run / "syntrop/io.syntrop.Fetch1").unlink()
    reply = world.pull("smol")
    assert (reply.error, "modeld-pull.socket" in reply.parameters["reason"]) == (FAILED, True)


def test_a_registry_that_wants_a_token_and_knows_us(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    file.secret = "sesame"
    token = world.server.put("/token?service=test&scope=pull", b'{"token": "sesame"}')
    host = world.server.url.removeprefix("http://")
    (world.credentials / "modeld.pull").write_text(f"# ours\n{host} basic me secret\nother.example bearer x\n")
    assert world.pull("smol").error is None
    assert token.requests == [(None, "Basic bWU6c2VjcmV0")]
    assert file.requests[-1] == (None, "Bearer sesame")
    assert "secret" not in world.unit.state.as_posix()


def test_no_word_of_ours_goes_along_with_a_redirect(world: World) -> None:
    other = Server()
    try:
        data = gguf()
        file = world.library("smol", data)
        there = other.put("/x", data)
        file.always = ("redirect", other.url + "/x")
        hosts = [one.url.removeprefix("http://") for one in (world.server, other)]
        (world.credentials / "modeld.pull").write_text("".join(f"{host} bearer word\n" for host in hosts))
        assert world.pull("smol").error is None
        assert file.requests[-1][1] == "Bearer word"
        assert there.requests == [(None, None)]
    finally:
        other.close()


def test_https_and_certificates_that_are_not_good(world: World) -> None:
    secure = Server(tls=True)
    try:
        data = gguf()
        file = secure.put("/model.gguf", data)
        file.faults = [("cut", 500_000)]
        reply = world.pull(secure.url + "/model.gguf", digest=digest_of(data))
        assert (reply.error, "certificate" in reply.parameters["reason"]) == (FAILED, True)
        assert file.requests == []
        world.configure(ca_file=str(CERTIFICATE))
        assert world.pull(secure.url + "/model.gguf", digest=digest_of(data)).error is None
        assert [wanted for wanted, _ in file.requests] == [None, "bytes=500000-"]
        # And never from there to where anybody could listen.
        secure.put("/away.gguf", data).always = ("redirect", world.server.url + "/x")
        assert "https to http" in world.pull(secure.url + "/away.gguf").parameters["reason"]
    finally:
        secure.close()


def test_mirrors_come_first_and_the_source_helps_out(world: World) -> None:
    data = gguf()
    file = world.library("smol", data)
    path = f"/v2/library/smol/blobs/{digest_of(data)}"
    world.configure(mirrors=[f"{world.server.url}/v2={world.server.url}/mirror", "nonsense"])
    mirror = world.server.put(path.replace("/v2", "/mirror", 1), data)
    mirror.faults = [("cut", 600_000)]
    mirror.always = ("status", 404, {})
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    assert mirror.requests[0][0] is None
    assert [wanted for wanted, _ in file.requests] == ["bytes=600000-"]


def test_what_a_source_lists_comes_from_mirrors_too(world: World) -> None:
    data = gguf()
    world.library("smol", data)
    # The source is away; its mirror has everything.
    away = "https://127.0.0.1:1"
    world.configure(library=away, hub=away + "/hub", mirrors=[f"{away}={world.server.url}"], tries=1)
    assert world.pull("smol").parameters["entry"]["digest"] == digest_of(data)
    listing = json.dumps({"siblings": [{"rfilename": "m.gguf", "size": len(data)}]}).encode()
    world.server.put("/hub/api/models/org/model/revision/main?blobs=true", listing)
    world.server.put("/hub/org/model/resolve/main/m.gguf", data)
    assert world.pull("org/model").parameters["entry"]["digest"] == digest_of(data)
    # A mirror that has not, or has something else under a digest, is none; the source tells what is wrong.
    host = world.server.url.removeprefix("http://")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest_of(data), "size": len(data)}
    manifest = json.dumps({"layers": [layer]}).encode()
    path = f"team/model/manifests/{digest_of(manifest)}"
    world.server.put("/v2/" + path, manifest)
    world.server.put("/mirror/" + path, manifest + b" ")
    world.server.put(f"/v2/team/model/blobs/{digest_of(data)}", data)
    world.configure(mirrors=[f"{world.server.url}/v2={world.server.url}/mirror"], tries=1)
    reply = world.pull(f"oci:{host}/team/model@{digest_of(manifest)}")
    assert reply.parameters["entry"]["digest"] == digest_of(data)
    assert "/v2/team/none/" in world.pull(f"oci:{host}/team/none").parameters["reason"]


def test_a_bandwidth_limit_holds(launch: Any, tmp_path: Path) -> None:
    world = World(launch, Server(), tmp_path, "[pull]\nbandwidth_bytes_per_sec = 1000000\n")
    try:
        world.library("smol", gguf())
        before = time.monotonic()
        assert world.pull("smol").error is None
        # Two megabytes at one a second, of which a quarter was saved up.
        assert time.monotonic() - before > 1.5
    finally:
        world.close()


def test_a_download_that_finds_no_room(launch: Any, tmp_path: Path) -> None:
    world = World(launch, Server(), tmp_path, "[store]\nquota_bytes = 3000000\n")
    try:
        old, new, huge = gguf("old"), gguf("new"), gguf("huge", 4_000_000)
        for name, data in (("old", old), ("new", new), ("huge", huge)):
            world.library(name, data)
        assert world.pull("old").error is None
        assert world.pull("new").error is None
        assert world.models() == ["new:latest"]
        reply = world.pull("huge")
        assert reply.error == MODEL1 + "OutOfSpace"
        assert reply.parameters["requested_bytes"] == len(huge)
        assert reply.parameters["removable_bytes"] == len(new)
        assert "promised_bytes" not in reply.parameters
        assert world.models() == ["new:latest"]
    finally:
        world.close()


def test_who_finds_no_room_beside_a_download_is_told_how_much_that_is(launch: Any, tmp_path: Path) -> None:
    world = World(launch, Server(), tmp_path, "[store]\nquota_bytes = 3000000\n")
    try:
        first, second = gguf("first"), gguf("second")
        world.library("first", first).faults = [("stall", 500_000)]
        coming = world.start("first")
        wait_for(lambda: world.incoming() == 500_000)
        source = tmp_path / "second.gguf"
        source.write_bytes(second)
        reply = world.client.call(MODEL1 + "Register", id="second", path=str(source))
        assert reply.error == MODEL1 + "OutOfSpace"
        assert reply.parameters["promised_bytes"] == len(first)
        world.server.released.set()
        assert world.read(coming)[-1]["parameters"]["entry"]["id"] == "first:latest"
        # It is here, and nobody has it open: the second may have its room.
        assert world.client.call(MODEL1 + "Register", id="second", path=str(source)).error is None
        assert world.models() == ["second:latest"]
    finally:
        world.close()


def test_downloads_that_nobody_waits_for_make_room_first(launch: Any, tmp_path: Path) -> None:
    world = World(launch, Server(), tmp_path, "[store]\nquota_bytes = 5000000\n")
    try:
        world.library("stored", gguf("stored"))
        assert world.pull("stored").error is None
        files = [world.library(name, gguf(name)) for name in "abc"]
        for name, file in zip("abc", files, strict=True):
            file.faults = [("cut", 1_900_000)]
            file.always = ("cut", 0)
            assert world.pull(name).error == FAILED
            # Together with the model it never is more than the quota.
            assert world.incoming() == 1_900_000
        files[2].always = None
        files[2].requests.clear()
        assert world.pull("c").error is None
        assert [wanted for wanted, _ in files[2].requests] == ["bytes=1900000-"]
        assert world.models() == ["c:latest", "stored:latest"]
    finally:
        world.close()


def test_pulls_can_be_forbidden_and_strangers_cannot(launch: Any, tmp_path: Path) -> None:
    config = tmp_path / "modeld" / "etc"
    config.mkdir(parents=True)
    (config / "modeld.toml").write_text("[pull]\nallow_pulls = false\n")
    unit = launch("modeld")
    reply = launch.client(unit, "io.syntrop.Model1").call(MODEL1 + "Pull", reference="smol")
    assert (reply.error, reply.parameters["reason"]) == (FAILED, "allow_pulls is off")
