# SPDX-License-Identifier: Apache-2.0
"""Breaker, budget, policy, dependencies, storm: what keeps the supervisor from making things worse."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syntrop.sentry import breaker, unitnames
from syntrop.sentry.breaker import CLOSED, HALF_OPEN, LOCKED, OPEN, Breaker
from syntrop.sentry.budget import Budget
from syntrop.sentry.dependencies import chains, roots
from syntrop.sentry.guards import Guards
from syntrop.sentry.planned import PATTERNS_MAX, Full, Work
from syntrop.sentry.policy import IGNORE, OBSERVE, TREAT, Occasion, Policy, Ruling, window
from syntrop.sentry.storm import Backlog, importance

# Breaker.


def tripped(now: float = 0.0) -> Breaker:
    one = Breaker()
    for _ in range(breaker.FAILURES):
        one.failure(now)
    return one


def test_three_failures_within_a_minute_open_it() -> None:
    one = Breaker()
    one.failure(0.0)
    one.failure(30.0)
    one.failure(60.0)  # the first is out of the window
    assert one.state(60.0) == CLOSED
    one.failure(61.0)
    assert one.state(61.0) == OPEN
    assert one.remaining(61.0) == 30.0
    assert not one.enter(90.9)
    assert one.state(91.0) == HALF_OPEN


def test_half_open_lets_one_through_and_its_outcome_decides() -> None:
    one = tripped()
    assert one.enter(30.0)
    assert not one.enter(30.0)
    one.abandoned()
    assert one.enter(30.0)
    one.success(30.0)
    assert one.state(30.0) == CLOSED
    again = tripped()
    assert again.enter(30.0)
    again.failure(31.0)
    assert again.state(31.0) == OPEN
    assert again.remaining(31.0) == 60.0


def test_running_in_between_does_not_make_failures_forgotten() -> None:
    one = Breaker()
    for now in (0.0, 10.0, 20.0):
        assert one.state(now) == CLOSED
        assert one.enter(now)
        one.failure(now)
        one.success(now)
    assert one.state(20.0) == OPEN


def test_the_cooldown_doubles_up_to_half_an_hour() -> None:
    one, now, seen = Breaker(), 0.0, []
    for _ in range(3):
        one.failure(now)
    for _ in range(9):
        seen.append(one.cooldown())
        now += max(one.cooldown(), 1000.0)  # so that no three openings lie within 900 s
        one.failure(now)
    assert seen == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert one.state(now) == OPEN


def test_three_openings_within_a_quarter_of_an_hour_lock_it_until_a_reset() -> None:
    one, now = tripped(), 0.0
    for _ in range(2):
        now += one.cooldown()
        assert one.enter(now)
        one.failure(now)
    assert one.state(now) == LOCKED
    assert one.remaining(now) is None
    one.success(now)
    assert one.state(now + 10**6) == LOCKED
    assert not one.enter(now + 10**6)
    one.reset()
    assert one.state(now) == CLOSED


class Breakers(RuleBasedStateMachine):
    """Whatever happens in whatever order, and through a save at any moment, the promises hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker()
        self.trips: list[float] = []
        self.in_trial = False

    @rule(seconds=st.floats(0, 2000))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def fail(self) -> None:
        before = self.breaker.level
        self.breaker.failure(self.now)
        if self.breaker.level > before:
            self.trips.append(self.now)
            self.in_trial = False

    @rule()
    def act(self) -> None:
        state = self.breaker.state(self.now)
        entered = self.breaker.enter(self.now)
        assert entered == (state == CLOSED or (state == HALF_OPEN and not self.in_trial))
        self.in_trial = self.in_trial or (entered and state == HALF_OPEN)

    @rule()
    def recover(self) -> None:
        if self.breaker.state(self.now) in (CLOSED, HALF_OPEN):
            self.breaker.success(self.now)
            self.in_trial = False
            assert self.breaker.state(self.now) == CLOSED

    @rule()
    def restart_of_ours(self) -> None:
        kept = json.loads(json.dumps(self.breaker.dump(self.now)))
        state, remaining = self.breaker.state(self.now), self.breaker.remaining(self.now)
        later = self.now / 3  # another boot: another monotonic clock
        self.trips = [later - (self.now - one) for one in self.trips]
        self.breaker, self.now, self.in_trial = Breaker.load(kept, later), later, False
        again = self.breaker.remaining(self.now)
        assert (remaining is None) == (again is None)
        if remaining is not None and again is not None:
            assert abs(remaining - again) < 1e-3
            if remaining > 1e-3:
                assert self.breaker.state(self.now) == state

    @invariant()
    def the_lock_is_just(self) -> None:
        near = [one for one in self.trips if self.trips and self.trips[-1] - one < breaker.TRIPS_WINDOW - 1e-3]
        if len(near) >= breaker.TRIPS:
            assert self.breaker.state(self.now) == LOCKED
        assert (self.breaker.remaining(self.now) or 0.0) <= breaker.COOLDOWN_MAX


TestBreakers = Breakers.TestCase
TestBreakers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# Budget.


@given(st.lists(st.floats(0, 40), max_size=120))
def test_no_window_ever_holds_more_than_its_limit(gaps: list[float]) -> None:
    limits = ((3, 60.0), (7, 600.0))
    budget, now, taken = Budget(limits), 0.0, []
    for gap in gaps:
        now += gap
        left = budget.left(now)
        if budget.take(now):
            taken.append(now)
            assert left >= 1
        else:
            assert budget.wait(now) > 0
    for count, span in limits:
        for start in range(len(taken) - count):
            assert taken[start + count] - taken[start] >= span - 1e-6


def test_what_did_not_take_place_is_given_back() -> None:
    budget = Budget(((1, 60.0),))
    assert budget.take(0.0)
    assert budget.wait(10.0) == 50.0
    budget.give_back()
    assert budget.take(10.0)
    assert budget.left(20.0) == 0
    with pytest.raises(ValueError, match="at least one"):
        Budget(((0, 60.0),))


# Policy.


def ruled(one: Policy, unit: str, occasion: Occasion | None = None, *, weekday: int = 2, minute: int = 600) -> str:
    return one.rule([unit], occasion or Occasion(), weekday=weekday, minute=minute).kind


def test_what_somebody_wanted_is_no_incident() -> None:
    one = Policy()
    assert ruled(one, "db.service") == TREAT
    assert ruled(one, "db.service", Occasion(stopped=True)) == IGNORE
    assert ruled(one, "db.service", Occasion(job="stop")) == IGNORE
    assert ruled(one, "db.service", Occasion(job="restart")) == IGNORE
    assert ruled(one, "db.service", Occasion(job="start")) == OBSERVE
    assert ruled(one, "db.service", Occasion(leaving=True)) == IGNORE


def guarded(one: Guards, *names: str, occasion: Occasion | None = None, now: float = 1000.0) -> Ruling:
    return one.rule(names, occasion or Occasion(), now=now, weekday=2, minute=600)


def test_work_that_is_announced_is_not_fought_until_it_ends() -> None:
    one = Guards(Policy(deny=("web.service",)), Budget())
    one.announce(["web.service", "db*"], Work(2000.0, "migration", 1000), 1000.0)
    one.announce(["old.service"], Work(900.0, "", 0), 800.0)
    assert guarded(one, "web.service") == Ruling(IGNORE, "user 1000 announced work on web.service: migration")
    assert guarded(one, "x.service", "db-alias.service").kind == IGNORE  # by any of its names
    assert guarded(one, "old.service").kind == TREAT
    assert guarded(one, "db.service", now=2000.0).kind == TREAT
    assert guarded(one, "web.service", now=2000.0).kind == OBSERVE
    # What is said last of the same units counts, also that it is over.
    one.announce(["web.service"], Work(1500.0, "done soon", 0), 1000.0)
    assert [pattern for pattern, work in one.planned.standing(1600.0).items()] == ["db*"]
    one.announce(["db*"], Work(1000.0, "", 0), 1000.0)
    assert guarded(one, "db.service").kind == TREAT
    told = {"unit": "web.service", "until_us": 5_500_000_000, "reason": "done soon", "uid": 0}
    assert one.planned.wire(1000.0, 5_000_000_000) == [told]


def test_what_is_announced_is_kept_with_its_time_and_bounded() -> None:
    one = Guards(Policy(), Budget())
    one.announce(["web.service"], Work(700.0, "x", 7), 100.0)
    kept = json.loads(json.dumps(one.dump(200.0, 1_000_000_000)))
    again = Guards(Policy(), Budget())
    again.load(kept, 10.0, 1_100_000_000)  # 100 s later, after a reboot: 400 s are left
    assert guarded(again, "web.service", now=409.0).kind == IGNORE
    assert guarded(again, "web.service", now=411.0).kind == TREAT
    again.load({"time_us": 1, "breakers": {}, "budget": []}, 10.0, 2)  # of a version that knew of no work

    many = [f"u{number}.service" for number in range(PATTERNS_MAX - 1)]
    again.announce(many, Work(1010.0, "", 0), 10.0)
    with pytest.raises(Full) as full:
        again.announce(["one.service"], Work(2000.0, "", 0), 11.0)
    assert full.value.wait == pytest.approx(399.0)
    assert len(again.planned.standing(11.0)) == PATTERNS_MAX
    again.announce(many[:1], Work(11.0, "", 0), 11.0)  # that something is over can be said always
    again.announce(["one.service"], Work(2000.0, "", 0), 11.0)
    assert len(again.planned.standing(1011.0)) == 1


@pytest.mark.parametrize(
    ("text", "good"),
    [("web.service", True), ("db*", True), ("*", True), ("a[!b]?.socket", True), ("", False), ("a b", False),
     ("../etc", False), ("x" * 256, False)],
)  # fmt: skip
def test_globs_of_units(text: str, good: bool) -> None:
    assert unitnames.is_pattern(text) is good


def test_protected_units_are_observed_by_any_of_their_names() -> None:
    one = Policy(allow=("*.service",), deny=("payroll*",))
    for unit in ("systemd-logind.service", "dbus.service", "sshd.service", "payroll.service", "x.socket",
                 "user@1000.service", "toold.service", "systemd-sentry.service", "-.mount"):  # fmt: skip
        assert ruled(one, unit) == OBSERVE, unit
    names = ["web.service", "dbus-org.example.service"]
    assert one.rule(names, Occasion(), weekday=0, minute=0).kind == OBSERVE


@pytest.mark.parametrize(
    ("text", "weekday", "minute", "holds"),
    [
        ("22:00-02:30", 2, 22 * 60, True),
        ("22:00-02:30", 2, 150, False),
        ("22:00-02:30", 2, 149, True),
        ("sat 22:00-02:30", 6, 60, True),  # Sunday at 1, begun on Saturday
        ("sat 22:00-02:30", 5, 60, False),
        ("mon-fri 08:00-09:00", 4, 8 * 60, True),
        ("mon-fri 08:00-09:00", 5, 8 * 60, False),
        ("fri-mon 08:00-09:00", 6, 8 * 60, True),
        ("sun 00:00-24:00", 6, 1439, True),
    ],
)
def test_maintenance_windows(text: str, weekday: int, minute: int, holds: bool) -> None:
    one = Policy(windows=[window(f"{text} web*")])
    assert (ruled(one, "web.service", weekday=weekday, minute=minute) == OBSERVE) is holds
    assert ruled(one, "db.service", weekday=weekday, minute=minute) == TREAT


@pytest.mark.parametrize(
    "text", ["", "mon", "moon 10:00-11:00", "10:00", "10-11", "25:00-26:00", "10:61-11:00", "-"]
)
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no (?:days|begin|time)"):
        window(text)


def test_a_window_that_ends_when_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="it ends when it begins in '10:00-10:00'"):
        window("10:00-10:00")


# Dependencies.


def test_the_root_of_a_chain_is_treated_and_its_victims_are_not() -> None:
    needs = {"web": ["app"], "app": ["pool"], "pool": ["db"], "db": ["disk"], "cron": ["db"]}
    failed = {"web": 4, "app": 3, "db": 1, "cron": 2, "other": 5}  # `pool` between them is well
    assert chains(failed, needs) == {"db": ("cron", "app", "web"), "other": ()}


def test_a_circle_has_the_root_that_failed_first() -> None:
    needs = {"a": ["b"], "b": ["c"], "c": ["a"], "x": ["a"]}
    assert roots({"a": 3, "b": 2, "c": 5, "x": 1}, needs) == dict.fromkeys("abcx", "b")


UNITS = st.sampled_from("abcdefgh")


@given(st.dictionaries(UNITS, st.lists(UNITS, max_size=4)), st.dictionaries(UNITS, st.integers(0, 9)))
def test_every_failed_unit_has_a_root_that_fails_for_no_other(
    needs: dict[str, list[str]], failed: dict[str, int]
) -> None:
    found = roots(failed, needs)
    assert found.keys() == failed.keys()
    for root in found.values():
        assert found[root] == root
    grouped = chains(failed, needs)
    assert sorted([*grouped, *(one for victims in grouped.values() for one in victims)]) == sorted(failed)


# Storm.


def test_two_hundred_units_at_once_are_bounded_ordered_and_none_is_lost() -> None:
    backlog = Backlog(details_max=16)
    for number in range(200):
        backlog.add(f"u{number}", float(number), importance=number % 7, details="x" * 1000)
    for number in range(0, 200, 3):
        backlog.add(f"u{number}", 300.0, details="again")
    waiting = backlog.waiting()
    assert len(backlog) == len(waiting) == 200
    assert sum(one.details is not None for one in waiting) <= 16
    taken = []
    while (failure := backlog.take()) is not None:
        taken.append(failure)
    assert [one.unit for one in taken] == [one.unit for one in waiting]
    assert {one.unit for one in taken} == {f"u{number}" for number in range(200)}
    assert all(one.rank() <= two.rank() for one, two in pairwise(taken))
    assert sum(one.count for one in taken) == 200 + 67


def test_a_unit_that_recovers_waits_no_longer() -> None:
    backlog = Backlog()
    backlog.add("a", 1.0)
    assert "a" in backlog
    assert backlog.drop("a") is not None
    assert backlog.drop("a") is None
    assert backlog.take() is None


def test_who_is_needed_by_many_comes_first() -> None:
    database = importance(dependants=9, socket=False, wanted_by_boot=True, accelerator=False)
    web = importance(dependants=0, socket=True, wanted_by_boot=True, accelerator=False)
    job = importance(dependants=0, socket=False, wanted_by_boot=False, accelerator=False)
    assert database > web > job
