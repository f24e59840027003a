# SPDX-License-Identifier: Apache-2.0
"""Notes of tokens go out with their text, however it is held back or cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed.ledger import Ledger
from syntrop.runtimed.stop import StopStrings


def show(pieces: list[str], stops: list[str]) -> tuple[str, list[tuple[str, list[int]]]]:
    """The text that is shown, and what went out: text, and the numbers of the pieces that were told with it."""
    ledger, stop = Ledger(), StopStrings(stops)
    out: list[tuple[str, list[Any]]] = []
    for index, piece in enumerate(pieces):
        text = stop.feed(piece)
        ledger.add(index, len(piece))  # type: ignore[arg-type]
        if text:
            out.append((text, ledger.show(len(text))))
        if stop.found is not None:
            out.append(("", ledger.end(cut=True)))
            break
    else:
        text = stop.flush()
        out.append((text, ledger.show(len(text)) + ledger.end(cut=False)))
    return "".join(text for text, _ in out), out


def test_a_piece_that_is_held_back_is_told_when_it_shows() -> None:
    _, out = show(["a", "b", "c"], ["bx"])
    assert out == [("a", [0]), ("bc", [1, 2]), ("", [])]


def test_what_is_cut_off_is_not_told() -> None:
    assert show(["a", "b", "x", "y"], ["bx"]) == ("a", [("a", [0]), ("", [])])
    # A token that shows in part is part of the text.
    assert show(["ab", "x"], ["bx"]) == ("a", [("a", []), ("", [0])])


def test_parts_of_a_character_are_told_with_it() -> None:
    # Two tokens without text of their own, then the one that completes the character.
    _, out = show(["", "", "é", "", "z"], [])
    assert out == [("é", [0, 1, 2]), ("z", [3, 4]), ("", [])]
    assert show(["a", ""], []) == ("a", [("a", [0]), ("", [1])])


@given(
    pieces=st.lists(st.text("abc", max_size=3), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
)
def test_every_piece_of_the_text_is_told_once_and_in_order(pieces: list[str], stops: list[str]) -> None:
    text, out = show(pieces, stops)
    told = [number for _, numbers in out for number in numbers]
    assert told == list(range(len(told)))
    covered = "".join(pieces[number] for number in told)
    assert covered.startswith(text)
    if told:
        assert len("".join(pieces[number] for number in told[:-1])) <= len(text)
    shown = 0
    for piece, numbers in out[:-1]:
        shown += len(piece)
        ends = [sum(map(len, pieces[: number + 1])) for number in numbers]
        assert all(end <= shown for end in ends), "never before its text"
