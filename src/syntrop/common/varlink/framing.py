# SPDX-License-Identifier: Apache-2.0
"""NUL framing of Varlink messages, without I/O (https://varlink.org/Message-Format).

Every byte is looked at once: only the bytes that just arrived are searched for the NUL, and the pieces of a long
message are joined when it is whole.
"""

from __future__ import annotations

MESSAGE_MAX = 16 * 1024 * 1024
"""Longest message, in bytes without its NUL: what sd-varlink allows."""


class MessageTooLong(Exception):
    """The peer sent more than the cap without ending the message."""


class Framer:
    """Bytes in, whole messages out."""

    __slots__ = ("_held", "_limit", "_pieces")

    def __init__(self, limit: int = MESSAGE_MAX) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def pending(self) -> int:
        """Bytes of the unfinished message."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Whole messages, without their NUL. Raises MessageTooLong."""
        *ends, rest = data.split(b"\0")
        messages = []
        for end in ends:
            if self._held + len(end) > self._limit:
                raise MessageTooLong
            if self._pieces:
                self._pieces.append(end)
                end = b"".join(self._pieces)
                self._pieces.clear()
                self._held = 0
            messages.append(end)
        if rest:
            self._held += len(rest)
            if self._held > self._limit:
                raise MessageTooLong
            self._pieces.append(rest)
        return messages
