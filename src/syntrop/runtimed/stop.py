# SPDX-License-Identifier: Apache-2.0
"""Stop strings in a text that arrives in pieces, wherever the pieces are cut.

What might be the beginning of a stop string is held back until the next piece tells. The match that ends first
wins, the longest of those; so the outcome does not depend on how the text was cut.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class StopStrings:
    """Feed text, get back what may be shown. `found` is the stop string that was met, or None."""

    __slots__ = ("_held", "_prefixes", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._prefixes = frozenset(stop[:end] for stop in self._stops for end in range(1, len(stop)))
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that is certain; once a stop string was found, nothing more comes."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        text = self._held + text
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0 and (best is None or (at + len(stop), at) < best[:2]):
                best = (at + len(stop), at, stop)
        if best is not None:
            self.found = best[2]
            self._held = ""
            return text[: best[1]]
        for length in range(min(len(text), max(map(len, self._stops)) - 1), 0, -1):
            if text[-length:] in self._prefixes:
                self._held = text[-length:]
                return text[:-length]
        self._held = ""
        return text

    def flush(self) -> str:
        """What was held back, when nothing follows."""
        held, self._held = self._held, ""
        return held
