# SPDX-License-Identifier: Apache-2.0
"""What is to be known of a failure, read at once and side by side: the manager's facts, the journal, counters."""

from __future__ import annotations

import os
import stat

from syntrop.common import dbus, loop
from syntrop.sentry import evidence, measures
from syntrop.sentry.excerpts import Excerpts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from syntrop.sentry.evidence import Change, Exit, Neighbour
    from syntrop.sentry.excerpts import Excerpt
    from syntrop.sentry.manager import Manager

    T = TypeVar("T")

RECENT_US = 2_000_000  # a failure since which the journal may not have everything yet
PATIENCE = 0.02  # seconds that the journal is waited for, to have the manager's word of the end
SETTLE = 0.0015  # seconds for what the service wrote before it ended, which comes by another way
_STEP = 0.001
KEPT_OPEN = 0.5  # seconds for which the journal's files stay mapped after a slice
_RELATIONS = {"Requires": "requires", "Requisite": "requires", "BindsTo": "is bound to"}
_EXITED = "98e322203f7a4ed290d09fe03c09fe15"  # sd-messages.h: SD_MESSAGE_UNIT_PROCESS_EXIT
# How editors, package managers and people name what a file was before.
_COPIES = ("~", ".bak", ".orig", ".old", ".save", ".backup", ".dpkg-old", ".rpmsave", ".pacsave")
_COPIES_MAX = 16


class Slice:
    """What was read. `properties` are the unit's; `missing` is what could not be had, in sentences."""

    __slots__ = ("_arguments", "missing", "properties")

    def __init__(self, properties: dict[str, Any], arguments: dict[str, Any], missing: Sequence[str]) -> None:
        self.properties = properties
        self._arguments = arguments
        self.missing = tuple(missing)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `evidence.Evidence`, without those that contextd tells."""
        return dict(self._arguments)


class Slicer:
    """Takes slices, one journal for all of them. `close()` it."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder` is one with journal files, where it is not the machine's that is read."""
        self._excerpts = Excerpts(folder)
        self._turn: loop.Event | None = None
        self._closing: loop.Timer | None = None

    async def __call__(
        self, manager: Manager, unit: str, key: bytes, *, invocation: str = "", patience: float = PATIENCE
    ) -> Slice:
        """What is known of a failure of a unit; of its latest invocation where none is given.

        Raises OSError and dbus.DBusError where the manager does not answer; the deadline is the caller's.
        """
        # Who names an invocation knows that it failed: the journal is looked at while the manager looks.
        early = loop.spawn(self._end(unit, invocation, patience), f"the end of {unit}") if invocation else None
        try:
            properties = await manager.unit(unit)
            current = str(properties.get("InvocationID", ""))
            invocation = invocation or current
            latest = invocation == current
            measuring = loop.thread(_measure, properties)
            asking = loop.spawn(_neighbours(manager, relations(properties)), f"what {unit} needs")
            try:
                if early is not None:
                    await early
                elif _recent(properties):
                    await self._end(unit, invocation, patience)
                excerpt = await self._read(unit, invocation, properties if latest else {})
                neighbours, silent = await asking
            finally:
                asking.cancel()
            counters, stalls = await measuring
        finally:
            if early is not None:
                early.cancel()
        entries = [evidence.entry(number, one, key) for number, one in enumerate(excerpt.entries, 1)]
        missing = [one for one in (excerpt.missing, silent) if one]
        arguments = {
            "invocation": invocation,
            "failed_us": _failed(excerpt, properties if latest else {}),
            "exit": leaving(properties if latest else {}, excerpt.entries),
            "facts": evidence.facts(properties),
            "entries": entries,
            "coredumps": [evidence.coredump(number, one, key) for number, one in enumerate(excerpt.coredumps, 1)],
            "counters": counters,
            "stalls": stalls,
            "neighbours": neighbours,
        }
        return Slice(properties, arguments, missing)

    async def kernel(self, start_us: int, limit: int = 256) -> list[dict[str, str]]:
        """The kernel's lines since then (monotonic), oldest first, for what is not about one unit. Raises
        OSError."""
        return await self._work(self._excerpts.kernel, start_us, limit)

    def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if self._turn is None:
            self._excerpts.close()

    async def _end(self, unit: str, invocation: str, patience: float) -> None:
        """Wait a little for the journal to have how it ended: what the manager has told us is on its way there."""
        from time import monotonic

        until = monotonic() + patience
        while not await self._work(self._has_end, unit, invocation) and monotonic() < until:
            await loop.sleep(_STEP)
        await loop.sleep(SETTLE)

    async def _read(self, unit: str, invocation: str, properties: Mapping[str, Any]) -> Excerpt:
        start_us = int(properties.get("InactiveExitTimestampMonotonic", 0))
        pids = [int(properties.get(name, 0)) for name in ("ExecMainPID", "MainPID")]
        return await self._work(self._excerpts.read, unit, invocation, start_us, pids)

    def _has_end(self, unit: str, invocation: str) -> bool:
        try:
            return self._excerpts.ended(unit, invocation)
        except OSError:
            return True  # reading it will tell

    async def _work(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something on the journal, which is for one thread at a time: the turn is over when the thread is,
        whether or not the caller has waited for it."""
        while self._turn is not None:
            await self._turn.wait()
        self._turn = loop.Event()
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        work = loop.thread(function, *arguments)
        work.when_done(self._pass_turn)
        return await work

    def _pass_turn(self, _work: object) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.set()
        self._closing = loop.call_later(KEPT_OPEN, self.close)


def relations(properties: Mapping[str, Any]) -> dict[str, str]:
    """The units that a unit cannot be without, and how it says so. Targets and slices are in everybody's way."""
    found: dict[str, str] = {}
    for name, relation in _RELATIONS.items():
        for unit in properties.get(name) or ():
            if not unit.endswith((".target", ".slice", ".device")):
                found.setdefault(unit, relation)
    return dict(list(found.items())[: evidence.NEIGHBOURS_MAX])


async def _neighbours(manager: Manager, needed: Mapping[str, str]) -> tuple[list[Neighbour], str]:
    try:
        states = await manager.states(list(needed))
        down = [unit for unit, active in states.items() if active == "failed"]
        results = await manager.units(down, frozenset(("Result",))) if down else {}
    except (OSError, dbus.DBusError) as error:
        return [], f"the manager does not tell of what it needs: {error}"
    return [
        evidence.Neighbour(
            f"n{number}",
            unit,
            active=states.get(unit, ""),
            result=str(results.get(unit, {}).get("Result", "")),
            relation=relation,
        )
        for number, (unit, relation) in enumerate(needed.items(), 1)
    ], ""


def leaving(properties: Mapping[str, Any], entries: Sequence[Mapping[str, str]]) -> Exit | None:
    """How it ended: as the manager tells now, or as it told then, where it has been started again since."""
    said: dict[str, str] = {}
    for fields in entries:
        if fields.get("_PID") != "1":
            continue
        if fields.get("MESSAGE_ID") == _EXITED and fields.get("EXIT_CODE"):
            said["code"], said["status"] = fields["EXIT_CODE"], fields.get("EXIT_STATUS", "")
        said["result"] = fields.get("UNIT_RESULT") or said.get("result", "")
    if properties:
        told = evidence.leaving(properties)
        collected = properties.get("LoadState") == "not-found" and told.result in ("", "success")
        if collected and said.get("result"):
            # Of a unit that is gone the manager knows nothing; the journal does.
            return evidence.Exit(said["result"], said.get("code", ""), _status(said.get("status", "")))
        if told.code or told.result in ("", "success") or "code" not in said:
            return told
        # What ran before or after the main process: the journal alone tells how that ended.
        return evidence.Exit(told.result, said["code"], _status(said["status"]))
    if not said.get("result") and "code" not in said:
        return None
    return evidence.Exit(said.get("result", ""), said.get("code", ""), _status(said.get("status", "")))


def copies(changes: Sequence[Change]) -> dict[str, str]:
    """For the path of a changed file the name of an earlier copy that lies beside it, where there is one.

    The newest one, of those that are not newer than the change. Blocks for some lookups of names.
    """
    found: dict[str, str] = {}
    for change in changes[:_COPIES_MAX]:
        folder, name = os.path.split(change.path)
        best = 0
        for suffix in _COPIES:
            try:
                told = os.lstat(os.path.join(folder, name + suffix))
            except (OSError, ValueError):
                continue
            written = told.st_mtime_ns // 1000
            if stat.S_ISREG(told.st_mode) and best <= written <= change.time_us:
                best = max(1, written)
                found[change.path] = name + suffix
    return found


def _measure(properties: Mapping[str, Any]) -> tuple[Any, Any]:
    return measures.counters(properties), measures.stalls()


def _recent(properties: Mapping[str, Any]) -> bool:
    """Whether it has failed so lately that the journal may not have everything yet."""
    from time import clock_gettime_ns

    now_us = clock_gettime_ns(1) // 1000  # CLOCK_MONOTONIC, as the manager's timestamps
    return _failing(properties) and now_us - int(properties.get("StateChangeTimestampMonotonic", 0)) < RECENT_US


def _failing(properties: Mapping[str, Any]) -> bool:
    """Whether it has failed, rather than that somebody asks about a unit that is well."""
    return properties.get("ActiveState") == "failed" or properties.get("Result", "success") != "success"


def _failed(excerpt: Excerpt, properties: Mapping[str, Any]) -> int | None:
    """When it failed by UTC, in microseconds: as the first word of its end, or as the manager's state tells."""
    for fields in excerpt.entries:
        if fields.get("_PID") == "1" and fields.get("UNIT_RESULT"):
            return int(fields["__REALTIME_TIMESTAMP"])
    changed = int(properties.get("StateChangeTimestamp", 0))
    if changed and _failing(properties):
        return changed
    return int(excerpt.entries[-1]["__REALTIME_TIMESTAMP"]) if excerpt.entries else None


def _status(text: str) -> int:
    """An exit status, or the number of a signal, which the journal names (`SEGV`)."""
    if text.isascii() and text.isdigit():
        return int(text[:9])
    import signal

    try:
        return int(signal.Signals[f"SIG{text}"])
    except KeyError:
        return 0


async def take(manager: Manager, unit: str, key: bytes, *, invocation: str = "") -> Slice:
    """One slice, by a journal of its own."""
    slicer = Slicer()
    try:
        return await slicer(manager, unit, key, invocation=invocation)
    finally:
        slicer.close()
