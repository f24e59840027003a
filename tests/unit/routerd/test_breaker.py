# SPDX-License-Identifier: Apache-2.0
"""The breaker, the shedding switch and prefix affinity, on a clock that the tests turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syntrop.routerd.affinity import Affinity
from syntrop.routerd.breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from syntrop.routerd.shedding import Shedding


def broken(now: float = 0.0) -> Breaker:
    breaker = Breaker(threshold=3, cooldown=5.0, longest=20.0)
    for _ in range(3):
        assert breaker.enter(now)
        breaker.failure(now)
    return breaker


def test_three_failures_in_a_row_open_it() -> None:
    breaker = Breaker(threshold=3)
    for _ in range(5):
        breaker.failure(0.0)
        breaker.failure(0.0)
        breaker.success()
    assert breaker.state(0.0) == CLOSED
    breaker = broken()
    assert breaker.state(4.9) == OPEN and not breaker.enter(4.9)
    assert breaker.remaining(3.0) == 2.0


def test_half_open_lets_one_through_at_a_time() -> None:
    breaker = broken()
    assert breaker.state(5.0) == HALF_OPEN
    assert breaker.enter(5.0) and not breaker.enter(5.0)
    breaker.abandoned()
    assert breaker.enter(5.1)
    breaker.success()
    assert breaker.state(5.2) == CLOSED and breaker.enter(5.2) and breaker.enter(5.2)


def test_a_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = broken(), 0.0, []
    for _ in range(4):
        pauses.append(breaker.remaining(now))
        now += pauses[-1]
        assert breaker.enter(now)
        breaker.failure(now)
    assert pauses == [5.0, 10.0, 20.0, 20.0]
    now += breaker.remaining(now)
    assert breaker.enter(now)
    breaker.success()
    for _ in range(3):
        breaker.failure(now)
    assert breaker.remaining(now) == 5.0


def test_latecomers_do_not_prolong_the_pause() -> None:
    breaker = broken()
    breaker.failure(4.0)
    assert breaker.remaining(4.0) == 1.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "success", "failure", "abandoned"]), st.floats(0, 3)), max_size=60
    )
)
def test_it_always_comes_back(steps: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(threshold=2, cooldown=1.0, longest=8.0), 0.0
    for step, wait in steps:
        now += wait
        if step == "enter":
            breaker.enter(now)
        elif step == "failure":
            breaker.failure(now)
        else:
            getattr(breaker, step)()
        assert breaker.remaining(now) <= 8.0
    breaker.abandoned()
    assert breaker.enter(now + breaker.remaining(now))


def test_shedding_has_hysteresis() -> None:
    shedding = Shedding(high=25.0, low=15.0, settle=5.0)
    readings = [(24.9, 0), (25.0, 1), (20.0, 2), (15.0, 3), (15.1, 7), (10.0, 8), (10.0, 12.9)]
    assert [shedding.update(some, now) for some, now in readings] == [False, True, True, True, True, True, True]
    assert shedding.update(0.0, 13.0) is False
    assert shedding.update(24.0, 14.0) is False


def test_affinity_finds_the_longest_prefix_that_was_read() -> None:
    affinity = Affinity(most=4)
    affinity.note("a", "m", ["system", "question one"])
    assert affinity.share("a", "m", ["system", "question one"]) == 1.0
    assert affinity.share("a", "m", ["system", "question two"]) == 7 / 20
    assert affinity.share("a", "m", ["question one", "system"]) == 0.0
    assert affinity.share("b", "m", ["system"]) == affinity.share("a", "n", ["system"]) == 0.0
    assert affinity.share("a", "m", []) == 0.0
    affinity.note("a", "m", ["x", "y", "z"])  # one of the four places is left for what was there before
    assert affinity.share("a", "m", ["system"]) == 0.0
    assert affinity.share("a", "m", ["x", "y", "z"]) == 1.0
    affinity.forget("a")
    assert affinity.share("a", "m", ["x"]) == 0.0
