# SPDX-License-Identifier: Apache-2.0
"""What others recorded since last time: the package managers' transactions, and what the journal tells."""

from __future__ import annotations

import json

from syntrop.common import journal, paths
from syntrop.contextd import happenings
from syntrop.contextd.clock import now_us
from syntrop.contextd.package_logs import PackageLogs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from syntrop.common.sdjournal import Entry, Reader
    from syntrop.contextd.chronology import Chronology, Draft

FIRST_JOURNAL_US = 24 * 3600 * 1_000_000  # how far back the journal is read the first time
JOURNAL_MAX = 20_000  # entries looked at in one go
_YEAR_US = 365 * 86400 * 1_000_000


class Journals:
    """Opens the machine's journal, unless there turned out to be none."""

    def __init__(self) -> None:
        self._none = False

    def open(self) -> _Opened:
        """`with journals.open() as reader:` and no longer: what a reader has mapped counts as ours.

        To open it again takes less than a millisecond for each of the journal's files. `reader` is None where
        there is no journal.
        """
        return _Opened(self.reader())

    def reader(self) -> Reader | None:
        """A reader for the caller to close; None where there is no journal."""
        if self._none:
            return None
        try:
            from syntrop.common.sdjournal import Reader

            captured = paths.host("") != ""
            return Reader(paths.host("/var/log/journal") if captured else None)
        except OSError as error:
            journal.info(f"The journal cannot be read: {error.strerror or error}")
            self._none = True
            return None


class _Opened:
    def __init__(self, reader: Reader | None) -> None:
        self._reader = reader

    def __enter__(self) -> Reader | None:
        return self._reader

    def __exit__(self, *_error: object) -> None:
        if self._reader is not None:
            self._reader.close()


def news(
    progress: dict[str, Any], chronology: Chronology, reader: Reader | None, retention_us: int
) -> tuple[list[Draft], dict[str, Any]]:
    """What is new, and the part of `progress` (up to where it was read) that changes once it is recorded."""
    cursors = json.loads(json.dumps(progress["packages"]))
    oldest = now_us() - (retention_us or _YEAR_US)
    drafts = [happenings.package(one) for one in PackageLogs(cursors).read() if one.time_us >= oldest]
    read = {"packages": cursors}
    if reader is not None:
        try:
            told, read["journal"] = _journal(reader, progress["journal"])
            drafts += told
        except OSError as error:
            journal.warning(f"Cannot read the journal: {error}")
    return _unknown(drafts, chronology), read


def _unknown(drafts: list[Draft], chronology: Chronology) -> list[Draft]:
    """Without those that are on record: a crash came between that and the note of how far was read."""
    if not drafts:
        return []
    known: set[str] = set()
    for event in chronology.since(min(one.time_us for one in drafts)):
        known.update(_marks(event.extra))
    return [one for one in drafts if known.isdisjoint(_marks(one.extra))]


def _marks(extra: dict[str, Any]) -> list[str]:
    """What no other event of its kind has: its place in the journal, the key of a transaction."""
    return [f"{name} {extra[name]}" for name in ("j", "key") if name in extra]


def _journal(reader: Reader, cursor: str) -> tuple[list[Draft], str]:
    """What is new, and the place up to which it was read."""
    reader.match(*happenings.matches())
    if cursor:
        reader.seek_after(cursor)
    else:
        reader.seek_time(now_us() - FIRST_JOURNAL_US)
    drafts = []
    last = cursor
    for _ in range(JOURNAL_MAX):
        if not reader.next():
            break
        entry = reader.entry(happenings.fields(reader.field("MESSAGE_ID") or ""))
        last = entry.cursor
        draft = happenings.notable(entry)
        if draft is not None:
            drafts.append(draft)
    return drafts, last


def invocation(reader: Reader, unit: str, limit: int) -> list[Entry]:
    """The newest entries of a unit's latest invocation, oldest first: found by index, not by reading on."""
    try:
        return list(_invocation(reader, unit, limit))[::-1]
    except OSError as error:
        journal.warning(f"Cannot read the journal of {unit}: {error}")
        return []


def _invocation(reader: Reader, unit: str, limit: int) -> Iterable[Entry]:
    reader.match({"_SYSTEMD_UNIT": unit}, {"UNIT": unit, "_PID": "1"})
    reader.seek_tail()
    if not reader.previous():
        return ()
    told = reader.field("UNIT") == unit  # by the manager, of the unit
    number = reader.field("INVOCATION_ID" if told else "_SYSTEMD_INVOCATION_ID")
    if number:
        reader.match({"_SYSTEMD_INVOCATION_ID": number}, {"INVOCATION_ID": number, "_PID": "1"})
    reader.seek_tail()
    return reader.backwards(("MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "_PID"), limit)
