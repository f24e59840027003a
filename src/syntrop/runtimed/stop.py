# SPDX-License-Identifier: Apache-2.0
"""Stop strings in a text that arrives in pieces, wherever the pieces are cut.

What might be the beginning of a stop string is held back until the next piece tells. The match that ends first
wins, the longest of those; so the outcome does not depend on how the text was cut.

Each stop string is searched for as Knuth, Morris and Pratt do: time and memory are linear in what callers give,
whose stop strings may be long and many.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class _Search:
    """One stop string, and how many of its characters the text so far ends with."""

    __slots__ = ("_falls", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        # For each beginning of the stop string: the longest shorter one that it ends with.
        self._falls = [0]
        fall = 0
        for letter in stop[1:]:
            fall = self._next(fall, letter)
            self._falls.append(fall)

    def _next(self, matched: int, letter: str) -> int:
        while matched and self.stop[matched] != letter:
            matched = self._falls[matched - 1]
        return matched + (self.stop[matched] == letter)

    def feed(self, letter: str) -> bool:
        """Whether the stop string ends here; then nothing more may be fed."""
        self.matched = self._next(self.matched, letter)
        return self.matched == len(self.stop)


class StopStrings:
    """Feed text, get back what may be shown. `found` is the stop string that was met, or None."""

    __slots__ = ("_held", "_searches", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        # The longest first, so that it is the first to be found among those that end together.
        self._searches = [_Search(stop) for stop in sorted({*stops} - {""}, key=len, reverse=True)]
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that is certain; once a stop string was found, nothing more comes."""
        if not self._searches:
            return text
        if self.found is not None:
            return ""
        whole = self._held + text
        for end, letter in enumerate(text, len(self._held) + 1):
            ended = [search.stop for search in self._searches if search.feed(letter)]
            if ended:
                self.found = ended[0]
                self._held = ""
                return whole[: end - len(self.found)]
        certain = len(whole) - max(search.matched for search in self._searches)
        self._held = whole[certain:]
        return whole[:certain]

    def flush(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held
