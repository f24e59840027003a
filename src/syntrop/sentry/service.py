# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Sentry1`, as others call it; and what makes the supervisor of its parts, at the first need of it."""

from __future__ import annotations

import os

from syntrop import __version__
from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import InvalidParameter, VarlinkError
from syntrop.sentry.settings import RESIDENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.sentry.assembly import Assembly
    from syntrop.sentry.guards import Hold
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.peers import Peers
    from syntrop.sentry.phases import Span
    from syntrop.sentry.reports import Reports
    from syntrop.sentry.supervisor import Supervisor

_INTERFACE = "io.syntrop.Sentry1."
LISTED, LISTED_MAX = 50, 1000
DAY = 86400
QUEUED_MAX = 256  # incidents that a slow watcher may be behind, and phases that a slow caller may


class Sentry1:
    """Handler of the interface. Nothing beyond it is imported before it is needed."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._assembly: Assembly | None = None
        self._peers: Peers | None = None
        self._watchers: set[loop.Queue[Incident | None]] = set()
        daemon.on_drain(self._end_watches)
        daemon.on_stop(self._stop)
        daemon.on_reload(self._reload)
        if daemon.settings.mode == RESIDENT or _left(paths.state("sentry")):
            loop.call_soon(self._supervisor)

    # --- methods -------------------------------------------------------------------------------------------

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        if self._assembly is None and not _left(paths.state("sentry"), "guards.json"):
            found: dict[str, Any] = {"open_incidents": 0, "staged_incidents": 0, "breakers": [], "planned": []}
        else:
            found = self._supervisor().status()
        deaf = self._assembly is not None and not self._assembly.hears
        return {
            "status": "degraded" if deaf else "ok",
            "version": __version__,
            "mode": self._daemon.settings.mode,
            **found,
        }

    async def ReportFailure(
        self,
        call: Call,
        unit: str,
        invocation_id: str | None = None,
        result: str | None = None,
        exit_code: str | None = None,
        exit_status: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.common import authority

        _name(unit)
        invocation = (invocation_id or "").lower().replace("-", "")
        if invocation and (len(invocation) != 32 or not set(invocation) <= set("0123456789abcdef")):
            raise InvalidParameter("invocation_id")
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details={"unit": unit})
        from syntrop.sentry.reports import believed

        if not believed(call.peer.uid):
            await self._hear(call.peer.uid, unit, invocation)
            return {}
        self._knock()
        from syntrop.sentry.trigger import REPORT, Trigger

        supervisor = self._open()
        clock = supervisor.kit.clock
        status = exit_status or ""
        supervisor.report(
            Trigger(
                unit,
                failed_us=clock.monotonic_us(),
                wall_us=clock.wall_us(),
                invocation=invocation,
                source=REPORT,
                result=(result or "")[:64],
                code=(exit_code or "")[:16],
                status=int(status) if status.isascii() and status.isdigit() and len(status) < 4 else 0,
            )
        )
        return {}

    async def TriageUnit(
        self,
        call: Call,
        unit: str,
        dry_run: bool | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        _name(unit)
        if not dry_run:
            from syntrop.common import authority

            about = {"unit": unit}
            await authority.authorize(
                call, authority.REMEDY, interactive=allowInteractiveAuthentication, details=about
            )
        await self._admit(call.peer.uid)
        self._knock()
        supervisor = self._supervisor()
        unit = await self._known(supervisor, unit)
        phases: loop.Queue[Span | None] = loop.Queue(QUEUED_MAX)

        def told(span: Span) -> None:
            try:
                phases.put_nowait(span)
            except loop.QueueFull:
                pass  # a caller who reads nothing misses some

        async def triage() -> Incident:
            try:
                return await supervisor.triage(unit, dry_run=bool(dry_run), listener=told if call.more else None)
            finally:
                told_all()

        def told_all() -> None:
            try:
                phases.put_nowait(None)
            except loop.QueueFull:
                phases.get_nowait()
                phases.put_nowait(None)

        work = loop.spawn(triage(), f"triage of {unit}")
        try:
            while (span := await phases.get()) is not None:
                await call.send({"phase": span.wire()})
            return {"incident": (await work).wire()}
        finally:
            if not work.done:
                work.cancel()

    async def GetIncident(self, call: Call, id: str) -> dict[str, Any]:
        try:
            incident = self._supervisor().incident(id)
        except KeyError:
            raise _no_such(id) from None
        return {"incident": incident.wire(), "timeline": incident.timeline()}

    async def ListIncidents(
        self,
        call: Call,
        unit: str | None = None,
        status: str | None = None,
        since_seconds: int | None = None,
        limit: int | None = None,
    ) -> dict[str, Any]:
        since = DAY if since_seconds is None else since_seconds
        most = LISTED if limit is None else limit
        if since < 0:
            raise InvalidParameter("since_seconds")
        if not 0 <= most <= LISTED_MAX:
            raise InvalidParameter("limit")
        kit = self._supervisor().kit
        since_us = kit.clock.wall_us() - min(since, 3650 * DAY) * 1_000_000
        found = await loop.thread(
            lambda: kit.audit.listing(unit=unit, status=status, since_us=since_us, limit=most)
        )
        return {"incidents": found}

    async def WatchIncidents(self, call: Call, unit: str | None = None) -> dict[str, Any]:
        call.require_more()
        if unit is not None:
            _name(unit)
        watchers = self._supervisor().kit.watchers
        queue: loop.Queue[Incident | None] = loop.Queue(QUEUED_MAX)

        def told(incident: Incident) -> None:
            if unit in (None, incident.unit):
                try:
                    queue.put_nowait(incident)
                except loop.QueueFull:
                    self._watchers.discard(queue)

        self._watchers.add(queue)
        watchers.add(told)
        try:
            await call.send({})
            while not self._daemon.stopping:
                incident = await queue.get()
                if incident is None:
                    break
                await call.send({"incident": incident.wire()})
                if queue not in self._watchers:
                    raise VarlinkError(_INTERFACE + "PeerFailed", daemon="watcher", reason="it is too slow")
            return {}
        finally:
            watchers.discard(told)
            self._watchers.discard(queue)

    async def ApproveAction(
        self, call: Call, id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority
        from syntrop.sentry.guards import Hold
        from syntrop.sentry.supervisor import Busy

        await authority.authorize(call, interactive=allowInteractiveAuthentication, details={"incident": id[:64]})
        supervisor = self._supervisor()
        incident = self._staged(supervisor, id)
        reason = supervisor.kit.guards.policy.protected(incident.unit)
        if reason:
            raise VarlinkError(_INTERFACE + "UnitProtected", unit=incident.unit, reason=reason)
        try:
            done = await supervisor.approve(id)
        except Busy:
            reason = "an incident of this unit is being dealt with"
            raise VarlinkError(_INTERFACE + "PeerFailed", daemon="systemd-sentry", reason=reason) from None
        except KeyError:
            raise self._not_staged(supervisor, id) from None
        if isinstance(done, Hold):
            raise self._circuit(supervisor, incident.unit, done)
        return {"incident": done.wire()}

    async def RejectAction(
        self,
        call: Call,
        id: str,
        reason: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.common import authority

        await authority.authorize(call, interactive=allowInteractiveAuthentication, details={"incident": id[:64]})
        supervisor = self._supervisor()
        self._staged(supervisor, id)
        return {"incident": supervisor.reject(id, (reason or "")[:512]).wire()}

    async def ResetCircuitBreaker(
        self, call: Call, unit: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority

        _name(unit)
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details={"unit": unit})
        return {"breaker": self._supervisor().reset(unit)}

    async def AnnounceMaintenance(
        self,
        call: Call,
        units: list[str],
        seconds: int,
        reason: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.common import authority
        from syntrop.sentry import planned, unitnames

        if not 1 <= len(units) <= planned.PATTERNS_MAX or not all(map(unitnames.is_pattern, units)):
            raise InvalidParameter("units")
        if not 0 <= seconds <= planned.SECONDS_MAX:
            raise InvalidParameter("seconds")
        if len(reason or "") > planned.REASON_MAX or not (reason or "").isprintable():
            raise InvalidParameter("reason")
        about = {"units": " ".join(units)[:256]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=about)
        supervisor = self._supervisor()
        try:
            supervisor.announce(units, seconds, reason or "", call.peer.uid)
        except planned.Full as full:
            raise _too_many(full.wait) from None
        return {"planned": supervisor.status()["planned"]}

    async def Quarantine(
        self,
        call: Call,
        plane: str,
        reason: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.sentry import accelerators

        return await self._change_plane(
            call, plane, allowInteractiveAuthentication,
            lambda peers: accelerators.quarantine(peers, plane, reason or ""),
        )  # fmt: skip

    async def Clear(
        self, call: Call, plane: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.sentry import accelerators

        return await self._change_plane(
            call, plane, allowInteractiveAuthentication, lambda peers: accelerators.clear(peers, plane)
        )

    # --- inside --------------------------------------------------------------------------------------------

    def _supervisor(self) -> Supervisor:
        if self._assembly is None:
            from syntrop.sentry.assembly import Assembly

            self._assembly = Assembly(self._daemon, paths.state("sentry"), self._peers)
        return self._assembly.supervisor

    def _open(self) -> Supervisor:
        """The supervisor, where it can take one more failure."""
        supervisor = self._supervisor()
        if supervisor.full:
            reason = "too many failures wait"
            raise VarlinkError(_INTERFACE + "PeerFailed", daemon="systemd-sentry", reason=reason)
        return supervisor

    def _reports(self) -> Reports:
        self._supervisor()
        assert self._assembly is not None
        return self._assembly.reports

    async def _admit(self, uid: int) -> None:
        """Raises TooMany where a user asks too much."""
        wait = await self._reports().admit(uid)
        if wait:
            raise _too_many(wait)

    async def _hear(self, uid: int, unit: str, invocation: str) -> None:
        """A report that is not believed as such: the manager is asked first."""
        from syntrop.common import dbus

        await self._admit(uid)
        reports = self._reports()
        try:
            trigger = await reports.failure(unit, invocation)
        except (OSError, dbus.DBusError) as error:
            raise VarlinkError(_INTERFACE + "PeerFailed", daemon="systemd", reason=str(error)) from None
        if trigger is None:
            raise VarlinkError(_INTERFACE + "NotFailed", unit=unit)
        if not await reports.recorded(trigger):
            self._knock()
            self._open().report(trigger)

    def _knock(self) -> None:
        """Wake those that will be needed, before what we need ourselves is even imported."""
        from syntrop.sentry.peers import CONTEXTD, TOOLD, Peers

        if self._peers is None:
            self._peers = Peers()
        self._peers.knock(TOOLD, CONTEXTD)

    async def _known(self, supervisor: Supervisor, unit: str) -> str:
        """The unit's own name: by its other names it would be watched and counted twice."""
        from syntrop.common import dbus

        try:
            with loop.deadline(10.0):
                found = await supervisor.kit.manager.unit(unit)
        except (OSError, dbus.DBusError) as error:
            raise VarlinkError(_INTERFACE + "PeerFailed", daemon="systemd", reason=str(error)) from None
        if found.get("LoadState") == "not-found" and found.get("ActiveState", "inactive") == "inactive":
            raise VarlinkError(_INTERFACE + "NoSuchUnit", unit=unit)
        return str(found.get("Id") or unit)

    async def _change_plane(
        self, call: Call, plane: str, interactive: bool | None, change: Callable[[Peers], Awaitable[object]]
    ) -> dict[str, Any]:
        from syntrop.common import authority
        from syntrop.sentry import accelerators
        from syntrop.sentry.peers import PeerError

        await authority.authorize(call, interactive=interactive, details={"plane": plane[:256]})
        try:
            await change(self._supervisor().kit.peers)
        except PeerError as error:
            if accelerators.is_unknown(error):
                raise VarlinkError(_INTERFACE + "PlaneNotFound", plane=plane) from None
            reason = error.reason
            raise VarlinkError(_INTERFACE + "PeerFailed", daemon=error.daemon, reason=reason) from None
        return {}

    def _staged(self, supervisor: Supervisor, id: str) -> Incident:
        found = supervisor.staged(id)
        if found is None:
            raise self._not_staged(supervisor, id)
        return found

    def _not_staged(self, supervisor: Supervisor, id: str) -> VarlinkError:
        try:
            status = supervisor.incident(id).status
        except KeyError:
            return _no_such(id)
        return VarlinkError(_INTERFACE + "NotStaged", id=id, status=status)

    def _circuit(self, supervisor: Supervisor, unit: str, hold: Hold) -> VarlinkError:
        kit = supervisor.kit
        state = kit.guards.state(unit, kit.clock.seconds())
        wait = int(hold.wait * 1000) if hold.wait is not None else None
        return VarlinkError(_INTERFACE + "CircuitOpen", unit=unit, state=state, cooldown_ms=wait)

    def _end_watches(self) -> None:
        for queue in tuple(self._watchers):
            try:
                queue.put_nowait(None)
            except loop.QueueFull:
                self._watchers.discard(queue)

    def _reload(self) -> None:
        """SIGHUP: read the settings anew. Raises SettingsError, and then the old ones stay."""
        import sys

        from syntrop.common.settings import resolve
        from syntrop.sentry.settings import TABLE

        found = resolve(self._daemon.name, TABLE, sys.argv[1:])
        if self._assembly is not None:
            self._assembly.retune(found)
            return
        self._daemon.settings = found
        if found.mode == RESIDENT:
            self._supervisor()

    async def _stop(self) -> None:
        if self._assembly is not None:
            await self._assembly.close()


def _name(unit: str) -> None:
    from syntrop.sentry import unitnames

    if not unitnames.is_name(unit):
        raise InvalidParameter("unit")


def _too_many(wait: float) -> VarlinkError:
    return VarlinkError(_INTERFACE + "TooMany", retry_ms=int(wait * 1000) + 1)


def _no_such(id: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "NoSuchIncident", id=id)


def _left(folder: str, *files: str) -> bool:
    """Whether an earlier life left something that is under way, or one of these files."""
    try:
        if any(name.endswith(".json") for name in os.listdir(os.path.join(folder, "open"))):
            return True
    except FileNotFoundError:
        pass
    except OSError as error:
        journal.error(f"What was under way cannot be read: {error}", ERRNO=error.errno)
    return any(os.path.exists(os.path.join(folder, name)) for name in files)
