# SPDX-License-Identifier: Apache-2.0
"""The supervisor with its real parts, and who else lives as long: the resident watcher, the connections."""

from __future__ import annotations

import errno
import os

from syntrop.common import journal, loop, redaction
from syntrop.sentry import policy, slicing
from syntrop.sentry.audit import Audit
from syntrop.sentry.budget import Budget
from syntrop.sentry.clock import Clock
from syntrop.sentry.guards import Guards
from syntrop.sentry.hands import Hands
from syntrop.sentry.kit import Kit
from syntrop.sentry.manager import Manager
from syntrop.sentry.peers import CONTEXTD, TOOLD, Peers
from syntrop.sentry.reports import Reports
from syntrop.sentry.settings import RESIDENT
from syntrop.sentry.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.common.service import Busy, Daemon
    from syntrop.common.settings import Settings
    from syntrop.sentry.advice import Adviser
    from syntrop.sentry.causes import Cause
    from syntrop.sentry.ears import Ears
    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.investigation import Investigation
    from syntrop.sentry.kit import Investigator

KEY = "redaction.key"


class Assembly:
    """Raises OSError where the state folder cannot be read."""

    def __init__(self, daemon: Daemon, folder: str, peers: Peers | None = None) -> None:
        settings = daemon.settings
        os.makedirs(folder, mode=0o700, exist_ok=True)
        key = _key(os.path.join(folder, KEY))
        clock = Clock()
        self._manager = Manager()
        self._slicer = slicing.Slicer()
        self._peers = peers or Peers()
        self._ears: Ears | None = None
        self._listening: loop.Task[None] | None = None
        self._resident: Busy | None = None
        self._adviser = _adviser(self._peers, settings.model, clock)
        self._model = settings.model
        hands = Hands(self._peers)
        kit = self._kit = Kit(
            settings=settings,
            manager=self._manager,
            slicer=self._slicer,
            copies=slicing.copies,
            peers=self._peers,
            hands=hands,
            audit=Audit(folder, keep=settings.incidents_count, keep_days=settings.incidents_days),
            guards=Guards(_policy(settings), Budget(_limits(settings))),
            clock=clock,
            key=key,
            adviser=self._adviser,
            investigator=_investigator(self._adviser, hands, clock, key),
        )
        self.reports = Reports(kit)
        self.supervisor = Supervisor(daemon, kit)
        self.supervisor.resume()
        if settings.mode == RESIDENT:
            from syntrop.sentry.ears import Ears

            self._resident = daemon.busy().hold()
            self._ears = Ears(self._manager, clock, since_us=kit.audit.awake_until())
            self._listening = loop.spawn(self._ears.run(self.supervisor.report), "the manager's signals")
            self._peers.knock(TOOLD, CONTEXTD)

    def retune(self, settings: Settings) -> None:
        """Take over what can change while incidents are open: all but how failures are heard of, and the model."""
        kit = self._kit
        if (settings.mode == RESIDENT) != (self._ears is not None) or settings.model != self._model:
            journal.notice("Another mode or model is taken over when systemd-sentry is restarted")
        kit.settings = settings
        kit.guards.policy = _policy(settings)
        kit.guards.budget.retune(_limits(settings))
        kit.audit.retune(keep=settings.incidents_count, keep_days=settings.incidents_days)

    @property
    def hears(self) -> bool:
        """Whether failures are heard of, where they are to be."""
        return self._ears is None or self._ears.listening

    async def close(self) -> None:
        """What is under way stays on disk, for the next start to take up."""
        if self._listening is not None:
            await loop.stop(self._listening)
        if self._resident is not None:
            self._resident.release()
        await self.supervisor.close()
        if self._adviser is not None:
            self._adviser.rest()
        self._slicer.close()
        self._manager.close()
        self._peers.close()


def _key(path: str) -> bytes:
    """The key of digests. A full disk keeps nobody from being helped: then one that is forgotten with us."""
    try:
        return redaction.load_key(path)[0]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        journal.error(f"The key of digests cannot be kept: {error}", ERRNO=error.errno)
        return os.urandom(redaction.KEY_BYTES)


def _policy(settings: Settings) -> policy.Policy:
    windows = []
    for text in settings.maintenance:
        try:
            windows.append(policy.window(text))
        except ValueError as error:
            # It was meant to keep us from acting: without it we would.
            journal.error(f"A maintenance window cannot be read, so units are only observed: {error}")
            return policy.Policy(allow=())
    return policy.Policy(allow=settings.units_allow, deny=settings.units_deny, windows=windows)


def _limits(settings: Settings) -> tuple[tuple[int, float], ...]:
    return (settings.actions_per_minute, 60.0), (settings.actions_per_hour, 3600.0)


def _adviser(peers: Peers, model: str, clock: Clock) -> Adviser | None:
    if not model:
        return None
    from syntrop.sentry import advice

    return advice.Adviser(peers, model, clock)


def _investigator(adviser: Adviser | None, hands: Hands, clock: Clock, key: bytes) -> Investigator | None:
    if adviser is None:
        return None

    async def investigate(evidence: Evidence, causes: Sequence[Cause]) -> Investigation:
        from syntrop.sentry.investigation import investigate

        return await investigate(evidence, causes, model=adviser, tools=hands, clock=clock, key=key)

    return investigate
