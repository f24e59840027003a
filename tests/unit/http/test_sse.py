# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.http.sse import DONE, PING, EventTooLong, Parser, ServerEvent, encode


def test_framing() -> None:
    assert encode("x") == b"data: x\n\n"
    assert encode("a\r\nb\rc", "named") == b"event: named\ndata: a\ndata: b\ndata: c\n\n"
    assert Parser().feed(PING + DONE) == [ServerEvent("[DONE]")]


def test_fields_and_line_ends() -> None:
    wire = "\ufeff: note\rdata:a\r\ndata:  b\nid: 7\nevent: e\n\ndata\n\nevent: none\n\ndata: ü\n\n".encode()
    expected = [ServerEvent("a\n b", "e"), ServerEvent(""), ServerEvent("ü")]
    assert Parser().feed(wire) == expected
    parser = Parser()
    assert [event for i in range(len(wire)) for event in parser.feed(wire[i : i + 1])] == expected


text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=30)


@given(
    events=st.lists(st.tuples(text, st.sampled_from([None, "ping"])), max_size=5),
    ends=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    data=st.data(),
)
def test_what_was_framed_is_parsed(events: list[tuple[str, str | None]], ends: bytes, data: st.DataObject) -> None:
    wire = b"".join(encode(text, name) for text, name in events).replace(b"\n", ends)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    parser = Parser()
    found = [
        event for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) for event in parser.feed(wire[a:b])
    ]
    assert found == [ServerEvent(text, name or "message") for text, name in events]


def test_an_event_without_an_end_is_not_hoarded() -> None:
    parser = Parser(limit=100)
    with pytest.raises(EventTooLong):
        for _ in range(20):
            parser.feed(b"data: 12345\n")


def test_an_event_without_its_last_line_end() -> None:
    for end in (b"", b"\n", b"\r", b"\r\n", b"\n\n"):
        wire = b"data: a\n\ndata: b" + end
        parser = Parser()
        assert parser.feed(wire) + parser.end() == [ServerEvent("a"), ServerEvent("b")]
    assert Parser().end() == []
