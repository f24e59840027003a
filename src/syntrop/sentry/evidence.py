# SPDX-License-Identifier: Apache-2.0
"""What is known of a failure, typed, bounded, and without secrets. Pure.

Every piece has an identifier (`j3` the third entry of the journal, `x1` the exit, `d2` the second change of a
file) by which findings cite it; `Evidence.reference` gives what the audit record names: a journal cursor, an
event of contextd's, or a counter with its value.

Whose words an entry holds is part of its type. PID 1 and the kernel are believed; what a service says of itself
is data that anybody may have put there, and no signature of the manager's is looked for in it.
"""

from __future__ import annotations

from syntrop.sentry.cleaning import MESSAGE_MAX, clean
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from syntrop.common.psi import Pressure

ENTRIES_MAX = 64  # of the failed invocation
MANAGER_MAX = 24  # of them at most are PID 1's and the kernel's; they are kept however much the service writes
CHANGES_MAX = 16
PACKAGES_MAX = 16
DIFF_MAX = 4096  # characters of a diff
NEIGHBOURS_MAX = 64
FRAMES_MAX = 16  # of a stack

MANAGER, SPAWN, SERVICE, KERNEL = "manager", "spawn", "service", "kernel"
SPAWN_FAILED = "641257651c1b4ec9a8624d7a40a9e1e7"  # sd-messages.h: SD_MESSAGE_SPAWN_FAILED
EXITED, KILLED, DUMPED = "exited", "killed", "dumped"  # wait(2): CLD_EXITED, CLD_KILLED, CLD_DUMPED
_CODES = {1: EXITED, 2: KILLED, 3: DUMPED}
# Signals that a process brings on itself, and of these the ones that the processor raises: nobody means to end so.
FAULTS = {4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
_TRAPS = frozenset((4, 7, 8, 11))
_STARTED = "39f53479d3a045ac8e11786248231fbf"  # sd-messages.h: SD_MESSAGE_UNIT_STARTED
AGED_US = 6 * 3600 * 1_000_000  # a change that is older explains less, and nothing is undone for it unasked
LIVED_US = 10_000_000  # a unit that ran so long with a change has lived with it
_CLOCK_SLACK_US = 2_000_000


class Entry(Record):
    """An entry of the journal. `fields` are the manager's about the message; a service's are not taken over."""

    __slots__ = (
        "boot", "cursor", "fields", "id", "identifier", "message", "message_id", "monotonic_us", "origin",
        "priority", "time_us", "unit",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        *,
        cursor: str,
        message: str,
        origin: str,
        time_us: int = 0,
        monotonic_us: int = 0,
        boot: str = "",
        priority: int = 6,
        identifier: str = "",
        message_id: str = "",
        unit: str = "",
        fields: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.id, self.cursor, self.message, self.origin = id, cursor, message, origin
        self.time_us, self.monotonic_us, self.boot = time_us, monotonic_us, boot
        self.priority, self.identifier, self.message_id, self.unit = priority, identifier, message_id, unit
        self.fields = fields

    def field(self, name: str) -> str:
        return dict(self.fields).get(name, "")

    @property
    def believed(self) -> bool:
        """Whether the words are those of PID 1 or the kernel."""
        return self.origin in (MANAGER, KERNEL)


class Exit(Record):
    """How the main process ended, as the manager tells: `result` of the unit, `code` and `status` of the process.

    `status` is the exit status when `code` is exited, and a signal's number when it is killed or dumped.
    """

    __slots__ = ("code", "id", "result", "status")

    def __init__(self, result: str, code: str, status: int, id: str = "x1") -> None:
        self.id, self.result, self.code, self.status = id, result, code, status

    @property
    def by_signal(self) -> bool:
        return self.code in (KILLED, DUMPED)

    @property
    def fault(self) -> bool:
        """Whether the process ended on a signal that it brought on itself."""
        return self.by_signal and self.status in FAULTS

    @property
    def trapped(self) -> bool:
        """Whether the processor ended it: not even an assertion of its own, which may be about its settings."""
        return self.by_signal and self.status in _TRAPS


class Coredump(Record):
    """What the journal tells of a crash. No memory contents."""

    __slots__ = ("cursor", "executable", "frames", "id", "signal", "unit")

    def __init__(
        self, id: str, *, cursor: str, executable: str, signal: str, unit: str = "", frames: tuple[str, ...] = ()
    ) -> None:
        self.id, self.cursor, self.executable, self.signal, self.unit = id, cursor, executable, signal, unit
        self.frames = frames


class Counter(Record):
    """A counter of the unit's control group or of a file system, such as `memory.events oom_kill`."""

    __slots__ = ("id", "name", "value")

    def __init__(self, id: str, name: str, value: int) -> None:
        self.id, self.name, self.value = id, name, value


class Stall(Record):
    """Pressure of one resource at the failure: shares of ten seconds in percent."""

    __slots__ = ("full", "id", "resource", "some")

    def __init__(self, id: str, resource: str, some: float, full: float) -> None:
        self.id, self.resource, self.some, self.full = id, resource, some, full


class Change(Record):
    """A file that changed, as contextd tells."""

    __slots__ = ("diff", "event_id", "id", "path", "reason", "summary", "time_us")

    def __init__(
        self,
        id: str,
        *,
        path: str,
        time_us: int,
        diff: str,
        summary: str = "",
        reason: str = "",
        event_id: str = "",
    ) -> None:
        self.id, self.path, self.time_us, self.diff = id, path, time_us, diff
        self.summary, self.reason, self.event_id = summary, reason, event_id

    def added(self) -> list[str]:
        """Lines that the change brought in."""
        return [line[1:] for line in self.diff.split("\n") if line.startswith("+") and not line.startswith("+++")]

    def removed(self) -> list[str]:
        """Lines that the change took away."""
        return [line[1:] for line in self.diff.split("\n") if line.startswith("-") and not line.startswith("---")]

    @property
    def created(self) -> bool:
        """Whether the file was not there before."""
        return f"{self.path} was created" in self.summary

    @property
    def same(self) -> bool:
        """Whether it was written anew with what it held before."""
        return self.summary == f"{self.path} was replaced by the same"

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what the file was before: contextd did not watch it yet."""
        return self.summary.endswith(" changed before it was watched")

    @property
    def held_settings(self) -> bool:
        """Whether the file had settings before: to remove it is more than to undo the change."""
        before = [line[1:] for line in self.diff.split("\n") if line[:1] in ("-", " ") and line[:4] != "--- "]
        return self.unknown or any("=" in line and line.strip()[:1] not in "#;" for line in before)


class Package(Record):
    """A package that changed, as contextd tells."""

    __slots__ = ("action", "id", "name", "old_version", "reason", "time_us", "version")

    def __init__(
        self,
        id: str,
        *,
        name: str,
        action: str,
        version: str,
        time_us: int,
        old_version: str = "",
        reason: str = "",
    ) -> None:
        self.id, self.name, self.action, self.version = id, name, action, version
        self.time_us, self.old_version, self.reason = time_us, old_version, reason


class Neighbour(Record):
    """A unit that the failed one needs, and how it is: `active` and `result` are the manager's words."""

    __slots__ = ("active", "id", "relation", "result", "unit")

    def __init__(self, id: str, unit: str, *, active: str, result: str = "", relation: str = "requires") -> None:
        self.id, self.unit, self.active, self.result, self.relation = id, unit, active, result, relation

    @property
    def failed(self) -> bool:
        return self.active == "failed"


class Facts(Record):
    """What the manager tells of the unit now; `started_us` is when its latest invocation became active, or 0."""

    __slots__ = ("active", "cache", "fragment", "id", "limits", "load", "restarts", "started_us", "type")

    def __init__(
        self,
        *,
        load: str = "loaded",
        active: str = "failed",
        type: str = "simple",
        restarts: int = 0,
        fragment: str = "",
        limits: tuple[tuple[str, str], ...] = (),
        cache: bool = False,
        started_us: int = 0,
        id: str = "u1",
    ) -> None:
        self.started_us = started_us
        self.id, self.load, self.active, self.type, self.restarts = id, load, active, type, restarts
        self.fragment, self.limits, self.cache = fragment, limits, cache

    @property
    def gone(self) -> bool:
        """Whether the manager has no such unit: it was made for one run and collected after it, or its file is no
        more. What became of it is for the journal to tell, and nothing is there that could be started."""
        return self.load == "not-found"


class Evidence:
    """All that is known of one failure of one unit. `context_known` tells whether contextd answered in time."""

    __slots__ = (
        "_items", "changes", "context_known", "copies", "coredumps", "counters", "entries", "exit", "facts",
        "failed_us", "invocation", "neighbours", "packages", "stalls", "unit",
    )  # fmt: skip

    def __init__(
        self,
        unit: str,
        *,
        invocation: str = "",
        failed_us: int | None = None,
        exit: Exit | None = None,
        facts: Facts | None = None,
        entries: Sequence[Entry] = (),
        coredumps: Sequence[Coredump] = (),
        counters: Sequence[Counter] = (),
        stalls: Sequence[Stall] = (),
        changes: Sequence[Change] = (),
        packages: Sequence[Package] = (),
        neighbours: Sequence[Neighbour] = (),
        copies: Mapping[str, str] | None = None,
        context_known: bool = True,
    ) -> None:
        """`copies` tells for a file's path the name of an earlier copy that lies beside it."""
        self.unit, self.invocation = unit, invocation
        self.failed_us = failed_us
        self.exit = exit
        self.facts = facts or Facts()
        self.entries = bounded(entries)
        self.coredumps, self.counters, self.stalls = tuple(coredumps[:4]), tuple(counters[:32]), tuple(stalls[:3])
        self.changes, self.packages = tuple(changes[:CHANGES_MAX]), tuple(packages[:PACKAGES_MAX])
        self.neighbours = tuple(neighbours[:NEIGHBOURS_MAX])
        self.copies = dict(copies or {})
        self.context_known = context_known
        self._items = {item.id: item for item in self._all()}

    def _all(self) -> Iterable[Any]:
        if self.exit is not None:
            yield self.exit
        yield self.facts
        for group in (
            self.entries, self.coredumps, self.counters, self.stalls, self.changes, self.packages, self.neighbours,
        ):  # fmt: skip
            yield from group

    def get(self, id: str) -> Any:
        """The piece of an identifier. Raises KeyError."""
        return self._items[id]

    def __contains__(self, id: object) -> bool:
        return id in self._items

    def reference(self, id: str) -> str:
        """What the audit record cites for a piece. Raises KeyError."""
        item = self._items[id]
        if isinstance(item, (Entry, Coredump)):
            return f"journal {item.cursor}"
        if isinstance(item, Change):
            return f"file {item.path}" + (f" (event {item.event_id})" if item.event_id else "")
        if isinstance(item, Package):
            return f"package {item.name} {item.old_version or 'absent'} → {item.version} ({item.action})"
        if isinstance(item, Counter):
            return f"counter {item.name} = {item.value}"
        if isinstance(item, Stall):
            return f"pressure {item.resource} some {item.some:g} full {item.full:g}"
        if isinstance(item, Exit):
            return f"exit {item.result} {item.code} {item.status}"
        if isinstance(item, Neighbour):
            return f"unit {item.unit} {item.active} {item.result}".rstrip()
        return f"unit {self.unit} {self.facts.load} {self.facts.active} restarts={self.facts.restarts}"

    def counter(self, name: str) -> Counter | None:
        return next((one for one in self.counters if one.name == name), None)

    def clock_jump_us(self) -> int:
        """By how much the wall clock was set while the entries were written; 0 when it ran evenly."""
        offsets: dict[str, list[int]] = {}
        for entry in self.entries:
            if entry.believed and entry.monotonic_us and entry.time_us:
                offsets.setdefault(entry.boot, []).append(entry.time_us - entry.monotonic_us)
        jump = max((max(one) - min(one) for one in offsets.values()), default=0)
        return jump if jump > _CLOCK_SLACK_US else 0

    def before_failure(self, time_us: int) -> bool:
        """Whether something came before the failure, as far as the clock can be trusted."""
        return self.failed_us is None or time_us <= self.failed_us + self.clock_jump_us()

    def aged(self, change: Change) -> bool:
        """Whether a change is so old that the unit may well have failed for another reason."""
        return self.failed_us is not None and self.failed_us - change.time_us > AGED_US

    def lived_with(self, change: Change) -> bool:
        """Whether the unit started after a change, and ran with it for a while before it failed."""
        told = [
            one.time_us
            for one in self.entries
            if one.believed and one.message_id == _STARTED and one.unit == self.unit
        ]
        started = self.facts.started_us or max(told, default=0)
        if not started or self.failed_us is None:
            return False
        return change.time_us < started and self.failed_us - started > LIVED_US


def bounded(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The newest entries, oldest first. A service that floods the journal pushes no word of the manager's out."""
    believed = [entry for entry in entries if entry.believed][-MANAGER_MAX:]
    others = [entry for entry in entries if not entry.believed][-(ENTRIES_MAX - len(believed)) :]
    kept = {id(entry) for entry in (*believed, *others)}
    return tuple(entry for entry in entries if id(entry) in kept)


def origin(fields: Mapping[str, str]) -> str:
    """Whose words an entry holds. Only fields that journald itself sets (with an underscore) are believed.

    What the manager's child says before it becomes the program names the unit (`UNIT=`). A service that writes to
    the journal's socket can do so too: such words are worth what corroborates them, which is the exit status.
    """
    if fields.get("_TRANSPORT") == "kernel":
        return KERNEL
    if fields.get("_PID") == "1":
        return MANAGER
    return SPAWN if fields.get("MESSAGE_ID") == SPAWN_FAILED or "UNIT" in fields else SERVICE


_KEPT_FIELDS = (
    "UNIT_RESULT", "EXIT_CODE", "EXIT_STATUS", "CONFIG_FILE", "CONFIG_LINE", "EXECUTABLE", "JOB_RESULT",
    "JOB_TYPE", "N_RESTARTS", "ERRNO",
)  # fmt: skip


def entry(number: int, fields: Mapping[str, str], key: bytes) -> Entry:
    """An entry from its fields as `journalctl -o json` names them; numbers that are none are taken as 0."""
    whose = origin(fields)
    kept = _KEPT_FIELDS if whose != SERVICE else ()
    return Entry(
        f"j{number}",
        cursor=fields.get("__CURSOR", "")[:512],
        message=clean(fields.get("MESSAGE", ""), key),
        origin=whose,
        time_us=_number(fields.get("__REALTIME_TIMESTAMP")),
        monotonic_us=_number(fields.get("__MONOTONIC_TIMESTAMP")),
        boot=fields.get("_BOOT_ID", "")[:32],
        priority=min(7, _number(fields.get("PRIORITY"), 6)),
        identifier=clean(fields.get("SYSLOG_IDENTIFIER", ""), key, 64),
        message_id=fields.get("MESSAGE_ID", "")[:32] if whose != SERVICE else "",
        unit=(fields.get("UNIT") if whose != SERVICE else None) or fields.get("_SYSTEMD_UNIT", ""),
        fields=tuple((name, clean(fields[name], key, 256)) for name in kept if name in fields),
    )


def coredump(number: int, fields: Mapping[str, str], key: bytes) -> Coredump:
    """A crash from the fields of systemd-coredump's entry: the program, the signal, the top of the stack."""
    lines = (line.strip() for line in fields.get("MESSAGE", "").split("\n"))
    frames = [clean(line, key, 200) for line in lines if line.startswith("#")]
    return Coredump(
        f"c{number}",
        cursor=fields.get("__CURSOR", "")[:512],
        executable=clean(fields.get("COREDUMP_EXE") or fields.get("COREDUMP_COMM", ""), key, 256),
        signal=fields.get("COREDUMP_SIGNAL_NAME", "")[:16],
        unit=fields.get("COREDUMP_UNIT", "")[:256],
        frames=tuple(frames[:FRAMES_MAX]),
    )


def counters(files: Mapping[str, str]) -> tuple[Counter, ...]:
    """Counters of flat-keyed files of a control group (`memory.events`, `pids.events`), by the files' names.

    Lines that are none are passed over. What is 0 is told too: it speaks against.
    """
    pairs = [
        (f"{file} {words[0]}", int(words[1]))
        for file, text in sorted(files.items())
        for words in map(str.split, text.split("\n"))
        if len(words) == 2 and words[1].isascii() and words[1].isdigit() and len(words[1]) < 20
    ]
    return tuple(Counter(f"g{number}", name, value) for number, (name, value) in enumerate(pairs, 1))


def stalls(pressures: Mapping[str, Pressure]) -> tuple[Stall, ...]:
    """Pressure by resource, from what `common.psi` read."""
    return tuple(
        Stall(f"p{number}", resource, one.some.avg10, one.full.avg10 if one.full is not None else 0.0)
        for number, (resource, one) in enumerate(sorted(pressures.items()), 1)
    )


def leaving(properties: Mapping[str, Any]) -> Exit:
    """How the unit ended, from its properties (`Result`, `ExecMainCode`, `ExecMainStatus`)."""
    code = _CODES.get(_number(properties.get("ExecMainCode")), "")
    return Exit(str(properties.get("Result", "")), code, _number(properties.get("ExecMainStatus")))


def facts(properties: Mapping[str, Any]) -> Facts:
    """What the manager tells of the unit, from its properties."""
    limits = tuple((name, str(properties[name])) for name in ("LimitNOFILE", "MemoryMax") if name in properties)
    active = _number(properties.get("ActiveEnterTimestamp"))
    began = _number(properties.get("ExecMainStartTimestamp"))
    return Facts(
        load=str(properties.get("LoadState", "loaded")),
        active=str(properties.get("ActiveState", "")),
        type=str(properties.get("Type", "")),
        restarts=_number(properties.get("NRestarts")),
        fragment=str(properties.get("FragmentPath", "")),
        limits=limits,
        cache=bool(properties.get("CacheDirectory")),
        started_us=active if active >= began else 0,
    )


def changes(context: Mapping[str, Any], key: bytes) -> tuple[Change, ...]:
    """The files that changed, from contextd's `UnitContext`."""
    return tuple(
        Change(
            f"d{number}",
            path=str(one["file_path"])[:4096],
            time_us=int(one["timestamp_us"]),
            diff=clean(str(one["diff_content"]), key, DIFF_MAX),
            summary=clean(str(one.get("summary") or ""), key),
            reason=clean(str(one.get("reason") or ""), key),
            event_id=str(one.get("event_id") or ""),
        )
        for number, one in enumerate(context.get("config_diffs", ())[:CHANGES_MAX], 1)
    )


def packages(context: Mapping[str, Any]) -> tuple[Package, ...]:
    """The packages that changed, from contextd's `UnitContext`."""
    return tuple(
        Package(
            f"k{number}",
            name=str(one["package_name"])[:256],
            action=str(one["action"]),
            version=str(one["version"])[:128],
            time_us=int(one["timestamp_us"]),
            old_version=str(one.get("old_version") or "")[:128],
            reason=str(one.get("reason") or "")[:MESSAGE_MAX],
        )
        for number, one in enumerate(context.get("package_upgrades", ())[:PACKAGES_MAX], 1)
    )


def _number(value: object, default: int = 0) -> int:
    """A number that is not negative, from whatever stands for it."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default
