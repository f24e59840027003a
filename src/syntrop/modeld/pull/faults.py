# SPDX-License-Identifier: Apache-2.0
"""Why something could not be fetched."""

from __future__ import annotations


class NotFound(LookupError):
    """The reference means nothing, or nothing is there. `reference` and why."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reason)
        self.reference = reference
        self.reason = reason


class Unavailable(Exception):
    """A source refused, or failed too often."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason


class Changed(Exception):
    """The content is another than the one that was begun with."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class Cancelled(Exception):
    """Nobody wants it any more."""
