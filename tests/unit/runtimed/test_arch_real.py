# SPDX-License-Identifier: Apache-2.0
"""Gemma-3-270M and Qwen2.5-0.5B, real weights: against the float32 twin, and another engine's greedy answers."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from syntrop.common.gguf import GGUF, parse
from syntrop.runtimed import tokenizer
from syntrop.runtimed.model.llama import LlamaModel, Piece, ffi, levels
from syntrop.runtimed.reference import ReferenceModel

ROOT = Path(__file__).parents[3]
JUDGED = 128  # positions


class Real(NamedTuple):
    fixture: str
    golden: str
    before: int  # tokens before those that are judged: beyond the window of 512 where there is one
    steps: int  # of the oracle that are clear enough, at least


MODELS = {
    "gemma3": Real("gemma3_path", "gemma-3-270m-q4_k_m.json", 448, 250),
    "qwen2": Real("qwen2_path", "qwen2.5-coder-0.5b-q4.json", 64, 200),
}


class Loaded(NamedTuple):
    real: Real
    header: GGUF
    data: mmap.mmap


@pytest.fixture(scope="module", params=MODELS)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    real = MODELS[request.param]
    path: Path = request.getfixturevalue(real.fixture)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        yield Loaded(real, parse(data), data)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def numbers(model: LlamaModel, row: Any) -> np.ndarray:
    return np.frombuffer(ffi.buffer(row, model.config.n_vocab * 4), dtype=np.float32)


def test_top_choice_and_divergence_against_the_twin(loaded: Loaded) -> None:
    real, header, data = loaded
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")[1500:9000]
    tokens = tokenizer.load(header.metadata).encode(text)[: real.before + JUDGED]
    assert len(tokens) == real.before + JUDGED
    twin = ReferenceModel(header, data)
    expected = log_softmax(twin.logits(tokens, last=JUDGED))
    del twin
    for level in levels()[1:] or levels():
        model = LlamaModel.load(header, data, threads=2, level=level)
        same, divergence = [], []
        with model.sequence(len(tokens)) as sequence:
            model.forward(sequence, tokens[: real.before], logits=False)
            for row, wanted in zip(model.forward_rows(sequence, tokens[real.before :]), expected, strict=True):
                ours = log_softmax(numbers(model, row))
                same.append(ours.argmax() == wanted.argmax())
                divergence.append((np.exp(wanted) * (wanted - ours)).sum())
        model.close()
        assert np.mean(same) >= 0.99
        assert np.mean(divergence) < 0.005


def test_greedy_continuations_of_the_oracle(loaded: Loaded, golden: Path) -> None:
    """Teacher forcing along the oracle's own tokens, all cases in one batch; judged where its margin is clear."""
    real, header, data = loaded
    cases: list[dict[str, Any]] = json.loads((golden / real.golden).read_text(encoding="utf-8"))["cases"]
    model = LlamaModel.load(header, data, threads=2)
    sequences = [model.sequence(512) for _ in cases]
    pieces = [Piece(s, case["tokens"]) for s, case in zip(sequences, cases, strict=True)]
    judged = 0
    for position in range(max(len(case["greedy"]) for case in cases)):
        going = [i for i, case in enumerate(cases) if position < len(case["greedy"])]
        rows = model.step([pieces[i] for i in going])
        for i, row in zip(going, rows, strict=True):
            token, steps = cases[i]["greedy"][position], cases[i]["steps"]
            # Tokens that ended inside a character have no step of their own in the file.
            if steps and steps[0]["id"] == token:
                (first, best), (_, second) = steps.pop(0)["top"][:2]
                if best - second > 0.5:
                    assert int(numbers(model, row).argmax()) == first, (cases[i]["prompt"], position)
                    judged += 1
            pieces[i] = Piece(sequences[i], [token])
    model.close()
    assert not any(case["steps"] for case in cases)
    assert judged > real.steps
