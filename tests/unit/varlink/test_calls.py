# SPDX-License-Identifier: Apache-2.0
"""Calls as the protocol has them: more, continues, oneway, errors, hang-ups, half-closed callers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from varlink_pair import Raw, run, server_of

from syntrop.common import journal, loop
from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import PermissionDenied, VarlinkError

IDL = """interface org.example.calls
method Count(upto: int) -> (number: int)
method Note(text: string) -> (notes: int)
method Fail(how: string) -> ()
method Endless() -> (number: int)
method Slow(seconds: float) -> ()
method Missing() -> ()
method Add(a: int, b: ?int) -> (sum: int)
error Refused (asked: int, free: int)
"""
NAME = "org.example.calls."
INTERNAL = {"error": "io.systemd.System", "parameters": {"origin": "syntrop", "errnoName": "EIO", "errno": 5}}


class Handler:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sent = 0
        self.cancelled_at = 0.0

    async def Count(self, call: Any, upto: int) -> dict[str, Any]:
        call.require_more()
        for number in range(upto):
            await call.send({"number": number})
        return {"number": upto}

    async def Note(self, call: Any, text: str) -> dict[str, Any]:
        self.notes.append(text)
        return {"notes": len(self.notes)}

    async def Fail(self, call: Any, how: str) -> dict[str, Any]:
        if how == "refused":
            raise VarlinkError("org.example.calls.Refused", asked=5, free=3)
        if how == "undeclared":
            raise VarlinkError("org.example.calls.Undeclared", secret="s3cr3t")
        if how == "ill-typed":
            raise VarlinkError("org.example.calls.Refused", asked="five", free=3)
        if how == "denied":
            raise PermissionDenied
        if how == "foreign":
            raise VarlinkError("io.systemd.System", origin="linux", errnoName="ENOENT", errno=2)
        if how == "timeout":
            raise TimeoutError("a deadline of the handler's own")
        if how == "nothing":
            return None  # type: ignore[return-value]
        if how == "list":
            return ["s3cr3t"]  # type: ignore[return-value]
        raise RuntimeError("s3cr3t")

    async def Endless(self, call: Any) -> dict[str, Any]:
        try:
            while True:
                await call.send({"number": self.sent})
                self.sent += 1
        finally:
            self.cancelled_at = time.monotonic()

    async def Slow(self, call: Any, seconds: float) -> None:
        try:
            await loop.sleep(seconds)
        except loop.Cancelled:
            self.cancelled_at = time.monotonic()
            raise

    async def Add(self, call: Any, a: int, b: int = 40) -> dict[str, Any]:
        return {"sum": a + b}


def test_more_gives_continues_and_a_last_reply_without() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        await raw.say(NAME + "Count", {"upto": 2}, more=True)
        assert await raw.reply() == {"parameters": {"number": 0}, "continues": True}
        assert await raw.reply() == {"parameters": {"number": 1}, "continues": True}
        assert await raw.reply() == {"parameters": {"number": 2}}
        # `more` is an offer: a method with one reply takes no part in it.
        assert await raw.ask(NAME + "Add", {"a": 1}, more=True) == {"parameters": {"sum": 41}}
        raw.close()

    run(main)


def test_streaming_without_more_is_expected_more() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        for flags in ({}, {"more": False}):
            answer = await raw.ask(NAME + "Count", {"upto": 2}, **flags)
            assert answer == {"error": "org.varlink.service.ExpectedMore", "parameters": {}}
        assert (await raw.ask(NAME + "Endless"))["error"] == "org.varlink.service.ExpectedMore"
        raw.close()

    run(main)


def test_oneway_is_never_answered_not_even_with_an_error() -> None:
    async def main() -> None:
        handler = Handler()
        raw = Raw(server_of(IDL, handler))
        await raw.say(NAME + "Note", {"text": "a"}, oneway=True)
        await raw.say(NAME + "Note", {"text": 7}, oneway=True)
        await raw.say(NAME + "Fail", {"how": "refused"}, oneway=True)
        await raw.say(NAME + "Fail", {"how": "fault"}, oneway=True)
        await raw.say(NAME + "Count", {"upto": 3}, oneway=True, more=True)
        await raw.say("no.such.Method", oneway=True)
        assert await raw.ask(NAME + "Note", {"text": "b"}) == {"parameters": {"notes": 2}}
        assert handler.notes == ["a", "b"]
        raw.close()

    run(main)


@pytest.mark.parametrize("flag", ["more", "oneway", "upgrade"])
def test_flags_must_be_booleans(flag: str) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        answer = await raw.ask(NAME + "Add", {"a": 1}, **{flag: "yes"})
        assert answer["parameters"] == {"parameter": flag}
        raw.close()

    run(main)


def test_absent_and_null_parameters_take_the_handler_s_defaults() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        for parameters in ({"a": 1}, {"a": 1, "b": None}):
            assert await raw.ask(NAME + "Add", parameters) == {"parameters": {"sum": 41}}
        assert await raw.ask(NAME + "Add", {"a": 1, "b": 2}) == {"parameters": {"sum": 3}}
        # Integers beyond 2^53 may come as strings.
        assert await raw.ask(NAME + "Add", {"a": str(2**60), "b": 0}) == {"parameters": {"sum": 2**60}}
        raw.close()

    run(main)


@pytest.mark.parametrize(
    ("method", "parameters", "answer"),
    [
        ("nonsense", None, ("InterfaceNotFound", {"interface": "nonsense"})),
        ("", None, ("InterfaceNotFound", {"interface": ""})),
        ("org.example.none.X", None, ("InterfaceNotFound", {"interface": "org.example.none"})),
        (NAME + "Nothing", None, ("MethodNotFound", {"method": NAME + "Nothing"})),
        (NAME + "Refused", None, ("MethodNotFound", {"method": NAME + "Refused"})),
        (NAME + "__init__", None, ("MethodNotFound", {"method": NAME + "__init__"})),
        (NAME + "Missing", None, ("MethodNotImplemented", {"method": NAME + "Missing"})),
        (NAME + "Add", {"a": True}, ("InvalidParameter", {"parameter": "a"})),
        (NAME + "Add", {"a": 1.0}, ("InvalidParameter", {"parameter": "a"})),
        (NAME + "Add", {"a": "1"}, ("InvalidParameter", {"parameter": "a"})),
        (NAME + "Add", {"a": 2**63}, ("InvalidParameter", {"parameter": "a"})),
        (NAME + "Add", {"a": 1, "c": 1}, ("InvalidParameter", {"parameter": "c"})),
        (NAME + "Add", {}, ("InvalidParameter", {"parameter": "a"})),
        (NAME + "Add", [1], ("InvalidParameter", {"parameter": "parameters"})),
        (
            "org.varlink.service.GetInterfaceDescription",
            {"interface": "x.y"},
            ("InterfaceNotFound", {"interface": "x.y"}),
        ),
        ("org.varlink.service.GetInterfaceDescription", {}, ("InvalidParameter", {"parameter": "interface"})),
    ],
)
def test_errors_of_the_service_itself(method: str, parameters: Any, answer: tuple[str, Any]) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        assert await raw.ask(method, parameters) == {
            "error": "org.varlink.service." + answer[0],
            "parameters": answer[1],
        }
        raw.close()

    run(main)


def test_the_service_describes_itself() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        info = (await raw.ask("org.varlink.service.GetInfo"))["parameters"]
        assert info == {
            "vendor": "Vendor",
            "product": "product",
            "version": "1.0",
            "url": "https://example.org",
            "interfaces": ["org.varlink.service", "org.example.calls"],
        }
        for interface in info["interfaces"]:
            parameters = {"interface": interface}
            answer = await raw.ask("org.varlink.service.GetInterfaceDescription", parameters)
            assert idl.parse(answer["parameters"]["description"]).name == interface
        raw.close()

    run(main)


@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("refused", {"error": NAME + "Refused", "parameters": {"asked": 5, "free": 3}}),
        ("denied", {"error": "org.varlink.service.PermissionDenied", "parameters": {}}),
        (
            "foreign",
            {"error": "io.systemd.System", "parameters": {"origin": "linux", "errnoName": "ENOENT", "errno": 2}},
        ),
        ("nothing", {"parameters": {}}),
        ("undeclared", INTERNAL),
        ("ill-typed", INTERNAL),
        ("list", INTERNAL),
        ("timeout", INTERNAL),
        ("fault", INTERNAL),
    ],
)
def test_errors_of_handlers(how: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(journal, "error", lambda text, **_: logged.append(text))
    monkeypatch.setattr(journal, "exception", lambda text, error, **_: logged.append(f"{text}: {error!r}"))

    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        assert await raw.ask(NAME + "Fail", {"how": how}) == answer
        assert await raw.ask(NAME + "Add", {"a": 1}) == {"parameters": {"sum": 41}}  # the connection lives
        raw.close()

    run(main)
    assert bool(logged) is (answer == INTERNAL)  # our own faults are logged, the caller's are not


def test_a_handler_whose_signature_does_not_fit_is_our_fault() -> None:
    class Wrong:
        async def Add(self, call: Any, first: int) -> dict[str, Any]:
            return {"sum": first}

        def Note(self, call: Any, text: str) -> dict[str, Any]:
            return {"notes": 1}  # not awaitable

    async def main() -> None:
        raw = Raw(server_of(IDL, Wrong()))
        assert await raw.ask(NAME + "Add", {"a": 1}) == INTERNAL
        assert await raw.ask(NAME + "Note", {"text": "x"}) == INTERNAL
        raw.close()

    run(main)


def test_pipelined_calls_are_answered_in_their_order() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        for number in range(50):
            await raw.say(NAME + "Add", {"a": number, "b": 0})
        for number in range(50):
            assert await raw.reply() == {"parameters": {"sum": number}}
        raw.close()

    run(main)


async def from_hang_up_to_cancel(handler: Handler, raw: Raw) -> float:
    """Seconds between a caller's close and the end of its handler."""
    handler.cancelled_at = 0.0
    left = time.monotonic()
    raw.close()
    while not handler.cancelled_at:
        await loop.sleep(0.001)
    return handler.cancelled_at - left


def test_a_hang_up_cancels_a_streaming_handler_within_50_ms() -> None:
    async def main() -> None:
        taken = []
        for _ in range(5):  # the best of five: the machine may have other things to do
            handler = Handler()
            raw = Raw(server_of(IDL, handler))
            await raw.say(NAME + "Endless", more=True)
            assert await raw.reply() is not None
            # Let the server run into the full socket buffer, where it waits for its reader.
            sent = -1
            while handler.sent != sent:
                sent = handler.sent
                await loop.sleep(0.02)
            taken.append(await from_hang_up_to_cancel(handler, raw))
        assert min(taken) < 0.05
        print(f"hang-up to cancel: {min(taken) * 1000:.2f} to {max(taken) * 1000:.2f} ms")

    run(main)


def test_a_hang_up_cancels_a_handler_that_sends_nothing() -> None:
    async def main() -> None:
        taken = []
        for _ in range(5):
            handler = Handler()
            raw = Raw(server_of(IDL, handler))
            await raw.say(NAME + "Slow", {"seconds": 60})
            await loop.sleep(0.02)
            taken.append(await from_hang_up_to_cancel(handler, raw))
        assert min(taken) < 0.05
        # Pipelined calls of a caller that is gone are not begun.
        handler = Handler()
        raw = Raw(server_of(IDL, handler))
        await raw.say(NAME + "Slow", {"seconds": 60})
        await raw.say(NAME + "Note", {"text": "must not happen"})
        await loop.sleep(0.02)
        await from_hang_up_to_cancel(handler, raw)
        await loop.sleep(0.05)
        assert handler.notes == []

    run(main)


def test_a_caller_that_only_stops_writing_gets_its_replies() -> None:
    async def main() -> None:
        handler = Handler()
        raw = Raw(server_of(IDL, handler))
        await raw.say(NAME + "Slow", {"seconds": 0.1})
        await raw.say(NAME + "Count", {"upto": 2}, more=True)
        raw.socket.shutdown(socket.SHUT_WR)
        assert await raw.reply() == {"parameters": {}}
        numbers = [(await raw.reply() or {})["parameters"]["number"] for _ in range(3)]
        assert numbers == [0, 1, 2]
        assert await raw.reply() is None
        assert not handler.cancelled_at
        raw.close()

    run(main)


def test_a_slow_reader_holds_its_handler_back_not_the_server_s_memory() -> None:
    async def main() -> None:
        handler = Handler()
        server = server_of(IDL, handler)
        raw = Raw(server)
        await raw.say(NAME + "Endless", more=True)
        await loop.sleep(0.3)
        stopped = handler.sent
        await loop.sleep(0.3)
        assert handler.sent == stopped  # waits: what was sent fits in the socket's buffer
        assert stopped < 100_000
        other = Raw(server)  # others are served meanwhile
        assert await other.ask(NAME + "Add", {"a": 1}) == {"parameters": {"sum": 41}}
        other.close()
        for _ in range(stopped + 10):
            assert await raw.reply() is not None
        assert handler.sent > stopped
        raw.close()

    run(main)


def test_a_reader_that_makes_no_progress_is_given_up() -> None:
    async def main() -> None:
        handler = Handler()
        raw = Raw(server_of(IDL, handler, send_timeout=0.2))
        await raw.say(NAME + "Endless", more=True)
        started = time.monotonic()
        while not handler.cancelled_at:
            await loop.sleep(0.01)
        assert 0.15 < handler.cancelled_at - started < 5
        raw.close()

    run(main)


def test_connections_beyond_the_caps_are_closed() -> None:
    async def main() -> None:
        for options in ({"connections_max": 3}, {"connections_per_uid": 3}):
            server = server_of(IDL, Handler(), **options)
            callers = [Raw(server) for _ in range(3)]
            refused = Raw(server)
            assert refused.connection is None
            assert await refused.reply() is None
            refused.close()
            for raw in callers:
                assert await raw.ask(NAME + "Add", {"a": 1}) == {"parameters": {"sum": 41}}
            callers.pop().close()
            await loop.sleep(0.01)
            again = Raw(server)
            assert await again.ask(NAME + "Add", {"a": 1}) == {"parameters": {"sum": 41}}
            for raw in [*callers, again]:
                raw.close()

    run(main)


def test_the_caps_count_each_user_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from syntrop.common import peer

    uid = 1000

    def of(sock: socket.socket) -> peer.Peer:
        return peer.Peer(sock, uid, uid, 1)

    monkeypatch.setattr(peer, "of", of)

    async def main() -> None:
        nonlocal uid
        server = server_of(IDL, Handler(), connections_per_uid=2, connections_max=5)
        callers = []
        for number in (1000, 1001, 1000, 1001, 1000, 1002, 1003):
            uid = number
            callers.append(Raw(server))
        kept = [raw.connection is not None for raw in callers]
        assert kept == [True, True, True, True, False, True, False]
        for raw in callers:
            raw.close()
        await loop.sleep(0.01)
        assert server.caps.held == 0

    run(main)


def test_defaults_are_those_of_sd_varlink() -> None:
    from syntrop.common.varlink import server

    assert (server.CONNECTIONS_MAX, server.CONNECTIONS_PER_UID, server.SEND_TIMEOUT) == (4096, 1024, 45.0)


def test_a_ping_of_1_mib_is_quick_and_time_grows_with_size() -> None:
    """A quadratic buffer would make 8 MiB sixty-four times as slow as 1 MiB."""
    text = "interface org.example.ping\nmethod Ping(text: string) -> (text: string)\n"

    class Ping:
        async def Ping(self, call: Any, text: str) -> dict[str, Any]:
            return {"text": text}

    async def main() -> None:
        from varlink_pair import client_of

        client = client_of(server_of(text, Ping()))

        async def seconds(size: int) -> float:
            best = float("inf")
            data = "p" * size
            for _ in range(5):
                started = time.process_time()
                with await client.call("org.example.ping.Ping", {"text": data}) as reply:
                    assert len(reply.parameters["text"]) == size
                best = min(best, time.process_time() - started)
            return best

        one, eight = await seconds(1 << 20), await seconds(8 << 20)
        assert eight / one < 24, (one, eight)
        print(f"round trip of 1 MiB: {one * 1000:.1f} ms, of 8 MiB: {eight * 1000:.1f} ms")
        client.close()

    run(main)


# Processes that never pause: data is always there, and what is written always read, so that the server need
# not wait for them once. They work on a descriptor that they inherit.
GREEDY = r"""
import socket, sys, threading
sock = socket.socket(fileno=int(sys.argv[1]))
sock.setblocking(True)
note = b'{"method":"org.example.calls.Note","parameters":{"text":"x"},"oneway":true}\0'
endless = b'{"method":"org.example.calls.Endless","more":true}\0'
if sys.argv[2] == "sends":
    while True: sock.sendall(note * 2000)
sock.sendall(note + endless)
while sock.recv(1 << 20): pass
"""


@pytest.mark.parametrize("how", ["sends", "reads"])
def test_a_greedy_caller_does_not_starve_the_others(how: str) -> None:
    async def main() -> None:
        handler = Handler()
        server = server_of(IDL, handler)
        greedy, other = Raw(server), Raw(server)
        fd = greedy.socket.fileno()
        process = subprocess.Popen([sys.executable, "-c", GREEDY, str(fd), how], pass_fds=[fd])
        try:
            while not handler.notes:
                await loop.sleep(0.01)
            for _ in range(20):
                begun = time.thread_time()  # what is done meanwhile, however long a busy machine takes to do it
                assert await other.ask(NAME + "Add", {"a": 1}) == {"parameters": {"sum": 41}}
                assert time.thread_time() - begun < 1.0
            assert len(handler.notes) + handler.sent > 100
        finally:
            process.kill()
            process.wait()
        greedy.close()
        other.close()
        while server.caps.held:  # what had arrived of the flood is still done
            await loop.sleep(0.01)

    run(main)
