# SPDX-License-Identifier: Apache-2.0
"""A server and its callers in one loop, over real Unix sockets."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from syntrop.common import loop
from syntrop.common.varlink import idl
from syntrop.common.varlink.client import Client
from syntrop.common.varlink.server import Connection, Identity, Server
from syntrop.common.varlink.wire import Wire

IDENTITY = Identity("Vendor", "product", "1.0", "https://example.org")
PATIENCE = 60.0  # seconds that anything in these tests may take on a busy machine


def server_of(description: str, handler: object, **options: Any) -> Server:
    """A server of one interface, given as IDL text."""
    return Server(IDENTITY, {idl.parse(description): handler}, **options)


def attach(server: Server) -> tuple[socket.socket, Connection | None]:
    """A new connection: the caller's socket (non-blocking), and the server's side, which runs already."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    theirs.setblocking(False)
    ours.setblocking(False)
    connection = server.connect(ours)
    if connection is not None:
        loop.spawn(connection.run(), "connection")
    return theirs, connection


def client_of(server: Server) -> Client:
    theirs, _ = attach(server)
    return Client("no address", Wire(theirs))


class Raw:
    """A caller that says bytes, and reads replies as JSON."""

    def __init__(self, server: Server) -> None:
        self.socket, self.connection = attach(server)
        self._held = b""

    async def send(self, data: bytes) -> None:
        """Raises BrokenPipeError or ConnectionResetError once the server has closed."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                await loop.writable(self.socket.fileno())

    async def say(self, method: str, parameters: Any = None, **flags: Any) -> None:
        message = {"method": method, **({} if parameters is None else {"parameters": parameters}), **flags}
        await self.send(json.dumps(message).encode() + b"\0")

    async def receive(self) -> bytes:
        """Some bytes; none at the end, however the server ended."""
        while True:
            try:
                return self.socket.recv(65536)
            except BlockingIOError:
                await loop.readable(self.socket.fileno())
            except ConnectionResetError:
                return b""

    async def reply(self) -> dict[str, Any] | None:
        """The next reply, None at the end."""
        while b"\0" not in self._held:
            data = await self.receive()
            if not data:
                assert not self._held, f"half a message at the end: {self._held[:80]!r}"
                return None
            self._held += data
        message, _, self._held = self._held.partition(b"\0")
        value = json.loads(message)
        assert isinstance(value, dict)
        return value

    async def ask(self, method: str, parameters: Any = None, **flags: Any) -> dict[str, Any]:
        await self.say(method, parameters, **flags)
        answer = await self.reply()
        assert answer is not None
        return answer

    def close(self) -> None:
        loop.forget(self.socket.fileno())
        self.socket.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine, and see that every descriptor it opened is closed again."""

    async def bounded() -> None:
        with loop.deadline(PATIENCE):
            await main()
            # Connections end a turn or two after their callers.
            before = descriptors()
            while (after := await _settled()) < before:
                before = after

    start = descriptors()
    loop.run(bounded())
    assert descriptors() == start, "descriptors leaked"


async def _settled() -> int:
    for _ in range(3):
        await loop.sleep(0.001)
    return descriptors()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
