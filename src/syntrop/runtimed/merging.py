# SPDX-License-Identifier: Apache-2.0
"""Join neighbours in the order of their cost, the leftmost first among equals, until none can be joined.

Short lists are searched whole at each step; long ones keep a heap, so that the time grows as n log n.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Cost = Callable[[str, str], float | None]

_SHORT = 48  # where the heap begins to pay, measured on words and on runs of letters


def merge_pairs(symbols: list[str], cost: Cost) -> list[str]:
    """The symbols that remain. `cost(left, right)` is None where two must not be joined."""
    if len(symbols) <= _SHORT:
        return _merge_short(symbols, cost)
    return _merge_long(symbols, cost)


def _merge_short(symbols: list[str], cost: Cost) -> list[str]:
    infinity = float("inf")

    def of(index: int) -> float:
        value = cost(symbols[index], symbols[index + 1])
        return infinity if value is None else value

    costs = [of(index) for index in range(len(symbols) - 1)]
    while costs:
        least = min(costs)
        if least == infinity:
            break
        at = costs.index(least)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        del costs[at]
        if at < len(costs):
            costs[at] = of(at)
        if at:
            costs[at - 1] = of(at - 1)
    return symbols


def _merge_long(symbols: list[str], cost: Cost) -> list[str]:
    from heapq import heapify, heappop, heappush

    count = len(symbols)
    before = list(range(-1, count - 1))
    after = list(range(1, count + 1))
    # Joined to its left neighbour, a symbol becomes empty; an entry is stale when its symbols have changed.
    heap: list[tuple[float, int, int]] = []
    for left in range(count - 1):
        value = cost(symbols[left], symbols[left + 1])
        if value is not None:
            heap.append((value, left, len(symbols[left]) + len(symbols[left + 1])))
    heapify(heap)
    while heap:
        _, left, length = heappop(heap)
        right = after[left]
        if right >= count or not symbols[left] or len(symbols[left]) + len(symbols[right]) != length:
            continue
        symbols[left] += symbols[right]
        symbols[right] = ""
        after[left] = following = after[right]
        if following < count:
            before[following] = left
            value = cost(symbols[left], symbols[following])
            if value is not None:
                heappush(heap, (value, left, len(symbols[left]) + len(symbols[following])))
        preceding = before[left]
        if preceding >= 0:
            value = cost(symbols[preceding], symbols[left])
            if value is not None:
                heappush(heap, (value, preceding, len(symbols[preceding]) + len(symbols[left])))
    return [symbol for symbol in symbols if symbol]
