# SPDX-License-Identifier: Apache-2.0
"""Responses by their bytes: what is read, what is refused, and that it is the same in every cut."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http import response
from syntrop.common.http.client import split_url
from syntrop.common.http.response import BadResponse, Inflater, Parser, Truncated

OK = b"HTTP/1.1 200 OK\r\n"


def read(*pieces: bytes, end: bool = False) -> tuple[Parser, bytes]:
    parser = Parser()
    for piece in pieces:
        parser.receive(piece)
    if end:
        parser.end()
    return parser, b"".join(parser.pieces)


WHOLE = [
    (OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nX-Trailer: 1\r\n\r\n", b"abc", True),
    (OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", True),
    (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx",
        b"x",
        True,
    ),
]


@pytest.mark.parametrize(("wire", "body", "reusable"), WHOLE)
def test_whole_responses_in_every_cut(wire: bytes, body: bytes, reusable: bool) -> None:
    for cut in range(len(wire) + 1):
        parser, found = read(wire[:cut], wire[cut:])
        assert (parser.head, parser.complete, parser.reusable, found) == (True, True, reusable, body)
    parser, found = read(*(wire[i : i + 1] for i in range(len(wire))))
    assert (parser.complete, parser.reusable, found) == (True, reusable, body)
    assert parser.header("link") is None  # of an interim response


@pytest.mark.parametrize(("wire", "body", "reusable"), WHOLE)
def test_an_early_end_is_told(wire: bytes, body: bytes, reusable: bool) -> None:
    for cut in range(len(wire)):
        with pytest.raises(Truncated):
            read(wire[:cut], end=True)


def test_a_body_that_ends_with_the_connection() -> None:
    for head in (OK, b"HTTP/1.0 200 OK\r\n"):
        parser, body = read(head + b"\r\nab", b"c")
        assert (parser.complete, body) == (False, b"abc")
        parser.end()
        assert (parser.complete, parser.reusable) == (True, False)
        with pytest.raises(Truncated):
            read(head, end=True)  # in its head


@pytest.mark.parametrize(
    "rest",
    [b"garbage", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"\0", b"HTTP/1.1 101 X\r\nUpgrade: y\r\n\r\n"],
)
def test_what_follows_a_response_is_no_part_of_it(rest: bytes) -> None:
    wire = OK + b"Content-Length: 3\r\n\r\nabc"
    for pieces in ((wire + rest,), (wire, rest), (wire[:-1], wire[-1:] + rest)):
        parser, body = read(*pieces)
        assert (parser.complete, parser.reusable, body) == (True, False, b"abc")


@pytest.mark.parametrize(
    "wire",
    [
        b"<html>hello</html>",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 20 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        OK + b"X : y\r\n\r\n",
        OK + b"X: a\r\n b\r\n\r\n",
        OK.replace(b"\r", b"") + b"Content-Length: 0\n\n",
        OK + b"".join(b"X%d: y\r\n" % i for i in range(response.HEADERS_MAX + 1)) + b"\r\n",
        OK + b"X: " + b"y" * (response.HEAD_MAX + 1),
        b"HTTP/1.1 100 Continue\r\n\r\n" * (response.INTERIM_MAX + 1),
        OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * (response.HEAD_MAX + 1),
    ],
)  # fmt: skip
def test_refused_in_every_cut(wire: bytes) -> None:
    with pytest.raises(BadResponse):
        read(wire)
    with pytest.raises(BadResponse):
        read(*(wire[i : i + 7] for i in range(0, len(wire), 7)))


def test_what_came_before_a_fault_is_there() -> None:
    parser = Parser()
    with pytest.raises(BadResponse):
        parser.receive(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n")
    assert parser.pieces == [b"abc"]


@given(data=st.data(), body=st.binary(max_size=200), seed=st.lists(st.integers(1, 50), max_size=6))
def test_chunks_and_cuts_are_of_no_consequence(data: st.DataObject, body: bytes, seed: list[int]) -> None:
    wire = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    rest = body
    for size in [*seed, len(body)]:
        piece, rest = rest[:size], rest[size:]
        if piece:
            wire += b"%x\r\n%b\r\n" % (len(piece), piece)
    wire += b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parser, found = read(*(wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if a < b))
    assert (found, parser.reusable) == (body, True)


# --- compressed bodies -----------------------------------------------------------------------------------


def inflate(coding: str, wire: bytes, step: int) -> bytes:
    inflater = Inflater(coding)
    found = b""
    for i in range(0, len(wire), step):
        inflater.feed(wire[i : i + step])
        while piece := inflater.take():
            assert len(piece) <= response.PIECE_MAX
            found += piece
    inflater.end()
    return found


@given(body=st.binary(max_size=300), step=st.integers(1, 40))
def test_compressed_bodies_in_every_cut(body: bytes, step: int) -> None:
    assert inflate("gzip", gzip.compress(body), step) == body
    assert inflate("deflate", zlib.compress(body), step) == body


def test_a_bomb_swells_a_piece_at_a_time() -> None:
    inflater = Inflater("gzip")
    inflater.feed(gzip.compress(bytes(50_000_000)))
    assert len(inflater.take()) == response.PIECE_MAX


@pytest.mark.parametrize(
    ("coding", "wire"),
    [
        ("br", b""),
        ("zstd", b""),
        ("gzip, gzip", b""),
        ("gzip", b"plain text"),
        ("deflate", b"plain text"),
        ("gzip", gzip.compress(b"x" * 100)[:-1]),
        ("gzip", b""),
        ("gzip", gzip.compress(b"x") + b"y"),
    ],
)
def test_compressed_bodies_that_are_refused(coding: str, wire: bytes) -> None:
    with pytest.raises(BadResponse):
        inflate(coding, wire, 1000)


# --- URLs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://localhost", (False, "localhost", 80, "")),
        ("https://api.example.com/v1/", (True, "api.example.com", 443, "/v1")),
        ("HTTP://10.0.0.1:8080/a/b", (False, "10.0.0.1", 8080, "/a/b")),
        ("http://[::1]:9/v1", (False, "::1", 9, "/v1")),
        ("http://[::1]", (False, "::1", 80, "")),
        ("http://bücher.example/ü", (False, "xn--bcher-kva.example", 80, "/%C3%BC")),
    ],
)
def test_urls(url: str, parts: tuple[bool, str, int, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://:80",
        "http://x:0",
        "http://x:65536",
        "http://x:a",
        "http://u@x",
        "http://::1/",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError):
        split_url(url)
