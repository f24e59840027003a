# SPDX-License-Identifier: Apache-2.0
"""The arbiter over doubles of kernel and service manager: whatever is asked, refused, given up or cut short at any
await, nothing is lent twice, nobody stays frozen for nothing, and what failed leaves no trace."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import loop
from syntrop.inferenced.arbiter import OPERATOR, Arbiter, Limits
from syntrop.inferenced.lease import Holder, Lease, NoRoom, Slice, State, WrongState
from syntrop.inferenced.standstill import FreezeError
from syntrop.inferenced.table import Claim, Table
from syntrop.inferenced.tier import Tier

CAPACITY = 100
PLANES = ("cpu0", "gpu0")
TURNS_MAX = 20_000
ASKERS = int(os.environ.get("SYNTROP_ASKERS", "50"))
"""How many ask for gangs at once, ten times each."""


async def turns(count: int) -> None:
    for _ in range(count):
        await loop.sleep(0)


@dataclass
class Host:
    """Kernel, service manager and holders. Everything takes a few turns of the loop."""

    table: Table
    delay: Callable[[], int] = lambda: 2
    uses: dict[str, int | None] = field(default_factory=dict)
    """Bytes that a lease's holder has in use of each slice."""
    standing: list[str] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)
    """Targets whose freezing fails after a while."""
    stuck: int = 0
    """How many attempts to thaw fail before one succeeds."""
    listening: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    thawed: list[str] = field(default_factory=list)
    swap: int = 0
    """Bytes that can be pushed out of each lease."""

    async def refresh(self, planes: Iterable[str], *, exact: bool) -> None:
        await turns(self.delay() if exact else 0)
        for plane in planes:
            self.table.lend(plane, CAPACITY)

    async def residents(self, lease: Lease, *, exact: bool = True) -> list[int | None]:
        await turns(self.delay())
        return [self.uses.get(lease.id, 0) for _ in lease.slices]

    def pushes(self, lease: Lease) -> bool:
        return self.swap > 0

    async def push_out(self, lease: Lease, size: int, seconds: float) -> None:
        await turns(self.delay())
        assert lease.holder.target in self.standing
        self.uses[lease.id] = max(0, (self.uses.get(lease.id) or 0) - min(size, self.swap))

    def check(self, target: str) -> None:
        if not target or target.startswith("never"):
            raise FreezeError(f"{target} is not to be frozen", target)

    def expect(self, target: str) -> None:
        self.expected.append(target)

    async def freeze(self, target: str, cause: str, seconds: float) -> None:
        self.check(target)
        assert target not in self.standing
        await turns(self.delay())
        if target in self.refusing:
            raise FreezeError(f"{target} could not be frozen", target)
        self.standing.append(target)
        try:
            await turns(self.delay())
        except BaseException:
            self.standing.remove(target)
            raise

    async def thaw(self, target: str, seconds: float) -> None:
        await turns(self.delay())
        if self.stuck:
            self.stuck -= 1
            raise FreezeError(f"{target} could not be thawed", target)
        if target in self.standing:
            self.standing.remove(target)
            self.thawed.append(target)

    def reaches(self, lease: Lease) -> bool:
        return lease.id in self.listening

    def ask(self, lease: Lease, size: int, deadline_ms: int | None, reason: str) -> None:
        self.asked.append(lease.id)

    def check_books(self) -> None:
        """Nobody who runs has memory that somebody else has, too."""
        for plane in PLANES:
            booked = held = 0
            for one in self.table:
                for part in one.slices:
                    if part.memory == plane:
                        booked += part.charge(one.state)
                        runs = one.holder.target not in self.standing
                        held += part.size if runs and one.state is State.FROZEN else part.charge(one.state)
            assert booked == self.table.booked(plane)
            assert held <= CAPACITY, [(one.id, one.state, one.slices) for one in self.table]


class Lined(Table):
    """Knows by which task each claim was made."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[loop.Task[Any], str] = {}
        """Requests that were begun, by the identifier of the lease that is wanted."""
        self.requests: dict[str, Claim] = {}

    def claim(self, tier: Tier, needs: Mapping[str, int], *, first: bool = False) -> Claim:
        made = super().claim(tier, needs, first=first)
        wanted = self.tasks.get(loop.current())
        if wanted is not None:
            self.requests[wanted] = made
        return made


def waits(table: Lined, arbiter: Arbiter) -> dict[Claim | Lease, set[Claim | Lease]]:
    """The wait-for graph: what each request in line, and each lease that stands still, waits for. One of those it
    waits for is enough. Who runs or decides waits for nobody."""
    in_line = set(arbiter.in_line())
    found: dict[Claim | Lease, set[Claim | Lease]] = {}

    def holding(planes: Iterable[str], but: Iterable[Lease] = ()) -> set[Claim | Lease]:
        return {
            one
            for one in table
            if one not in but and any(part.memory in planes and part.charge(one.state) for part in one.slices)
        }

    for at, claim in enumerate(table.claims):
        if claim not in in_line:
            continue
        short = {plane for plane, size in claim.needs.items() if size > table.room(plane, claim.tier, claim)}
        before = [one for one in table.claims if one.tier > claim.tier]
        before += [one for one in table.claims[:at] if one.tier == claim.tier]
        first = {one for one in before if short & one.needs.keys()}
        found[claim] = holding(short) | first
    for standstill in arbiter.standing:
        held = standstill.held()
        for one in held:
            if standstill.causes:
                # An operator may let it go any time; so does a request that ends.
                found[one] = {table.leases[name] for name in standstill.causes if name in table.leases}
                asking = {table.requests[name] for name in standstill.causes if name in table.requests}
                found[one] |= asking & set(table.claims)
            elif not table.can_thaw(held):
                short = {part.memory for part in one.slices if part.size > part.charge(one.state)}
                found[one] = holding(short, held)
    return found


def check_waits(table: Lined, arbiter: Arbiter) -> int:
    """Whoever waits, somebody who does not can end it: there is no circle that nobody outside could open, and no
    request in line stands in one at all. How many wait."""
    graph = waits(table, arbiter)
    opened = {one for targets in graph.values() for one in targets if one not in graph}
    opened |= {one for one, targets in graph.items() if not targets}
    backwards: dict[Claim | Lease, list[Claim | Lease]] = {}
    for one, targets in graph.items():
        for target in targets:
            backwards.setdefault(target, []).append(one)
    todo = list(opened)
    while todo:
        for one in backwards.get(todo.pop(), ()):
            if one not in opened:
                opened.add(one)
                todo.append(one)
    assert not graph.keys() - opened, f"these wait for each other: {graph.keys() - opened}"
    for claim in graph:
        if isinstance(claim, Claim):
            seen: set[Claim | Lease] = set()
            todo = list(graph[claim])
            while todo:
                one = todo.pop()
                if one not in seen:
                    seen.add(one)
                    todo += graph.get(one, ())
            assert claim not in seen, f"{claim} waits for itself"
    return len(graph)


def make(waiting_max: int = 64, **more: Any) -> tuple[Lined, Host, Arbiter]:
    table = Lined()
    for plane in PLANES:
        table.lend(plane, CAPACITY)
    host = Host(table, **more)
    limits = Limits(yield_sec=0.01, freeze_sec=5.0, push_out_sec=5.0, waiting_max=waiting_max)
    return table, host, Arbiter(table, host, host, host, limits)


def lease(name: str, tier: Tier, *sizes: int, target: str | None = None, plane: str = "cpu0") -> Lease:
    holder = Holder(1, pid=7, start=9, target=f"{name}.service" if target is None else target)
    return Lease(name, tier, holder, tuple(Slice(plane, plane, size) for size in sizes), 0)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if condition():
            return
        await loop.sleep(0.0005)
    raise AssertionError("it never came to that")


def shape(table: Table) -> dict[str, tuple[State, list[int | None], list[int]]]:
    return {
        one.id: (one.state, [part.resident for part in one.slices], [part.size for part in one.slices])
        for one in table
    }


# --- one after the other ---------------------------------------------------------------------------------------


def scene(**more: Any) -> tuple[Table, Host, Arbiter, Callable[[], Coroutine[Any, Any, Lease]]]:
    """Three Batch leases of which all have to stand still for what an Interactive one wants."""
    table, host, arbiter = make(**more)

    async def want() -> Lease:
        return await arbiter.acquire(lease("urgent", Tier.INTERACTIVE, 85))

    return table, host, arbiter, want


async def fill(arbiter: Arbiter, host: Host) -> None:
    for number in range(3):
        await arbiter.acquire(lease(f"batch{number}", Tier.BATCH, 20, 10))
        host.uses[f"batch{number}"] = 2


@pytest.mark.parametrize("point", range(60))
def test_given_up_at_any_await_it_leaves_no_trace(point: int) -> None:
    table, host, arbiter, want = scene()

    async def main() -> bool:
        await fill(arbiter, host)
        before = shape(table)
        task = loop.spawn(want())
        await turns(point)
        host.check_books()
        ended = task.done
        if ended:
            assert len(host.standing) == 3
            arbiter.end(table.get("urgent"), State.RELEASED)
        else:
            await loop.stop(task)
        await until(lambda: not arbiter.standing and not host.standing)
        host.check_books()
        assert shape(table) == before
        assert table.claims == []
        return ended

    assert loop.run(main()) in (True, False)


def test_the_last_of_those_awaits_is_beyond_the_grant() -> None:
    """So that the test before this one has tried them all."""
    _, host, arbiter, want = scene()

    async def main() -> bool:
        await fill(arbiter, host)
        task = loop.spawn(want())
        await turns(59)
        return task.done

    assert loop.run(main())


@pytest.mark.parametrize("refusing", ["batch0.service", "batch1.service", "batch2.service"])
def test_what_cannot_be_had_is_refused_and_all_that_was_begun_is_undone_backwards(refusing: str) -> None:
    table, host, arbiter, want = scene(refusing={refusing})

    async def main() -> None:
        await fill(arbiter, host)
        before = shape(table)
        with pytest.raises(NoRoom) as refused:
            await want()
        assert (refused.value.requested, refused.value.plane) == (85, "cpu0")
        await until(lambda: not arbiter.standing)
        frozen = [name for name in ("batch2.service", "batch1.service", "batch0.service") if name != refusing]
        assert host.thawed == list(reversed(frozen))
        assert shape(table) == before

    loop.run(main())


def test_nobody_stands_still_where_it_would_not_do() -> None:
    _, host, arbiter, want = scene()

    async def main() -> None:
        await fill(arbiter, host)
        host.uses.update({f"batch{number}": 9 for number in range(3)})
        with pytest.raises(NoRoom):
            await want()
        assert (host.standing, host.thawed) == ([], [])

    loop.run(main())


def test_what_is_pushed_out_is_lent() -> None:
    table, host, arbiter, want = scene(swap=50)

    async def main() -> None:
        await fill(arbiter, host)
        host.uses.update({f"batch{number}": 9 for number in range(3)})
        await want()
        host.check_books()
        assert table.booked("cpu0") <= CAPACITY

    loop.run(main())


def test_who_gives_way_is_not_frozen() -> None:
    table, host, arbiter, want = scene(listening={"batch0", "batch1", "batch2"})

    async def main() -> None:
        await fill(arbiter, host)
        task = loop.spawn(want())
        await until(lambda: len(host.asked) == 3)
        # While they are asked, a freeze is made ready for, should they not give in.
        assert len(host.expected) == 3
        for number in range(3):
            arbiter.yielded(table.get(f"batch{number}"))
        await task
        assert host.standing == []
        assert {one.state for one in table if one.tier is Tier.BATCH} == {State.PREEMPTED}

    loop.run(main())


def test_who_asks_stands_in_nobodys_way_and_is_never_stopped_itself() -> None:
    table, host, arbiter = make()

    async def main() -> None:
        await arbiter.acquire(lease("mine", Tier.BATCH, 60, target="shared.service"))
        for wanted, barred in (
            (lease("urgent", Tier.INTERACTIVE, 60, target="shared.service"), frozenset({"shared.service"})),
            (lease("other", Tier.INTERACTIVE, 60), frozenset({"shared.service"})),
        ):
            with pytest.raises(NoRoom):
                await arbiter.acquire(wanted, barred=lambda barred=barred: barred)  # type: ignore[misc]
        table.get("mine").tier = Tier.BATCH
        await arbiter.acquire(lease("equal", Tier.INTERACTIVE, 10, target="shared.service"))
        with pytest.raises(NoRoom):  # an equal's unit would stop with it
            await arbiter.acquire(lease("third", Tier.INTERACTIVE, 60))
        assert (host.standing, host.thawed) == ([], [])

    loop.run(main())


def test_a_resize_that_is_given_up_thaws_whom_it_froze() -> None:
    async def given_up(point: int) -> bool:
        table, host, arbiter = make()
        await arbiter.acquire(lease("batch", Tier.BATCH, 50))
        growing = await arbiter.acquire(lease("urgent", Tier.INTERACTIVE, 40))
        task = loop.spawn(arbiter.resize(growing, 90))
        await turns(point)
        if task.done:
            return True
        await loop.stop(task)
        await until(lambda: not arbiter.standing and not host.standing)
        assert {one.id: one.state for one in table} == {"batch": State.ACTIVE, "urgent": State.ACTIVE}
        assert growing.size == 40
        return False

    async def main() -> None:
        point = 0
        while not await given_up(point):
            point += 1
        assert point > 5

    loop.run(main())


def test_an_expired_lease_of_a_frozen_unit_does_not_keep_it_frozen() -> None:
    table, host, arbiter = make()

    async def main() -> None:
        gone = lease("gone", Tier.BATCH, 30, target="unit.service")
        gone.lifetime = 0.05
        await arbiter.acquire(gone)
        arbiter.yielded(gone)
        await arbiter.acquire(lease("batch", Tier.BATCH, 60, target="unit.service"))
        urgent = await arbiter.acquire(lease("urgent", Tier.INTERACTIVE, 90))
        assert host.standing == ["unit.service"]
        await loop.sleep(0.06)
        arbiter.expire()
        assert gone.state is State.EXPIRED
        arbiter.end(urgent, State.RELEASED)
        await until(lambda: host.standing == [])
        assert table.get("batch").state is State.ACTIVE

    loop.run(main())


def test_what_cannot_be_thawed_is_tried_again() -> None:
    table, host, arbiter, want = scene(stuck=1)

    async def main() -> None:
        await fill(arbiter, host)
        arbiter.end(await want(), State.RELEASED)
        await until(lambda: host.standing == [])
        assert {one.state for one in table} == {State.ACTIVE}

    loop.run(main())


def test_a_circle_would_be_seen() -> None:
    """That the graph of who waits for whom tells what it is there for."""
    table, _, arbiter = make()

    async def main() -> None:
        held = await arbiter.acquire(lease("held", Tier.BATCH, 80, target="never.service"))
        task = loop.spawn(arbiter.acquire(lease("asking", Tier.INTERACTIVE, 60), 60.0))
        table.tasks[task] = "asking"
        await until(lambda: len(arbiter.in_line()) == 1)
        assert check_waits(table, arbiter) == 1
        table.freeze(held, 0.0, [50], "a fault")
        arbiter.standing.adopt(held.holder.target, [held], ["asking"])
        with pytest.raises(AssertionError, match="wait for each other"):
            check_waits(table, arbiter)
        await loop.stop(task)

    loop.run(main())


# --- all at once -----------------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(
        st.just("acquire"),
        st.sampled_from(list(Tier)),
        st.lists(st.tuples(st.sampled_from(PLANES), st.integers(1, 60)), min_size=1, max_size=3),
        st.sampled_from(["a.service", "b.service", "c.service", "never.service", ""]),
        st.booleans(),  # whether it listens, and then gives way
        st.integers(0, 40) | st.none(),  # bytes in use of each slice
    ),
    st.tuples(st.just("give up"), st.integers(0, 5)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("resize"), st.integers(0, 9), st.integers(1, 90)),
    st.tuples(st.just("freeze"), st.integers(0, 9)),
    st.tuples(st.just("thaw"), st.integers(0, 9)),
    st.tuples(st.just("refuse"), st.sampled_from(["a.service", "b.service", "c.service"])),
    st.tuples(st.just("turns"), st.integers(1, 12)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_whatever_happens_at_once(actions: list[tuple[Any, ...]], delays: list[int]) -> None:
    ticks = iter(range(1 << 30))
    table, host, arbiter = make(delay=lambda: delays[next(ticks) % len(delays)])
    tasks: list[loop.Task[Any]] = []

    def pick(number: int) -> Lease | None:
        there = list(table)
        return there[number % len(there)] if there else None

    async def refused(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        try:
            await function(*arguments)
        except (NoRoom, WrongState, FreezeError):
            pass

    def act(count: int, action: tuple[Any, ...]) -> None:
        kind, *rest = action
        if kind == "acquire":
            tier, sizes, target, listens, uses = rest
            wanted = lease(f"l{count}", tier, target=target)
            wanted.slices = tuple(Slice(plane, plane, size) for plane, size in sizes)
            host.uses[wanted.id] = uses
            if listens:
                host.listening.add(wanted.id)
            barred = frozenset({target}) if target else frozenset()
            tasks.append(loop.spawn(refused(arbiter.acquire, wanted, 0.02, lambda: barred)))
            table.tasks[tasks[-1]] = wanted.id
        elif kind == "give up":
            pending = [task for task in tasks if not task.done]
            if pending:
                pending[rest[0] % len(pending)].cancel()
        elif kind == "refuse":
            host.refusing ^= {rest[0]}
        elif (one := pick(rest[0])) is not None:
            if kind == "release":
                arbiter.end(one, State.RELEASED)
            elif kind == "resize" and len(one.slices) == 1:
                tasks.append(loop.spawn(refused(arbiter.resize, one, rest[1])))
            elif kind == "freeze":
                tasks.append(loop.spawn(refused(arbiter.freeze, one)))
            elif kind == "thaw":
                tasks.append(loop.spawn(refused(arbiter.thaw, one)))

    async def main() -> None:
        for count, action in enumerate(actions):
            if action[0] == "turns":
                for _ in range(action[1]):
                    await loop.sleep(0)
                    host.check_books()
                    check_waits(table, arbiter)
                    for name in list(host.asked):
                        host.asked.remove(name)
                        one = table.leases.get(name)
                        if one is not None and name in host.listening and one.state is State.PREEMPTING:
                            arbiter.yielded(one)
            else:
                act(count, action)
                host.check_books()
                check_waits(table, arbiter)
        host.refusing.clear()
        await until(lambda: all(task.done for task in tasks))
        host.check_books()
        # Whom nobody needs to stand still for any more goes on, at the latest once the others have ended.
        for standstill in arbiter.standing:
            standstill.causes.discard(OPERATOR)
        for one in list(table):
            if one.tier is not Tier.BATCH:
                arbiter.end(one, State.RELEASED)
        arbiter.wake()
        await until(lambda: not arbiter.standing and not host.standing)
        host.check_books()
        assert {one.state for one in table} <= {State.ACTIVE, State.PREEMPTED}
        assert table.claims == []

    loop.run(main())


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_gangs_of_a_crowd_never_wait_in_a_circle(seed: int) -> None:
    """Many who ask at once, in gangs on both planes, of all tiers and for a while."""
    chance = random.Random(seed)
    table, host, arbiter = make(waiting_max=4096, delay=lambda: chance.randrange(3))
    askers, each = ASKERS, 10
    outcome = {"granted": 0, "refused": 0}
    most = 0

    async def ask(number: int) -> None:
        target = f"t{number % 50}.service"
        for turn in range(each):
            tier = chance.choice([Tier.BATCH, Tier.BATCH, Tier.INTERACTIVE, Tier.EMERGENCY])
            wanted = lease(f"{number}.{turn}", tier, target=target)
            wanted.slices = tuple(
                Slice(plane, plane, chance.randint(1, 40)) for plane in chance.sample(PLANES, chance.randint(1, 2))
            )
            wanted.policy = "BestEffort"
            host.uses[wanted.id] = chance.choice([None, 0, 3, 5, 5])
            table.tasks[loop.current()] = wanted.id
            if not chance.randrange(4):
                host.refusing ^= {target}
            try:
                await arbiter.acquire(wanted, chance.choice([0.0, 0.05, 0.1]), lambda: frozenset({target}))
            except NoRoom:
                outcome["refused"] += 1
                continue
            outcome["granted"] += 1
            await loop.sleep(chance.choice([0.0, 0.005, 0.02]))
            if wanted.id in table.leases:
                arbiter.end(wanted, State.RELEASED)

    async def main() -> None:
        nonlocal most
        tasks = [loop.spawn(ask(number)) for number in range(askers)]
        while not all(task.done for task in tasks):
            await loop.sleep(0.005)
            host.check_books()
            most = max(most, check_waits(table, arbiter))
        for task in tasks:
            task.result()
        await until(lambda: not table.leases and not arbiter.standing and not host.standing)
        assert table.claims == []

    loop.run(main())
    assert sum(outcome.values()) == askers * each
    assert outcome["granted"] and outcome["refused"] and most
