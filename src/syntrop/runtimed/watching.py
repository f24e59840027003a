# SPDX-License-Identifier: Apache-2.0
"""Mapped files may be cut short, or their disk may fail, while they are read (`kernels/watch.c`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed._kernels import ffi, lib
from syntrop.runtimed.model.errors import BrokenModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


class Watch:
    """A context in which what cannot be read of a mapped buffer is zeros. To be left before that is unmapped.

    An error that it is left with may come of the zeros: BrokenModel takes its place when there were some. Beyond
    64 watches at a time there is none, and such a read ends the process, as it would anywhere.
    """

    __slots__ = ("_watch",)

    def __init__(self, buffer: Any, length: int) -> None:
        with ffi.from_buffer(buffer) as start:
            self._watch: int = lib.sy_watch(start, length)

    @property
    def lost(self) -> bool:
        return self._watch >= 0 and bool(lib.sy_watch_lost(self._watch))

    def whole(self, made: T, undo: Callable[[T], object]) -> T:
        """What was made of the buffer. Raises BrokenModel when it was made of zeros, and undoes it."""
        if self.lost:
            undo(made)
            raise _cut()
        return made

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        lost = self.lost
        watch, self._watch = self._watch, -1
        if watch >= 0:
            lib.sy_watch_end(watch)
        if lost and kind is not None:
            raise _cut() from None


def _cut() -> BrokenModel:
    return BrokenModel("the file", "it was cut short, or could not be read, while it was loaded")
