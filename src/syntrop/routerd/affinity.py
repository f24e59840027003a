# SPDX-License-Identifier: Apache-2.0
"""Which provider has probably cached the beginning of a prompt: the one that read it last. Pure.

A prompt is taken as a chain of parts (its messages). Every prefix of the chain has a key, which depends on all
parts before it, so that a lookup finds the longest prefix that a provider has seen. Sizes are in characters: they
stand for tokens well enough, where all that counts is a share.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Affinity:
    """Remembers `most` prefixes a candidate, the least recently used are dropped first."""

    __slots__ = ("_most", "_seen")

    def __init__(self, most: int = 512) -> None:
        self._most = most
        self._seen: dict[tuple[str, str], dict[int, None]] = {}

    def note(self, provider: str, model: str, parts: Iterable[str]) -> None:
        """A provider has read this prompt."""
        seen = self._seen.setdefault((provider, model), {})
        for key, _ in _chain(parts):
            seen.pop(key, None)
            seen[key] = None
        while len(seen) > self._most:
            del seen[next(iter(seen))]

    def share(self, provider: str, model: str, parts: Iterable[str]) -> float:
        """The share of the prompt, from its beginning, that the provider has read before: 0 to 1."""
        seen = self._seen.get((provider, model))
        if not seen:
            return 0.0
        known = total = 0
        whole = True
        for key, size in _chain(parts):
            total += size
            whole = whole and key in seen
            if whole:
                known = total
        return known / total if total else 0.0

    def forget(self, provider: str) -> None:
        """It was restarted, or is not configured any more."""
        for place in [place for place in self._seen if place[0] == provider]:
            del self._seen[place]


def _chain(parts: Iterable[str]) -> Iterable[tuple[int, int]]:
    """(key of the prefix that ends here, characters of this part). Python's string hash is keyed by the process,
    so nobody can make prompts that meet; and if two met, a request would only be routed less well."""
    key = 0
    for part in parts:
        key = hash((key, part))
        yield key, len(part) + 1
