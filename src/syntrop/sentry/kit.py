# SPDX-License-Identifier: Apache-2.0
"""The parts that courses share, and what they do with all of them: keep an incident, and tell of it."""

from __future__ import annotations

from syntrop.common import journal
from syntrop.sentry import events
from syntrop.sentry import incident as i

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from syntrop.common.settings import Settings
    from syntrop.sentry.audit import Audit
    from syntrop.sentry.causes import Cause
    from syntrop.sentry.clock import Clock
    from syntrop.sentry.evidence import Change, Evidence
    from syntrop.sentry.guards import Guards
    from syntrop.sentry.hands import Hands
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.investigation import Investigation
    from syntrop.sentry.parts import Adviser, Manager, Slicer
    from syntrop.sentry.peers import Peers

    Watcher = Callable[[Incident], object]
    Copies = Callable[[Sequence[Change]], Mapping[str, str]]
    Investigator = Callable[[Evidence, Sequence[Cause]], Coroutine[Any, Any, Investigation]]

_TOLD = {
    i.REPORTED: (events.REPORTED, journal.WARNING),
    i.STAGED: (events.STAGED, journal.WARNING),
    i.RECOVERED: (events.RECOVERED, journal.NOTICE),
    i.ROLLED_BACK: (events.ESCALATED, journal.ERR),
    i.DISMISSED: (events.DISMISSED, journal.INFO),
}


class Kit:
    """`adviser` and `investigator` are None where no model is set. `watchers` are told of each incident that came
    or changed."""

    __slots__ = (
        "adviser", "audit", "clock", "copies", "guards", "hands", "investigator", "key", "manager", "peers",
        "settings", "slicer", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        *,
        settings: Settings,
        manager: Manager,
        slicer: Slicer,
        copies: Copies,
        peers: Peers,
        hands: Hands,
        audit: Audit,
        guards: Guards,
        clock: Clock,
        key: bytes,
        adviser: Adviser | None,
        investigator: Investigator | None = None,
    ) -> None:
        self.settings, self.clock, self.key = settings, clock, key
        self.manager, self.slicer, self.copies = manager, slicer, copies
        self.peers, self.hands, self.adviser = peers, hands, adviser
        self.audit, self.guards = audit, guards
        self.investigator = investigator
        self.watchers: set[Watcher] = set()

    def keep(self, incident: Incident, *, sync: bool = False) -> None:
        """Write an incident down as it stands, and show it to who watches.

        A full disk keeps nobody from being helped, except where `sync` asks for the record to be there first: then
        it raises OSError.
        """
        try:
            self.audit.write(incident, sync=sync)
        except OSError as error:
            journal.error(f"Incident {incident.id} cannot be kept: {error}", ERRNO=error.errno)
            if sync:
                raise
        for watcher in tuple(self.watchers):
            watcher(incident)

    def tell(self, incident: Incident, why: str = "", *, escalate: bool = False) -> None:
        """The journal's entry of where an incident has come to."""
        message_id, priority = _TOLD[incident.status]
        if escalate:
            message_id, priority = events.ESCALATED, journal.ERR
        cause = incident.causes[0] if incident.causes else None
        text = f"{incident.unit}: {incident.status.replace('_', ' ')}"
        if cause is not None:
            text += f": {cause['explanation']} ({cause['fault_class']}, {cause['confidence']:.2f})"
        action = incident.action
        journal.log(
            priority,
            text + (f"; {why}" if why else ""),
            message_id=message_id,
            SENTRY_INCIDENT=incident.id,
            SENTRY_UNIT=incident.unit,
            SENTRY_STATUS=incident.status,
            SENTRY_CAUSE=cause["fault_class"] if cause is not None else None,
            SENTRY_CONFIDENCE=f"{cause['confidence']:.2f}" if cause is not None else None,
            SENTRY_ACTION=action.name if action is not None else None,
            SENTRY_ROLLBACK=incident.rollback_ids[0] if incident.rollback_ids else None,
        )
