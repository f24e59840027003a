# SPDX-License-Identifier: Apache-2.0
"""One at a time, on the loop; and once for all who ask."""

from __future__ import annotations

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any, TypeVar

    T = TypeVar("T")


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

    async def to_the_end(self, work: Callable[[], Awaitable[T]], name: str) -> T:
        """Do it in turn, by a task of its own: a caller who leaves does not end a thread, and the turn lasts as
        long as that."""

        async def run() -> T:
            async with self:
                return await work()

        return await loop.spawn(run(), name)


class Once:
    """Work that is done at the first need of it, by a task of its own: a caller who leaves meanwhile interrupts
    nothing, and what a thread has opened is not lost with him. Who waits while it fails gets the error; the next
    one has it tried again.
    """

    __slots__ = ("_name", "_task", "_work", "done")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work, self._name = work, name
        self._task: loop.Task[None] | None = None
        self.done = False

    async def wait(self) -> None:
        if self.done:
            return
        if self._task is None:
            self._task = loop.spawn(self._run(), self._name)
        await self._task

    async def _run(self) -> None:
        try:
            await self._work()
            self.done = True
        finally:
            self._task = None
