# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Context1`: the chronology, as others call it. Whatever touches the disk runs in a worker thread."""

from __future__ import annotations

from syntrop.common import loop, paths
from syntrop.common.varlink.errors import VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.contextd.chronology import Event
    from syntrop.contextd.context import Composer
    from syntrop.contextd.keeper import Keeper
    from syntrop.contextd.live import Live

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Context1."
DAY = 86400
SINCE_MAX = 10 * 365 * DAY
LISTED = 50
QUEUED_MAX = 1024  # events that a slow watcher may be behind
SCAN_AFTER = 0.5  # seconds after the start: whoever comes and goes at once costs no look at the machine
SCAN_PATIENCE = 20.0  # seconds that a list waits for what changed while we slept
# Sources that are the chronology's own to tell.
RESERVED = frozenset(("file", "package", "journal", "kernel", "unit", "coredump", "machine"))


class Context1:
    """Handler of the interface."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._keeper_made: Keeper | None = None
        self._composer: Composer | None = None
        self._live: Live | None = None
        self._watchers: set[loop.Queue[Event | None]] = set()
        self._accounts: Any = None
        daemon.on_drain(self._end_watches)
        daemon.on_stop(self._stop)
        loop.call_later(SCAN_AFTER, self._begin)

    # --- methods -------------------------------------------------------------------------------------------

    async def GetUnitContext(self, call: Call, unit: str, since_seconds: int | None = None) -> dict[str, Any]:
        name = _unit(unit)
        since_us = _since(since_seconds)
        operator = await self._operator(call)
        composer = self._compose()
        context = await self._in_store(lambda: composer.compose(name, since_us, operator=operator))
        loop.call_soon(self._afterwards)  # the rest, when the caller has its reply
        return {"context": context}

    async def ListRecentDiffs(self, call: Call, since_seconds: int | None = None) -> dict[str, Any]:
        since_us = _since(since_seconds)
        operator = await self._operator(call)
        await self._caught_up()
        keeper = self._keeper()
        return await self._in_store(lambda: self._diffs(keeper, since_us, operator))

    async def ListEvents(
        self, call: Call, unit: str | None = None, since_seconds: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        name = None if unit is None else _unit(unit)
        since_us = _since(since_seconds)
        if limit is not None and limit < 1:
            raise _invalid("limit")
        operator = await self._operator(call)
        await self._caught_up()
        keeper, most = self._keeper(), limit or LISTED
        return await self._in_store(lambda: self._events(keeper, name, since_us, most, operator))

    async def RecordEvent(
        self,
        call: Call,
        source: str,
        unit: str | None = None,
        *,
        summary: str,
        details: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.common import authority
        from syntrop.contextd import chronology

        if not source or len(source) > 64 or source in RESERVED or not source.isprintable():
            raise _invalid("source")
        if not summary or len(summary) > chronology.SUMMARY_MAX:
            raise _invalid("summary")
        if details is not None and len(details.encode("utf-8", "replace")) > chronology.DETAILS_MAX:
            raise _invalid("details")
        name = None if unit is None else _unit(unit)
        about = {"source": source, "summary": summary[:256]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=about)
        draft = chronology.Draft(
            source, summary, unit=name, details=details, private=True, extra={"k": "recorded"}
        )

        keeper = self._keeper()

        def record() -> Event:
            with keeper.lock.urgent:
                keeper.open()
                return keeper.record([draft])[0]

        return {"event_id": (await self._in_store(record)).id}

    async def Watch(self, call: Call, unit: str | None = None) -> dict[str, Any]:
        call.require_more()
        name = None if unit is None else _unit(unit)
        operator = await self._operator(call)
        await self._caught_up()
        queue: loop.Queue[Event | None] = loop.Queue(QUEUED_MAX)
        self._watchers.add(queue)
        if self._daemon.stopping:
            self._end_watches()
        assert self._live is not None
        self._live.follow_journal(+1)
        try:
            await call.send({})
            while True:
                event = await queue.get()
                if event is None:
                    return {}
                if name is None or event.unit == name:
                    await call.send({"event": await self._in_store(lambda e=event: self._told(e, operator))})  # type: ignore[misc]
                if queue not in self._watchers:
                    raise VarlinkError(_INTERFACE + "OperationFailed", reason="the watcher is too slow")
        finally:
            self._live.follow_journal(-1)
            self._watchers.discard(queue)

    # --- inside --------------------------------------------------------------------------------------------

    def _keeper(self) -> Keeper:
        """The one keeper, whose lock keeps the store whole. For the loop's thread only: others might make two."""
        if self._keeper_made is None:
            from syntrop.contextd.keeper import Keeper, Options

            given = self._daemon.settings
            options = Options(
                given.watch_paths,
                given.exclude,
                events_max=given.events_max,
                bytes_max=given.events_bytes_max,
                contents_max=given.contents_bytes_max,
                retention_us=given.retention_days * DAY * 1_000_000,
                fanotify=given.fanotify,
            )
            self._keeper_made = Keeper(paths.state("contextd"), options, self._published, alone=True)
        return self._keeper_made

    def _compose(self) -> Composer:
        if self._composer is None:
            from syntrop.contextd.context import Composer

            self._composer = Composer(self._keeper())
        return self._composer

    def _afterwards(self) -> None:
        loop.spawn(self._finish(), "keep what was told")
        self._begin()

    async def _finish(self) -> None:
        keeper = self._keeper()

        def finish() -> None:
            with keeper.lock.urgent:
                keeper.finish()

        try:
            with self._daemon.busy():
                await loop.thread(finish)
        except OSError as error:
            # A full disk, mostly. It is tried again before anything else is looked at.
            from syntrop.common import journal

            journal.error(f"Cannot keep what files are: {error}", ERRNO=error.errno)

    def _begin(self) -> None:
        """Look at everything once, and follow it from then on."""
        if self._live is None and not self._daemon.stopping:
            from syntrop.contextd.live import Live

            self._live = Live(self._daemon, self._keeper())
            self._live.start()
        elif self._live is not None:
            self._live.look_again()

    async def _caught_up(self) -> None:
        """Wait, within reason, until what changed while we slept is known."""
        self._begin()
        if self._live is None:
            return
        try:
            with loop.deadline(SCAN_PATIENCE):
                await self._live.scanned.wait()
        except TimeoutError:
            pass  # what is known by now is told

    async def _stop(self) -> None:
        if self._live is not None:
            await self._live.stop()
        keeper = self._keeper_made
        if keeper is not None:

            def close() -> None:
                with keeper.lock.urgent:
                    keeper.close()

            await loop.thread(close)

    def _published(self, events: list[Event]) -> None:
        """From whatever thread recorded them."""
        if self._watchers:
            loop.threadsafe(self._deliver, events)

    def _end_watches(self) -> None:
        """The daemon stops: who watches gets what has happened, and a last reply."""
        self._deliver([None])

    def _deliver(self, events: Sequence[Event | None]) -> None:
        for queue in list(self._watchers):
            for event in events:
                try:
                    queue.put_nowait(event)
                except loop.QueueFull:
                    self._watchers.discard(queue)
                    break

    @staticmethod
    def _diffs(keeper: Keeper, since_us: int, operator: bool) -> dict[str, Any]:
        from syntrop.contextd.clock import now_us
        from syntrop.contextd.context import Teller, caveats

        with keeper.lock.urgent:
            keeper.open()
            events = keeper.chronology.since(now_us() - since_us, lambda event: event.source == "file")
            tell = Teller(keeper.chronology.details, operator=operator)
            return {
                "diffs": [tell.diff(event) for event in events],
                "watched_since_us": keeper.watched_since_us,
                "coverage": caveats(keeper.coverage, keeper.unkept, operator=operator),
            }

    @staticmethod
    def _events(keeper: Keeper, unit: str | None, since_us: int, limit: int, operator: bool) -> dict[str, Any]:
        from syntrop.contextd.clock import now_us
        from syntrop.contextd.context import Teller, caveats

        with keeper.lock.urgent:
            keeper.open()
            unkept = keeper.unkept
            with keeper.journals.open() as reader:
                try:
                    keeper.take_in(reader)
                except OSError as error:
                    unkept = error  # what is on record is told all the same
            events = keeper.chronology.since(now_us() - since_us, lambda event: unit is None or event.unit == unit)
            tell = Teller(keeper.chronology.details, operator=operator)
            return {
                "events": [tell.event(event) for event in events[:limit]],
                "coverage": caveats(keeper.coverage, unkept, operator=operator),
            }

    def _told(self, event: Event, operator: bool) -> dict[str, Any]:
        from syntrop.contextd.context import Teller

        # Without the lock: an event's record is never written again.
        return Teller(self._keeper().chronology.details, operator=operator).event(event)

    async def _operator(self, call: Call) -> bool:
        """Whether the caller may see what not everybody may read. polkit is not asked: nothing is to be done."""
        from syntrop.common import authority

        right = authority.RECORD
        if authority.holds(call.peer, right, endpoint="", accounts=authority.NO_ACCOUNTS):
            return True
        if self._accounts is None:
            self._accounts = await loop.thread(authority.Accounts.look_up)
        return authority.holds(call.peer, right, endpoint="", accounts=self._accounts)

    async def _in_store(self, function: Callable[[], T]) -> T:
        """Run in a worker thread, with the store's errors in the interface's terms."""
        try:
            with self._daemon.busy():
                return await loop.thread(function)
        except OSError as error:
            from syntrop.common import journal

            reason = error.strerror or str(error)
            journal.error(f"The chronology failed: {error}", ERRNO=error.errno)
            raise VarlinkError(_INTERFACE + "OperationFailed", reason=reason) from None


def _unit(name: str) -> str:
    from syntrop.contextd import unitfiles

    if not unitfiles.is_name(name):
        name += ".service"
        if not unitfiles.is_name(name):
            raise _invalid("unit")
    return name


def _since(seconds: int | None) -> int:
    if seconds is None:
        seconds = DAY
    if seconds < 0:
        raise _invalid("since_seconds")
    return min(seconds, SINCE_MAX) * 1_000_000


def _invalid(parameter: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "InvalidParameter", parameter=parameter)
