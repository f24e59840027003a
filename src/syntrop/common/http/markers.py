# SPDX-License-Identifier: Apache-2.0
"""Marks in a text that comes in pieces. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def find(text: str, marks: Iterable[str]) -> tuple[int, str] | None:
    """(place, mark) of the first mark in a text; of two in one place the longer."""
    found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
    if not found:
        return None
    at, _, mark = min(found)
    return at, mark


def held(text: str, marks: Iterable[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark, and must wait for more."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
