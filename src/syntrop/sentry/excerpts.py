# SPDX-License-Identifier: Apache-2.0
"""The journal's words about one failed invocation, found by its indexes. Blocks: for a worker thread.

What the manager and the kernel say is read apart from what the service says, so that a service that floods the
journal pushes none of it out. Nothing here costs more in a larger journal but the opening of its files.
"""

from __future__ import annotations

from syntrop.common import journal, paths
from syntrop.common.patterns import late
from syntrop.sentry.evidence import ENTRIES_MAX, MANAGER_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from syntrop.common.sdjournal import Entry, Reader

COREDUMP: Final = "fc2e22bc6ee647b6b90729ab34a250b1"  # sd-messages.h: SD_MESSAGE_COREDUMP
KERNEL_MAX = 12  # entries that are kept of the kernel
COREDUMPS_MAX = 4
_NAMELESS_MAX = 32  # entries of the unit that name no invocation
_LOOKED_MAX = 256  # entries that are looked at for those that are kept
_EARLIER_US = 600_000_000  # how long before its start lines of a unit's files may have been complained of
_SLACK_US = 100_000  # the manager notes a start a little after it began it
_UNSTARTED_US = 60_000_000  # what is read of a unit that never started

_BASE = ("MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "MESSAGE_ID", "_PID", "_TRANSPORT", "_SYSTEMD_UNIT")
_SERVICE = (*_BASE, "UNIT", "_SYSTEMD_INVOCATION_ID", "EXECUTABLE", "ERRNO")
_MANAGER = (
    *_BASE, "UNIT", "INVOCATION_ID", "UNIT_RESULT", "EXIT_CODE", "EXIT_STATUS", "CONFIG_FILE", "CONFIG_LINE",
    "EXECUTABLE", "JOB_RESULT", "JOB_TYPE", "N_RESTARTS", "ERRNO",
)  # fmt: skip
_DUMP = (
    "MESSAGE", "COREDUMP_EXE", "COREDUMP_COMM", "COREDUMP_SIGNAL_NAME", "COREDUMP_UNIT", "COREDUMP_PID",
)  # fmt: skip
# What the kernel says of a process names it by number; of the rest, what bears on services at all.
_OF_PROCESS = late(r"\[(?P<pid>\d{1,10})\]: segfault at |traps: \S{1,64}\[(?P<pid2>\d{1,10})\]|general protection")
_OF_MACHINE = late(
    r"oom-kill:|[Oo]ut of memory|I/O error|critical (?:medium|target) error|EXT4-fs error|BTRFS (?:error|critical)"
    r"|XFS \([^)]{1,64}\): .{0,64}(?:error|[Cc]orrupt)|[Rr]emounting (?:filesystem|file system) read-only"
    r"|NVRM: |nvidia|amdgpu|\bi915\b|\bxe [0-9a-f]{4}:|AER: |PCIe Bus Error|DMAR: |AMD-Vi: |EDAC "
    r"|\[Hardware Error\]"
)


class Excerpt:
    """What was read: fields as `journalctl -o json` names them, oldest first. `ended`: how the unit ended is among
    them."""

    __slots__ = ("coredumps", "ended", "entries", "missing")

    def __init__(self) -> None:
        self.entries: list[dict[str, str]] = []
        self.coredumps: list[dict[str, str]] = []
        self.ended = False
        self.missing = ""


class Excerpts:
    """The machine's journal, or that of a folder. Kept open between failures until `close()`: what is mapped
    counts as ours. For one thread at a time."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._reader: Reader | None = None

    def ended(self, unit: str, invocation: str) -> bool:
        """Whether the journal has the manager's word of how the unit ended. Raises OSError."""
        reader = self._opened()
        reader.match({"INVOCATION_ID": invocation, "_PID": "1"} if invocation else {"UNIT": unit, "_PID": "1"})
        reader.seek_tail()
        looked = 0
        while looked < 8 and reader.previous():
            looked += 1
            if _ends(reader.field("UNIT_RESULT"), reader.field("JOB_RESULT")):
                return True
        return False

    def read(self, unit: str, invocation: str, start_us: int = 0, pids: Iterable[int] = ()) -> Excerpt:
        """The last words about an invocation; with none, those about the unit of the last minute.

        `start_us` is when it started on the monotonic clock of this boot, 0 where that is not known; `pids` are
        processes of the unit that the kernel may name. Where the journal cannot be read, `missing` tells why.
        """
        excerpt = Excerpt()
        try:
            reader = self._opened()
            self._fill(reader, excerpt, unit, invocation, start_us, {str(pid) for pid in pids if pid})
        except OSError as error:
            self.close()
            excerpt.missing = f"the journal cannot be read: {error.strerror or error}"
        return excerpt

    def kernel(self, start_us: int, limit: int = 256) -> list[dict[str, str]]:
        """The newest lines of the kernel since then (monotonic, this boot), oldest first. Raises OSError."""
        reader = self._opened()
        reader.match({"_TRANSPORT": "kernel", "_BOOT_ID": _boot()})
        reader.seek_tail()
        found = []
        for entry in reader.backwards(_BASE, limit):
            if entry.monotonic_us < start_us:
                break
            found.append(_fields(entry))
        return found[::-1]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- inside ----------------------------------------------------------------------------------------------

    def _opened(self) -> Reader:
        if self._reader is None:
            from syntrop.common.sdjournal import Reader

            self._reader = Reader(self._folder)
            self._reader.fileno()  # from now on it can notice new files
        else:
            self._reader.refresh()
        return self._reader

    def _fill(
        self, reader: Reader, excerpt: Excerpt, unit: str, invocation: str, start_us: int, pids: set[str]
    ) -> None:
        boot = _boot()
        told = _of_manager(reader, unit, invocation, start_us, boot)
        own = _of_service(reader, unit, invocation, start_us, boot) if invocation else []
        if not start_us and (told or own):
            start_us = min(one.monotonic_us for one in (*told, *own))
        # Processes of the unit are known by their words, and by what the manager said of them.
        pids |= {one.get("_PID") for one in own}
        kernel = _of_kernel(reader, start_us, boot, unit, pids) if start_us else []
        everything = {one.cursor: one for one in (*told, *own, *kernel)}
        ordered = sorted(everything.values(), key=lambda one: (one.monotonic_us, _number(one.cursor)))
        excerpt.entries = [_fields(one) for one in ordered]
        excerpt.ended = any(_ends(one.fields.get("UNIT_RESULT"), one.fields.get("JOB_RESULT")) for one in told)
        reader.match({"MESSAGE_ID": COREDUMP, "COREDUMP_UNIT": unit, "_BOOT_ID": boot})
        reader.seek_tail()
        excerpt.coredumps = [
            _fields(one) for one in reader.backwards(_DUMP, COREDUMPS_MAX) if one.monotonic_us >= start_us
        ][::-1]


def _of_manager(reader: Reader, unit: str, invocation: str, start_us: int, boot: str) -> list[Entry]:
    """PID 1's words: of the invocation, and of the unit where no invocation is named (its files, its jobs)."""
    found = []
    if invocation:
        reader.match({"INVOCATION_ID": invocation, "_PID": "1"})
        reader.seek_tail()
        found = [one for one in reader.backwards(_MANAGER, MANAGER_MAX) if one.get("UNIT") == unit]
        if not start_us and found:
            start_us = found[-1].monotonic_us
    reader.match({"UNIT": unit, "_PID": "1", "_BOOT_ID": boot})
    reader.seek_tail()
    # Without a start, what was said last is what it is about.
    newest = -1
    looked, kept = 0, 0
    while looked < _LOOKED_MAX and kept < MANAGER_MAX and reader.previous():
        looked += 1
        if reader.field("INVOCATION_ID"):
            if not invocation:
                break  # of an invocation before
            continue
        entry = reader.entry(_MANAGER)
        newest = entry.monotonic_us if newest < 0 else newest
        since = start_us - _SLACK_US if start_us else newest - _UNSTARTED_US
        if entry.monotonic_us < since:
            if entry.monotonic_us < since - _EARLIER_US:
                break
            if not entry.get("CONFIG_FILE"):
                continue
        kept += 1
        found.append(entry)
    return found


def _of_service(reader: Reader, unit: str, invocation: str, start_us: int, boot: str) -> list[Entry]:
    """The unit's own words, and those of the manager's child before it became the program.

    Of a process that is gone journald knows little but its number: the child's words name the unit themselves, and
    what comes by a service's standard output names no invocation.
    """
    reader.match({"_SYSTEMD_INVOCATION_ID": invocation}, {"INVOCATION_ID": invocation, "UNIT": unit})
    reader.seek_tail()
    found: list[Entry] = []
    looked = 0
    while looked < _LOOKED_MAX and len(found) < ENTRIES_MAX and reader.previous():
        looked += 1
        if reader.field("_PID") == "1" or reader.field("_SYSTEMD_UNIT") not in (unit, None):
            continue
        found.append(reader.entry(_SERVICE))
    if not start_us:
        return found
    reader.match({"_SYSTEMD_UNIT": unit, "_BOOT_ID": boot})
    reader.seek_tail()
    looked = nameless = 0
    while looked < _LOOKED_MAX and nameless < _NAMELESS_MAX and reader.previous():
        looked += 1
        if reader.field("_SYSTEMD_INVOCATION_ID"):
            continue
        entry = reader.entry(_SERVICE)
        if entry.monotonic_us < start_us - _SLACK_US:
            break
        nameless += 1
        found.append(entry)
    return found


def _of_kernel(reader: Reader, start_us: int, boot: str, unit: str, pids: set[str]) -> list[Entry]:
    """What the kernel said since the start that may bear on the unit."""
    reader.match({"_TRANSPORT": "kernel", "_BOOT_ID": boot})
    reader.seek_tail()
    found: list[Entry] = []
    looked = 0
    while looked < _LOOKED_MAX and len(found) < KERNEL_MAX and reader.previous():
        looked += 1
        entry = reader.entry(_BASE)
        if entry.monotonic_us < start_us:
            break
        text = entry.get("MESSAGE")
        named = _OF_PROCESS.search(text)
        if named is not None:
            if (named["pid"] or named["pid2"] or "") in pids:
                found.append(entry)
        elif _OF_MACHINE.search(text) or f"/{unit}" in text:
            found.append(entry)
    return found


def _ends(result: str | None, job: str | None) -> bool:
    return bool(result) or (job or "done") != "done"


def _number(cursor: str) -> int:
    """The number of an entry in its journal, from its cursor: what came at one time keeps its order by it."""
    for part in cursor.split(";"):
        if part.startswith("i="):
            return int(part[2:], 16)
    return 0


def _fields(entry: Entry) -> dict[str, str]:
    return {
        **entry.fields,
        "__CURSOR": entry.cursor,
        "__REALTIME_TIMESTAMP": str(entry.time_us),
        "__MONOTONIC_TIMESTAMP": str(entry.monotonic_us),
        "_BOOT_ID": entry.boot,
    }


def _boot() -> str:
    """The identifier of this boot as the journal writes it."""
    try:
        with open(paths.proc("sys", "kernel", "random", "boot_id"), encoding="ascii") as file:
            return file.read().strip().replace("-", "")
    except OSError as error:
        journal.warning(f"The boot's identifier cannot be read: {error.strerror}")
        raise
