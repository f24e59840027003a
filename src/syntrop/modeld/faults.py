# SPDX-License-Identifier: Apache-2.0
"""What the store refuses, and why."""

from __future__ import annotations


class NoSuchModel(LookupError):
    """Nothing in the store has this identifier."""

    def __init__(self, identifier: str) -> None:
        super().__init__(identifier)
        self.identifier = identifier


class Unsuitable(ValueError):
    """The source cannot become a model; the text says why."""


class DigestMismatch(ValueError):
    """The content has another digest than the one asked for."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"{actual}, not {expected}")
        self.expected = expected
        self.actual = actual


class OutOfSpace(Exception):
    """There is no room, and no removing would make enough. All in bytes.

    `requested` is what was to be stored, `available` what quota and free-space floor leave, `removable` what
    could be removed besides, `pinned` and `in_use` what could not, and `promised` what others have on its way.
    """

    def __init__(
        self, requested: int, available: int, removable: int, pinned: int, in_use: int, promised: int = 0
    ) -> None:
        super().__init__(f"{requested} bytes asked for, {available} left and {removable} removable")
        self.requested = requested
        self.available = available
        self.removable = removable
        self.pinned = pinned
        self.in_use = in_use
        self.promised = promised


class Stopped(Exception):
    """The asker no longer wants it."""


class InUse(Exception):
    """Somebody else is at it."""


REFUSALS = (NoSuchModel, Unsuitable, DigestMismatch, OutOfSpace, Stopped, InUse)
