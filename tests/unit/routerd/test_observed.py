# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.routerd.observed import HALF_LIFE, WEIGHT, Observations

USUAL = (0.05, 30.0)


def test_nothing_seen_is_what_the_configuration_says() -> None:
    assert Observations().of("a", "m", USUAL, 0.0) == USUAL


def test_the_first_turn_counts_whole_and_the_next_by_its_weight() -> None:
    seen = Observations()
    seen.note("a", "m", 0.5, 11, 1.5, now=0.0)
    assert seen.of("a", "m", USUAL, 0.0) == (0.5, 10.0)
    seen.note("a", "m", 1.5, 11, 2.0, now=0.0)
    latency, speed = seen.of("a", "m", USUAL, 0.0)
    assert latency == pytest.approx(0.5 + WEIGHT) and speed == pytest.approx(10 + WEIGHT * 10)
    assert seen.of("a", "other", USUAL, 0.0) == USUAL


def test_what_was_seen_fades() -> None:
    seen = Observations()
    seen.note("a", "m", 1.05, 0, 2.0, now=0.0)
    assert seen.of("a", "m", USUAL, HALF_LIFE)[0] == pytest.approx(0.55)
    assert seen.of("a", "m", USUAL, 20 * HALF_LIFE)[0] == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(("tokens", "duration"), [(0, 2.0), (1, 2.0), (5, 1.0)])
def test_turns_that_tell_nothing_of_speed(tokens: int, duration: float) -> None:
    seen = Observations()
    seen.note("a", "m", 1.0, tokens, duration, now=0.0)
    assert seen.of("a", "m", USUAL, 0.0) == (1.0, 30.0)


def test_the_memory_is_bounded_and_can_be_emptied() -> None:
    seen = Observations(most=2)
    for name in "abc":
        seen.note(name, "m", 1.0, 11, 2.0, now=0.0)
    assert seen.of("a", "m", USUAL, 0.0) == USUAL
    assert seen.of("b", "m", USUAL, 0.0) == (1.0, 10.0)
    seen.forget("b")
    assert seen.of("b", "m", USUAL, 0.0) == USUAL and seen.of("c", "m", USUAL, 0.0) != USUAL
