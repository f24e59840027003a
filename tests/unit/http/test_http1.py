# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http.http1 import (
    CONTINUE,
    Body,
    End,
    Event,
    Head,
    Protocol,
    Refused,
    encode_chunk,
    encode_head,
    http_date,
)

HOST = b"Host: localhost\r\n"
GET = b"GET /a?b=c HTTP/1.1\r\n" + HOST + b"\r\n"


def receive(*pieces: bytes, **caps: int) -> list[Event]:
    """Events of a new connection, with neighbouring body pieces joined."""
    protocol = Protocol(**caps)
    joined: list[Event] = []
    for piece in pieces:
        for event in protocol.receive(piece):
            if isinstance(event, Body) and joined and isinstance(joined[-1], Body):
                joined[-1] = Body(joined[-1].data + event.data)
            else:
                joined.append(event)
    return joined


def post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /x HTTP/1.1\r\n" + HOST + headers + b"\r\n" + body


def refusal(*pieces: bytes, **caps: int) -> int:
    """Status of the refusal that must be the last event."""
    last = receive(*pieces, **caps)[-1]
    assert isinstance(last, Refused), last
    return last.status


def test_a_request_without_a_body() -> None:
    head, end = receive(GET)
    assert isinstance(head, Head)
    assert (head.method, head.path, head.query, head.minor) == ("GET", "/a", "b=c", 1)
    assert head.authority == "localhost" and head.length == 0 and head.keep_alive
    assert end == End()


def test_bodies_by_length_and_in_chunks() -> None:
    assert receive(post(b"Content-Length: 3\r\n", b"abc"))[1:] == [Body(b"abc"), End()]
    chunked = b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: t\r\n\r\n"
    head, body, end = receive(post(b"Transfer-Encoding: chunked\r\n", chunked))
    assert isinstance(head, Head) and head.length is None
    assert [name for name, _ in head.headers] == ["host", "transfer-encoding"]
    assert (body, end) == (Body(b"abc"), End())


def test_pipelined_requests_come_in_order() -> None:
    empty = post(b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n")
    events = receive(post(b"Content-Length: 2\r\n", b"hi") + GET + empty + GET)
    assert [e.path for e in events if isinstance(e, Head)] == ["/x", "/a", "/x", "/a"]
    assert events.count(End()) == 4


def test_what_follows_the_last_request_is_ignored() -> None:
    wire = b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    events = receive(wire + b"anything\x00", GET)
    assert isinstance(events[0], Head) and not events[0].keep_alive
    assert events[1:] == [End()]
    assert receive(b"GET / HTTP/1.0\r\n\r\n" + GET)[1:] == [End()]


def test_keep_alive_of_http_1_0() -> None:
    head = receive(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")[0]
    assert isinstance(head, Head) and head.keep_alive and head.authority is None


def test_expectation() -> None:
    head = receive(post(b"Expect: 100-continue\r\nContent-Length: 1\r\n"))[0]
    assert isinstance(head, Head) and head.expects_continue
    assert CONTINUE.endswith(b"\r\n\r\n")
    head = receive(post(b"Expect: 100-continue\r\nContent-Length: 0\r\n"))[0]
    assert isinstance(head, Head) and not head.expects_continue
    assert refusal(post(b"Expect: tea\r\nContent-Length: 1\r\n")) == 417


def test_an_absolute_target_outranks_host() -> None:
    head = receive(b"GET http://other:80/p?q HTTP/1.1\r\n" + HOST + b"\r\n")[0]
    assert isinstance(head, Head)
    assert (head.path, head.query, head.authority) == ("/p", "q", "other:80")


@pytest.mark.parametrize("tail", [b"", GET, post(b"Content-Length: 1\r\n", b"y")])
def test_an_upgrade_is_ignored_and_its_body_is_not_lost(tail: bytes) -> None:
    # What Java's own client sends unasked with each request in clear text.
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    wire = post(upgrade + b"Content-Length: 3\r\n", b"abc")
    events = receive(wire + tail)
    assert isinstance(events[0], Head) and events[0].header("upgrade") == "h2c"
    assert events[1:3] == [Body(b"abc"), End()]
    assert events[3:] == receive(tail)
    bare = receive(b"GET / HTTP/1.1\r\n" + HOST + upgrade + b"\r\n" + tail)
    assert isinstance(bare[0], Head) and bare[0].keep_alive
    assert bare[1:] == [End(), *receive(tail)]
    chunks = post(upgrade + b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n")
    assert receive(chunks + tail)[1:3] == [Body(b"abc"), End()]


SMUGGLING = {
    "two lengths": post(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"),
    "the same length twice": post(b"Content-Length: 1\r\nContent-Length: 1\r\n", b"a"),
    "a list of lengths": post(b"Content-Length: 1, 1\r\n", b"a"),
    "a signed length": post(b"Content-Length: +1\r\n", b"a"),
    "an empty length": post(b"Content-Length:\r\n"),
    "a length past 64 bits": post(b"Content-Length: 18446744073709551617\r\n"),
    "length, then coding": post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "coding, then length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
    "an unknown coding": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "a second coding": post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "identity": post(b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "coding twice": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "coding behind a tab": post(b"Transfer-Encoding:\x0bchunked\r\n", b"0\r\n\r\n"),
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": post(b"Content-Length : 1\r\n", b"a"),
    "a folded header": post(b"X: a\r\n b\r\n"),
    "a fold of nothing": post(b"X:\r\n Content-Length: 1\r\n"),
    "a bare line feed in the head": b"GET / HTTP/1.1\r\nHost: a\n\r\n",
    "a head of bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "a bare carriage return": post(b"X: a\rb\r\n"),
    "a NUL": post(b"X: a\x00b\r\n"),
    "no name": post(b": a\r\n"),
    "a line without a colon": post(b"abc\r\n"),
    "a bare line feed behind a chunk's size": post(b"Transfer-Encoding: chunked\r\n", b"1\na\r\n0\r\n\r\n"),
    "a line feed in a chunk's extension": post(b"Transfer-Encoding: chunked\r\n", b"1;\nx\r\na\r\n0\r\n\r\n"),
    "a prefixed chunk size": post(b"Transfer-Encoding: chunked\r\n", b"0x1\r\na\r\n0\r\n\r\n"),
    "a chunk longer than it says": post(b"Transfer-Encoding: chunked\r\n", b"1\r\nab\r\n0\r\n\r\n"),
    "a chunk size past 64 bits": post(b"Transfer-Encoding: chunked\r\n", b"fffffffffffffffff\r\n"),
    "a length in a trailer": post(b"Transfer-Encoding: chunked\r\n", b"0\r\nContent-Length: 1\r\n\r\n"),
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "HTTP/2 without its preface": b"GET / HTTP/2.0\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "RTSP": b"DESCRIBE / RTSP/1.0\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target with a blank": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target that is not ASCII": b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("wire", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_what_two_servers_could_read_differently_is_refused(wire: bytes) -> None:
    assert refusal(wire) in (400, 501, 505)
    assert refusal(*(wire[i : i + 1] for i in range(len(wire)))) in (400, 501, 505)
    protocol = Protocol()
    protocol.receive(wire)
    assert protocol.closed and protocol.receive(GET) == []


def test_a_refusal_keeps_what_came_before_it() -> None:
    events = receive(GET + b"\x00")
    assert events[:2] == receive(GET) and isinstance(events[2], Refused)


def test_caps() -> None:
    line = b"X-Long: " + b"a" * 2000 + b"\r\n"
    assert refusal(post(line * 2), head_max=3000) == 431
    assert refusal(b"GET /" + b"a" * 3001, head_max=3000) == 431
    endless = Protocol(head_max=3000)
    for _ in range(20):
        if endless.closed:
            break
        endless.receive(b"X" * 1000)
    assert endless.closed
    assert refusal(post(b"".join(b"X%d: y\r\n" % i for i in range(10))), headers_max=10) == 431
    assert refusal(post(b"Content-Length: 11\r\n"), body_max=10) == 413
    big = b"b\r\n" + b"x" * 11 + b"\r\n0\r\n\r\n"
    assert refusal(post(b"Transfer-Encoding: chunked\r\n", big), body_max=10) == 413
    assert End() in receive(post(b"Content-Length: 10\r\n", b"x" * 10), body_max=10)


@pytest.mark.parametrize("endless", [b"1;x=" + b"y" * 2000, b"0\r\nTrailer: " + b"y" * 2000])
def test_framing_without_an_end_is_not_hoarded(endless: bytes) -> None:
    pieces = [b"y" * 2000] * 50
    assert refusal(post(b"Transfer-Encoding: chunked\r\n"), endless, *pieces, head_max=3000) in (400, 431)


def test_chunks_of_one_byte_are_fine() -> None:
    wire = post(b"Transfer-Encoding: chunked\r\n") + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n"
    events = receive(*(wire[i : i + 100] for i in range(0, len(wire), 100)), head_max=1000)
    assert events[1:] == [Body(b"a" * 5000), End()]


token = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(lambda t: "x-" + t)
value = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)


@st.composite
def request_bytes(draw: st.DrawFn) -> bytes:
    headers = b"".join(f"{n}: {v}\r\n".encode() for n, v in draw(st.lists(st.tuples(token, value), max_size=4)))
    upgrade = draw(st.sampled_from([b"", b"Connection: upgrade\r\nUpgrade: h2c\r\n"]))
    body = draw(st.binary(max_size=60))
    match draw(st.sampled_from(["none", "length", "chunked", "broken"])):
        case "none":
            return b"GET /p HTTP/1.1\r\n" + HOST + headers + upgrade + b"\r\n"
        case "length":
            return post(headers + upgrade + b"Content-Length: %d\r\n" % len(body), body)
        case "chunked":
            size = draw(st.integers(1, 20))
            chunks = [body[i : i + size] for i in range(0, len(body), size)]
            framed = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
            return post(headers + upgrade + b"Transfer-Encoding: chunked\r\n", framed)
        case _:
            return draw(st.sampled_from(sorted(SMUGGLING.values())))


@given(requests=st.lists(request_bytes(), min_size=1, max_size=4), data=st.data())
def test_however_it_is_split_the_events_are_the_same(requests: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert receive(*pieces) == receive(wire)
    assert receive(*(wire[i : i + 1] for i in range(len(wire)))) == receive(wire)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_bytes_break_the_parser(pieces: list[bytes]) -> None:
    events = receive(*pieces)
    assert all(not isinstance(event, Refused) for event in events[:-1])


def test_replies() -> None:
    assert encode_head(200, [("a", "b")]) == b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    with pytest.raises(ValueError, match="line break"):
        encode_head(200, [("a", "b\r\nc: d")])
    assert encode_chunk(b"x" * 16) == b"10\r\n" + b"x" * 16 + b"\r\n"
    assert encode_chunk(b"") == b""
    assert http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"
