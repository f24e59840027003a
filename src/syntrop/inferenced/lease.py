# SPDX-License-Identifier: Apache-2.0
"""Leases: what one is, what may become of it, and what it takes from a plane. Values only; see `table.py`.

A lease is one slice of memory, or several that stand and fall together (a gang). What it takes from a plane is
its *charge*:

| state      | charge                                                            |
| ---------- | ----------------------------------------------------------------- |
| Active     | what was granted                                                  |
| Preempting | what was granted: it has been asked to give it up                 |
| Preempted  | nothing: its holder said that the memory is free                  |
| Frozen     | what the kernel reports as in use, at most what was granted       |
| others     | nothing: it has ended                                             |

A frozen process keeps its memory, so freezing frees nothing; but it cannot take more, so what it never used can be
lent until it is thawed. Where the kernel does not tell its use, that is the whole grant.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from syntrop.inferenced.tier import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Final

    Key = tuple[int, int] | str


class State(Enum):
    ACTIVE = "Active"
    PREEMPTING = "Preempting"
    PREEMPTED = "Preempted"
    FROZEN = "Frozen"
    RELEASED = "Released"
    REVOKED = "Revoked"
    EXPIRED = "Expired"


_A, _P, _Y, _F = State.ACTIVE, State.PREEMPTING, State.PREEMPTED, State.FROZEN
ENDS: Final = frozenset((State.RELEASED, State.REVOKED, State.EXPIRED))
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    _A: frozenset((_P, _Y, _F)) | ENDS,
    _P: frozenset((_A, _Y, _F)) | ENDS,
    _Y: frozenset((_A,)) | ENDS,
    _F: frozenset((_A,)) | (ENDS - {State.EXPIRED}),  # its clock stands still
    **{end: frozenset() for end in ENDS},
}
"""What may follow what; docs/inferenced.md shows the same table."""


class LeaseError(Exception):
    """A request that cannot be met."""


class NoSuchLease(LeaseError):
    def __init__(self, lease: str) -> None:
        super().__init__(f"no lease {lease}")
        self.lease = lease


class NoRoom(LeaseError):
    """`requested` bytes of `plane` where `available` can be had.

    Most refusals are met by preempting or waiting: who stands in the way is looked up when it is to be told.
    """

    def __init__(
        self, plane: str, requested: int, available: int, holders: Callable[[], Sequence[Lease]] = tuple
    ) -> None:
        super().__init__(f"{requested} bytes of {plane}, of which {available} can be had")
        self.plane = plane
        self.requested = requested
        self.available = max(0, available)
        self._holders = holders

    @property
    def holders(self) -> tuple[Lease, ...]:
        """Leases in the way, as of now."""
        return tuple(self._holders())


class OverQuota(LeaseError):
    """A user would have `requested` of `resource` (leases or bytes) where `limit` are allowed."""

    def __init__(self, resource: str, requested: int, limit: int) -> None:
        super().__init__(f"{requested} {resource}, of which a user may have {limit}")
        self.resource = resource
        self.requested = requested
        self.limit = limit


class WrongState(LeaseError):
    """The lease is not in a state from which this can be done."""

    def __init__(self, lease: Lease, wanted: State) -> None:
        super().__init__(f"lease {lease.id} is {lease.state.value} and cannot become {wanted.value}")
        self.lease = lease
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a lease is for: a process, or a unit."""

    uid: int
    pid: int | None = None
    start: int | None = None
    """Ticks after boot at which the process started: with `pid`, what no other process of this boot has."""
    unit: str | None = None
    target: str = ""
    """What is frozen to stop it: a unit's name, or the path of a control group. Empty: not known, so nothing."""

    @property
    def key(self) -> Key | None:
        """What of it is watched, and tells it from others: a unit's name, or a process by number and start."""
        if self.unit is not None:
            return self.unit
        return None if self.pid is None or self.start is None else (self.pid, self.start)


@dataclass(slots=True)
class Slice:
    """A part of a lease. `memory` is the plane that is debited: `plane` itself, or its host."""

    plane: str
    memory: str
    size: int
    role: str = ""
    resident: int | None = None
    """Bytes in use while frozen, as the kernel reports. None: it does not tell, so all of it."""

    def charge(self, state: State) -> int:
        if state is State.ACTIVE or state is State.PREEMPTING:
            return self.size
        if state is State.FROZEN:
            return self.size if self.resident is None else min(self.size, self.resident)
        return 0


@dataclass(slots=True, eq=False)
class Lease:
    """One lease. Only its table changes it."""

    id: str
    tier: Tier
    holder: Holder
    slices: tuple[Slice, ...]
    order: int
    """Place in the order of grants: of equals, the latest gives first."""
    state: State = State.ACTIVE
    policy: str | None = None
    """Policy of placement of a gang; None for a lease of one slice that was asked for as such."""
    lifetime: float | None = None
    """Seconds that a renewal is good for. None: no expiry."""
    deadline: float | None = None
    """When it expires, monotonic seconds. While it is frozen: seconds that are left."""
    signal: str | None = None
    """Signal that asks the holder to yield."""
    bound: bool = False
    """Whether it also ends with the connection that asked for it."""
    reason: str = ""
    """Why it ended, or stands still."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.slices)


def needed(slices: Iterable[Slice]) -> dict[str, int]:
    """Bytes by plane of memory that slices take together."""
    needs: dict[str, int] = {}
    for part in slices:
        needs[part.memory] = needs.get(part.memory, 0) + part.size
    return needs
