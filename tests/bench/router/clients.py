# SPDX-License-Identifier: Apache-2.0
"""Clients that cost little: one call at a time, wrk for as many as there may be, and streams by the thousand."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import tempfile
import time
from time import monotonic_ns, perf_counter
from typing import Any

from place import CHAT, connected, http, prompt

_STAMP = re.compile(rb"(\w+)\.(\d+)\.(\d+) ")
STREAM_END, VARLINK_END = b"0\r\n\r\n", b"}}}\0"


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
