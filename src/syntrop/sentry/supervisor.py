# SPDX-License-Identifier: Apache-2.0
"""Who watches over all units: what waits, who is treated, and what guards forbid."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.trigger import Trigger


class Supervisor:
    def report(self, trigger: Trigger) -> None:
        """Enqueue a failure: no waiting, no I/O. For the resident watcher and `ReportFailure`."""
        raise NotImplementedError

    async def triage(self, unit: str, *, dry_run: bool) -> Incident:
        raise NotImplementedError
