# SPDX-License-Identifier: Apache-2.0
"""The two watermarks, and the levels of pressure: nothing flaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syntrop.inferenced.governor import Governor, Occupant, Spill, Watermarks
from syntrop.inferenced.level import Level, Shares, Thresholds

MARKS = Watermarks()


def test_it_asks_the_largest_idle_one_first_and_only_for_what_is_missing() -> None:
    governor = Governor(MARKS)
    held = [Occupant("busy", 60, idle=False), Occupant("small", 5, idle=True), Occupant("large", 20, idle=True)]
    assert governor.sample(0.0, 84, 100, held) == ([], False)
    assert governor.sample(1.0, 85, 100, held) == ([Spill("large", 5)], False)
    # What was asked for is on its way: it is not asked for twice.
    assert governor.sample(1.5, 85, 100, held) == ([], False)
    # Not given in time: it is asked for again.
    assert governor.sample(6.5, 85, 100, held) == ([Spill("large", 5)], False)


def test_it_goes_on_to_others_where_the_idle_ones_are_not_enough() -> None:
    governor = Governor(MARKS)
    held = [Occupant("busy", 60, idle=False), Occupant("idle", 10, idle=True)]
    assert governor.sample(0.0, 90, 100, held) == ([Spill("idle", 0), Spill("busy", 50)], False)


def test_spilling_goes_on_to_the_low_mark_and_then_stops() -> None:
    governor = Governor(MARKS)
    held = [Occupant("a", 40, idle=True), Occupant("b", 40, idle=True)]
    assert governor.sample(0.0, 86, 100, held)[0] == [Spill("a", 24)]
    assert governor.sample(1.0, 80, 100, held)[0] == []  # under way
    assert governor.sample(7.0, 80, 100, held)[0] == [Spill("a", 30)]
    assert governor.sample(8.0, 70, 100, held)[0] == []
    assert not governor.spilling
    assert governor.sample(9.0, 84, 100, held)[0] == []  # the high mark has to be reached again


def test_prefetching_may_start_after_a_calm_that_was_held() -> None:
    governor = Governor(MARKS)
    governor.sample(0.0, 90, 100, [])
    assert governor.sample(1.0, 60, 100, []) == ([], False)
    assert governor.wait(1.0) == 5.0
    assert governor.sample(4.0, 66, 100, []) == ([], False)  # the calm was broken
    assert governor.sample(5.0, 60, 100, []) == ([], False)
    assert governor.sample(9.9, 60, 100, []) == ([], False)
    assert governor.sample(10.0, 60, 100, []) == ([], True)
    assert governor.sample(20.0, 60, 100, []) == ([], False)  # told once
    assert governor.wait(20.0) is None


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(0, 100)), max_size=200))
def test_between_spilling_and_prefetching_lies_a_calm(trace: list[tuple[float, int]]) -> None:
    """Whatever the trace: spilling starts at the high mark only, a prefetch comes after 5 s of calm only, and
    between two prefetches there was an excess."""
    governor = Governor(MARKS)
    now, calm_since, was_high = 0.0, None, False
    spilling = False
    for step, used in trace:
        now += step
        spills, prefetch = governor.sample(now, used, 100, [Occupant("one", used, idle=True)])
        calm_since = (now if calm_since is None else calm_since) if used <= 65 else None
        if used >= 85:
            spilling = was_high = True
        elif used <= 70:
            spilling = False
        assert governor.spilling == spilling
        assert not spills or spilling
        assert not (spills and prefetch)
        if prefetch:
            assert calm_since is not None
            assert now - calm_since >= 5.0
            assert was_high
            was_high = False


def test_a_level_is_entered_at_once_and_left_after_a_while() -> None:
    level = Level(Thresholds())
    assert level.sample(Shares(memory_some=41.0), 0.0) == "critical"
    assert level.sample(Shares(memory_some=20.0), 1.0) == "critical"
    assert level.wait(1.0) == 5.0
    assert level.sample(Shares(memory_some=39.0), 3.0) == "critical"  # not eased: the time starts anew
    assert level.sample(Shares(memory_some=20.0), 4.0) == "critical"
    assert level.sample(Shares(memory_some=20.0), 9.0) == "elevated"
    assert level.sample(Shares(), 10.0) == "elevated"
    assert level.sample(Shares(), 15.0) == "normal"
    assert level.wait(15.0) is None


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=100))
def test_a_level_never_falls_within_its_hold(shares: list[float]) -> None:
    level = Level(Thresholds())
    order = ["normal", "elevated", "critical"]
    now, before, fell = 0.0, "normal", -100.0
    for share in shares:
        now += 1.0
        after = level.sample(Shares(memory_some=share), now)
        if share > 40.0:
            assert after == "critical"
        if order.index(after) < order.index(before):
            assert now - fell >= 5.0
            fell = now
        before = after
