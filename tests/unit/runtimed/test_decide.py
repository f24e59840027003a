# SPDX-License-Identifier: Apache-2.0
"""Decisions: the walk over what texts share, the arithmetic, and both on models against brute force and twins."""

from __future__ import annotations

import importlib.util
import math
import mmap
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import loop
from syntrop.common.gguf import parse
from syntrop.runtimed import decide
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed.engine import Engine
from syntrop.runtimed.generation import Tier
from syntrop.runtimed.model.llama import LlamaModel
from syntrop.runtimed.reference import ReferenceModel
from syntrop.runtimed.scoring import Scoring

_spec = importlib.util.spec_from_file_location("tinymodel_d", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = tinymodel
_spec.loader.exec_module(tinymodel)

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=2, max_size=12)


def logprob(before: Sequence[int], token: int) -> float:
    """A made-up model: what it answers depends on everything before."""
    return -((hash((tuple(before), token)) % 1000) / 100)


@given(paths=PATHS)
@settings(deadline=None)
def test_the_walk_scores_every_path_and_reads_each_shared_token_once(paths: list[list[int]]) -> None:
    scores = decide.Scores(paths)
    cache: list[int] = []
    reads = 0
    scores.take(lambda token: logprob(cache, token))
    while (step := scores.next()) is not None:
        kept, tokens = step
        assert kept <= len(cache), "the cache is cut back, never filled in between"
        assert len(tokens) == scores.due <= decide.RUN_MAX
        del cache[kept:]
        for one in tokens:
            cache.append(one)
            reads += 1
            scores.take(lambda token: logprob(cache, token))
    wanted = [sum(logprob(path[:i], token) for i, token in enumerate(path)) for path in paths]
    assert scores.totals == pytest.approx(wanted)
    assert reads == len({tuple(path[:i]) for path in paths for i in range(1, len(path))})


def test_what_lies_between_two_forks_is_read_at_once() -> None:
    scores = decide.Scores([[1, 2, 3, 4, 5], [1, 2, 3, 9], [7] * 40, [8]])
    read = []
    while True:
        while scores.due:
            scores.take(lambda _token: -1.0)
        if (step := scores.next()) is None:
            break
        read.append(step)
    assert read == [(0, [7] * 32), (32, [7] * 7), (0, [1, 2, 3]), (3, [4])]


def test_the_arithmetic_of_a_decision() -> None:
    candidates = [("a", " x"), ("b", " y"), ("c", " z")]
    totals = [math.log(0.1), math.log(0.3), math.log(0.2)]
    result = decide.decision(candidates, [[5], [6, 7], [8]], totals, 1.0)
    assert result["winner"] == "b"
    assert result["confidence"] == pytest.approx(0.5)
    assert result["raw_probability"] == pytest.approx(0.3)
    assert result["margin"] == pytest.approx(0.5 - 1 / 3)
    shares = (1 / 6, 1 / 2, 1 / 3)
    assert result["entropy"] == pytest.approx(-sum(share * math.log(share) for share in shares))
    assert [one["name"] for one in result["candidates"]] == ["b", "c", "a"]
    first = result["candidates"][0]
    assert (first["token"], first["token_id"], first["tokens"]) == (" y", 6, 2)
    assert first["logit"] == pytest.approx(math.log(0.3))
    assert first["per_token"] == pytest.approx(math.log(0.3) / 2)
    flat = decide.decision(candidates, [[5], [6, 7], [8]], totals, 1e6)
    assert flat["entropy"] == pytest.approx(math.log(3))
    sharp = decide.decision(candidates, [[5], [6, 7], [8]], totals, 1e-3)
    assert (sharp["confidence"], sharp["entropy"]) == (pytest.approx(1), pytest.approx(0))
    assert math.copysign(1, sharp["entropy"]) == 1, "no minus zero in a reply"


def test_impossible_and_equal_texts() -> None:
    candidates = [("a", "x"), ("b", "y"), ("c", "z")]
    result = decide.decision(candidates, [[1], [2], [3]], [-math.inf, -1.0, -1.0], 1.0)
    assert [one["name"] for one in result["candidates"]] == ["b", "c", "a"], "equals as they were given"
    assert result["candidates"][-1]["logit"] == -9999.0
    assert result["candidates"][-1]["probability"] == 0
    assert (result["margin"], result["entropy"]) == (0, pytest.approx(math.log(2)))


class Words:
    """A vocabulary of letters and of the pairs that are given: the longest token from the left."""

    def __init__(self, *pairs: str) -> None:
        self.pairs = pairs

    def encode(self, text: str) -> list[int]:
        tokens = []
        while text:
            size = 2 if text[:2] in self.pairs else 1
            tokens.append(hash(text[:size]))
            text = text[size:]
        return tokens


def split(prompt: str, texts: list[str], *pairs: str) -> tuple[list[int], list[list[int]]]:
    return decide.continuations(Words(*pairs), prompt, texts)  # type: ignore[arg-type]


def test_texts_continue_the_tokens_of_the_prompt() -> None:
    shared, paths = split("ab", ["c", "de"])
    assert shared == [hash("a"), hash("b")]
    assert paths == [[hash("c")], [hash("d"), hash("e")]]


def test_a_text_that_joins_the_prompt_moves_the_boundary_for_all() -> None:
    shared, paths = split("ab", ["cd", "x"], "bc")
    assert shared == [hash("a")]
    assert paths == [[hash("bc"), hash("d")], [hash("b"), hash("x")]]


def test_texts_that_cannot_be_weighed_are_named() -> None:
    with pytest.raises(decide.Unscorable) as caught:
        split("ab", ["x", ""])
    assert caught.value.index == 1
    with pytest.raises(decide.Unscorable):
        split("b", ["c", "x"], "bc")


# --- on a model -----------------------------------------------------------------------------------------------


class Runnable:
    """A model, and as much of a vocabulary as scoring needs."""

    def __init__(self, model: Any, words: Any) -> None:
        self.model = model
        self.tokenizer = words


class Vocabulary:
    ends: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return 101


def scored(runnable: Any, shared: list[int], paths: list[list[int]], chunk: int = 256) -> list[float]:
    async def main() -> list[float]:
        engine = Engine(max_slots=2, chunk=chunk)
        try:
            scoring = Scoring(engine, runnable, shared, paths)
            engine.enqueue(scoring)
            with loop.deadline(60), scoring:
                while await scoring.next() is not None:
                    pass
            return scoring.totals
        finally:
            await engine.close()

    return loop.run(main())


def brute_force(model: Any, shared: list[int], path: list[int]) -> float:
    """Each text by itself, from its first token on."""
    with model.sequence(len(shared) + len(path)) as sequence:
        rows = np.array(model.forward_all(sequence, shared + path))
    return log_likelihood(rows, len(shared), path)


def log_likelihood(rows: np.ndarray, start: int, path: list[int]) -> float:
    total = 0.0
    for place, token in enumerate(path, start - 1):
        row = rows[place].astype(np.float64)
        total += row[token] - row.max() - math.log(np.exp(row - row.max()).sum())
    return total


def test_scores_of_a_tiny_model_equal_brute_force() -> None:
    data = tinymodel.Tiny(type=tinymodel.F32).file()
    model = LlamaModel.load(parse(data), data, threads=2, kv_type="f32")
    shared = [(7 * i) % 101 for i in range(37)]
    paths = [[1], [2, 3], [2, 3, 4, 5], [2, 4], [9] * 50, [1, 1], [100, 0, 50], [2, 3, 4, 6]]
    for chunk in (256, 5):
        totals = scored(Runnable(model, Vocabulary()), shared, paths, chunk)
        for total, path in zip(totals, paths, strict=True):
            assert total == pytest.approx(brute_force(model, shared, path), abs=1e-4)
    twin = ReferenceModel(parse(data), data)
    for total, path in zip(totals, paths, strict=True):
        assert total == pytest.approx(log_likelihood(twin.logits(shared + path), len(shared), path), abs=1e-3)
    model.close()


class Gated:
    """A model that makes a step for each permit."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.permits = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, batch: Any) -> Any:
        assert self.permits.acquire(timeout=60)
        return self._model.step(batch)


@pytest.mark.parametrize("tier", [Tier.Interactive, Tier.Batch])
def test_an_urgent_decision_waits_for_no_slot(tier: Tier) -> None:
    data = tinymodel.Tiny(type=tinymodel.F32).file()
    model = Gated(LlamaModel.load(parse(data), data, threads=1, kv_type="f32"))
    runnable: Any = Runnable(model, Vocabulary())
    shared, few = [(7 * i) % 101 for i in range(37)], [[1, 2], [3]]
    many = [[i, j] for i in range(20) for j in (1, 2)]  # a step for each fork

    async def main() -> list[float]:
        engine = Engine(max_slots=1)
        try:
            long = Scoring(engine, runnable, shared, many, tier=tier)
            urgent = Scoring(engine, runnable, [*shared, 5], few, tier=Tier.EmergencyTriage)
            with loop.deadline(60), long, urgent:
                engine.enqueue(long)
                while not engine.active:
                    await loop.sleep(0.001)
                engine.enqueue(urgent)
                for _ in range(8):
                    model.permits.release()
                while await urgent.next() is not None:
                    pass
                assert long.result is None
                for _ in range(100):
                    model.permits.release()
                while await long.next() is not None:
                    pass
                for total, path in zip(long.totals, many, strict=True):
                    assert total == pytest.approx(brute_force(model, shared, path), abs=1e-4)
                return urgent.totals
        finally:
            await engine.close()

    for total, path in zip(loop.run(main()), few, strict=True):
        assert total == pytest.approx(brute_force(model, [*shared, 5], path), abs=1e-4)
    model.close()


def test_scores_of_real_weights(smollm2_path: Path) -> None:
    """What is scored together is what each text scores by itself. (How near the model is to its float32 twin is
    test_llama_smollm2's matter: some 1e-3 nat a token.)"""
    with open(smollm2_path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        header = parse(data)
        words = tokenizers.load(header.metadata)
        model = LlamaModel.load(header, data, threads=2)
    prompt = "The service failed because its configuration file could not be read. The fault is called"
    texts = [" a configuration drift", " a transient failure", " a dependency failure", " hot", " cold water"]
    shared, paths = decide.continuations(words, prompt, texts)
    assert [words.decode(path) for path in paths] == texts
    totals = scored(Runnable(model, words), shared, paths)
    for total, path in zip(totals, paths, strict=True):
        assert total == pytest.approx(brute_force(model, shared, path), abs=1e-3)
    model.close()
