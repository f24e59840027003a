# SPDX-License-Identifier: Apache-2.0
"""What must outlive this process: the leases, and what was frozen. An append-only log, compacted now and then.

It lies below the runtime root, so it ends with the boot, which ends every lease, too; nothing is synced, since a
crash of the daemon leaves the kernel's pages as they are. Each line is one JSON array; a line without its end, as
a full disk or a kill leaves it, did not happen.

| line                             |                                                                        |
| -------------------------------- | ---------------------------------------------------------------------- |
| `["log", 1, BOOT]`               | first line: version, and the boot whose clock and processes are meant  |
| `["lease", {…}]`                 | a lease, as granted or as it is when the log is compacted              |
| `["state", ID, STATE, DEADLINE]` | it changed its state                                                   |
| `["size", ID, BYTES]`            | it was resized                                                         |
| `["end", ID]`                    | it ended                                                               |
| `["freeze", TARGET, CAUSE]`      | before a target is frozen                                              |
| `["thaw", TARGET]`               | after it was thawed                                                    |
| `["loose", TARGET]`              | thawed after a kill; what was asked of the manager before may yet come |
| `["limit", TARGET, BYTES]`       | before memory is pushed out of a unit: its own limit (null: none)      |
| `["unlimit", TARGET]`            | after that limit was set again                                         |
"""

from __future__ import annotations

import json
import os

from syntrop.inferenced.lease import ENDS, Holder, Lease, Slice, State
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Final, TypeVar

    T = TypeVar("T")

VERSION: Final = 1
SLACK: Final = 4096
"""Lines that may be in the log beyond four for each lease before it is compacted."""
STEP: Final = 64
"""Leases that are written in one step of a compaction, which others' requests wait for."""


class Past:
    """What a log tells."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.frozen: dict[str, set[str]] = {}
        """Causes by target, in the order of freezing."""
        self.loose: set[str] = set()
        """Targets that were thawed after a kill, and should be looked at once more."""
        self.limits: dict[str, int | None] = {}
        """Units that are being squeezed, with the MemoryHigh= they had."""

    def apply(self, line: list[Any]) -> None:
        """Raises LookupError, TypeError or ValueError for what is no line of this log."""
        kind = line[0]
        if kind == "lease":
            one = decode(line[1])
            self.leases[one.id] = one
        elif kind == "state":
            one = self.leases[line[1]]
            one.state, one.deadline = State(line[2]), _seconds(line[3])
        elif kind == "size":
            self.leases[line[1]].slices[0].size = _whole(line[2])
        elif kind == "end":
            del self.leases[line[1]]
        elif kind == "freeze":
            self.frozen.setdefault(_text(line[1]), set()).add(_text(line[2]))
        elif kind == "thaw":
            self.frozen.pop(_text(line[1]), None)
            self.loose.discard(line[1])
        elif kind == "loose":
            self.frozen.pop(_text(line[1]), None)
            self.loose.add(line[1])
        elif kind == "limit":
            self.limits[_text(line[1])] = None if line[2] is None else _whole(line[2])
        elif kind == "unlimit":
            self.limits.pop(_text(line[1]), None)
        else:
            raise ValueError(f"unknown line {kind!r}")


def replay(path: str, boot: str) -> tuple[Past, int]:
    """What the log tells, and how many of its lines made no sense. A log of another boot tells nothing, nor does
    one that does not say of which it is."""
    past, wrong = Past(), 0
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return past, 0
    lines = data.split(b"\n")
    lines.pop()  # what follows the last line end was never finished
    if not lines:
        return past, 0
    try:
        head = json.loads(lines[0])
    except (ValueError, RecursionError):
        return past, len(lines)
    if head != ["log", VERSION, boot]:
        return past, 0 if isinstance(head, list) and head[:1] == ["log"] else len(lines)
    for raw in lines[1:]:
        if not raw:
            continue  # the aftermath begins a line of its own
        try:
            past.apply(json.loads(raw))
        except (LookupError, TypeError, ValueError, RecursionError):
            wrong += 1
    return past, wrong


class Log:
    """The log of this process. Owns its descriptor.

    A write that fails (a full disk) raises OSError; what was written of the line is cut off again.
    """

    def __init__(self, path: str, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._lines = 0
        self._size = 0
        self._fd = -1
        self._anew: _Anew | None = None

    def start(
        self,
        leases: Iterable[Lease],
        frozen: Iterable[tuple[str, Iterable[str]]],
        limits: Iterable[tuple[str, int | None]] = (),
    ) -> None:
        """Write anew what there is, and go on from there. Raises OSError; then the old log is still there."""
        self.begin(leases, frozen, limits)
        while not self.go_on():
            pass

    def begin(
        self,
        leases: Iterable[Lease],
        frozen: Iterable[tuple[str, Iterable[str]]],
        limits: Iterable[tuple[str, int | None]] = (),
    ) -> None:
        """Begin to write anew, beside the log, which goes on meanwhile. Raises OSError."""
        self._give_up()
        lines: list[list[Any]] = [["log", VERSION, self._boot]]
        lines += [["freeze", target, cause] for target, causes in frozen for cause in causes]
        lines += [["limit", target, size] for target, size in limits]
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        fd = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._anew = _Anew(fd, list(leases))
        self._add(lines)

    def go_on(self) -> bool:
        """One step of what `begin()` began; whether that was the last. Raises OSError; then the old log stays.

        A lease is written as it is by now, and what has happened since `begin()` after all of them: to be told
        twice of a change does no harm, and one that has ended meanwhile is told to end.
        """
        anew = self._anew
        if anew is None:
            return True
        some, anew.leases = anew.leases[-STEP:], anew.leases[:-STEP]
        self._add([["lease", encode(one)] for one in some])
        if anew.leases:
            return False
        self._add([], anew.since)
        try:
            os.rename(self._beside, self._path)
        except BaseException:
            self._give_up()
            raise
        self._anew = None
        self.close()
        self._fd, self._lines, self._size = anew.fd, anew.lines, anew.size
        return True

    @property
    def _beside(self) -> str:
        return self._path + ".new"

    def _add(self, lines: list[list[Any]], more: Sequence[bytes] = ()) -> None:
        anew = self._anew
        assert anew is not None
        data = [_line(line) for line in lines]
        data += more
        try:
            _write(anew.fd, b"".join(data))
        except BaseException:
            self._give_up()
            raise
        anew.lines += len(data)
        anew.size += sum(map(len, data))

    def _give_up(self) -> None:
        """The log stays what it is."""
        anew, self._anew = self._anew, None
        if anew is not None:
            os.close(anew.fd)
            os.unlink(self._beside)

    @property
    def started(self) -> bool:
        return self._fd >= 0

    def discard(self) -> None:
        """There is nothing to remember."""
        self.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass

    def grown(self, leases: int) -> bool:
        """Whether it should be written anew."""
        return self._anew is None and self._lines > SLACK + 4 * leases

    def lease(self, one: Lease) -> None:
        self._append(["lease", encode(one)])

    def state(self, one: Lease) -> None:
        if one.state in ENDS:
            self._append(["end", one.id])
        else:
            self._append(["state", one.id, one.state.value, one.deadline])

    def size(self, one: Lease) -> None:
        self._append(["size", one.id, one.slices[0].size])

    def freeze(self, target: str, cause: str) -> None:
        self._append(["freeze", target, cause])

    def thaw(self, target: str) -> None:
        self._append(["thaw", target])

    def limit(self, target: str, size: int | None) -> None:
        self._append(["limit", target, size])

    def unlimit(self, target: str) -> None:
        self._append(["unlimit", target])

    def close(self) -> None:
        self._give_up()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: list[Any]) -> None:
        if self._fd < 0:
            return  # not started: a daemon without leases keeps no log
        data = _line(line)
        try:
            _write(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._lines += 1
        if self._anew is not None:
            self._anew.since.append(data)


class _Anew:
    """A log that is being written beside the one in use."""

    __slots__ = ("fd", "leases", "lines", "since", "size")

    def __init__(self, fd: int, leases: list[Lease]) -> None:
        self.fd = fd
        self.leases = leases
        self.lines = 0
        self.size = 0
        self.since: list[bytes] = []
        """Lines that the log in use got meanwhile."""


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _line(line: list[Any]) -> bytes:
    return _encode(line).encode() + b"\n"


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def encode(one: Lease) -> dict[str, Any]:
    """A lease as JSON."""
    holder = one.holder
    return {
        "id": one.id,
        "tier": int(one.tier),
        "uid": holder.uid,
        "pid": holder.pid,
        "start": holder.start,
        "unit": holder.unit,
        "target": holder.target,
        "slices": [[part.plane, part.memory, part.size, part.role] for part in one.slices],
        "order": one.order,
        "state": one.state.value,
        "policy": one.policy,
        "lifetime": one.lifetime,
        "deadline": one.deadline,
        "signal": one.signal,
        "bound": one.bound,
    }


def decode(data: dict[str, Any]) -> Lease:
    """Raises LookupError, TypeError, ValueError."""
    return Lease(
        id=_text(data["id"]),
        tier=Tier(data["tier"]),
        holder=Holder(
            _whole(data["uid"]),
            _maybe(data["pid"], _whole),
            _maybe(data["start"], _whole),
            _maybe(data["unit"], _text),
            _text(data["target"]),
        ),
        slices=tuple(Slice(_text(p), _text(m), _whole(size), _text(role)) for p, m, size, role in data["slices"]),
        order=_whole(data["order"]),
        state=State(data["state"]),
        policy=_maybe(data["policy"], _text),
        lifetime=_seconds(data["lifetime"]),
        deadline=_seconds(data["deadline"]),
        signal=_maybe(data["signal"], _text),
        bound=bool(data["bound"]),
    )


def _maybe(value: Any, kind: Callable[[Any], T]) -> T | None:
    return None if value is None else kind(value)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of ours")
    return value


def _seconds(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value < 1e12):
        raise ValueError(f"{value!r} is no time of ours")
    return value  # type: ignore[no-any-return]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is no text")
    return value
