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
"""

from __future__ import annotations

import json
import os

from syntrop.inferenced.lease import ENDS, Holder, Lease, Slice, State
from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

VERSION: Final = 1
SLACK: Final = 4096
"""Lines that may be in the log beyond four for each lease before it is compacted."""


class Past:
    """What a log tells."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.frozen: dict[str, set[str]] = {}
        """Causes by target, in the order of freezing."""

    def apply(self, line: list[Any]) -> None:
        """Raises LookupError, TypeError or ValueError for what is no line of this log."""
        kind = line[0]
        if kind == "lease":
            one = decode(line[1])
            self.leases[one.id] = one
        elif kind == "state":
            one = self.leases[line[1]]
            one.state, one.deadline = State(line[2]), line[3]
        elif kind == "size":
            self.leases[line[1]].slices[0].size = int(line[2])
        elif kind == "end":
            del self.leases[line[1]]
        elif kind == "freeze":
            self.frozen.setdefault(str(line[1]), set()).add(str(line[2]))
        elif kind == "thaw":
            self.frozen.pop(str(line[1]), None)
        else:
            raise ValueError(f"unknown line {kind!r}")


def replay(path: str, boot: str) -> tuple[Past, int]:
    """What the log tells, and how many of its lines made no sense. A log of another boot tells nothing."""
    past, wrong = Past(), 0
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return past, 0
    lines = data.split(b"\n")
    lines.pop()  # what follows the last line end was never finished
    for number, raw in enumerate(lines):
        try:
            if not raw:
                continue  # the aftermath begins a line of its own
            line = json.loads(raw)
            if number == 0:
                if line != ["log", VERSION, boot]:
                    return past, 0 if line[:1] == ["log"] else len(lines)
                continue
            past.apply(line)
        except (LookupError, TypeError, ValueError, AttributeError):
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

    def start(self, leases: Iterable[Lease], frozen: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Write anew what there is, and go on from there. Raises OSError; then the old log is still there."""
        lines: list[list[Any]] = [["log", VERSION, self._boot]]
        lines += [["lease", encode(one)] for one in leases]
        lines += [["freeze", target, cause] for target, causes in frozen for cause in causes]
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        beside = self._path + ".new"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, data)
            os.rename(beside, self._path)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._fd, self._lines, self._size = fd, len(lines), len(data)

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
        return self._lines > SLACK + 4 * leases

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

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: list[Any]) -> None:
        if self._fd < 0:
            return  # not started: a daemon without leases keeps no log
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            _write(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._lines += 1


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
        id=str(data["id"]),
        tier=Tier(data["tier"]),
        holder=Holder(int(data["uid"]), data["pid"], data["start"], data["unit"], str(data["target"])),
        slices=tuple(Slice(str(p), str(m), int(size), str(role)) for p, m, size, role in data["slices"]),
        order=int(data["order"]),
        state=State(data["state"]),
        policy=data["policy"],
        lifetime=data["lifetime"],
        deadline=data["deadline"],
        signal=data["signal"],
        bound=bool(data["bound"]),
    )
