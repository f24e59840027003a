# SPDX-License-Identifier: Apache-2.0
"""Merging neighbours: both ways against the definition, done plainly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed import merging

SYMBOLS = "abcd"


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


@given(
    text=st.text(alphabet=SYMBOLS, max_size=120),
    costs=st.dictionaries(
        st.text(alphabet=SYMBOLS, min_size=2, max_size=5), st.integers(0, 6).map(float), max_size=60
    ),
)
def test_both_ways_follow_the_definition(text: str, costs: dict[str, float]) -> None:
    def cost(left: str, right: str) -> float | None:
        return costs.get(left + right)

    expected = plainly(list(text), costs)
    assert merging._merge_short(list(text), cost) == expected
    assert merging._merge_long(list(text), cost) == expected
    assert merging.merge_pairs(list(text), cost) == expected


def test_nothing_to_merge() -> None:
    assert merging.merge_pairs([], lambda _left, _right: 0.0) == []
    assert merging.merge_pairs(["a"], lambda _left, _right: 0.0) == ["a"]
