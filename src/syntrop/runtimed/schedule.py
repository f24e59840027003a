# SPDX-License-Identifier: Apache-2.0
"""Who runs. Pure: the engine holds its lock around every call.

Three tiers. EmergencyTriage has slots of its own and waits for nobody else; while there is any, or while the host
has asked for it, Batch work stands still. Interactive work comes before Batch work where a slot becomes free, but
takes none away. Within a tier the order is that of arrival, and every tier has a queue of its own, so that none
can fill another's.

Batch work that stands still keeps its memory until somebody with a better claim needs it; it gets its slot back
before Batch work that has not begun.
"""

from __future__ import annotations

from collections import deque
from time import monotonic

from syntrop.runtimed.generation import Generation, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Schedule:
    """Generations that run, stand still, and wait."""

    def __init__(self, max_slots: int, max_queue: int) -> None:
        self.max_slots = max_slots
        self.max_queue = max_queue
        self.running: list[Generation] = []
        self.cancelled = False  # somebody was, since `drop_cancelled`
        self._paused: list[Generation] = []
        self._queues: dict[Tier, deque[Generation]] = {tier: deque() for tier in Tier}
        self._arrivals = 0
        self._yielded_until = 0.0
        self._give_back = False

    @property
    def waiting(self) -> int:
        return len(self._paused) + sum(map(len, self._queues.values()))

    def add(self, one: Generation) -> str:
        """Queue a generation, or say in numbers why not."""
        waiting = sum(not other.cancelled for other in self._queues[one.tier])
        taken = self._taken(one.tier)
        if waiting >= self.max_queue + max(0, self.max_slots - taken):
            return (
                f"{taken} of {self.max_slots} slots generate and {waiting} of {self.max_queue} "
                "places in the queue are taken"
            )
        self._arrivals += 1
        one.arrival = self._arrivals
        self._queues[one.tier].append(one)
        return ""

    def turn(self) -> list[Generation]:
        """Fill the slots. Those whose memory is to be given back, since the host asked for it."""
        still = self._stands_still()
        if still:
            self._paused += (one for one in self.running if one.tier == Tier.Batch)
            self._paused.sort(key=lambda one: one.arrival)
            self.running = [one for one in self.running if one.tier != Tier.Batch]
        while (one := self._next(still)) is not None:
            self.running.append(one)
        if not self._give_back:
            return []
        self._give_back = False
        taken = self._paused
        self._paused = []
        for one in taken:
            self._queue(one)
        return taken

    def holders(self) -> list[Generation]:
        """Those that hold memory."""
        return [one for one in (*self.running, *self._paused) if one.cache is not None and one.cache.kv_bytes]

    def requeue(self, one: Generation) -> None:
        """It loses its memory, and waits where it would have waited."""
        self.remove(one)
        self._queue(one)

    def remove(self, one: Generation) -> None:
        for group in (self.running, self._paused):
            if one in group:
                group.remove(one)

    def drop_cancelled(self) -> list[Generation]:
        """Those whose callers have left, wherever they stood."""
        dropped: list[Generation] = []
        if not self.cancelled:
            return dropped
        self.cancelled = False
        groups: Iterable[list[Generation] | deque[Generation]] = (
            self.running, self._paused, *self._queues.values()
        )  # fmt: skip
        for group in groups:
            gone = [one for one in group if one.cancelled]
            for one in gone:
                group.remove(one)
            dropped += gone
        return dropped

    def clear(self) -> list[Generation]:
        left = [*self.running, *self._paused]
        for queue in self._queues.values():
            left += queue
            queue.clear()
        self.running.clear()
        self._paused.clear()
        return left

    def yield_batch(self, seconds: float, *, give_back: bool = False) -> None:
        self._yielded_until = monotonic() + seconds
        self._give_back = self._give_back or give_back

    def patience(self) -> float | None:
        """Seconds after which a turn may find work although nothing has changed."""
        left = self._yielded_until - monotonic()
        return left if left > 0 and self.waiting else None

    # ------------------------------------------------------------------------------------------------------------

    def _taken(self, tier: Tier) -> int:
        urgent = tier == Tier.EmergencyTriage
        return sum((one.tier == Tier.EmergencyTriage) == urgent for one in self.running)

    def _stands_still(self) -> bool:
        return (
            monotonic() < self._yielded_until
            or bool(self._queues[Tier.EmergencyTriage])
            or any(one.tier == Tier.EmergencyTriage for one in self.running)
        )

    def _next(self, still: bool) -> Generation | None:
        """Who gets the next free slot."""
        urgent = self._queues[Tier.EmergencyTriage]
        if urgent and self._taken(Tier.EmergencyTriage) < self.max_slots:
            return urgent.popleft()
        if self._taken(Tier.Interactive) >= self.max_slots:
            return None
        queue = self._queues[Tier.Interactive]
        if not queue:
            if still:
                return None
            if self._paused:
                return self._paused.pop(0)
            queue = self._queues[Tier.Batch]
        if queue and self._has_room(queue[0]):
            return queue.popleft()
        return None

    def _has_room(self, one: Generation) -> bool:
        """Whether memory is free for what it has to read, or held by those with less of a claim. Where nobody runs
        there is nothing to wait for."""
        if not self.running:
            return True
        pool = one.model.kv
        lower = sum(
            other.cache.kv_bytes for other in self.holders() if other.cache is not None and other.tier < one.tier
        )
        return pool.cost(len(one.tokens) + 1) <= pool.budget.limit - pool.budget.held + lower

    def _queue(self, one: Generation) -> None:
        queue = self._queues[one.tier]
        at = next((index for index, other in enumerate(queue) if other.arrival > one.arrival), len(queue))
        queue.insert(at, one)
