# SPDX-License-Identifier: Apache-2.0
"""What is known of a failure, got side by side: the slice of the journal and the manager, contextd's word of what
changed, and the lease. Each has its budget; what is late is still waited for, for a while, where it is needed.
"""

from __future__ import annotations

from syntrop.common import dbus, loop
from syntrop.sentry import evidence as e
from syntrop.sentry import phases as p
from syntrop.sentry.peers import PeerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.kit import Kit
    from syntrop.sentry.parts import Slice
    from syntrop.sentry.phases import Phases, Span
    from syntrop.sentry.policy import Occasion
    from syntrop.sentry.trigger import Trigger

    T = TypeVar("T")

LEASE_BYTES = 16 << 20  # what a choice takes beside the model, which has a lease of its own
FAULTS = (PeerError, OSError, dbus.DBusError)


class Gathering:
    """One failure's. `tell` is called with each phase that ended."""

    __slots__ = ("_asking", "_kit", "_phases", "_tell", "_trigger", "lease", "properties", "silence")

    def __init__(self, kit: Kit, phases: Phases, trigger: Trigger, tell: Callable[[Span], object]) -> None:
        self._kit, self._phases, self._trigger, self._tell = kit, phases, trigger, tell
        self.properties: dict[str, Any] = {}
        self.lease = ""
        self.silence = ""  # why the manager does not tell what goes on
        self._asking: loop.Task[Occasion | None] | None = None

    async def gather(self, *, lease: bool) -> Evidence | None:
        """The evidence; None where the manager does not even tell how the unit is. `lease`: take it at once, side
        by side."""
        kit, trigger = self._kit, self._trigger
        patience = max(kit.settings.patience_sec, 0.001)
        slicing = self._part(p.SLICE, self._slice(), patience)
        correlating = self._part(p.CORRELATE, kit.peers.context(trigger.unit, timeout=patience), patience)
        if lease:
            sliced, context, _ = await loop.gather(slicing, correlating, self.take_lease())
        else:
            sliced, context = await loop.gather(slicing, correlating)
        if sliced is None:
            sliced = await self._bare()
            if sliced is None:
                return None
            self.properties = sliced.properties
        arguments = sliced.arguments()
        if context is not None:
            changes = e.changes(context, kit.key)
            arguments |= {"changes": changes, "packages": e.packages(context), "copies": kit.copies(changes)}
        return e.Evidence(trigger.unit, context_known=context is not None, **arguments)

    async def _slice(self) -> Slice:
        kit, trigger = self._kit, self._trigger
        sliced = await kit.slicer(kit.manager, trigger.unit, kit.key, invocation=trigger.invocation)
        self.properties = dict(sliced.properties)
        if trigger.occasion is None:
            # The manager is asked while contextd still looks.
            self._asking = loop.spawn(self._occasion(), f"what goes on around {trigger.unit}")
        return sliced

    async def occasion(self) -> Occasion | None:
        """What goes on around the failure; None where the manager does not tell."""
        if self._trigger.occasion is not None:
            return self._trigger.occasion
        if self._asking is None:
            self._asking = loop.spawn(self._occasion(), f"what goes on around {self._trigger.unit}")
        return await self._asking

    async def _occasion(self) -> Occasion | None:
        try:
            with loop.deadline(5.0):
                return await self._kit.manager.occasion(self._trigger.unit, self.properties)
        except FAULTS as error:
            self.silence = str(error) or type(error).__name__
            return None

    async def take_lease(self) -> None:
        """As long as it may take, and no longer: without one the model goes at everybody's priority."""
        phases = self._phases
        left = (phases.plan.budget(p.LEASE)) / 1e6
        found = await self._part(p.LEASE, self._kit.peers.lease(LEASE_BYTES, timeout=left), left)
        self.lease = found or ""

    async def _part(self, name: str, work: Coroutine[Any, Any, T], patience: float) -> T | None:
        """A phase, whose time counts for the record, and patience for its result."""
        clock, phases = self._kit.clock, self._phases
        limit = phases.begin(name, clock.monotonic_us())
        found: T | None = None
        try:
            with loop.deadline(patience):
                found = await work
        except TimeoutError:
            span = phases.end(name, clock.monotonic_us(), p.LATE)
        except FAULTS as error:
            late = isinstance(error, PeerError) and error.late
            span = phases.end(name, clock.monotonic_us(), p.LATE if late else p.FAILED, str(error))
        else:
            now = clock.monotonic_us()
            late = now > limit
            note = f"{(now - limit) / 1000:.0f} ms late, and used all the same" if late else ""
            span = phases.end(name, now, p.LATE if late else p.DONE, note, fallback=False)
        self._tell(span)
        return found

    async def _bare(self) -> Bare | None:
        """Without the journal: what the manager tells, and nothing that would be acted on."""
        try:
            with loop.deadline(max(self._kit.settings.patience_sec, 0.001)):
                return Bare(await self._kit.manager.unit(self._trigger.unit), self._trigger)
        except FAULTS:
            return None


class Bare:
    """A slice of properties alone."""

    __slots__ = ("_trigger", "properties")

    def __init__(self, properties: dict[str, Any], trigger: Trigger) -> None:
        self.properties, self._trigger = properties, trigger

    def arguments(self) -> dict[str, Any]:
        return {
            "invocation": self._trigger.invocation or str(self.properties.get("InvocationID", "")),
            "failed_us": self._trigger.wall_us,
            "exit": e.leaving(self.properties),
            "facts": e.facts(self.properties),
        }
