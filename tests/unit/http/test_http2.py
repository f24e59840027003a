# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 over bytes: what a client may say, and what is too much of it."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable

import h2.connection
import h2.events
import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.http import http2
from syntrop.common.http.http1 import Event
from syntrop.common.http.http2 import (
    Budget,
    Data,
    Ended,
    Failed,
    Leaving,
    Malformed,
    Opened,
    Protocol,
    Request,
    Reset,
)

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
GET = [(":method", "GET"), (":scheme", "http"), (":path", "/a?b=c"), (":authority", "localhost")]
POST = [(":method", "POST"), *GET[1:]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def head(stream: int, fields: Iterable[tuple[str, str]] = GET, flags: int = END_STREAM | END_HEADERS) -> bytes:
    """A head that leaves the tables alone, so that heads may come in any order, or be lost."""
    return frame(HEADERS, flags, stream, block(fields))


def block(fields: Iterable[tuple[str, str]]) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list(fields), huffman=False)


HELLO = http2.PREFACE + frame(SETTINGS)


def events(protocol: Protocol, data: bytes, now: float = 1.0) -> list[Event]:
    protocol.feed(data)
    found: list[Event] = []
    while (some := protocol.step(now)) is not None:
        found += some
    return found


def opened() -> Protocol:
    protocol = Protocol()
    assert events(protocol, HELLO) == [Opened(0)]
    protocol.output()
    return protocol


def goaways(data: bytes) -> list[tuple[int, int]]:
    """(last stream, code) of each GOAWAY in what is to be sent."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        if data[3] == GOAWAY:
            found.append(struct.unpack(">II", data[9:17]))
        data = data[9 + length :]
    return found


def failure(protocol: Protocol, data: bytes, now: float = 1.0) -> http2.ErrorCodes:
    """Code of the failure that must be the last event, and be told to the client."""
    last = events(protocol, data, now)[-1]
    assert isinstance(last, Failed), last
    assert goaways(protocol.output())[-1][1] == last.code
    assert events(protocol, HELLO) == [] and protocol.output() == b""
    return last.code


def test_a_request_and_its_reply() -> None:
    protocol = opened()
    request, ended = events(protocol, head(1, [*GET, ("x-a", "é".encode().decode("latin-1"))]))
    assert isinstance(request, Request) and request.refused is None and request.stream == 1
    assert (request.head.method, request.head.path, request.head.query) == ("GET", "/a", "b=c")
    assert request.head.authority == "localhost" and ended == Ended(1)
    protocol.headers(1, [(":status", "200"), ("x-request-id", "r")], end=False)
    protocol.data(1, memoryview(b"hello"), rest=0, end=True)
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(1, [(name.encode(), value.encode()) for name, value in GET], end_stream=True)
    found = client.receive_data(frame(SETTINGS) + protocol.output())
    assert [e.data for e in found if isinstance(e, h2.events.DataReceived)] == [b"hello"]
    assert any(isinstance(e, h2.events.StreamEnded) for e in found)


def test_bodies_and_their_windows() -> None:
    protocol = opened()
    found = events(protocol, head(1, POST, END_HEADERS) + frame(DATA, 0, 1, b"x" * 70) + frame(DATA, 1, 1, b"y"))
    assert found[1:] == [Data(1, b"x" * 70, 70), Data(1, b"y", 1), Ended(1)]
    assert protocol.output() == b"", "room is given when what came is taken, not before"
    over = opened()
    big = frame(DATA, 0, 1, bytes(http2.FRAME_MAX)) * (http2.STREAM_WINDOW // http2.FRAME_MAX)
    assert not isinstance(events(over, head(1, POST, END_HEADERS) + big)[-1], Failed)
    assert failure(over, frame(DATA, 0, 1, b"x" * 70)) == http2.ErrorCodes.FLOW_CONTROL_ERROR


def test_the_preface_and_the_settings_come_first() -> None:
    assert failure(Protocol(), b"GET / HTTP/1.1\r\n\r\n") == http2.PROTOCOL_ERROR
    assert failure(Protocol(), http2.PREFACE + frame(PING, 0, 0, bytes(8))) == http2.PROTOCOL_ERROR
    assert failure(Protocol(), http2.PREFACE + frame(SETTINGS, ACK)) == http2.PROTOCOL_ERROR
    slow = Protocol()
    for i in range(len(HELLO)):
        assert slow.partial
        events(slow, HELLO[i : i + 1])
    assert not slow.partial and not slow.heading


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([*GET, ("expect", "tea")], 417),
        ([*GET, ("content-length", "5")], 400),  # and no body
        ([*POST, ("content-length", "99999999")], 413),
        ([*POST, ("content-length", "1"), ("content-length", "1")], 400),
        ([("x" * 9, "y" * 9)] * 200, 431),
        ([*GET, ("x", "y" * 40_000)], 431),
        ([(":method", "CONNECT"), (":authority", "a:1")], 501),
        ([(":method", "BREW"), *GET[1:]], 501),
        ([(":method", "GET"), (":scheme", "ftp"), *GET[2:]], 400),
        ([*GET[:2], (":path", "/a b"), GET[3]], 400),
        ([*GET[:2], (":path", "http://a/"), GET[3]], 400),
        ([*GET[:2], (":path", "/\x7f"), GET[3]], 400),
    ],
)
def test_requests_that_are_answered_with_a_refusal(fields: list[tuple[str, str]], status: int) -> None:
    flags = END_STREAM if ("content-length", "5") in fields else 0
    fields = fields if fields[0][0].startswith(":") else [*GET, *fields]
    wire = block(fields)
    data = frame(HEADERS, flags, 1, wire[:16000])
    for i in range(16000, len(wire), 16000):
        data += frame(CONTINUATION, 0, 1, wire[i : i + 16000])
    first = events(opened(), data + frame(CONTINUATION, END_HEADERS, 1))[0]
    assert isinstance(first, Request) and first.refused is not None and first.refused.status == status


@pytest.mark.parametrize(
    "fields",
    [
        [*GET, ("transfer-encoding", "chunked")],
        [*GET, ("connection", "close")],
        [*GET, ("te", "gzip")],
        [*GET, ("X-Upper", "a")],
        [*GET, ("a:b", "c")],
        [*GET, ("a b", "c")],
        [*GET, ("a", "b\r\nc: d")],
        [*GET, ("a", "b\nc")],
        [*GET, ("a", "\0")],
        [*GET, ("", "a")],
        [*GET, ("a", " b")],
        [*GET, ("host", "elsewhere")],
        [*GET, ("content-length", "x")],
        [*GET, ("content-length", "+1")],
        [*GET, (":path", "/b")],
        [*GET, (":status", "200")],
        [*GET, (":other", "a")],
        [("a", "b"), *GET],
        GET[:3],
        GET[1:],
        [GET[0], *GET[2:]],
        [*GET[:2], GET[3]],
        [*GET[:2], (":path", ""), GET[3]],
    ],
)
def test_what_another_server_could_read_differently_is_refused(fields: list[tuple[str, str]]) -> None:
    assert failure(opened(), head(1, fields)) == http2.PROTOCOL_ERROR


def test_the_length_of_a_body_holds() -> None:
    for length, body in (("1", b"ab"), ("3", b"ab")):
        wire = head(1, [*POST, ("content-length", length)], END_HEADERS) + frame(DATA, END_STREAM, 1, body)
        assert failure(opened(), wire) == http2.PROTOCOL_ERROR
    trailer = head(1, POST, END_HEADERS) + frame(DATA, 0, 1, b"a") + head(1, [("x", "y")])
    assert events(opened(), trailer)[-1] == Ended(1)
    assert failure(opened(), head(1, POST, END_HEADERS) + head(1, [(":path", "/")])) == http2.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "wire",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1)),
        frame(SETTINGS, ACK),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
        frame(0xAA, 0, 0, b"?"),
        frame(DATA, 0, 1),
        frame(DATA, 0, 1, b"x"),
        frame(DATA, 8, 1, bytes([50]) + bytes(50)),
    ],
    ids=["ping", "settings", "windows", "acks", "priority", "window", "unknown", "empty", "tiny", "padding"],
)
def test_floods_of_frames_that_carry_nothing_end(wire: bytes) -> None:
    protocol = opened()
    events(protocol, head(1, POST, END_HEADERS))
    found = events(protocol, wire * 500)
    assert not any(isinstance(event, Failed) for event in found)
    protocol.output()
    # At a pace that an attentive client may have it goes on.
    for second in range(2, 20):
        found = events(protocol, wire * 200, float(second))
        for event in found:
            if isinstance(event, Data):
                protocol.acknowledge(1, event.size)
        assert not any(isinstance(event, Failed) for event in found)
    assert failure(protocol, wire * 3000, 20.0) == http2.ENHANCE_YOUR_CALM


def test_what_is_sent_pays_for_what_it_brings() -> None:
    protocol = opened()
    events(protocol, head(1))
    protocol.headers(1, [(":status", "200")], end=False)
    update = struct.pack(">I", 10)
    for _ in range(5000):
        protocol.data(1, memoryview(b"0123456789"), rest=0, end=False)
        wire = frame(WINDOW_UPDATE, 0, 1, update) + frame(WINDOW_UPDATE, 0, 0, update)
        assert events(protocol, wire) == [Opened(1), Opened(0)]
    # But not what the client has cut so small itself.
    with pytest.raises(AssertionError):
        for _ in range(5000):
            protocol.data(1, memoryview(b"0"), rest=9, end=False)
            assert events(protocol, wire) == [Opened(1), Opened(0)]
    assert protocol.failed is not None and protocol.failed.code == http2.ENHANCE_YOUR_CALM


def test_rapid_resets_end() -> None:
    protocol = opened()
    resets = 0
    for stream in range(1, 3000, 2):
        found = events(protocol, head(stream) + frame(RST_STREAM, 0, stream, bytes(4)))
        resets += found.count(Reset(stream))
        if protocol.pay():
            break
    assert 100 < resets < 300
    assert protocol.failed is not None and protocol.failed.code == http2.ENHANCE_YOUR_CALM
    # Hang-ups of a gateway's many users do not.
    patient = opened()
    for second in range(1, 30):
        for stream in range(second * 100 + 1, second * 100 + 61, 2):
            events(patient, head(stream) + frame(RST_STREAM, 0, stream, bytes(4)), float(second))
            assert patient.pay() == []


def test_streams_that_our_own_resets_end_are_counted_too() -> None:
    protocol = opened()
    for stream in range(1, 3000, 2):
        # An update past the largest window: h2 resets the stream, which is the client's fault (MadeYouReset).
        found = events(protocol, head(stream) + frame(WINDOW_UPDATE, 0, stream, b"\x7f\xff\xff\xff"))
        assert found[-1] == Reset(stream)
        if protocol.pay():
            break
    assert protocol.failed is not None and protocol.failed.code == http2.ENHANCE_YOUR_CALM


def test_header_blocks_are_bounded() -> None:
    endless = head(1, GET, 0)
    assert failure(opened(), endless + frame(CONTINUATION, 0, 1) * 100) == http2.ENHANCE_YOUR_CALM
    assert failure(opened(), endless + frame(CONTINUATION, 0, 1, bytes(16384)) * 5) == http2.ENHANCE_YOUR_CALM
    # One that swells when it is decoded: a long field in the table, named again and again.
    bomb = Encoder()
    wire = bomb.encode([*GET, ("x", "y" * 4000)], huffman=False) + bytes([0x80 | 62]) * 1000
    assert failure(opened(), frame(HEADERS, 5, 1, wire)) == http2.ENHANCE_YOUR_CALM
    assert failure(opened(), endless + frame(PING, 0, 0, bytes(8))) == http2.PROTOCOL_ERROR
    waiting = opened()
    events(waiting, endless)
    assert waiting.partial and waiting.heading


def test_frames_are_bounded_before_they_have_come() -> None:
    assert failure(opened(), frame(DATA, 0, 1, bytes(16385))[:9]) == http2.FRAME_SIZE_ERROR


def test_a_client_does_not_choose_what_we_remember() -> None:
    protocol = opened()
    for start in range(100, 60_000, 2000):
        payload = b"".join(struct.pack(">HI", name, 1) for name in range(start, start + 2000))
        events(protocol, frame(SETTINGS, 0, 0, payload))
    events(protocol, frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 1 << 31)))
    engine = protocol._engine
    assert len(engine.remote_settings) < 10
    assert engine.encoder.header_table_size == http2.TABLE_MAX
    assert protocol.failed is None


def test_goaways_of_both_sides() -> None:
    protocol = opened()
    events(protocol, head(1) + head(3))
    protocol.leave()
    assert goaways(protocol.output()) == []
    assert isinstance(events(protocol, head(5))[0], Request) and protocol.last == 3
    assert protocol.refuse(5) == []
    assert events(protocol, frame(GOAWAY, 0, 0, bytes(8)) + frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")) == [
        Leaving(),
        Opened(0),
    ]
    protocol.headers(1, [(":status", "200")], end=True)
    assert protocol.output(), "replies go on"
    protocol.goaway()
    protocol.goaway()
    assert goaways(protocol.output()) == [(3, 0)]
    protocol.headers(3, [(":status", "200")], end=True)
    assert protocol.output(), "replies go on, after both"
    assert failure(opened(), frame(GOAWAY, 0, 1, bytes(8))) == http2.PROTOCOL_ERROR


def test_upgrades() -> None:
    asked = base64.urlsafe_b64encode(struct.pack(">HI", 4, 7)).decode().rstrip("=")
    protocol = Protocol(h2c=asked)
    protocol.headers(1, [(":status", "200")], end=False)
    assert protocol.room(1) == 7
    assert Protocol(h2c="").room(1) > 7
    for bad in (
        "!",
        "AAAA",
        "A",
        "AAMAAABkAAQCAAAAAAIAAAAA\n",
        base64.b64encode(struct.pack(">HI", 4, 1 << 31)).decode(),
    ):
        with pytest.raises(Malformed):
            Protocol(h2c=bad)


def test_budgets() -> None:
    budget = Budget(2, 1.0)
    assert [budget.spend(1.0) for _ in range(3)] == [True, True, False]
    assert not budget.spend(1.5) and budget.spend(4.0)
    budget.earn(100)
    assert [budget.spend(4.0) for _ in range(3)] == [True, True, False]


FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 99, 0x7FFFFFFF, 0xFFFFFFFF]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [bytes(4), bytes(5), bytes(8), b"\x7f\xff\xff\xff", block(GET), block(POST), block([("a", "b")])]
        ),
    ),
)


@given(
    pieces=st.lists(
        st.one_of(FRAMES, st.sampled_from([head(1), head(3, POST, END_HEADERS)]), st.binary(max_size=30)),
        max_size=20,
    ),
    data=st.data(),
)
@settings(deadline=None, max_examples=300)
def test_whatever_comes_ends_in_events_or_goaway(pieces: list[bytes], data: st.DataObject) -> None:
    wire = HELLO + b"".join(pieces)
    protocol = Protocol()
    found = events(protocol, wire)
    told = protocol.output()
    if protocol.failed is not None:
        assert found[-1] == protocol.failed and goaways(told)[-1][1] == protocol.failed.code
        assert protocol.failed.code != http2.INTERNAL_ERROR
    live = {event.stream for event in found if isinstance(event, Request)}
    assert {event.stream for event in found if isinstance(event, Data | Ended | Reset)} <= live
    # However it is cut, it means the same.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    again = Protocol()
    parts = [events(again, wire[a:b]) for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert [event for part in parts for event in part] == found
