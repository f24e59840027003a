# SPDX-License-Identifier: Apache-2.0
"""One at a time, on the loop."""

from __future__ import annotations

from syntrop.common import loop


class Turn:
    """`async with turn:` waits until whoever is inside has left, whatever the way."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: loop.Event | None = None

    @property
    def taken(self) -> bool:
        return self._left is not None

    async def __aenter__(self) -> None:
        while self._left is not None:
            await self._left.wait()
        self._left = loop.Event()

    async def __aexit__(self, *_: object) -> None:
        left, self._left = self._left, None
        assert left is not None
        left.set()
