# SPDX-License-Identifier: Apache-2.0
"""What callers may throw at the server's socket: split, merged, cut off, oversized, and no Varlink at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from varlink_pair import Raw, run, server_of

from syntrop.common import loop

IDL = """interface org.example.bytes
type Nested (inner: ?Nested)
method Ping(text: string) -> (text: string)
method Count(upto: int) -> (number: int)
method Deep(value: Nested) -> ()
method Free(value: object) -> (value: object)
method Lazy() -> ()
error Failed (reason: string)
"""
PING = b'{"method":"org.example.bytes.Ping","parameters":{"text":"x"}}\0'
PONG = {"parameters": {"text": "x"}}


class Handler:
    async def Ping(self, call: Any, text: str) -> dict[str, Any]:
        return {"text": text}

    async def Count(self, call: Any, upto: int) -> dict[str, Any]:
        call.require_more()
        for number in range(upto):
            await call.send({"number": number})
        return {"number": upto}

    async def Deep(self, call: Any, value: Any) -> None:
        return None

    async def Free(self, call: Any, value: Any) -> dict[str, Any]:
        return {"value": value}


async def still_serves(server: Any) -> None:
    raw = Raw(server)
    assert await raw.ask("org.example.bytes.Ping", {"text": "x"}) == PONG
    raw.close()


FRAME = st.one_of(
    st.just(PING),
    st.just(PING[:-1] + b" \0"),
    st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"") + b"\0"),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode() + b"\0"),
    st.fixed_dictionaries(
        {
            "method": st.sampled_from(
                ["org.example.bytes.Ping", "org.example.bytes.Count", "x", "", ".", "a.b", 7, None]
            )
        },
        optional={
            "parameters": st.sampled_from(
                [{}, {"text": "x"}, {"text": 1}, {"upto": 3}, {"upto": True}, [], None, "x", 0]
            ),
            "more": st.sampled_from([True, False, None, 1]),
            "oneway": st.sampled_from([True, False, None, "yes"]),
            "upgrade": st.sampled_from([True, False, None]),
            "unknown": st.just(1),
        },
    ).map(lambda value: json.dumps(value).encode() + b"\0"),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAME, max_size=5), st.lists(st.integers(1, 60), max_size=6), st.binary(max_size=20))
@example([PING, PING], [], b"")
@example([b"\0"], [], b"\0" * 20)
def test_any_bytes_are_answered_or_refused_and_the_server_lives(
    frames: list[bytes], cuts: list[int], tail: bytes
) -> None:
    stream = b"".join(frames) + tail

    async def main() -> None:
        server = server_of(IDL, Handler())
        raw = Raw(server)
        try:
            position = 0
            for cut in [*cuts, len(stream)]:
                await raw.send(stream[position : position + cut])
                position += cut
            import socket

            raw.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused meanwhile
        while (reply := await raw.reply()) is not None:
            assert set(reply) <= {"parameters", "error", "continues"}
            assert isinstance(reply["parameters"], dict)
        raw.close()
        await still_serves(server)

    run(main)


@pytest.mark.parametrize("step", [1, 2, 3, 17, 61, 1000])
def test_requests_split_and_merged_anyhow_are_each_answered(step: int) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        stream = PING * 7
        for position in range(0, len(stream), step):
            await raw.send(stream[position : position + step])
        for _ in range(7):
            assert await raw.reply() == PONG
        raw.close()

    run(main)


@pytest.mark.parametrize(
    "bad",
    [
        b"{\0",
        b"\0",
        b"[]\0",
        b'"text"\0',
        b"null\0",
        b"{}\0",
        b'{"method":7}\0',
        b'{"method":"a.B","parameters":NaN}\0',
        b'{"method":"a.B"}{}\0',
        b'{"method":"\xff"}\0',
        b"[" * 100_000 + b"\0",
        b'{"a":' * 100_000 + b"\0",
        b'{"method":"a.B","parameters":{"x":' + b"1" * 5000 + b"}}\0",
        b"GET / HTTP/1.1\r\n\r\n\0",
    ],
    ids=range(14),
)
def test_what_is_no_message_is_answered_then_closed(bad: bytes) -> None:
    async def main() -> None:
        server = server_of(IDL, Handler())
        raw = Raw(server)
        await raw.send(PING + bad)
        assert await raw.reply() == PONG
        answer = await raw.reply()
        assert answer is not None and answer["error"] == "org.varlink.service.InvalidParameter"
        assert await raw.reply() is None
        raw.close()
        await still_serves(server)

    run(main)


def test_a_flood_of_nuls_ends_at_the_first() -> None:
    async def main() -> None:
        server = server_of(IDL, Handler())
        raw = Raw(server)
        with pytest.raises(OSError, match=r"pipe|reset"):
            for _ in range(200):
                await raw.send(b"\0" * 1_000_000)
        raw.close()
        await still_serves(server)

    run(main)


def test_a_message_beyond_16_mib_is_refused_cleanly() -> None:
    async def main() -> None:
        server = server_of(IDL, Handler())
        raw = Raw(server)
        chunk = b'{"method":"' + b"x" * 1_000_000
        try:
            for _ in range(20):
                await raw.send(chunk)
        except OSError:
            pass
        answer = await raw.reply()
        assert answer is not None and answer["error"] == "org.varlink.service.InvalidParameter"
        assert await raw.reply() is None
        raw.close()
        await still_serves(server)

    run(main)


def test_a_message_of_almost_16_mib_is_served() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        text = "y" * (16 * 1024 * 1024 - 200)
        await raw.say("org.example.bytes.Ping", {"text": text})
        pieces = []
        while not pieces or not pieces[-1].endswith(b"\0"):
            pieces.append(await raw.receive())
        assert json.loads(b"".join(pieces)[:-1]) == {"parameters": {"text": text}}
        raw.close()

    run(main)


def test_a_reply_beyond_16_mib_is_our_fault() -> None:
    class Huge(Handler):
        async def Ping(self, call: Any, text: str) -> dict[str, Any]:
            return {"text": "y" * (16 * 1024 * 1024)}

    async def main() -> None:
        raw = Raw(server_of(IDL, Huge()))
        assert (await raw.ask("org.example.bytes.Ping", {"text": "x"}))["error"] == "io.systemd.System"
        assert (await raw.ask("org.example.bytes.Deep", {"value": {}})) == {"parameters": {}}
        raw.close()

    run(main)


def test_a_caller_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    async def main() -> None:
        server = server_of(IDL, Handler())
        for length in range(0, len(PING), 7):
            raw = Raw(server)
            await raw.send(PING[:length])
            raw.close()
        await still_serves(server)

    run(main)


def test_a_message_that_is_never_completed_does_not_hold_its_connection() -> None:
    async def main() -> None:
        server = server_of(IDL, Handler(), receive_timeout=1.0)
        raw = Raw(server)
        assert await raw.ask("org.example.bytes.Ping", {"text": "x"}) == PONG
        await raw.send(PING[:9])
        assert await raw.reply() is None
        raw.close()
        patient = Raw(server)
        await loop.sleep(1.2)
        await patient.send(PING + PING[:9])
        assert await patient.reply() == PONG
        await patient.send(PING[9:])
        assert await patient.reply() == PONG
        patient.close()

    run(main)


@pytest.mark.parametrize("depth", [10, 200, 400, 900, 950])
def test_values_nested_deeply_are_served_or_refused(depth: int) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        value = '{"inner":' * depth + "{}" + "}" * depth
        await raw.send(f'{{"method":"org.example.bytes.Deep","parameters":{{"value":{value}}}}}'.encode() + b"\0")
        answer = await raw.reply()
        assert answer is not None
        assert answer == {"parameters": {}} or answer["error"] == "org.varlink.service.InvalidParameter"
        raw.close()

    run(main)


@pytest.mark.parametrize("escaped", [r"\ud800", r"\udfff x", r"\u0000", r"\ud83d\ude00", "\\ud800\\ud800"])
def test_any_escape_comes_back_as_the_same_text(escaped: str) -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        message = f'{{"method":"org.example.bytes.Ping","parameters":{{"text":"{escaped}"}}}}'
        await raw.send(message.encode() + b"\0")
        answer = await raw.reply()
        assert answer == {"parameters": {"text": json.loads(f'"{escaped}"')}}
        raw.close()

    run(main)


def test_infinities_do_not_pass_through_free_objects() -> None:
    async def main() -> None:
        raw = Raw(server_of(IDL, Handler()))
        await raw.send(b'{"method":"org.example.bytes.Free","parameters":{"value":{"x":1e999}}}\0')
        answer = await raw.reply()
        assert answer is not None and "error" in answer
        raw.close()

    run(main)
