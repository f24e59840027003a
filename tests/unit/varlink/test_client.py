# SPDX-License-Identifier: Apache-2.0
"""Our client: deadlines, cancellation, one reconnection, and services that break the protocol."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from varlink_pair import client_of, run, server_of

from syntrop.common import loop
from syntrop.common.activation import accept
from syntrop.common.varlink import client
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.common.varlink.framing import MessageTooLong
from syntrop.common.varlink.server import Server

IDL = """interface org.example.client
method Slow(seconds: float) -> (seconds: float)
method Count(upto: int, pause: float) -> (number: int)
method Note(text: string) -> (notes: int)
"""
NAME = "org.example.client."


class Handler:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun = loop.Event()
        self.cancelled = loop.Event()

    async def Slow(self, call: Any, seconds: float) -> dict[str, Any]:
        self.begun.set()
        try:
            await loop.sleep(seconds)
        except loop.Cancelled:
            self.cancelled.set()
            raise
        return {"seconds": seconds}

    async def Count(self, call: Any, upto: int, pause: float) -> dict[str, Any]:
        call.require_more()
        try:
            for number in range(upto):
                await call.send({"number": number})
                await loop.sleep(pause)
        except loop.Cancelled:
            self.cancelled.set()
            raise
        return {"number": upto}

    async def Note(self, call: Any, text: str) -> dict[str, Any]:
        self.notes.append(text)
        return {"notes": len(self.notes)}


class Service:
    """A listening socket; `serve` accepts so many connections, and `restart` ends them in order."""

    def __init__(self, folder: str, server: Server) -> None:
        self.path = os.path.join(folder, "sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(10)
        self.listener.setblocking(False)
        self.server = server
        self.connections: list[Any] = []
        self.accepted = 0
        self._task = loop.spawn(self._run(), "service")

    async def _run(self) -> None:
        while True:
            await loop.readable(self.listener.fileno())
            while (sock := accept(self.listener)) is not None:
                self.accepted += 1
                connection = self.server.connect(sock)
                assert connection is not None
                self.connections.append((connection, loop.spawn(connection.run(), "connection")))

    def retire(self) -> None:
        for connection, _ in self.connections:
            connection.retire()

    async def kill(self) -> None:
        """As a crash does: connections end in the middle."""
        for _, task in self.connections:
            await loop.stop(task)

    def close(self) -> None:
        self._task.cancel()
        loop.forget(self.listener.fileno())
        self.listener.close()


def with_service(main: Callable[[Service, Handler], Coroutine[Any, Any, None]]) -> None:
    async def wrapped() -> None:
        with tempfile.TemporaryDirectory(prefix="syn-") as folder:
            handler = Handler()
            service = Service(folder, server_of(IDL, handler))
            try:
                await main(service, handler)
            finally:
                service.close()

    run(wrapped)


def test_a_deadline_ends_the_call_and_its_handler() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect("unix:" + service.path)
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await peer.call(NAME + "Slow", {"seconds": 60.0}, timeout=0.1)
        assert 0.09 < time.monotonic() - started < 2
        assert peer.closed
        with loop.deadline(60):
            await handler.cancelled.wait()
        # The client is of use again: it connects anew, and no late reply can be taken for this one's.
        with await peer.call(NAME + "Note", {"text": "after"}) as reply:
            assert reply.parameters == {"notes": 1}
        peer.close()

    with_service(main)


def test_a_cancelled_caller_cancels_its_handler() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        task = loop.spawn(peer.call(NAME + "Slow", {"seconds": 60.0}))
        with loop.deadline(60):
            await handler.begun.wait()
        await loop.stop(task)
        assert peer.closed
        with loop.deadline(60):
            await handler.cancelled.wait()

    with_service(main)


def test_leaving_a_stream_hangs_up() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        stream = peer.stream(NAME + "Count", {"upto": 1000, "pause": 0.01})
        assert (await anext(stream)).parameters == {"number": 0}
        await stream.aclose()
        with loop.deadline(60):
            await handler.cancelled.wait()
        assert peer.closed

    with_service(main)


def test_the_deadline_of_a_stream_is_for_each_reply() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        stream = peer.stream(NAME + "Count", {"upto": 11, "pause": 0.2}, timeout=2.0)
        numbers = [reply.parameters["number"] async for reply in stream]
        assert numbers == list(range(12))  # 2.2 s in all
        with pytest.raises(TimeoutError):
            async for _ in peer.stream(NAME + "Count", {"upto": 2, "pause": 60.0}, timeout=0.1):
                pass
        assert peer.closed

    with_service(main)


def test_one_call_at_a_time() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        task = loop.spawn(peer.call(NAME + "Slow", {"seconds": 0.1}))
        await loop.sleep(0.02)
        with pytest.raises(RuntimeError, match="in flight"):
            await peer.call(NAME + "Note", {"text": "x"})
        with await task as reply:
            assert reply.parameters == {"seconds": 0.1}
        peer.close()

    with_service(main)


def test_a_service_that_retired_is_reconnected_to_once_and_unnoticed() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        for number in range(1, 4):
            with await peer.call(NAME + "Note", {"text": "x"}) as reply:
                assert reply.parameters == {"notes": number}
            service.retire()
            if number == 2:
                await loop.sleep(0.02)  # the end has been seen by now; before, the kernel refuses the send
        assert service.accepted == 3
        peer.close()

    with_service(main)


def test_a_call_that_had_arrived_is_answered_when_the_connection_retires() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        with await peer.call(NAME + "Note", {"text": "first"}):
            pass
        task = loop.spawn(peer.call(NAME + "Slow", {"seconds": 0.1}))
        await loop.sleep(0.02)
        service.retire()
        with await task as reply:
            assert reply.parameters == {"seconds": 0.1}
        assert service.accepted == 1
        peer.close()

    with_service(main)


def test_a_service_that_dies_in_a_call_is_not_called_again() -> None:
    """It may have done half of it: only what was not taken is repeated."""

    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        task = loop.spawn(peer.call(NAME + "Slow", {"seconds": 60.0}))
        await loop.sleep(0.05)
        await service.kill()
        with pytest.raises(ConnectionLost):
            await task
        assert service.accepted == 1
        assert peer.closed

    with_service(main)


def test_no_service_is_an_os_error() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="syn-") as folder:
            path = os.path.join(folder, "sock")
            with pytest.raises(FileNotFoundError):
                await client.connect(path)
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path)
                with pytest.raises(ConnectionRefusedError):
                    await client.connect(path)
            with pytest.raises(OSError, match="long"):
                await client.connect("/" + "x" * 200)

    run(main)


def test_a_full_backlog_is_waited_for_until_the_deadline() -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="syn-") as folder:
            path = os.path.join(folder, "sock")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(0)
                first = await client.connect(path)
                with pytest.raises(TimeoutError):
                    await client.connect(path, timeout=0.1)
                first.close()

    run(main)


@pytest.mark.parametrize(
    "answer",
    [b"{\0", b"[]\0", b"\0", b'{"parameters":[1]}\0', b'{"error":5}\0', b'{"parameters":"x"}\0', b"\xff\0"],
)
def test_a_service_that_answers_nonsense_is_an_invalid_reply(answer: bytes) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        peer = client.Client("no address", client.Wire(ours))
        task = loop.spawn(peer.call("a.b.C"))
        await loop.sleep(0)
        theirs.send(answer)
        with pytest.raises(InvalidReply):
            await task
        assert peer.closed
        theirs.close()

    run(main)


def test_an_endless_reply_is_refused_at_the_cap() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        peer = client.Client("no address", client.Wire(ours, limit=100_000))
        task = loop.spawn(peer.call("a.b.C"))
        await loop.sleep(0)
        try:
            while not task.done:
                try:
                    theirs.send(b"x" * 10_000)
                except BlockingIOError:
                    pass
                await loop.sleep(0)
        except BrokenPipeError:
            pass
        with pytest.raises(InvalidReply, match="long"):
            await task
        theirs.close()

    run(main)


def test_a_request_beyond_the_cap_is_not_sent() -> None:
    async def main() -> None:
        handler = Handler()
        peer = client_of(server_of(IDL, handler))
        with pytest.raises(MessageTooLong):
            await peer.call(NAME + "Note", {"text": "x" * (16 * 1024 * 1024)})
        assert handler.notes == []
        peer.close()

    run(main)


def test_an_error_reply_leaves_the_connection_in_use() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        with pytest.raises(VarlinkError) as caught:
            await peer.call(NAME + "Note", {"text": 7})
        assert caught.value.name == "InvalidParameter"
        assert str(caught.value) == "org.varlink.service.InvalidParameter (parameter: text)"
        with await peer.call(NAME + "Note", {"text": "x"}) as reply:
            assert reply.parameters == {"notes": 1}
        assert service.accepted == 1
        peer.close()

    with_service(main)


def test_oneway_does_not_wait() -> None:
    async def main(service: Service, handler: Handler) -> None:
        peer = await client.connect(service.path)
        await peer.oneway(NAME + "Note", {"text": "a"})
        with await peer.call(NAME + "Note", {"text": "b"}) as reply:
            assert reply.parameters == {"notes": 2}
        assert handler.notes == ["a", "b"]
        peer.close()

    with_service(main)


def test_a_reply_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    async def main(service: Service, handler: Handler) -> None:
        ours, theirs = socket.socketpair()
        peer = client.Client(service.path, client.Wire(ours))
        task = loop.spawn(peer.call("a.b.C"))
        await loop.sleep(0)
        theirs.send(b'{"parameters":{"first":1}}\0{"parameters":{"notes":99}}\0')
        with await task as reply:
            assert reply.parameters == {"first": 1}
        with await peer.call(NAME + "Note", {"text": "x"}) as reply:
            assert reply.parameters == {"notes": 1}  # from the service itself, over a new connection
        peer.close()
        theirs.close()

    with_service(main)
