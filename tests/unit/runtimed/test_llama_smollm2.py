# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M, real weights: against the float32 twin, and against another engine's greedy answers."""

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
from syntrop.runtimed.model.llama import LlamaModel, ffi, levels
from syntrop.runtimed.reference import ReferenceModel

# Prose, code and markup of this repository, so that the text is real and at hand.
TEXTS = ("LICENSE", "src/syntrop/common/gguf.py", "docs/architecture.md")
ROOT = Path(__file__).parents[3]
POSITIONS = 160  # of each text


class Oracle(NamedTuple):
    tokens: list[int]
    logits: np.ndarray


@pytest.fixture(scope="module")
def mapped(smollm2_path: Path) -> Iterator[mmap.mmap]:
    with smollm2_path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        yield data


@pytest.fixture(scope="module")
def header(mapped: mmap.mmap) -> GGUF:
    return parse(mapped)


@pytest.fixture(scope="module")
def oracles(mapped: mmap.mmap, header: GGUF) -> list[Oracle]:
    encoder = tokenizer.load(header.metadata)
    reference = ReferenceModel(header, mapped[:])
    found = []
    for name in TEXTS:
        tokens = encoder.encode((ROOT / name).read_text(encoding="utf-8")[1500:4000])[:POSITIONS]
        assert len(tokens) == POSITIONS
        found.append(Oracle(tokens, reference.logits(tokens).astype(np.float64)))
    return found


# The scalar level takes a minute for this and differs from the others by rounding (last test).
@pytest.fixture(scope="module", params=levels()[1:] or levels())
def model(request: pytest.FixtureRequest, mapped: mmap.mmap, header: GGUF) -> Iterator[LlamaModel]:
    loaded = LlamaModel.load(header, mapped, threads=2, level=request.param)
    yield loaded
    loaded.close()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def test_top_choice_and_divergence_against_the_twin(model: LlamaModel, oracles: list[Oracle]) -> None:
    same: list[bool] = []
    divergence: list[float] = []
    for tokens, expected in oracles:
        with model.sequence(POSITIONS) as sequence:
            ours = log_softmax(np.array(model.forward_all(sequence, tokens)))
        wanted = log_softmax(expected)
        same += list(ours.argmax(axis=-1) == wanted.argmax(axis=-1))
        divergence += list((np.exp(wanted) * (wanted - ours)).sum(axis=-1))
    assert np.mean(same) >= 0.99
    assert np.mean(divergence) < 0.005


def test_an_eight_bit_cache_is_close_to_halves(
    model: LlamaModel, mapped: mmap.mmap, header: GGUF, oracles: list[Oracle]
) -> None:
    small = LlamaModel.load(header, mapped, threads=2, level=model.level, kv_type="q8")
    assert small.kv.block_bytes < 0.6 * model.kv.block_bytes
    same: list[bool] = []
    divergence: list[float] = []
    for tokens, _ in oracles:
        with model.sequence(POSITIONS) as wide, small.sequence(POSITIONS) as narrow:
            wanted = log_softmax(np.array(model.forward_all(wide, tokens)))
            ours = log_softmax(np.array(small.forward_all(narrow, tokens)))
        same += list(ours.argmax(axis=-1) == wanted.argmax(axis=-1))
        divergence += list((np.exp(wanted) * (wanted - ours)).sum(axis=-1))
    small.close()
    assert np.mean(same) >= 0.97
    assert np.mean(divergence) < 0.002


def test_greedy_continuations_of_the_oracle(model: LlamaModel, golden: Path) -> None:
    """Teacher forcing along the oracle's own tokens; judged where its margin exceeds half a nat."""
    data: dict[str, Any] = json.loads((golden / "smollm2-135m-q4_1.json").read_text(encoding="utf-8"))
    judged = 0
    for case in data["cases"]:
        # Tokens that ended inside a character have no step of their own in the file.
        steps = list(case["steps"])
        with model.sequence(512) as sequence:
            logits = model.forward(sequence, case["tokens"])
            for token in case["greedy"]:
                if steps and steps[0]["id"] == token:
                    (first, best), (_, second) = steps.pop(0)["top"][:2]
                    if best - second > 0.5:
                        row = np.frombuffer(ffi.buffer(logits, model.config.n_vocab * 4), dtype=np.float32)
                        assert int(row.argmax()) == first, (case["prompt"], token)
                        judged += 1
                logits = model.forward(sequence, [token])
        assert not steps
    assert judged > 200


def test_the_scalar_level_says_the_same(mapped: mmap.mmap, header: GGUF, oracles: list[Oracle]) -> None:
    tokens = oracles[0].tokens[:24]
    model = LlamaModel.load(header, mapped, threads=2, level="scalar")
    ours = np.array(model.forward_all(model.sequence(24), tokens))
    model.close()
    assert np.abs(log_softmax(ours) - log_softmax(oracles[0].logits[:24])).max() < 0.3  # the worst of 49,152 each
