# SPDX-License-Identifier: Apache-2.0
"""Others' clients of both versions of HTTP: curl, nghttp, h2load and wrk, in small bounded runs; and h2's client
raced against routerd's idle exit."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

SOURCE = Path(__file__).parents[2] / "src"
TINY = Path(__file__).with_name("http_tiny.py")
LIMIT = 120  # seconds that a run may take on a busy machine
CURL = ("curl", "-sS", "--max-time", "60")
VERSIONS = {"--http1.1": "1.1", "--http2": "2", "--http2-prior-knowledge": "2"}


def output(*command: str, given: bytes | None = None) -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    return done.stdout


@pytest.fixture(scope="module")
def tiny() -> Iterator[str]:
    """Where the tiny handler listens."""
    process = subprocess.Popen(
        [sys.executable, str(TINY)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        try:
            status = process.wait(LIMIT)
        finally:
            process.kill()
            process.stdout.close()
    assert status == 0


@pytest.mark.parametrize("how", VERSIONS)
def test_curl(tiny: str, how: str, tmp_path: Path) -> None:
    written = output(*CURL, how, "-w", "%{http_version} %{response_code}", tiny + "/a")
    assert written == f"hello{VERSIONS[how]} 200".encode()
    assert output(*CURL, how, tiny + "/stream") == b"".join(b"piece %d\n" % number for number in range(5))
    # A body is larger than every window; curl asks for the change with it as well, and is answered in HTTP/1.1.
    body = os.urandom(3_000_000)
    assert output(*CURL, how, "--data-binary", "@-", tiny + "/", given=body) == body
    head = output(*CURL, how, "-I", "-w", "%{response_code}", tiny + "/").decode().lower()
    assert "content-length: 5\r\n" in head and head.endswith("\r\n\r\n200")
    if how != "--http2-prior-knowledge":  # curl 7.88 cannot use such a connection again, whatever the server
        urls = [word for number in range(20) for word in ("-o", str(tmp_path / str(number)), f"{tiny}/{number}")]
        connects = output(*CURL, how, "-w", "%{num_connects} ", *urls)
        assert connects.split() == [b"1"] + [b"0"] * 19
        assert {(tmp_path / str(number)).read_bytes() for number in range(20)} == {b"hello"}


@pytest.mark.parametrize("how", VERSIONS)
def test_curl_at_routerd_s_sockets(suite: Any, how: str) -> None:
    local = ("--unix-socket", suite.endpoint("syntrop/router.sock"), "http://localhost/health")
    for words in (local, (suite.url + "/health",)):
        written = output(*CURL, how, "-o", "/dev/null", "-w", "%{http_version} %{response_code}", *words)
        assert written == f"{VERSIONS[how]} 200".encode()
    for origin in ("http://evil.example", "null"):
        words = ("-o", "/dev/null", "-w", "%{response_code}", "-H", f"Origin: {origin}", suite.url + "/health")
        assert output(*CURL, how, *words) == b"403"
    words = ("-o", "/dev/null", "-w", "%{response_code}", "-H", "Host: evil.example", suite.url + "/health")
    assert output(*CURL, how, *words) == b"403"
    suite.wait_asleep()


@pytest.mark.parametrize("upgrade", [(), ("-u",)], ids=["prior knowledge", "upgrade"])
def test_nghttp(tiny: str, upgrade: tuple[str, ...]) -> None:
    found = output("nghttp", *upgrade, "--no-dep", f"{tiny}/stream", f"{tiny}/a", f"{tiny}/b")
    assert found.count(b"hello") == 2 and found.count(b"piece") == 5


def test_h2load(tiny: str) -> None:
    found = output("h2load", "-n", "1000", "-c", "4", "-m", "20", tiny + "/a").decode()
    assert "1000 succeeded, 0 failed, 0 errored" in found, found
    # More at a time than we allow: the client keeps to our settings once it has them.
    found = output("h2load", "-n", "1000", "-c", "2", "-m", "300", tiny + "/a").decode()
    done = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", found)
    assert done and int(done[1]) + int(done[2]) == 1000 and done[3] == done[2], found
    found = output("h2load", "-n", "200", "-c", "2", "-m", "10", "-w", "10", "-W", "10", tiny + "/stream").decode()
    assert "200 succeeded, 0 failed, 0 errored" in found, "small windows"
    found = output("h2load", "--h1", "-n", "1000", "-c", "4", tiny + "/a").decode()
    assert "1000 succeeded, 0 failed, 0 errored" in found, found


def test_wrk(tiny: str) -> None:
    found = output("wrk", "-t", "1", "-c", "8", "-d", "1s", tiny + "/a").decode()
    assert "Non-2xx" not in found and "Socket errors" not in found, found
    served = re.search(r"(\d+) requests in", found)
    assert served and int(served[1]) > 0


# --- the idle exit --------------------------------------------------------------------------------------------

REQUESTS, THREADS, IDLE = 400, 10, 0.05


class Kept:
    """A client of HTTP/2 that keeps its connection as long as the server does, and asks again only what the server
    says it has not served."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._socket: socket.socket | None = None
        self.connections = 0

    def get(self, path: str) -> int:
        """The status of the reply."""
        while True:
            if self._socket is None:
                self._socket = self._connect()
                self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
                self._h2.initiate_connection()
                self.connections += 1
            status = self._ask(self._socket, path)
            if status is not None:
                return status
            self.close()

    def _ask(self, sock: socket.socket, path: str) -> int | None:
        """None when the server said that it does not serve it."""
        stream = self._h2.get_next_available_stream_id()
        heads = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self._h2.send_headers(stream, heads, end_stream=True)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(self._h2.data_to_send())
        status, ended, refused = 0, False, False
        while not ended and not refused:
            try:
                data = sock.recv(65536)
            except ConnectionResetError:
                data = b""
            assert data, "the connection ended without a word about the request"
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    status = int(dict(event.headers or ())[":status"])  # type: ignore[arg-type]
                elif isinstance(event, h2.events.StreamEnded):
                    ended = True
                elif isinstance(event, h2.events.StreamReset):
                    assert event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
                    refused = True
                elif isinstance(event, h2.events.ConnectionTerminated):
                    # It may come along with the reply.
                    assert event.error_code == 0 and (ended or (event.last_stream_id or 0) < stream)
                    refused = not ended
                    self.close()
            with contextlib.suppress(OSError):
                sock.sendall(self._h2.data_to_send())
        return status if ended else None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def test_no_request_is_lost_to_an_exit(launch: Callable[..., Any], race: Callable[..., Any]) -> None:
    suite = launch(idle=IDLE)
    together = race(THREADS, IDLE)

    def connect(kind: str) -> socket.socket:
        if kind == "tcp":
            sock = socket.create_connection(("127.0.0.1", suite.port), timeout=LIMIT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(LIMIT)
        sock.connect(suite.endpoint("syntrop/router.sock"))
        return sock

    def worker(seed: int) -> tuple[int, int]:
        choose = random.Random(seed)
        kind = ("tcp", "unix")[seed % 2]
        client = Kept(lambda: connect(kind))
        answered = 0
        for number in range(REQUESTS // THREADS):
            together(number, choose)
            answered += client.get("/health") == 200
        connections = client.connections
        client.close()
        return answered, connections

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(worker, range(THREADS)))
    assert sum(answered for answered, _ in results) == REQUESTS
    suite.wait_asleep()
    assert suite.log().count("routerd started") > 2, "it went, and came back, though connections were kept"
    assert max(connections for _, connections in results) > 1
