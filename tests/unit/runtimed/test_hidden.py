# SPDX-License-Identifier: Apache-2.0
"""Embeddings of decoders: the hidden states are found again from the logits that come of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed.model.errors import BadRequest, NoMemory
from syntrop.runtimed.model.kv import Budget
from syntrop.runtimed.model.llama import MAX_BATCH, LlamaModel

_spec = importlib.util.spec_from_file_location("tinymodel_hidden", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

# Short ones that share a step, some that fill one, one that takes several, and short ones again.
LENGTHS = [1, 2, 17, 3, 40, 63, 64, 65, 600, 5, 1, 1, 300, 300, *[3] * 70]
TEXTS = [[(i * 7 + j * j) % 101 for j in range(length)] for i, length in enumerate(LENGTHS)]


def load(**options: Any) -> tuple[LlamaModel, np.ndarray]:
    """The model and its matrix of outputs."""
    tiny = tinymodel.Tiny(type=tinymodel.F32, **options)
    data = tiny.file()
    matrix = np.frombuffer(tiny.tensors["token_embd.weight"][2], np.float32).reshape(101, 64)
    return LlamaModel.load(parse(data), data, threads=2), matrix


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_states_from_which_logits_come(pooling: str) -> None:
    model, matrix = load()
    inverse = np.linalg.pinv(matrix.astype(np.float64))
    for text, vector in zip(TEXTS, model.embed(TEXTS, pooling), strict=True):
        with model.sequence(len(text)) as sequence:
            states = np.array(model.forward_all(sequence, text)) @ inverse.T
        expected = {"mean": states.mean(axis=0), "cls": states[0], "last": states[-1]}[pooling]
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=2e-4)
    model.close()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_company_does_not_change_a_bit(pooling: str) -> None:
    model, _ = load()
    alone = [model.embed([text], pooling)[0] for text in TEXTS]
    assert model.embed(TEXTS, pooling) == alone
    assert model.embed(TEXTS[::-1], pooling) == alone[::-1]
    model.close()


def test_short_texts_share_steps_and_long_ones_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load()
    steps: list[list[int]] = []
    step = model._step

    def noted(batch: Any, **how: Any) -> Any:
        steps.append([len(piece.tokens) for piece in batch])
        return step(batch, **how)

    monkeypatch.setattr(model, "_step", noted)
    model.embed([[1] * n for n in (300, 200, 12, 1, 600, 5)])
    assert steps == [[300, 200, 12], [1], [MAX_BATCH], [88], [5]]
    steps.clear()
    model.embed([[1]] * 130)
    assert [len(one) for one in steps] == [64, 64, 2]
    steps.clear()
    model.embed([[1] * n for n in (30, 34, 1, 100)], "mean")
    assert steps == [[30, 34], [1], [64], [36]]
    model.close()


def test_a_context_shorter_than_a_batch() -> None:
    model, _ = load(context=20)
    texts = [[1, 2, 3]] * 30 + [[4] * 20]
    assert model.embed(texts) == [model.embed([text])[0] for text in texts]
    with pytest.raises(BadRequest, match="21 in a text"):
        model.embed([[1], [1] * 21])
    model.close()


def until(steps: int) -> Callable[[], bool]:
    left = iter([True] * steps)
    return lambda: next(left, False)


def test_who_has_left_costs_no_more_than_the_step_that_runs() -> None:
    model, _ = load()
    budget = Budget()
    model.kv.join(budget)
    text = [1] * (MAX_BATCH + 1)
    assert model.embed([text], wanted=until(2)) == model.embed([text])
    for steps in (0, 1):
        with pytest.raises(BadRequest, match="nobody waits"):
            model.embed([text], wanted=until(steps))
    budget.compact()
    assert budget.used == 0
    model.close()


def test_what_does_not_fit_together_goes_one_by_one() -> None:
    model, _ = load()
    expected = model.embed([[1, 2], [3], [4, 5, 6]])
    model.close()
    model, _ = load()
    budget = Budget(model.kv.block_bytes)
    model.kv.join(budget)
    assert model.embed([[1, 2], [3], [4, 5, 6]]) == expected
    with pytest.raises(NoMemory):
        model.embed([[1] * 17])
    assert budget.held == 0
    model.close()
