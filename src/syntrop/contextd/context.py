# SPDX-License-Identifier: Apache-2.0
"""The context of a unit: its files looked at, others' records read, and everything ranked."""

from __future__ import annotations

import os
from time import localtime, strftime

from syntrop.common import paths
from syntrop.contextd import ranking, unitfiles
from syntrop.contextd.chronology import Event, shorten
from syntrop.contextd.clock import boot_id, now_us
from syntrop.contextd.elf import Libraries
from syntrop.contextd.imports import invocation
from syntrop.contextd.keeper import Unkept
from syntrop.contextd.ownership import Owners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from syntrop.contextd.coverage import Coverage
    from syntrop.contextd.keeper import Keeper
    from syntrop.contextd.ranking import Item
    from syntrop.contextd.unitfiles import Unit

DEPENDENCIES_MAX = 24
TIMELINE_MAX = 64
ENTRIES_MAX = 20
_REPLY_BYTES = 1 << 20  # of details in one reply
WITHHELD = "Only operators may see what is in this file."
_MINOR = ("sysinit.target", "basic.target", "shutdown.target", "multi-user.target", "network.target", "-.mount")


class Composer:
    """Makes contexts from a keeper's store."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._libraries = Libraries()
        self._owners = Owners(self._libraries)

    def compose(self, name: str, since_us: int, *, operator: bool) -> dict[str, Any]:
        """Look at a unit's own files, then tell what is known. Blocks. Raises OSError.

        When the caller has its reply, `Keeper.finish()` is to be called. Where nothing can be written, what is
        found is told all the same, and that it could not be kept.
        """
        keeper = self._keeper
        with keeper.lock.urgent:
            keeper.open()
            unit = unitfiles.load(name, keeper.index)
            own = [*unit.files, *(path for path in unit.named if self._watched(path))]
            unkept: Unkept | None = None
            with keeper.journals.open() as reader:
                try:
                    keeper.survey(own, unitfiles.drop_in_folders(unit), reader)
                except Unkept as error:
                    unkept = error
            with keeper.journals.open() as reader:  # anew, or all that was mapped for the news stays so
                entries = invocation(reader, name, ENTRIES_MAX) if operator and reader is not None else []
            now = now_us()
            events = keeper.chronology.since(now - since_us)
            if unkept is not None:
                events += [event for event in unkept.events if event.time_us >= now - since_us]
                events.sort(key=lambda event: event.time_us, reverse=True)
            failed = ranking.failure_time(name, events)
            dependencies = self._dependencies(unit)
            around = ranking.Surroundings(unit, dependencies, lambda event: self._owners.relation(unit, event))
            items = ranking.rank(
                around, [*events, *self._unwatched(unit, events, now - since_us)], failed, now, TIMELINE_MAX
            )
            tell = Teller(keeper.chronology.details, operator=operator)
            context: dict[str, Any] = {
                "unit_name": name,
                "config_diffs": [tell.diff(i.event, i.reason) for i in items if i.event.source == "file"],
                "package_upgrades": [
                    tell.package(i.event, i.reason) for i in items if i.event.source == "package"
                ],
                "summary": summarise(unit, items, failed, events),
                "watched_since_us": keeper.watched_since_us,
                "events": [tell.event(item.event, item.reason) for item in items],
                "failed_us": failed,
                "boot_id": boot_id() or None,
                "coverage": caveats(keeper.coverage, unkept, operator=operator),
            }
        if operator:
            context["entries"] = [
                {
                    "timestamp_us": entry.time_us,
                    "boot_id": entry.boot,
                    "cursor": entry.cursor,
                    "priority": int(entry.get("PRIORITY", "6")) if entry.get("PRIORITY", "6").isdigit() else 6,
                    "identifier": entry.get("SYSLOG_IDENTIFIER") or None,
                    "message": shorten(entry.get("MESSAGE"), 4096),
                }
                for entry in entries
            ]
        return context

    def _watched(self, path: str) -> bool:
        return self._keeper.coverage.covers(path) or self._keeper.wants(path)

    def _dependencies(self, unit: Unit) -> dict[str, Unit]:
        wanted = [
            one for one in unit.dependencies if one not in _MINOR and not one.endswith((".slice", ".target"))
        ]
        strong = sorted(wanted, key=lambda one: unit.dependencies[one] == "starts after")
        names = strong[:DEPENDENCIES_MAX]
        return {one: unitfiles.load(one, self._keeper.index, links=False) for one in names}

    def _unwatched(self, unit: Unit, events: list[Event], since_us: int) -> list[Event]:
        """The unit's own files that changed in time, but before anybody had looked at them."""
        recorded = {event.extra.get("path") for event in events if event.source == "file"}
        found = []
        for path in (*unit.files, *unit.named):
            row = self._keeper.baseline.get(path) if path not in recorded else None
            if row is not None and row.mtime_ns // 1000 >= since_us and row.kind != "folder":
                head = {
                    "n": 0,
                    "t": row.mtime_ns // 1000,
                    "s": "file",
                    "m": f"{path} changed before it was watched",
                    "x": {"path": path, "unwatched": True},
                }
                found.append(Event(0, head, False, "", 0))
        return found


class Teller:
    """Puts events into the interface's terms, as far as a caller may see them."""

    def __init__(self, details: Callable[[Event], str | None], *, operator: bool) -> None:
        self._details = details
        self._operator = operator
        self._left = _REPLY_BYTES

    def _more(self, event: Event) -> str | None:
        if event.private and not self._operator:
            return WITHHELD if event.source == "file" else None
        if "unkept" in event.extra:
            text = event.extra["unkept"]
            self._left -= len(text or "")
            return None if text is None else str(text)
        if event.extra.get("unwatched"):
            return "What it was before is not known: it was not watched yet."
        if self._left <= 0:
            return "left out: the reply is long enough; ask for it with ListRecentDiffs or ListEvents"
        text = self._details(event)
        self._left -= len(text or "")
        return text

    def diff(self, event: Event, reason: str | None = None) -> dict[str, Any]:
        return {
            "file_path": printable(event.extra.get("path", "")),
            "timestamp_us": event.time_us,
            "diff_content": printable(self._more(event) or event.summary),
            "summary": printable(event.summary),
            "event_id": event.id if event.number else None,
            "boot_id": event.boot or None,
            "reason": reason,
        }

    def package(self, event: Event, reason: str | None = None) -> dict[str, Any]:
        extra = event.extra
        return {
            "timestamp_us": event.time_us,
            "action": extra.get("a", ""),
            "package_name": extra.get("n", ""),
            "version": extra.get("v", ""),
            "old_version": extra.get("o"),
            "architecture": extra.get("r") or None,
            "reason": reason,
        }

    def event(self, event: Event, reason: str | None = None) -> dict[str, Any]:
        details = None if event.source == "file" and reason is not None else self._more(event)
        return {
            "id": event.id,
            "timestamp_us": event.time_us,
            "source": event.source,
            "unit": event.unit,
            "summary": printable(event.summary),
            "details": None if details is None else printable(details),
            "boot_id": event.boot or None,
            "reason": reason,
        }


def caveats(coverage: Coverage, unkept: OSError | None, *, operator: bool) -> list[str] | None:
    """What an answer lacks, in sentences; None where nothing is known to be missing."""
    told = coverage.gaps(names=operator)
    if unkept is not None:
        why = unkept.strerror
        told.insert(0, f"Nothing new could be recorded ({why}); the next look that can finds it again.")
    return [printable(one) for one in told] or None


def printable(text: str) -> str:
    """A text that any JSON reader takes: bytes of a name that are no UTF-8 are shown as such."""
    return text.encode("utf-8", "backslashreplace").decode()


def summarise(unit: Unit, items: list[Item], failed_us: int | None, events: list[Event]) -> str:
    """The context in a few words."""
    if failed_us is not None:
        why = next(
            (
                e.extra["result"]
                for e in events
                if e.unit == unit.name and e.extra.get("k") == "failed" and e.extra.get("result")
            ),
            None,
        )
        clock = strftime("%Y-%m-%d %H:%M:%S", localtime(failed_us // 1_000_000))
        began = f"{unit.name} failed at {clock}{f' ({why})' if why else ''}."
    elif exists(unit) or any(one.unit == unit.name for one in events):
        began = f"{unit.name} has not failed in this time."
    else:
        return f"There is no file of a unit {unit.name}, and nothing is on record of it."
    causes = [one for one in items if one.event.source in ("file", "package", "kernel") and one.score >= 0.2]
    if not causes:
        return f"{began} Nothing that is near to it changed{'' if failed_us is None else ' before'}."
    first = causes[0]
    files = sum(one.event.source == "file" for one in items)
    packages = sum(one.event.source == "package" for one in items)
    return (
        f"{began} {'Nearest change' if failed_us is None else 'Likeliest cause'}:"
        f" {printable(first.event.summary)} ({first.reason})."
        f" In all {_count(files, 'file')} and {_count(packages, 'package')} changed."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def exists(unit: Unit) -> bool:
    """Whether a unit has a file at all."""
    return any(os.path.lexists(paths.host(path)) for path in unit.files)
