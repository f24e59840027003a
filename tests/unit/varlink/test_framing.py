# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common.varlink.framing import MESSAGE_MAX, Framer, MessageTooLong

MESSAGES = st.lists(st.binary(max_size=50).map(lambda data: data.replace(b"\0", b"0")), max_size=8)


@given(
    MESSAGES,
    st.lists(st.integers(0, 500), max_size=20),
    st.binary(max_size=9).map(lambda d: d.replace(b"\0", b"")),
)
def test_messages_survive_any_splitting(messages: list[bytes], cuts: list[int], rest: bytes) -> None:
    stream = b"".join(message + b"\0" for message in messages) + rest
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    framer = Framer()
    found = []
    for start, end in pairwise(places):
        found += framer.feed(stream[start:end])
    assert found == messages
    assert framer.pending == len(rest)


@pytest.mark.parametrize("step", [1, 7, 64])
def test_the_cap_counts_the_bytes_of_one_message(step: int) -> None:
    framer = Framer(64)
    data = b"x" * 64
    for _ in range(3):
        pieces = [data[i : i + step] for i in range(0, 64, step)]
        assert [m for piece in pieces for m in framer.feed(piece)] == []
        assert framer.feed(b"\0") == [data]
    framer.feed(data)
    with pytest.raises(MessageTooLong):
        framer.feed(b"x")


def test_a_message_that_ends_beyond_the_cap_is_refused_too() -> None:
    with pytest.raises(MessageTooLong):
        Framer(4).feed(b"12345\0")
    framer = Framer(4)
    assert framer.feed(b"12") == []
    with pytest.raises(MessageTooLong):
        framer.feed(b"345\0")


def test_the_default_cap_is_16_mib() -> None:
    assert MESSAGE_MAX == 16 * 1024 * 1024
    framer = Framer()
    chunk = b"x" * 65536
    for _ in range(256):
        framer.feed(chunk)
    with pytest.raises(MessageTooLong):
        framer.feed(b"x")


def test_buffering_is_linear() -> None:
    """Eight times the bytes in small reads take about eight times as long, not sixty-four."""

    def seconds(size: int) -> float:
        best = float("inf")
        piece = b"x" * 64  # so small that the number of reads counts, not the memory behind them
        for _ in range(5):
            framer = Framer()
            started = time.process_time()
            for _ in range(size // 64):
                framer.feed(piece)
            assert len(framer.feed(b"\0")[0]) == size
            best = min(best, time.process_time() - started)
        return best

    assert seconds(1 << 20) / seconds(128 << 10) < 24
