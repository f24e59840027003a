# SPDX-License-Identifier: Apache-2.0
"""The table of leases, driven by a state machine beside a naive account of what everybody has."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from syntrop.inferenced.lease import (
    ENDS,
    TRANSITIONS,
    Holder,
    Lease,
    NoRoom,
    NoSuchLease,
    OverQuota,
    Slice,
    State,
    WrongState,
    needed,
)
from syntrop.inferenced.table import ENDED_MAX, Claim, Table
from syntrop.inferenced.tier import Tier, of_group

PLANES = ("cpu0", "gpu0", "gpu1")
TIERS = st.sampled_from(list(Tier))
SIZES = st.integers(0, 60)


def lease(name: str, tier: Tier, *slices: tuple[str, int], uid: int = 1, **more: object) -> Lease:
    parts = tuple(Slice(plane, plane, size) for plane, size in slices)
    return Lease(name, tier, Holder(uid, pid=7, start=9), parts, 0, **more)  # type: ignore[arg-type]


class Leasing(RuleBasedStateMachine):
    """Capacity may shrink below what is granted; nobody but restored and thawed leases may make use of that."""

    held = Bundle("held")
    waiting = Bundle("waiting")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.told: list[tuple[str, Lease, str | None]] = []
        self.table = Table(self.told.append)
        self.over: set[str] = set()  # planes that hold more than they lend, and rightly so
        for plane in PLANES:
            self.table.lend(plane, 100)

    @rule(
        target=held,
        tier=TIERS,
        sizes=st.dictionaries(st.sampled_from(PLANES), SIZES, min_size=1),
        life=st.none() | st.integers(1, 9),
    )
    def grant(self, tier: Tier, sizes: dict[str, int], life: int | None) -> object:
        self.serial += 1
        one = lease(f"l{self.serial}", tier, *sizes.items(), lifetime=life)
        before = {plane: self.table.booked(plane) for plane in PLANES}
        rooms = {plane: self.table.room(plane, tier) for plane in PLANES}
        try:
            self.table.grant(one, self.now)
        except NoRoom as error:
            assert rooms[error.plane] < sizes[error.plane] == error.requested
            assert before == {plane: self.table.booked(plane) for plane in PLANES}
            assert one.id not in self.table.leases
            return multiple()
        assert all(sizes[plane] <= rooms[plane] for plane in sizes)
        return one

    @rule(target=waiting, tier=TIERS, sizes=st.dictionaries(st.sampled_from(PLANES), SIZES, min_size=1))
    def claim(self, tier: Tier, sizes: dict[str, int]) -> Claim:
        return self.table.claim(tier, sizes)

    @rule(claim=waiting)
    def look_for_victims(self, claim: Claim) -> None:
        if claim not in self.table.claims:
            return
        short = {p: s - self.table.room(p, claim.tier, claim) for p, s in claim.needs.items()}
        try:
            victims = self.table.victims(claim)
        except NoRoom:
            return
        assert all(one.tier < claim.tier for one in victims)
        give = needed(part for one in victims for part in one.slices)
        assert all(give.get(plane, 0) >= missing for plane, missing in short.items())
        for one in victims:  # and nobody is asked for nothing
            rest = needed(part for other in victims if other is not one for part in other.slices)
            assert any(rest.get(plane, 0) < missing for plane, missing in short.items() if missing > 0)
        for one in victims:
            self.table.ask(one, claim, "wanted")

    @rule(claim=consumes(waiting))
    def withdraw(self, claim: Claim) -> None:
        self.table.withdraw(claim)
        for one in claim.victims.values():
            self.table.spare(one)
            assert one.state is not State.PREEMPTING or one.id not in self.table.leases

    @rule(one=held)
    def give_up(self, one: Lease) -> None:
        self.attempt(one, State.PREEMPTED, lambda: self.table.yielded(one))

    @rule(one=held, used=st.none() | SIZES)
    def freeze(self, one: Lease, used: int | None) -> None:
        self.attempt(one, State.FROZEN, lambda: self.table.freeze(one, self.now, [used] * len(one.slices), "why"))

    @rule(one=held, used=st.none() | SIZES)
    def measure(self, one: Lease, used: int | None) -> None:
        if one.id in self.table.leases and one.state is State.FROZEN:
            self.table.measured(one, [used] * len(one.slices))
            self.over |= {part.memory for part in one.slices}

    @rule(one=held)
    def thaw(self, one: Lease) -> None:
        if one.id not in self.table.leases:
            return
        possible = self.table.can_thaw([one])
        try:
            self.table.thaw(one, self.now)
        except NoRoom:
            assert not possible
        except WrongState:
            assert one.state is not State.FROZEN
        else:
            assert possible
            assert one.state is State.ACTIVE

    @rule(one=held)
    def thaw_within(self, one: Lease) -> None:
        if one.id in self.table.leases and one.state is State.FROZEN:
            room = {plane: max(0, self.table.room(plane)) for plane in PLANES}
            booked = {plane: self.table.booked(plane) for plane in PLANES}
            self.table.thaw_within(one, self.now)
            assert one.state is State.ACTIVE
            assert all(self.table.booked(plane) <= booked[plane] + room[plane] for plane in PLANES)

    @rule(one=held)
    def thaw_anyway(self, one: Lease) -> None:
        if one.id in self.table.leases and one.state is State.FROZEN:
            self.table.thaw_anyway(one, self.now)
            self.over |= {part.memory for part in one.slices}

    @rule(one=held, size=SIZES)
    def resize(self, one: Lease, size: int) -> None:
        if one.id not in self.table.leases:
            return
        before = one.slices[0].size
        try:
            self.table.resize(one, size)
        except NoRoom:
            assert one.slices[0].size == before
        except WrongState:
            assert one.state is State.FROZEN or len(one.slices) > 1
        else:
            assert one.slices[0].size == size

    @rule(one=held, state=st.sampled_from(sorted(ENDS, key=lambda state: state.value)))
    def end(self, one: Lease, state: State) -> None:
        self.attempt(one, state, lambda: self.table.end(one, state))

    @rule(one=held)
    def renew(self, one: Lease) -> None:
        if one.id in self.table.leases:
            assert self.table.renew(one, self.now) == one.lifetime

    @rule(plane=st.sampled_from(PLANES), capacity=st.integers(0, 150))
    def lend(self, plane: str, capacity: int) -> None:
        self.table.lend(plane, capacity)
        if self.table.booked(plane) > capacity:
            self.over.add(plane)

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        due = self.table.next_expiry()
        gone = self.table.expire(self.now)
        assert bool(gone) == (due is not None and due <= self.now)
        for one in gone:
            assert one.state is State.EXPIRED

    def attempt(self, one: Lease, state: State, act: object) -> None:
        if one.id not in self.table.leases:
            return
        allowed = state in TRANSITIONS[one.state]
        before = one.state
        try:
            act()  # type: ignore[operator]
        except WrongState:
            assert not allowed
            assert one.state is before
        else:
            assert allowed
            assert one.state is state

    @invariant()
    def every_byte_is_booked_once(self) -> None:
        for plane in PLANES:
            charges = sum(
                part.charge(one.state) for one in self.table for part in one.slices if part.memory == plane
            )
            assert charges == self.table.booked(plane)
            if plane not in self.over:
                assert charges <= self.table.capacity(plane)
            elif charges <= self.table.capacity(plane):
                self.over.discard(plane)

    @invariant()
    def quotas_count_what_is_there(self) -> None:
        count, total = len(self.table.leases), sum(one.size for one in self.table)
        if count:
            with pytest.raises(OverQuota) as refused:
                self.table.check_quota(1, 0, count, None)
            assert refused.value.requested == count + 1
        self.table.check_quota(1, 5, count + 1, total + 5)

    @invariant()
    def nothing_expired_is_left(self) -> None:
        for one in self.table:
            if one.lifetime is not None and one.state is not State.FROZEN:
                assert one.deadline is not None
                assert one.deadline > self.now


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_states_are_those_of_the_documents() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == ENDS
    assert State.EXPIRED not in TRANSITIONS[State.FROZEN]


def test_an_older_claim_of_the_same_tier_comes_first() -> None:
    table = Table()
    table.lend("gpu0", 100)
    first = table.claim(Tier.INTERACTIVE, {"gpu0": 80})
    second = table.claim(Tier.INTERACTIVE, {"gpu0": 30})
    assert table.room("gpu0", Tier.INTERACTIVE, first) == 100
    assert table.room("gpu0", Tier.INTERACTIVE, second) == 20
    assert table.room("gpu0", Tier.BATCH) == -10
    assert table.room("gpu0", Tier.EMERGENCY) == 100


def test_victims_are_the_weakest_and_the_latest_and_no_more_than_needed() -> None:
    table = Table()
    table.lend("gpu0", 100)
    for name, tier, size in (
        ("a", Tier.BATCH, 20),
        ("b", Tier.BATCH, 30),
        ("c", Tier.INTERACTIVE, 40),
        ("d", Tier.BATCH, 10),
    ):
        table.grant(lease(name, tier, ("gpu0", size)), 0.0)

    def victims(tier: Tier, size: int) -> list[str]:
        claim = table.claim(tier, {"gpu0": size})
        try:
            return [one.id for one in table.victims(claim)]
        finally:
            table.withdraw(claim)

    assert victims(Tier.INTERACTIVE, 10) == ["d"]
    assert victims(Tier.INTERACTIVE, 30) == ["b"]  # the latest, d, would not be missed
    assert victims(Tier.INTERACTIVE, 60) == ["d", "b", "a"]
    assert victims(Tier.EMERGENCY, 100) == ["d", "b", "a", "c"]
    with pytest.raises(NoRoom) as refused:
        victims(Tier.INTERACTIVE, 61)
    assert (refused.value.requested, refused.value.available) == (61, 60)
    assert [one.id for one in refused.value.holders] == ["d", "b", "a", "c"]
    with pytest.raises(NoRoom):
        victims(Tier.BATCH, 1)


def test_a_gang_gives_as_one() -> None:
    table = Table()
    for plane in ("gpu0", "gpu1"):
        table.lend(plane, 100)
    gang = table.grant(lease("gang", Tier.BATCH, ("gpu0", 60), ("gpu1", 60)), 0.0)
    claim = table.claim(Tier.INTERACTIVE, {"gpu1": 80})
    assert table.victims(claim) == [gang]
    table.ask(gang, claim, "wanted")
    table.yielded(gang)
    assert (table.room("gpu0"), table.room("gpu1")) == (100, 100)


def test_nobody_is_asked_by_two_at_once() -> None:
    table = Table()
    table.lend("gpu0", 100)
    one = table.grant(lease("one", Tier.BATCH, ("gpu0", 100)), 0.0)
    first = table.claim(Tier.INTERACTIVE, {"gpu0": 50})
    for victim in table.victims(first):
        table.ask(victim, first, "wanted")
    second = table.claim(Tier.INTERACTIVE, {"gpu0": 50})
    with pytest.raises(NoRoom):
        table.victims(second)
    table.yielded(one)
    table.fits(first.needs, first.tier, first)
    table.fits(second.needs, second.tier, second)


def test_expiry_stands_still_while_frozen() -> None:
    table = Table()
    table.lend("gpu0", 100)
    one = table.grant(lease("one", Tier.BATCH, ("gpu0", 10), lifetime=10.0), 100.0)
    assert table.next_expiry() == 110.0
    table.freeze(one, 104.0, [3], "why")
    assert (table.next_expiry(), table.booked("gpu0")) == (None, 3)
    assert table.expire(1000.0) == []
    table.thaw(one, 1000.0)
    assert (table.next_expiry(), table.booked("gpu0")) == (1006.0, 10)
    assert table.expire(1006.0) == [one]
    assert table.booked("gpu0") == 0


def test_what_a_frozen_one_never_used_is_lent_and_kept_from_it_until_it_is_back() -> None:
    table = Table()
    table.lend("gpu0", 100)
    idle = table.grant(lease("idle", Tier.BATCH, ("gpu0", 100)), 0.0)
    table.freeze(idle, 0.0, [30], "why")
    table.grant(lease("new", Tier.INTERACTIVE, ("gpu0", 70)), 0.0)
    with pytest.raises(NoRoom):
        table.thaw(idle, 1.0)
    assert idle.state is State.FROZEN
    table.end(table.get("new"), State.RELEASED)
    table.thaw(idle, 2.0)
    assert table.booked("gpu0") == 100


def test_who_runs_while_its_memory_is_lent_has_what_it_uses_and_what_is_free() -> None:
    told: list[str] = []
    table = Table(lambda change: told.append(change[0]))
    table.lend("gpu0", 100)
    table.lend("cpu0", 50)
    gang = table.grant(lease("gang", Tier.BATCH, ("gpu0", 60), ("gpu0", 30), ("cpu0", 20), lifetime=10.0), 0.0)
    table.freeze(gang, 0.0, [20, 5, None], "why")
    table.grant(lease("new", Tier.INTERACTIVE, ("gpu0", 70)), 0.0)
    table.thaw_within(gang, 100.0, "lent")
    assert [part.size for part in gang.slices] == [25, 5, 20]
    assert (gang.state, gang.reason, gang.deadline) == (State.ACTIVE, "lent", 110.0)
    assert (table.booked("gpu0"), table.booked("cpu0")) == (100, 20)
    assert told[-2:] == ["thawed", "resized"]
    table.end(table.get("new"), State.RELEASED)
    table.end(gang, State.RELEASED)
    assert (table.booked("gpu0"), table.booked("cpu0")) == (0, 0)


def test_ended_leases_are_remembered_for_a_while() -> None:
    table = Table()
    table.lend("gpu0", 100)
    for at in range(ENDED_MAX + 5):
        table.end(table.grant(lease(f"l{at}", Tier.BATCH, ("gpu0", 1)), 0.0), State.RELEASED, "done")
    assert len(table.ended) == ENDED_MAX
    with pytest.raises(NoSuchLease):
        table.get("l0")


def test_slices_of_the_tree_speak_for_tiers() -> None:
    slices = {"user.slice": Tier.INTERACTIVE, "system.slice": Tier.BATCH, "user-1000.slice": Tier.BATCH}
    assert of_group("/user.slice/user-1001.slice/session-1.scope", slices) is Tier.INTERACTIVE
    assert of_group("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", slices) is Tier.BATCH
    assert of_group("/system.slice/x.service", slices) is Tier.BATCH
    assert of_group("/init.scope", slices) is None


def test_what_no_release_could_meet_keeps_nothing_back() -> None:
    table = Table()
    table.lend("a", 10)
    table.lend("b", 10)
    huge = table.claim(Tier.INTERACTIVE, {"a": 11, "b": 1})
    small = table.claim(Tier.INTERACTIVE, {"a": 4})
    assert huge.stuck and not small.stuck
    assert table.room("a", Tier.INTERACTIVE, small) == 10
    assert table.hopeful(0) == {small}
    table.lend("a", 11)  # others gave some back
    assert not huge.stuck
    assert table.room("a", Tier.INTERACTIVE, small) == 0
    assert table.hopeful(0) == {huge}
    assert table.hopeful(1) == {huge, small}


def test_where_leases_are_is_known_without_a_look_at_each() -> None:
    table = Table()
    table.lend("a", 10)
    one, two = lease("one", Tier.BATCH, ("a", 1)), lease("two", Tier.BATCH, ("a", 2), uid=2)
    for held in (one, two):
        table.grant(held, 0.0)
    assert table.occupied("a") and table.lent("a") and not table.occupied("b")
    table.end(one, State.RELEASED)
    assert table.occupied("a")
    table.end(two, State.RELEASED)
    assert not table.occupied("a") and not table.lent("a")
