# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.http import chat
from syntrop.routerd.breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from syntrop.routerd.health import Health

GONE = chat.Unavailable("gone")


def failing(health: Health, error: chat.EngineError, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        assert health.enter(now)
        health.failure(error, now)


def test_three_failures_shut_it_out_and_time_lets_one_in() -> None:
    health = Health()
    failing(health, GONE, 3)
    assert not health.healthy(0.0) and health.open_for(1.0) == 4.0 and not health.enter(4.9)
    assert health.enter(5.0) and not health.enter(5.0), "one at a time"
    health.success(0.25)
    assert health.healthy(5.0) and health.latency == 0.25
    assert (health.requests, health.errors) == (4, 3)


def test_the_local_engine_is_never_shut_out() -> None:
    health = Health(guarded=False)
    failing(health, GONE, 5)
    assert not health.healthy(0.0) and health.open_for(0.0) == 0.0 and health.enter(0.0)
    health.success(0.1)
    assert health.healthy(0.0)


@pytest.mark.parametrize("error", [chat.Overloaded("full"), chat.Unfit("too large")])
def test_who_is_busy_or_small_is_not_ill(error: chat.EngineError) -> None:
    health = Health()
    failing(health, error, 9)
    assert health.healthy(0.0) and health.errors == 9


def test_who_asks_to_be_left_alone_is() -> None:
    for guarded in (True, False):
        health = Health(guarded=guarded)
        failing(health, chat.Overloaded("full", retry_after=7.0), 1)
        assert health.open_for(2.0) == 5.0 and not health.enter(6.9) and health.enter(7.0)
        assert health.healthy(0.0)
    failing(health, chat.Overloaded("full", retry_after=1e9), 1, now=7.0)
    assert health.open_for(7.0) == 300.0


def test_a_sign_of_life_is_less_than_an_answer() -> None:
    health = Health(breaker=Breaker(cooldown=4.0))
    failing(health, GONE, 3)
    assert health.breaker.enter(4.0)
    health.probed(True, 4.0)
    assert health.healthy(4.0) and health.breaker.failures == 0
    failing(health, GONE, 1, now=4.0)
    assert health.breaker.state(11.9) == OPEN, "one failure is enough, and it lasts twice as long"
    assert health.breaker.enter(12.0)
    health.probed(False, 12.0)
    assert health.breaker.state(27.9) == OPEN and health.breaker.state(28.0) == HALF_OPEN
    assert health.enter(28.0)
    health.success(0.1)
    failing(health, GONE, 2, now=28.0)
    assert health.breaker.state(28.0) == CLOSED, "an answer forgives all"
