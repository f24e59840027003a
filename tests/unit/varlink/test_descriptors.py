# SPDX-License-Identifier: Apache-2.0
"""Descriptors over the wire, both ways: who owns which, and that none is left on any path (`run` counts)."""

from __future__ import annotations

import array
import os
import socket
from typing import Any

import pytest
from varlink_pair import PATIENCE, Raw, client_of, descriptors, run, server_of

from syntrop.common import loop
from syntrop.common.varlink.errors import ConnectionLost, InvalidParameter, InvalidReply, VarlinkError

IDL = """interface org.example.fds
method Read(fd: int) -> (text: string)
method Open(count: int) -> (fds: []int)
method Leave() -> ()
method Give(how: string) -> (fd: int)
method Swap(fd: int) -> (fd: int)
method Stream(count: int) -> (fd: int)
method Wait() -> ()
error Failed ()
"""
NAME = "org.example.fds."


def pipe_with(text: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


class Handler:
    async def Read(self, call: Any, fd: int) -> dict[str, Any]:
        handle = call.take_fd(fd)
        try:
            assert not os.get_inheritable(handle)
            return {"text": os.read(handle, 100).decode()}
        finally:
            os.close(handle)

    async def Open(self, call: Any, count: int) -> dict[str, Any]:
        return {"fds": [call.give_fd(pipe_with(str(number).encode())) for number in range(count)]}

    async def Leave(self, call: Any) -> None:
        """Takes none of what was passed."""

    async def Give(self, call: Any, how: str) -> dict[str, Any]:
        index = call.give_fd(pipe_with(b"x"))
        if how == "error":
            raise VarlinkError("org.example.fds.Failed")
        if how == "fault":
            raise ZeroDivisionError
        if how == "ill-typed":
            return {"fd": "zero"}
        return {"fd": index}

    async def Swap(self, call: Any, fd: int) -> dict[str, Any]:
        return {"fd": call.give_fd(call.take_fd(fd))}

    async def Stream(self, call: Any, count: int) -> dict[str, Any]:
        for number in range(count):
            await call.send({"fd": call.give_fd(pipe_with(str(number).encode()))})
        return {"fd": call.give_fd(pipe_with(b"last"))}

    async def Wait(self, call: Any) -> None:
        await loop.sleep(PATIENCE * 2)


def test_from_caller_to_service() -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        ours = pipe_with(b"hello")
        with await client.call(NAME + "Read", {"fd": 0}, fds=[ours]) as reply:
            assert reply.parameters == {"text": "hello"}
        os.close(ours)  # still the caller's
        client.close()

    run(main)


def test_from_service_to_caller() -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        with await client.call(NAME + "Open", {"count": 3}) as reply:
            handle = reply.take_fd(reply.parameters["fds"][1])
            assert not os.get_inheritable(handle)
            with pytest.raises(InvalidReply):
                reply.take_fd(reply.parameters["fds"][1])  # taken already
            for index in (3, -1, 99):
                with pytest.raises(InvalidReply):
                    reply.take_fd(index)
        assert os.read(handle, 9) == b"1"
        os.close(handle)
        client.close()

    run(main)


def test_there_and_back_again() -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        ours = pipe_with(b"round")
        for _ in range(20):
            with await client.call(NAME + "Swap", {"fd": 0}, fds=[ours]) as reply:
                back = reply.take_fd(reply.parameters["fd"])
            os.close(ours)
            ours = back
        assert os.read(ours, 9) == b"round"
        os.close(ours)
        client.close()

    run(main)


def test_with_every_reply_of_a_stream() -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        texts = []
        async for reply in client.stream(NAME + "Stream", {"count": 5}):
            with reply:
                handle = reply.take_fd(reply.parameters["fd"])
            texts.append(os.read(handle, 9))
            os.close(handle)
        assert texts == [b"0", b"1", b"2", b"3", b"4", b"last"]
        # Replies that nobody takes from, and a stream that is left.
        async for reply in client.stream(NAME + "Stream", {"count": 5}):
            reply.close()
        stream = client.stream(NAME + "Stream", {"count": 5})
        with await anext(stream):
            pass
        await stream.aclose()
        client.close()

    run(main)


def test_with_a_message_too_large_for_the_socket_buffer() -> None:
    text = """interface org.example.large
method Both(fd: int, data: string) -> (fd: int, data: string)
"""

    class Large:
        async def Both(self, call: Any, fd: int, data: str) -> dict[str, Any]:
            return {"fd": call.give_fd(call.take_fd(fd)), "data": data}

    async def main() -> None:
        client = client_of(server_of(text, Large()))
        ours = pipe_with(b"large")
        data = "d" * 3_000_000
        with await client.call("org.example.large.Both", {"fd": 0, "data": data}, fds=[ours]) as reply:
            assert reply.parameters["data"] == data
            back = reply.take_fd(reply.parameters["fd"])
        assert os.read(back, 9) == b"large"
        os.close(back)
        os.close(ours)
        client.close()

    run(main)


@pytest.mark.parametrize("index", [1, -1, 253, 10**12])
def test_an_index_without_a_descriptor_is_the_caller_s_fault(index: int) -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        ours = pipe_with(b"x")
        with pytest.raises(VarlinkError) as caught:
            await client.call(NAME + "Read", {"fd": index}, fds=[ours])
        assert caught.value.error == InvalidParameter("fd").error
        os.close(ours)
        client.close()

    run(main)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (NAME + "Leave", {}),
        (NAME + "Leave", {"unknown": 1}),
        (NAME + "Read", {"fd": True}),
        (NAME + "Read", {}),
        (NAME + "NoSuch", {}),
        ("org.example.none.Read", {}),
        ("nonsense", {}),
        ("org.varlink.service.GetInfo", {}),
    ],
)
def test_descriptors_that_nobody_expects_are_closed(method: str, parameters: dict[str, Any]) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        before = descriptors()
        for oneway in (False, True):
            ours = [pipe_with(b"x") for _ in range(5)]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ours))]
            import json

            data = json.dumps({"method": method, "parameters": parameters, "oneway": oneway}).encode()
            raw.socket.sendmsg([data + b"\0"], rights)
            for handle in ours:
                os.close(handle)
            # The next answer shows that the call before it has ended.
            if not oneway:
                await raw.reply()
        await raw.ask("org.varlink.service.GetInfo")
        assert descriptors() == before
        raw.close()

    run(main)


@pytest.mark.parametrize("bad", [b"{\0", b"\0", b'{"method":7}\0', b'{"method":"half', b"\xff\xff\0"])
def test_descriptors_of_bad_messages_are_closed(bad: bytes) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        ours = [pipe_with(b"x") for _ in range(5)]
        raw.socket.sendmsg([bad], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ours))])
        for handle in ours:
            os.close(handle)
        raw.socket.shutdown(socket.SHUT_WR)
        while await raw.reply() is not None:
            pass
        raw.close()

    run(main)


def test_descriptors_piled_onto_one_message_are_refused() -> None:
    """A message in pieces, each with descriptors: it could take all that the process may have."""

    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        before = descriptors()
        handle = pipe_with(b"x")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle] * 250))]
        with pytest.raises(OSError, match=r"pipe|reset"):
            for _ in range(1000):
                try:
                    raw.socket.sendmsg([b"{"], rights)
                except (BlockingIOError, OSError) as error:
                    if error.errno not in (11, 109):  # EAGAIN; ETOOMANYREFS: too many are in flight
                        raise
                await loop.sleep(0)
                assert descriptors() < before + 1200
        os.close(handle)
        raw.close()

    run(main)


@pytest.mark.parametrize("how", ["error", "fault", "ill-typed"])
def test_a_handler_that_fails_after_giving_leaves_nothing(how: str) -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        before = descriptors()
        for _ in range(5):
            with pytest.raises(VarlinkError):
                await client.call(NAME + "Give", {"how": how})
        assert descriptors() == before
        client.close()

    run(main)


def test_a_caller_that_vanishes_takes_its_descriptors_with_it() -> None:
    async def main() -> None:
        server = server_of(IDL, Handler())
        for method, parameters in (("Wait", {}), ("Give", {"how": "well"}), ("Open", {"count": 200})):
            raw = Raw(server)
            ours = pipe_with(b"x")
            import json

            data = json.dumps({"method": NAME + method, "parameters": parameters}).encode()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours]))]
            raw.socket.sendmsg([data + b"\0"], rights)
            os.close(ours)
            await loop.sleep(0.01)
            raw.close()

    run(main)


def test_a_caller_that_gives_up_waiting_leaves_nothing() -> None:
    async def main() -> None:
        client = client_of(server_of(IDL, Handler()))
        ours = pipe_with(b"x")
        with pytest.raises(TimeoutError):
            await client.call(NAME + "Wait", fds=[ours], timeout=0.05)
        assert client.closed
        os.close(ours)

    run(main)


def test_a_reply_with_descriptors_that_is_refused_closes_them() -> None:
    """What a bad service sends to our client: an error, no object, a half message, each with descriptors."""

    async def main() -> None:
        from syntrop.common.varlink.client import Client
        from syntrop.common.varlink.wire import Wire

        for data, error in (
            (b'{"error":"a.B"}\0', VarlinkError),
            (b"[]\0", InvalidReply),
            (b"{\0", InvalidReply),
            (b'{"parameters":[1]}\0', InvalidReply),
            (b'{"error":7}\0', InvalidReply),
            (b'{"param', ConnectionLost),
        ):
            ours, theirs = socket.socketpair()
            client = Client("no address", Wire(ours))
            task = loop.spawn(client.call("a.B"))
            await loop.sleep(0)
            handle = pipe_with(b"x")
            theirs.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle] * 3))])
            os.close(handle)
            theirs.close()
            with pytest.raises(error):
                await task
            client.close()

    run(main)
