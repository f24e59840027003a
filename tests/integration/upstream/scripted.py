# SPDX-License-Identifier: Apache-2.0
"""A server on loopback whose every byte is scripted, on the loop of the test: nothing depends on the clock."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.routerd.config import ProviderConfig
from syntrop.routerd.providers import anthropic, openai

if TYPE_CHECKING:
    from syntrop.common.http.provider import Generation, Provider

PATIENCE = 60.0  # seconds that a test may take on a busy machine
KEY = "sk-secret-0123456789"

Script = Callable[["Peer"], Awaitable[None]]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test on a loop of its own; no descriptor is left behind."""

    async def bounded() -> None:
        with loop.deadline(PATIENCE):
            await main

    before = descriptors()
    loop.run(bounded())
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], object]) -> None:
    """Look again at each turn of the loop; the test's own deadline bounds it."""
    while not condition():
        await loop.sleep(0.001)


class Request:
    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.fd = sock.fileno()
        self._buffer = b""

    async def handshake(self, rules: ssl.SSLContext) -> None:
        inside = rules.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.socket = inside
        while True:
            try:
                inside.do_handshake()
                return
            except ssl.SSLWantReadError:
                await loop.readable(self.fd)

    async def read(self) -> bytes:
        """What comes next; empty when the client is gone, in order or not."""
        while True:
            try:
                return self.socket.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError):
                await loop.readable(self.fd)
            except OSError:
                return b""

    async def request(self) -> Request:
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        request = Request(head, b"")
        size = int(request.headers.get("content-length", 0))
        while len(self._buffer) < size:
            self._buffer += await self._more()
        request.body, self._buffer = self._buffer[:size], self._buffer[size:]
        return request

    async def _more(self) -> bytes:
        data = await self.read()
        assert data, "the client hung up within its request"
        return data

    async def send(self, data: bytes, *, cut: int | None = None) -> None:
        """Send; in pieces of `cut` bytes the client gets its turn behind each."""
        for i in range(0, len(data), cut or len(data) or 1):
            rest = memoryview(data)[i : i + (cut or len(data))]
            while rest:
                try:
                    rest = rest[self.socket.send(rest) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await loop.writable(self.fd)
            if cut:
                await loop.sleep(0)

    async def gone(self) -> None:
        """Wait until the client has hung up."""
        while await self.read():
            pass

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        loop.forget(self.fd)
        self.socket.close()


class Upstream:
    """Plays one script a connection, in their order; the last one for all that follow. Its block closes it, and
    raises what went wrong in a script."""

    def __init__(self, *scripts: Script, rules: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._rules = rules
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._tasks: list[loop.Task[None]] = []
        self.failures: list[BaseException] = []
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self.ended = 0
        self._accepting = loop.spawn(self._accept(), "upstream")

    async def __aenter__(self) -> Upstream:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.close()
        if error is None and self.failures:
            raise self.failures[0]

    async def close(self) -> None:
        await loop.stop(self._accepting)
        for task in self._tasks:
            await loop.stop(task)
        loop.forget(self._listener.fileno())
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            await loop.readable(self._listener.fileno())
            sock, _ = self._listener.accept()
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            self.connections += 1
            self._tasks.append(loop.spawn(self._play(script, Peer(sock)), "script"))

    async def _play(self, script: Script, peer: Peer) -> None:
        try:
            if self._rules is not None:
                await peer.handshake(self._rules)
            await script(peer)
        except Exception as error:
            self.failures.append(error)
        finally:
            peer.close()
            self.ended += 1


# --- what servers say ------------------------------------------------------------------------------------


def reply(body: bytes, *headers: str, status: str = "200 OK", sort: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {sort}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(data: bytes, size: int = 10**9) -> bytes:
    pieces = (data[i : i + size] for i in range(0, len(data), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


LAST = b"0\r\n\r\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def delta(text: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
DONE = b"data: [DONE]\n\n"
TEXT = "Grüße, \U0001f600 und 日本語!"
STREAM = b"".join([delta(text) for text in TEXT] + [delta("", "stop"), USAGE, DONE])


async def answer(peer: Peer) -> None:
    """Answer whatever is asked, on one connection, until the client is gone."""
    while True:
        try:
            await peer.request()
        except AssertionError:
            return
        await peer.send(HEAD + chunked(STREAM) + LAST)


# --- those who ask ---------------------------------------------------------------------------------------


def provider(url: str, kind: str = "openai", timeout: float = PATIENCE, secret: str | None = KEY) -> Provider:
    values = {"id": "up", "kind": kind, "base_url": url, "timeout_ms": timeout * 1000}
    config = ProviderConfig(values, [], "test")
    return openai.create(config, secret) if kind == "openai" else anthropic.create(config, secret)


def question(text: str = "hi") -> chat.GenerateRequest:
    return chat.GenerateRequest("m", [chat.Message("user", text)])


async def heard(generation: Generation) -> tuple[str, chat.Finished]:
    """The whole text, and the end. Raises EngineError."""
    text = ""
    while True:
        event = await said(generation)
        if isinstance(event, chat.Finished):
            return text, event
        assert isinstance(event, chat.Delta)
        text += event.text


async def said(generation: Generation) -> chat.Event:
    """The next event of the answer itself."""
    event = await generation.next()
    if isinstance(event, chat.Accepted):
        event = await generation.next()
    assert not isinstance(event, chat.Accepted), "it is told once"
    return event


async def told(one: Provider, request: chat.GenerateRequest | None = None) -> tuple[str, chat.Finished]:
    generation = one.generate(request or question())
    try:
        return await heard(generation)
    finally:
        await generation.close()
