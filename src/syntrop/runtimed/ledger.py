# SPDX-License-Identifier: Apache-2.0
"""What is told of tokens goes out with their text, which may be held back for a while, or cut off in the end.
Pure."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.runtimed.sampler import Logprobs


class Ledger:
    """Notes of tokens by where their text begins and ends; lengths are in characters."""

    __slots__ = ("_held", "_made", "_shown")

    def __init__(self) -> None:
        self._held: deque[tuple[int, int, Logprobs]] = deque()
        self._made = 0
        self._shown = 0

    def add(self, note: Logprobs, length: int) -> None:
        """A token was made whose text has that length; none while its character is not whole."""
        self._held.append((self._made, self._made + length, note))
        self._made += length

    def show(self, length: int) -> list[Logprobs]:
        """So much more text goes out: the notes of tokens that are out now as a whole."""
        self._shown += length
        ready = []
        while self._held and self._held[0][1] <= self._shown:
            ready.append(self._held.popleft()[2])
        return ready

    def end(self, *, cut: bool) -> list[Logprobs]:
        """Nothing more goes out: the notes that are left, of a text that was cut those of tokens that show in
        part."""
        left = [note for start, _, note in self._held if not cut or start < self._shown]
        self._held.clear()
        return left
