# SPDX-License-Identifier: Apache-2.0
"""Clients that cost little: one call at a time, wrk and h2load for many, streams by the thousand, and hang-ups."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from time import monotonic_ns, perf_counter
from typing import Any

from subjects import CHAT, LOCAL, http, prompt

_STAMP = re.compile(rb"(\w+)\.(\d+)\.(\d+) ")
STREAM_END, VARLINK_END = b"0\r\n\r\n", b"}}}\0"


def connected(address: Any) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.settimeout(60)
    sock.connect(address)
    if not isinstance(address, str):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Caller:
    """A kept connection that sends one request and reads its reply to the end; seconds."""

    def __init__(self, address: Any, request: bytes, end: bytes | None = None) -> None:
        self.socket = connected(address)
        self.request, self.end = request, end
        self._whole = 0

    def __call__(self) -> float:
        started = perf_counter()
        self.socket.sendall(self.request)
        data = b""
        while True:
            piece = self.socket.recv(1 << 18)
            assert piece, "the connection was closed"
            data += piece
            if data.endswith(self.end) if self.end else self._complete(data):
                break
        taken = perf_counter() - started
        assert self.end == VARLINK_END or data.startswith(b"HTTP/1.1 200"), data[:400]
        return taken

    @staticmethod
    def _complete(data: bytes) -> bool:
        head, found, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        return bool(found) and length is not None and len(body) >= int(length[1])

    def delays(self) -> list[float]:
        """Of a paced stream: microseconds from where each token was sent to where it was received."""
        self.socket.sendall(self.request)
        assert self.end is not None
        found, data = [], b""
        while not data.endswith(self.end):
            piece = self.socket.recv(1 << 18)
            now = monotonic_ns()
            assert piece, "the connection was closed"
            found += [(now - int(stamp[3])) / 1e3 for stamp in _STAMP.finditer(piece)]
            data += piece
        return found

    def close(self) -> None:
        self.socket.close()


def rate(port: int, model: str, seconds: float, clients: int = 8) -> tuple[float, int]:
    """(requests a second with so many kept connections, how many there were), by wrk."""
    body = json.dumps({"model": model, "messages": prompt()})
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            f'wrk.method="POST"\nwrk.headers["Content-Type"]="application/json"\nwrk.body={json.dumps(body)}\n'
        )
        script.flush()
        url = f"http://127.0.0.1:{port}{CHAT}"
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:g}s", "-s", script.name, url]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "Non-2xx" not in told and "Socket errors" not in told, told
    count = re.search(r"(\d+) requests in", told)
    per_second = re.search(r"Requests/sec: *([\d.]+)", told)
    assert count and per_second, told
    return float(per_second[1]), int(count[1])


def requests(port: int, model: str, count: int, clients: int = 8) -> None:
    """So many requests, by h2load over HTTP/1.1."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        body.write(json.dumps({"model": model, "messages": prompt()}))
        body.flush()
        command = ["h2load", "--h1", "-t1", f"-c{clients}", f"-n{count}", "-d", body.name,
                   "-H", "content-type: application/json", f"http://127.0.0.1:{port}{CHAT}"]  # fmt: skip
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"{count} succeeded, 0 failed" in told and f"{count} 2xx" in told, told


class Streams:
    """Many paced streams at once; each must get its own tokens, all of them, in their order."""

    def __init__(self, address: tuple[str, int], model: str, count: int, tokens: int, pause: float) -> None:
        self.tokens = tokens
        self._epoll = select.epoll()
        self._sockets: dict[int, tuple[str, socket.socket]] = {}
        self.texts: dict[str, bytes] = {}
        for number in range(count):
            marker = f"s{number}"
            sock = connected(address)
            messages = prompt(tokens, int(pause * 1e6), marker)
            sock.sendall(http({"model": model, "messages": messages, "stream": True}))
            self._sockets[sock.fileno()] = (marker, sock)
            self.texts[marker] = b""
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def read(self, seconds: float) -> bool:
        """Read for so long; whether streams are open still."""
        until = time.monotonic() + seconds
        while self._sockets and (left := until - time.monotonic()) > 0:
            for fd, _ in self._epoll.poll(left, 256):
                marker, sock = self._sockets[fd]
                piece = sock.recv(1 << 16)
                self.texts[marker] += piece
                if not piece or self.texts[marker].endswith(STREAM_END):
                    del self._sockets[fd]
                    self._epoll.unregister(fd)
                    sock.close()
        return bool(self._sockets)

    @property
    def begun(self) -> int:
        """Streams with a token."""
        return sum(b".0." in text for text in self.texts.values())

    def astray(self) -> int:
        """Tokens that were lost, doubled, out of order or somebody else's, and streams without their end."""
        wrong = 0
        for marker, text in self.texts.items():
            found = [(one[1].decode(), int(one[2])) for one in _STAMP.finditer(text)]
            wrong += sum(a != b for a, b in zip(found, ((marker, i) for i in range(self.tokens)), strict=False))
            wrong += abs(len(found) - self.tokens) + (not text.endswith(b"data: [DONE]\n\n\r\n" + STREAM_END))
        return wrong


def hang_up(address: tuple[str, int], turn: int) -> None:
    """Leave in one of seven phases: in the head, in the body, before the answer, in the stream of either kind of
    provider, behind a request that was answered, and with a second one on the way."""
    phase = turn % 7
    model = (LOCAL, "far")[turn // 7 % 2]
    slow = http({"model": model, "messages": prompt(1000, 1_000), "stream": True})
    whole = http({"model": model, "messages": prompt()})
    with connected(address) as sock:
        if phase == 0:
            sock.sendall(whole[:20])
        elif phase == 1:
            sock.sendall(whole[:-10])
        elif phase == 2:
            sock.sendall(http({"model": model, "messages": prompt(10, 60_000_000), "stream": turn % 2 == 0}))
            time.sleep(0.002)
        elif phase in (3, 4):
            sock.sendall(slow)
            data = b""
            while data.count(b"data: ") < (2 if phase == 3 else 5):
                data += sock.recv(1 << 16)
        elif phase == 5:
            sock.sendall(whole)
            sock.recv(1 << 16)
        else:
            sock.sendall(slow + whole)
            sock.recv(1 << 16)


def settled(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def exists(program: str) -> bool:
    return any((Path(folder) / program).exists() for folder in ("/usr/bin", "/usr/local/bin"))
