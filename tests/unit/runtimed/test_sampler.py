# SPDX-License-Identifier: Apache-2.0
"""The sampler in C: against its numpy twin, against the distribution that it promises, and alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syntrop.runtimed._kernels import ffi

from syntrop.runtimed import sampler_twin as twin
from syntrop.runtimed.sampler import NoToken, Sampler, Sampling, SamplingError, logprobs


def row(values: np.ndarray) -> Any:
    return ffi.from_buffer("float[]", np.ascontiguousarray(values, dtype=np.float32), require_writable=True)


def logits(n: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


HOWS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 100, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.05, "top_p": 0.999},
    {"temperature": 50.0, "top_k": 30_000},
    {"temperature": 1.0, "top_p": 0.0},
]


@pytest.mark.parametrize("parameters", HOWS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 37, 49_152])
def test_draws_what_the_twin_draws(parameters: dict[str, Any], n: int) -> None:
    how = Sampling(**parameters, seed=7)
    sampler, generator = Sampler(n, how), twin.Generator(7)
    for step in range(20):
        values = logits(n, step)
        assert sampler.sample(row(values)) == twin.sample(values, how, generator)


@given(
    values=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=60),
    top_k=st.integers(0, 70),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.77, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    seed=st.integers(1, 1 << 64),
)
@settings(max_examples=300, deadline=None)
def test_ties_are_ordered_by_token(
    values: list[float], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    array = np.array(values, dtype=np.float32)
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    sampler, weights = Sampler(len(array), how), twin.distribution(array, how)
    for _ in range(5):
        assert weights[sampler.sample(row(array))] > 0


@pytest.mark.parametrize("parameters", [{}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}], ids=str)
def test_frequencies_follow_the_distribution(parameters: dict[str, Any]) -> None:
    values = logits(50, seed=3, spread=1.5)
    how = Sampling(temperature=0.9, seed=12_345, **parameters)
    draws = 40_000
    sampler, buffer = Sampler(50, how), row(values)
    counts = Counter(sampler.sample(buffer) for _ in range(draws))
    weights = twin.distribution(values, how)
    expected = weights / weights.sum() * draws
    assert set(counts) <= {int(token) for token in np.flatnonzero(expected)}
    often = np.flatnonzero(expected >= 5)
    chi_square = sum((counts[int(token)] - expected[token]) ** 2 / expected[token] for token in often)
    freedom = len(often) - 1
    # Wilson and Hilferty's bound at about one in a million; the seed is fixed, so this never flickers.
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_greedy_takes_the_first_of_the_best() -> None:
    values = np.array([1, 5, 2, 5, -1], dtype=np.float32)
    assert Sampler(5, Sampling()).sample(row(values)) == 1
    assert Sampler(5, Sampling(top_k=3, top_p=0.1)).sample(row(values)) == 1


def test_same_seed_same_draws_another_seed_others() -> None:
    values = logits(1000)

    def draws(seed: int) -> list[int]:
        sampler, buffer = Sampler(1000, Sampling(temperature=1.0, seed=seed)), row(values)
        return [sampler.sample(buffer) for _ in range(50)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    assert Sampling().seed != 0


def test_generator_is_xoshiro256_plus_plus() -> None:
    generator = twin.Generator(0)
    generator._state = [1, 2, 3, 4]
    # First outputs of the authors' program from this state.
    assert [int(generator.draw() * 2**53) for _ in range(3)] == [
        41943041 >> 11,
        58720359 >> 11,
        3588806011781223 >> 11,
    ]


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.6},
        {"frequency_penalty": 0.4},
        {"repetition_penalty": 0.8, "presence_penalty": -1.0, "frequency_penalty": 0.2},
    ],
    ids=str,
)
def test_penalties_equal_the_twins_and_leave_the_row(penalties: dict[str, float]) -> None:
    n = 500
    how = Sampling(temperature=1.0, seed=3, **penalties)
    sampler, generator = Sampler(n, how), twin.Generator(3)
    prompt = [1, 2, 3, 2, 2, 499, *range(100, 400)]
    sampler.accept(prompt, generated=False)
    made: list[int] = []
    for step in range(100):
        values = logits(n, step)
        buffer = row(values.copy())
        token = sampler.sample(buffer)
        assert token == twin.sample(twin.penalized(values, how, prompt, made), how, generator)
        assert bytes(ffi.buffer(buffer)) == values.tobytes()
        sampler.accept([token], generated=True)
        made.append(token)


def test_repetition_penalty_applies_to_greedy() -> None:
    sampler = Sampler(3, Sampling(repetition_penalty=2.0))
    sampler.accept([0], generated=False)
    assert sampler.sample(row(np.array([4.0, 3.0, -1.0], dtype=np.float32))) == 1


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_finite_logit_is_an_error(bad: float, temperature: float) -> None:
    with pytest.raises(NoToken):
        Sampler(4, Sampling(temperature=temperature)).sample(row(np.full(4, bad, dtype=np.float32)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_minus_infinity_are_never_chosen(temperature: float) -> None:
    values = np.array([np.nan, 0.0, -np.inf, 0.0, np.nan], dtype=np.float32)
    sampler = Sampler(5, Sampling(temperature=temperature, top_k=4, top_p=0.99, seed=1))
    assert {sampler.sample(row(values)) for _ in range(50)} <= {1, 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 2.0),
        ("top_k", -1),
        ("top_k", 1 << 31),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("-inf")),
        ("logit_bias", {0: 100.5}),
        ("logit_bias", {0: float("nan")}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1 << 31: 1.0}),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(SamplingError) as caught:
        Sampling(**{name: value})
    assert caught.value.parameter == name


def test_a_large_vocabulary_takes_little_time() -> None:
    from time import process_time

    n = 262_144
    sampler, buffer = Sampler(n, Sampling(temperature=1.0, top_p=0.95, seed=1)), row(logits(n))
    times = []
    for _ in range(9):
        start = process_time()
        sampler.sample(buffer)
        times.append(process_time() - start)
    assert sorted(times)[4] < 0.1  # a full sort in Python would take longer; measured 5 ms


NUMBERS = st.one_of(
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1.0, float("-inf"), float("nan"), 3e38, -3e38, 1e-38]),
)


@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)  # where roundings differ, both are right
def test_any_request_draws_what_the_twin_draws(data: st.DataObject) -> None:
    """Every parameter at once, over several steps, with logits that repeat, vanish and overflow."""
    n = data.draw(st.integers(1, 40))
    tokens = st.integers(0, n - 1)
    how = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 1e-3, 0.5, 1.0, 7.0])),
        top_k=data.draw(st.integers(0, n + 2)),
        top_p=data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.05, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.5, 1.7])),
        presence_penalty=data.draw(st.sampled_from([0.0, 1.5, -2.0])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.25, -0.5])),
        logit_bias=data.draw(st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 0.5, 100.0]), max_size=4)),
        seed=data.draw(st.integers(1, (1 << 64) - 1)),
    )
    prompt = data.draw(st.lists(tokens, max_size=6))
    sampler, generator = Sampler(n, how), twin.Generator(how.seed)
    sampler.accept(prompt, generated=False)
    made: list[int] = []
    for _ in range(data.draw(st.integers(1, 5))):
        values = np.array(data.draw(st.lists(NUMBERS, min_size=n, max_size=n)), dtype=np.float32)
        buffer = row(values.copy())
        with np.errstate(all="ignore"):
            wanted = twin.penalized(values, how, prompt, made)
        best = np.nanmax(wanted) if not np.isnan(wanted).all() else np.nan
        if not np.isfinite(best):
            with pytest.raises(NoToken):
                sampler.sample(buffer)
            return
        clean = np.where(np.isnan(wanted), -np.inf, wanted).astype(np.float32)
        token = sampler.sample(buffer)
        weights = twin.distribution(clean, how)
        assert weights[token] > 0
        if how.temperature:
            # The sums of both sides round apart: at the very edge of a token's share the neighbour is as right.
            point = generator.draw() * weights.sum()
            edge = np.cumsum(weights)
            assert edge[token] - weights[token] <= point * (1 + 1e-6) and point <= edge[token] * (1 + 1e-6)
        assert bytes(ffi.buffer(buffer)) == values.tobytes(), "the row is as it was"
        sampler.accept([token], generated=True)
        made.append(token)


def test_biases_make_certain_and_impossible() -> None:
    values = logits(200, 5)
    best = int(np.argmax(values))
    for temperature in (0.0, 1.0):
        banned = Sampler(200, Sampling(temperature=temperature, seed=1, logit_bias={best: -100}))
        chosen = Sampler(200, Sampling(temperature=temperature, seed=1, logit_bias={17: 100}))
        for _ in range(50):
            assert banned.sample(row(values)) != best
            assert chosen.sample(row(values)) == 17
    # A token that is only biased was not seen: the repetition penalty leaves it alone.
    both = Sampler(3, Sampling(repetition_penalty=10.0, logit_bias={0: 0.5}))
    assert both.sample(row(np.array([2.0, 2.2, 0.0], dtype=np.float32))) == 0


@given(
    values=st.lists(NUMBERS, min_size=1, max_size=60),
    most=st.integers(0, 70),
    token=st.integers(0, 59),
)
@settings(max_examples=120, deadline=None)
def test_logprobs_are_the_twins(values: list[float], most: int, token: int) -> None:
    array = np.array(values, dtype=np.float32)
    token %= len(array)
    if not np.isfinite(array[~np.isnan(array)].max(initial=-np.inf)):
        with pytest.raises(NoToken):
            logprobs(row(array), len(array), token, most)
        return
    with np.errstate(over="ignore"):
        wanted = twin.logprobs(array).astype(np.float32)
    got = logprobs(row(array), len(array), token, most)
    np.testing.assert_allclose(got.logprob, wanted[token], rtol=1e-6, atol=1e-5)
    clean = np.where(np.isnan(array), -np.inf, array)
    order = [int(one) for one in np.lexsort((np.arange(len(array)), -clean)) if clean[one] > -np.inf][:most]
    assert [one for one, _ in got.top] == order
    np.testing.assert_allclose([value for _, value in got.top], wanted[order], rtol=1e-6, atol=1e-5)


def test_logprobs_of_a_whole_vocabulary() -> None:
    values = logits(49_152, 2)
    got = logprobs(row(values), len(values), 7, 20)
    wanted = twin.logprobs(values)
    assert len(got.top) == 20 and got.top[0][0] == int(np.argmax(values))
    assert abs(got.logprob - wanted[7]) < 1e-5
    with pytest.raises(NoToken):
        logprobs(row(values), len(values), len(values))
