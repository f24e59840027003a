# SPDX-License-Identifier: Apache-2.0
"""What a model thinks before it answers, told from the answer in a stream of text. Pure.

Models write their thoughts between marks at the beginning: `<think>…</think>`. Templates of some models write
the opening mark themselves, so that the text begins inside. A mark further on is text: somebody may be asking
about it.
"""

from __future__ import annotations

from syntrop.common.http import markers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = (("<think>", "</think>"), ("<|START_THINKING|>", "<|END_THINKING|>"), ("<seed:think>", "</seed:think>"))

_BEFORE, _INSIDE, _BETWEEN, _AFTER = range(4)


class ThinkFilter:
    """Splits a text that comes in pieces. `inside`: the text begins within the thoughts.

    Pieces are (thought, text). Whitespace around thoughts belongs to the marks, and is dropped with them.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._state = _INSIDE if inside else _BEFORE
        self._close: tuple[str, ...] = tuple(close for _, close in PAIRS)
        self._rest = ""
        self._begun = False  # a thought has been told: the whitespace before it is past

    @property
    def inside(self) -> bool:
        """Whether what comes next belongs to a thought."""
        return self._state == _INSIDE

    @property
    def held(self) -> int:
        """How many of the characters that came are held back."""
        return len(self._rest)

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """The pieces that are certain after this text."""
        if self._state == _AFTER:
            return [(False, text)] if text else []
        self._rest += text
        return list(self._split())

    def finish(self) -> list[tuple[bool, str]]:
        """What was held back, at the end of the text."""
        rest, self._rest = self._rest, ""
        if self._state == _INSIDE:
            rest = rest.rstrip() if self._begun else rest.strip()
        elif self._state == _BETWEEN:
            rest = ""
        return [(self._state == _INSIDE, rest)] if rest else []

    def _split(self) -> Iterator[tuple[bool, str]]:
        if self._state == _BEFORE:
            start = self._rest.lstrip()
            for mark, close in PAIRS:
                if start.startswith(mark):
                    self._close = (close,)
                    self._state = _INSIDE
                    self._rest = start[len(mark) :]
                    break
                if mark.startswith(start):
                    return  # the mark may still come
            else:
                self._state = _AFTER
                text, self._rest = self._rest, ""
                yield False, text
                return
        if self._state == _INSIDE:
            found = markers.find(self._rest, self._close)
            if found is None:
                yield from self._thought(len(self._rest) - markers.held(self._rest, self._close), last=False)
                return
            at, mark = found
            yield from self._thought(at, last=True)
            self._rest = self._rest[len(mark) :]
            self._state = _BETWEEN
        if self._state == _BETWEEN:
            self._rest = self._rest.lstrip()
            if self._rest:
                self._state = _AFTER
                text, self._rest = self._rest, ""
                yield False, text

    def _thought(self, size: int, *, last: bool) -> Iterator[tuple[bool, str]]:
        """Tell a thought of this many characters, without the whitespace that may turn out to be at its end."""
        thought = self._rest[:size]
        kept = thought.rstrip()
        told = kept if self._begun else kept.lstrip()
        if told:
            self._begun = True
            yield True, told
        self._rest = self._rest[size if last else len(kept) :]
