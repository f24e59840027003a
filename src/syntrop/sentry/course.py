# SPDX-License-Identifier: Apache-2.0
"""The course of one incident through the seven phases."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.audit import Audit
    from syntrop.sentry.clock import Clock
    from syntrop.sentry.hands import Hands
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.parts import Adviser, Manager, Slicer
    from syntrop.sentry.peers import Peers
    from syntrop.sentry.trigger import Trigger


class Course:
    """What courses share: the parts. `run` is one incident."""

    def __init__(
        self, *, manager: Manager, slicer: Slicer, peers: Peers, adviser: Adviser, hands: Hands, audit: Audit,
        clock: Clock,
    ) -> None:  # fmt: skip
        raise NotImplementedError

    async def run(self, trigger: Trigger, incident: Incident, *, dry_run: bool = False) -> None:
        raise NotImplementedError
