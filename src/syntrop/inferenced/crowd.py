# SPDX-License-Identifier: Apache-2.0
"""Who waits for something to change in the table, and whom a change is worth to wake.

A thousand requests may wait for room. If each looked at each change, a release would cost a thousand looks: only
those are woken who might get some.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Final

    from syntrop.inferenced.table import Claim, Table

TRIES: Final = 4
"""Requests of a tier that have no room and are woken all the same, since they might preempt."""
LOOK_AGAIN: Final = 0.5
"""Seconds after which memory is looked at again while requests wait."""


class Crowd:
    """`look(planes)` looks what the kernel tells of these planes' memory."""

    def __init__(self, table: Table, look: Callable[[set[str]], Coroutine[Any, Any, None]]) -> None:
        self._table = table
        self._look = look
        self._waiting: dict[loop.Event, Claim | None] = {}
        self._waking = False
        self._timer: loop.Timer | None = None
        self.closed = False

    def in_line(self) -> list[Claim]:
        """Those who wait for room, and do nothing else."""
        return [claim for claim in self._waiting.values() if claim is not None]

    def close(self) -> None:
        """Nobody waits for room any more."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        """Something changed. Once for all that changes in a turn of the loop."""
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake_now)

    async def changed(self, deadline: float, claim: Claim | None = None) -> bool:
        """Wait for a change, or for one that may make room for a claim; False when the deadline came first."""
        if deadline <= monotonic():
            return False  # a change a turn would keep the deadline from ever being seen
        event = loop.Event()
        self._waiting[event] = claim
        if claim is not None and self._timer is None:
            self._timer = loop.call_later(LOOK_AGAIN, self._due)
        try:
            with loop.deadline(deadline - monotonic()):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            del self._waiting[event]
        return True

    def _wake_now(self) -> None:
        self._waking = False
        everybody = self.closed or all(claim is None for claim in self._waiting.values())
        hopeful = frozenset() if everybody else self._table.hopeful(TRIES)
        for event, claim in self._waiting.items():
            if everybody or claim is None or claim in hopeful:
                event.set()

    def _due(self) -> None:
        """Others than our holders may have given memory back, of which nobody tells."""
        self._timer = None
        planes = {plane for claim in self._waiting.values() if claim is not None for plane in claim.needs}
        if planes and not self.closed:
            loop.spawn(self._look_again(planes), "room for those who wait")

    async def _look_again(self, planes: set[str]) -> None:
        await self._look(planes)
        self.wake()
        if self._timer is None:
            self._timer = loop.call_later(LOOK_AGAIN, self._due)
