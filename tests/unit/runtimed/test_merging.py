# SPDX-License-Identifier: Apache-2.0
"""Merging neighbours: both ways of the reference and the one in C against the definition, done plainly."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed import _kernels, merging
from syntrop.runtimed.vocabulary import pack_strings

ffi, lib = _kernels.ffi, _kernels.lib
SYMBOLS = "abc\u00e9\u65e5\U0001f642"
COSTS = st.dictionaries(
    st.text(alphabet=SYMBOLS, min_size=2, max_size=5), st.integers(0, 6).map(float), max_size=60
)


def plainly(symbols: list[str], costs: dict[str, float]) -> list[str]:
    symbols = list(symbols)
    while True:
        possible = [
            (costs[symbols[i] + symbols[i + 1]], i)
            for i in range(len(symbols) - 1)
            if symbols[i] + symbols[i + 1] in costs
        ]
        if not possible:
            return symbols
        _, at = min(possible)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@given(text=st.text(alphabet=SYMBOLS, max_size=120), costs=COSTS)
def test_both_ways_follow_the_definition(text: str, costs: dict[str, float]) -> None:
    def cost(left: str, right: str) -> float | None:
        return costs.get(left + right)

    expected = plainly(list(text), costs)
    assert merging._merge_short(list(text), cost) == expected
    assert merging._merge_long(list(text), cost) == expected
    assert merging.merge_pairs(list(text), cost) == expected


def in_c(text: str, tokens: list[str], merges: list[str] | None, scores: list[float] | None) -> list[str]:
    words = pack_strings(tokens)
    pairs = None if merges is None else pack_strings(merges, b" ")
    numbers = ffi.NULL if scores is None else ffi.from_buffer("float[]", array("f", scores))
    data = text.encode()
    out = ffi.new("int32_t[]", max(1, len(data)))
    table = ffi.NULL if pairs is None else pairs.table
    count = lib.sy_merge(words.table, table, numbers, ffi.NULL, 0, data, len(data), out)
    return [tokens[token] for token in out[0:count]]


@given(text=st.text(alphabet=SYMBOLS, max_size=120), costs=COSTS)
def test_scores_in_c(text: str, costs: dict[str, float]) -> None:
    tokens = [*SYMBOLS, *costs]
    scores = [0.0] * len(SYMBOLS) + [-cost for cost in costs.values()]
    assert in_c(text, tokens, None, scores) == plainly(list(text), costs)


@given(
    text=st.text(alphabet=SYMBOLS, max_size=120),
    pairs=st.lists(
        st.tuples(st.text(SYMBOLS, min_size=1, max_size=3), st.text(SYMBOLS, min_size=1, max_size=3)),
        unique=True,
        max_size=60,
    ),
)
def test_merges_in_c(text: str, pairs: list[tuple[str, str]]) -> None:
    ranks = {pair: float(rank) for rank, pair in enumerate(pairs)}
    expected = merging.merge_pairs(list(text), lambda left, right: ranks.get((left, right)))
    tokens = [*SYMBOLS, *{left + right for left, right in pairs}]
    merges = [f"{left} {right}" for left, right in pairs]
    assert in_c(text, tokens, merges, None) == expected


def test_a_text_longer_than_the_stack_has_room_for() -> None:
    tokens = ["a", "aa", "aaaa", "b"]
    assert in_c("a" * 1001 + "b", tokens, ["a a", "aa aa"], None) == ["aaaa"] * 250 + ["a", "b"]


def test_nothing_to_merge() -> None:
    assert merging.merge_pairs([], lambda _left, _right: 0.0) == []
    assert merging.merge_pairs(["a"], lambda _left, _right: 0.0) == ["a"]
    assert in_c("", ["a"], ["a a"], None) == []
    assert in_c("a", ["a"], ["a a"], None) == ["a"]
