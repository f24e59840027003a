# SPDX-License-Identifier: Apache-2.0
"""The table of leases. No I/O: clocks, sizes and what the kernel reports come in as arguments.

Nobody holds one thing while waiting for another: a request gets all of its slices at once or none, and takes only
from the strictly weaker. So no cycle of waiting can come about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest

from syntrop.inferenced.lease import ENDS, TRANSITIONS, NoRoom, NoSuchLease, OverQuota, State, WrongState, needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Final, TypeVar

    from syntrop.inferenced.lease import Key, Lease, Slice
    from syntrop.inferenced.tier import Tier

    K = TypeVar("K")
    Change = tuple[str, Lease, str | None]
    """What happened (an event's kind of the interface), to which lease, and why."""

ENDED_MAX: Final = 128
"""Ended leases that are remembered, for people who ask what became of one."""
HOLDERS_MAX: Final = 16
"""Leases that a refusal names."""

_KINDS: Final = {State.RELEASED: "released", State.REVOKED: "revoked", State.EXPIRED: "expired"}


@dataclass(slots=True, eq=False)
class Claim:
    """Room that somebody waits for: nobody of the same tier or weaker who came later gets it before."""

    tier: Tier
    needs: dict[str, int]
    """Bytes by plane of memory."""
    victims: dict[str, Lease] = field(default_factory=dict)
    """Leases that were asked to make room for it."""
    stuck: bool = False
    """All leases together have less than it needs: room kept for it would serve nobody."""


class Table:
    """All leases, what each plane lends, and who waits.

    `tell` is called with each `Change` after it is complete.
    """

    def __init__(self, tell: Callable[[Change], None] | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        self.ended: dict[str, Lease] = {}
        self.claims: list[Claim] = []
        self._tell = tell
        self._capacity: dict[str, int] = {}
        self._booked: dict[str, int] = {}
        self._by_uid: dict[int, tuple[int, int]] = {}
        self._by_target: dict[str, dict[str, Lease]] = {}
        self._by_holder: dict[Key, dict[str, Lease]] = {}
        self._parts: dict[str, int] = {}  # parts of leases by plane, and by plane of memory
        self._debits: dict[str, int] = {}
        self._expiries: list[tuple[float, str]] = []
        self._order = 0

    # --- planes ------------------------------------------------------------------------------------------

    def lend(self, plane: str, capacity: int) -> None:
        """Set how many bytes of a plane's memory all leases together may have. May be less than they have now."""
        if capacity != self._capacity.get(plane):
            self._capacity[plane] = capacity
            for claim in self.claims:
                if plane in claim.needs:
                    claim.stuck = self._is_stuck(claim.needs)

    def forget(self, plane: str) -> None:
        """The plane is gone; its leases are revoked first."""
        self._capacity.pop(plane, None)

    def capacity(self, plane: str) -> int:
        return self._capacity.get(plane, 0)

    def booked(self, plane: str) -> int:
        """Sum of the charges on a plane's memory, in bytes."""
        return self._booked.get(plane, 0)

    def room(self, plane: str, tier: Tier | None = None, ahead: Claim | None = None) -> int:
        """Bytes that can be had now by a request of this tier, less what others wait for who come first.

        Those who come first are the claims of a stronger tier, and those of the same tier that are older than
        `ahead` (all of them when it is None). Without a tier, claims do not count.
        """
        free = self.capacity(plane) - self.booked(plane)
        if tier is not None:
            own = len(self.claims) if ahead is None or ahead not in self.claims else self.claims.index(ahead)
            for at, claim in enumerate(self.claims):
                first = claim.tier > tier or (claim.tier == tier and at < own)
                if first and not claim.stuck and claim is not ahead:
                    free -= claim.needs.get(plane, 0)
        return free

    # --- granting ----------------------------------------------------------------------------------------

    def grant(self, lease: Lease, now: float, claim: Claim | None = None) -> Lease:
        """Enter a new lease if there is room for all of its slices. Raises NoRoom; then nothing has changed."""
        needs = needed(lease.slices)
        self.fits(needs, lease.tier, claim)
        if lease.id in self.leases:
            raise ValueError(f"lease {lease.id} exists")
        if claim is not None:
            self.withdraw(claim)
        self._order += 1
        lease.order = self._order
        if lease.lifetime is not None:
            lease.deadline = now + lease.lifetime
            heappush(self._expiries, (lease.deadline, lease.id))
        self._enter(lease)
        self._say("granted", lease)
        return lease

    def restore(self, lease: Lease) -> None:
        """Enter a lease that was granted before a restart, whatever room there is: its holder has the memory."""
        self._order = max(self._order, lease.order)
        if lease.deadline is not None and lease.state is not State.FROZEN:
            heappush(self._expiries, (lease.deadline, lease.id))
        self._enter(lease)

    def fits(self, needs: Mapping[str, int], tier: Tier, claim: Claim | None = None) -> None:
        """Raises NoRoom for the first plane that has too little, with those who hold it."""
        for plane, size in needs.items():
            free = self.room(plane, tier, claim)
            if size > free:
                raise NoRoom(plane, size, free, partial(self.holders, plane))

    def holders(self, plane: str) -> list[Lease]:
        """Up to `HOLDERS_MAX` leases that take memory of a plane, weakest first and the latest of equals first."""
        return nsmallest(
            HOLDERS_MAX,
            (
                one
                for one in self.leases.values()
                if any(p.memory == plane and p.charge(one.state) for p in one.slices)
            ),
            key=lambda one: (one.tier, -one.order),
        )

    def check_quota(self, uid: int, size: int, leases_max: int, bytes_max: int | None) -> None:
        """Raises OverQuota if one more lease of `size` bytes were too much for a user."""
        count, total = self._by_uid.get(uid, (0, 0))
        if count + 1 > leases_max:
            raise OverQuota("leases", count + 1, leases_max)
        if bytes_max is not None and total + size > bytes_max:
            raise OverQuota("bytes", total + size, bytes_max)

    # --- waiting and preempting --------------------------------------------------------------------------

    def claim(self, tier: Tier, needs: Mapping[str, int], *, first: bool = False) -> Claim:
        """Stand in line for room, with `first` before all others of the tier; `withdraw()` it in the end."""
        claim = Claim(tier, dict(needs), stuck=self._is_stuck(needs))
        if first:
            self.claims.insert(0, claim)
        else:
            self.claims.append(claim)
        return claim

    def hopeful(self, tries: int) -> set[Claim]:
        """Claims that it is worth to try again: those with room, and of each tier the first `tries` without, which
        might preempt. The rest stands behind them."""
        free: dict[str, int] = {}
        found: set[Claim] = set()
        without: dict[Tier, int] = {}
        for claim in sorted(self.claims, key=lambda one: -one.tier):
            if claim.stuck:
                continue
            fits = True
            for plane, size in claim.needs.items():
                if plane not in free:
                    free[plane] = self.room(plane)
                free[plane] -= size  # it is kept for this one, whether it is enough or not
                fits = fits and free[plane] >= 0
            if not fits:
                without[claim.tier] = without.get(claim.tier, 0) + 1
            if fits or without[claim.tier] <= tries:
                found.add(claim)
        return found

    def withdraw(self, claim: Claim) -> None:
        if claim in self.claims:
            self.claims.remove(claim)

    def victims(self, claim: Claim, barred: Collection[str] = ()) -> list[Lease]:
        """Leases to ask for their memory so that a claim can be met, in the order in which to ask.

        Strictly weaker ones only, weakest first, of equals the latest; none that is not needed, none of `barred`,
        none that another claim has asked already. Gangs count with all of their slices. Raises NoRoom when all
        of them together would not do: then nobody is bothered.
        """
        taken = set(barred)
        for other in self.claims:
            if other is not claim:
                taken |= other.victims.keys()
        short = {}
        for plane, size in claim.needs.items():
            missing = size - self.room(plane, claim.tier, claim)
            if missing > 0:
                short[plane] = missing
        chosen: list[Lease] = []
        candidates = [
            one
            for one in self.leases.values()
            if one.tier < claim.tier and one.id not in taken and one.state in (State.ACTIVE, State.PREEMPTING)
        ]
        candidates.sort(key=lambda one: (one.tier, -one.order))
        for one in candidates:
            if not short:
                break
            if any(part.memory in short for part in one.slices):
                chosen.append(one)
                for part in one.slices:
                    if part.memory in short:
                        short[part.memory] -= part.size
                        if short[part.memory] <= 0:
                            del short[part.memory]
        for plane, missing in short.items():
            size = claim.needs[plane]
            raise NoRoom(plane, size, size - missing, partial(self.holders, plane))
        return _needed_only(chosen, {p: s - self.room(p, claim.tier, claim) for p, s in claim.needs.items()})

    def ask(self, lease: Lease, claim: Claim, reason: str) -> None:
        """Active → Preempting: the holder has been asked to give its memory up for a claim."""
        claim.victims[lease.id] = lease
        if lease.state is not State.PREEMPTING:
            self._become(lease, State.PREEMPTING, "yield_requested", reason)

    def spare(self, lease: Lease, reason: str = "") -> None:
        """Preempting → Active: it is no longer asked."""
        if lease.state is State.PREEMPTING:
            self._become(lease, State.ACTIVE, "spared", reason)

    def yielded(self, lease: Lease) -> None:
        """→ Preempted: the holder has given its memory up."""
        self._become(lease, State.PREEMPTED, "yielded", "")

    def freeze(self, lease: Lease, now: float, residents: Sequence[int | None], reason: str) -> None:
        """→ Frozen, with what the kernel reports each slice to use. Its expiry stands still."""
        _allow(lease, State.FROZEN)
        if lease.deadline is not None:
            lease.deadline = max(0.0, lease.deadline - now)
        for part, resident in zip(lease.slices, residents, strict=True):
            self._set_resident(lease, part, resident)
        self._become(lease, State.FROZEN, "frozen", reason)

    def measured(self, lease: Lease, residents: Sequence[int | None]) -> None:
        """What the kernel reports now of a frozen lease: memory that was reclaimed from it can be lent."""
        for part, resident in zip(lease.slices, residents, strict=True):
            self._set_resident(lease, part, resident)

    def can_thaw(self, leases: Iterable[Lease]) -> bool:
        """Whether there is room for what these frozen leases were granted, all together."""
        short: dict[str, int] = {}
        for lease in leases:
            for part in lease.slices:
                short[part.memory] = short.get(part.memory, 0) + part.size - part.charge(lease.state)
        return all(size <= 0 or self.room(plane) >= size for plane, size in short.items())

    def thaw(self, lease: Lease, now: float, reason: str = "") -> None:
        """Frozen → Active, booked whole again. Raises NoRoom where what it was granted is lent to others."""
        if lease.state is not State.FROZEN:
            raise WrongState(lease, State.ACTIVE)
        for part in lease.slices:
            more = part.size - part.charge(lease.state)
            if more > 0 and self.room(part.memory) < more:
                raise NoRoom(part.memory, more, self.room(part.memory), partial(self.holders, part.memory))
        self.thaw_anyway(lease, now, reason)

    def thaw_anyway(self, lease: Lease, now: float, reason: str = "") -> None:
        """Frozen → Active because its processes run, for whatever reason: it is booked whole, room or not."""
        _allow(lease, State.ACTIVE)
        if lease.deadline is not None:
            lease.deadline = now + lease.deadline
            heappush(self._expiries, (lease.deadline, lease.id))
        self._become(lease, State.ACTIVE, "thawed", reason)
        for part in lease.slices:
            part.resident = None

    def thaw_within(self, lease: Lease, now: float, reason: str = "") -> None:
        """Frozen → Active because its processes run, with what it has in use of each slice and what there is room
        for: the rest of what it was granted is lent to others."""
        _allow(lease, State.ACTIVE)
        for part in lease.slices:
            used = part.charge(State.FROZEN)
            size = used + min(part.size - used, max(0, self.room(part.memory)))
            self._recount(lease, part, size)
            self._set_resident(lease, part, size)
        self.thaw_anyway(lease, now, reason)
        self._say("resized", lease, reason)

    # --- changing and ending -----------------------------------------------------------------------------

    def resize(self, lease: Lease, size: int, claim: Claim | None = None) -> None:
        """Give a lease of one slice another size. More than it has needs room; raises NoRoom, WrongState.

        A Preempted lease becomes Active again with what it asks for, a Preempting one that shrinks stays asked.
        """
        if lease.state is State.FROZEN or lease.state in ENDS or len(lease.slices) != 1:
            raise WrongState(lease, State.ACTIVE)
        part = lease.slices[0]
        more = size - part.charge(lease.state)
        if more > 0:
            free = self.room(part.memory, lease.tier, claim)
            if more > free:
                raise NoRoom(
                    part.memory,
                    more,
                    free,
                    lambda: [one for one in self.holders(part.memory) if one is not lease],
                )
        if lease.state is State.PREEMPTED:
            self._recount(lease, part, size)
            self._become(lease, State.ACTIVE, "resized", "")
            return
        self._book(part.memory, size - part.size)
        self._recount(lease, part, size)
        self._say("resized", lease)

    def renew(self, lease: Lease, now: float) -> float | None:
        """Put the expiry off; seconds that are left now, None without expiry."""
        if lease.lifetime is None:
            return None
        if lease.state is State.FROZEN:
            lease.deadline = lease.lifetime
        else:
            lease.deadline = now + lease.lifetime
            heappush(self._expiries, (lease.deadline, lease.id))
            if len(self._expiries) > 64 + 4 * len(self.leases):  # renewed often: old entries pile up
                self._expiries = [(d, i) for d, i in self._expiries if self._expires_at(i) == d]
                heapify(self._expiries)
        return lease.lifetime

    def end(self, lease: Lease, state: State, reason: str = "") -> None:
        """Take a lease out. `state` is Released, Revoked or Expired."""
        _allow(lease, state)
        for part in lease.slices:
            self._book(part.memory, -part.charge(lease.state))
            self._count(part, -1)
        count, total = self._by_uid[lease.holder.uid]
        if count == 1:
            del self._by_uid[lease.holder.uid]
        else:
            self._by_uid[lease.holder.uid] = (count - 1, total - lease.size)
        del self.leases[lease.id]
        _discard(self._by_target, lease.holder.target, lease)
        if lease.holder.key is not None:
            _discard(self._by_holder, lease.holder.key, lease)
        lease.state = state
        lease.reason = reason
        self.ended[lease.id] = lease
        while len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]
        self._say(_KINDS[state], lease, reason)

    def expire(self, now: float) -> list[Lease]:
        """End what has run out by now; those leases."""
        gone = []
        while self._expiries and self._expiries[0][0] <= now:
            deadline, lease_id = heappop(self._expiries)
            lease = self.leases.get(lease_id)
            if lease is not None and lease.state is not State.FROZEN and lease.deadline == deadline:
                self.end(lease, State.EXPIRED, "it was not renewed in time")
                gone.append(lease)
        return gone

    def next_expiry(self) -> float | None:
        """When `expire()` should be called next, monotonic seconds."""
        while self._expiries and self._expires_at(self._expiries[0][1]) != self._expiries[0][0]:
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    # --- looking -----------------------------------------------------------------------------------------

    def get(self, lease_id: str) -> Lease:
        """Raises NoSuchLease."""
        found = self.leases.get(lease_id)
        if found is None:
            raise NoSuchLease(lease_id)
        return found

    def of_target(self, target: str) -> list[Lease]:
        """Leases whose holders would be frozen together."""
        return list(self._by_target.get(target, {}).values()) if target else []

    def of_holder(self, key: Key | None) -> list[Lease]:
        """Leases of one process or unit, in the order of granting."""
        return list(self._by_holder.get(key, {}).values()) if key is not None else []

    def holding(self) -> Iterable[Key]:
        """Everybody who holds leases."""
        return self._by_holder.keys()

    def occupied(self, plane: str) -> bool:
        """Whether a lease has a part on a plane."""
        return plane in self._parts

    def lent(self, plane: str) -> bool:
        """Whether a lease has a part in a plane's memory, on whichever plane it computes."""
        return plane in self._debits

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases.values())

    # --- inside ------------------------------------------------------------------------------------------

    def _enter(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        for part in lease.slices:
            self._book(part.memory, part.charge(lease.state))
            self._count(part, 1)
        count, total = self._by_uid.get(lease.holder.uid, (0, 0))
        self._by_uid[lease.holder.uid] = (count + 1, total + lease.size)
        holder = lease.holder
        if holder.target:
            self._by_target.setdefault(holder.target, {})[lease.id] = lease
        if holder.key is not None:
            self._by_holder.setdefault(holder.key, {})[lease.id] = lease

    def _become(self, lease: Lease, state: State, kind: str, reason: str) -> None:
        _allow(lease, state)
        for part in lease.slices:
            self._book(part.memory, part.charge(state) - part.charge(lease.state))
        lease.state = state
        lease.reason = reason
        self._say(kind, lease, reason)

    def _set_resident(self, lease: Lease, part: Slice, resident: int | None) -> None:
        before = part.charge(lease.state)
        part.resident = resident
        self._book(part.memory, part.charge(lease.state) - before)

    def _recount(self, lease: Lease, part: Slice, size: int) -> None:
        count, total = self._by_uid[lease.holder.uid]
        self._by_uid[lease.holder.uid] = (count, total + size - part.size)
        part.size = size

    def _book(self, plane: str, more: int) -> None:
        if more:
            self._booked[plane] = self._booked.get(plane, 0) + more

    def _count(self, part: Slice, more: int) -> None:
        for counts, plane in ((self._parts, part.plane), (self._debits, part.memory)):
            count = counts.get(plane, 0) + more
            if count:
                counts[plane] = count
            else:
                del counts[plane]

    def _is_stuck(self, needs: Mapping[str, int]) -> bool:
        return any(size > self.capacity(plane) for plane, size in needs.items())

    def _expires_at(self, lease_id: str) -> float | None:
        lease = self.leases.get(lease_id)
        return None if lease is None or lease.state is State.FROZEN else lease.deadline

    def _say(self, kind: str, lease: Lease, reason: str | None = None) -> None:
        if self._tell is not None:
            self._tell((kind, lease, reason))


def _allow(lease: Lease, state: State) -> None:
    if state not in TRANSITIONS[lease.state]:
        raise WrongState(lease, state)


def _discard(index: dict[K, dict[str, Lease]], key: K, lease: Lease) -> None:
    together = index.get(key)
    if together is not None:
        together.pop(lease.id, None)
        if not together:
            del index[key]


def _needed_only(chosen: list[Lease], short: Mapping[str, int]) -> list[Lease]:
    """Those without whom it would not do. Taken weakest first, a later one may make an earlier one superfluous."""
    kept = list(chosen)
    for one in sorted(chosen, key=lambda lease: (-lease.tier, lease.order)):
        rest = [other for other in kept if other is not one]
        if all(
            sum(part.size for lease in rest for part in lease.slices if part.memory == plane) >= missing
            for plane, missing in short.items()
            if missing > 0
        ):
            kept = rest
    return kept
