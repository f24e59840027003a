# SPDX-License-Identifier: Apache-2.0
"""Texts of servers that cut them anywhere. Pure."""

from __future__ import annotations


class Joiner:
    """Puts characters together again that were cut into halves of surrogate pairs, as JSON escapes may be. A half
    that stays alone becomes U+FFFD: it is no character, and cannot be sent on."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        if not self._half and (text.isascii() or _whole(text)):
            return text
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return mended(text)

    def end(self) -> str:
        half, self._half = self._half, ""
        return mended(half)


def mended(text: str) -> str:
    """A text that has no halves of characters."""
    if text.isascii() or _whole(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
