# SPDX-License-Identifier: Apache-2.0
"""Scores by the published formula, refusals with their numbers, an order that only the numbers decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.routerd.scoring import AUTO, FAST, HARD, Ask, Candidate, Host, Observed, rank

LOCAL = Candidate("local", "small", local=True, tier=FAST, context=8192)
CLOUD = Candidate(
    "cloud",
    "large",
    local=False,
    tier=HARD,
    context=128_000,
    input_price=1e-6,
    output_price=2e-6,
    abilities=["tools"],
)


def test_the_arithmetic_of_a_fast_request() -> None:
    ask = Ask(tier=FAST, prompt_tokens=1000, output_tokens=500)
    seen = Observed(latency=0.150, speed=100.0)
    (best, second), refused = rank(ask, [(LOCAL, seen), (CLOUD, seen)], Host())
    assert refused == []
    # speed: 60 / 2 + 40 / 2 = 50
    assert (best.candidate, best.speed, best.cost, best.capability) == (LOCAL, 50.0, 100.0, 95.0)
    assert best.total == pytest.approx(0.6 * 50 + 0.3 * 100 + 0.1 * 95)
    assert second.price == pytest.approx(0.002)
    assert second.cost == pytest.approx(100 / 5)
    assert second.total == pytest.approx(0.6 * 50 + 0.3 * 20 + 0.1 * 55)
    assert second.reason == "41.5 = 1 × (0.6 × speed 50.0 + 0.3 × cost 20.0 + 0.1 × capability 55.0)"


def test_a_hard_request_goes_to_the_hard_model() -> None:
    ask = Ask(tier=HARD, prompt_tokens=100, output_tokens=100)
    (best, second), _ = rank(ask, [(LOCAL, Observed()), (CLOUD, Observed())], Host())
    assert [best.candidate, second.candidate] == [CLOUD, LOCAL]
    assert (best.capability, second.capability) == (95.0, 35.0)


def test_penalties_and_affinity_are_told() -> None:
    seen = Observed(latency=0.0, speed=200.0, failures=2, healthy=False, cached=0.5)
    (one,), _ = rank(Ask(), [(LOCAL, seen)], Host("critical", 40.0))
    merit = 0.4 * 100 + 0.25 * 100 + 0.35 * 75
    assert one.total == pytest.approx(merit + 7.5 - 80 - 20 - 50 - 30)
    for told in ("+ 7.5 cached prefix", "- 80.0 critical pressure", "- 20.0 memory stalls", "- 50.0 unhealthy",
                 "- 30.0 for 2 failures in a row"):  # fmt: skip
        assert told in one.reason
    (far,), _ = rank(Ask(), [(CLOUD, Observed(latency=0.0, speed=200.0))], Host("critical", 40.0))
    assert "pressure" not in far.reason


@pytest.mark.parametrize(
    ("ask", "observed", "words"),
    [
        (Ask("other"), Observed(), "has small, not other"),
        (Ask(needs=["tools", "logprobs"]), Observed(), "cannot do logprobs, tools"),
        (Ask(prompt_tokens=8000, output_tokens=193), Observed(), "context of 8192 tokens, 8000 + 193 needed"),
        (Ask(prompt_tokens=1), Observed(prompt_tokens=9000), "context of 8192 tokens, 9000 + 0 needed"),
        (Ask(), Observed(failures=4, open_for=2.5), "4 failures in a row; left alone for another 2.5 s"),
        (Ask(), Observed(speed=9.0), "9.0 tokens/s, 10.0 at least"),
    ],
)
def test_a_refusal_says_why_with_numbers(ask: Ask, observed: Observed, words: str) -> None:
    fit, (refused,) = rank(ask, [(LOCAL, observed)], Host(), slowest=10.0)
    assert fit == []
    assert refused.refusal == words


def test_the_model_s_own_count_beats_the_estimate() -> None:
    (fit,), _ = rank(Ask(prompt_tokens=10_000), [(LOCAL, Observed(prompt_tokens=8000))], Host())
    assert fit.candidate is LOCAL


def test_a_request_that_must_stay_here_stays() -> None:
    fit, (refused,) = rank(Ask(local=True), [(LOCAL, Observed()), (CLOUD, Observed())], Host("critical", 90.0))
    assert [one.candidate for one in fit] == [LOCAL]
    assert "must not leave" in (refused.refusal or "")


def test_work_is_shed_only_where_somebody_else_takes_it() -> None:
    host = Host("normal", 26.0, shedding=True)
    slow = Observed(latency=30.0, speed=1.0)
    fit, _ = rank(Ask(), [(LOCAL, Observed()), (CLOUD, slow)], host)
    assert [one.candidate for one in fit] == [CLOUD, LOCAL]
    assert "memory stalls 26.0 %" in fit[1].reason
    (only,), _ = rank(Ask("small"), [(LOCAL, Observed()), (CLOUD, slow)], host)
    assert only.candidate is LOCAL and not only.demoted


def test_a_long_context_is_a_hard_model_unless_told_otherwise() -> None:
    assert Candidate("a", "b", local=True, context=64_001).tier == HARD
    assert Candidate("a", "b", local=True, context=64_000).tier == FAST
    assert Candidate("a", "b", local=True).tier == FAST


seconds = st.floats(0, 100)
observed = st.builds(
    Observed, latency=seconds, speed=st.floats(0, 1000), failures=st.integers(0, 9), cached=st.floats(0, 1)
)


@given(st.lists(observed, min_size=1, max_size=6), st.sampled_from([FAST, HARD, AUTO]), st.floats(0, 100))
def test_the_order_is_by_score_and_then_by_place(field: list[Observed], tier: str, some: float) -> None:
    pairs = [(Candidate(f"p{i}", "m", local=i % 2 == 0), one) for i, one in enumerate(field)]
    fit, refused = rank(Ask(tier=tier), pairs, Host("elevated", some))
    assert refused == []
    keys = [(-one.total, int(one.candidate.provider[1:])) for one in fit]
    assert keys == sorted(keys)
    again, _ = rank(Ask(tier=tier), pairs, Host("elevated", some))
    assert [one.reason for one in again] == [one.reason for one in fit]
    for one in fit:
        assert 0 <= one.speed <= 100 and 0 <= one.cost <= 100
