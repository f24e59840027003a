# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: against the twin with the adapter merged into its weights, in company, and what cannot be."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.llama import LlamaModel, Piece, ffi, levels
from syntrop.runtimed.reference import ReferenceModel


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_lora", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


archmodel, tinymodel = _sibling("archmodel"), _sibling("tinymodel")
TOKENS = archmodel.tokens()
VOCAB = archmodel.VOCAB


def load(data: bytes, **options: Any) -> LlamaModel:
    return LlamaModel.load(parse(data), data, **{"threads": 2, "kv_type": "f32", "context": 128, **options})


def attach(model: LlamaModel, data: bytes) -> Any:
    return model.attach(parse(data), data)


def matrices(data: bytes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what an adapter may change."""
    found = parse(data).tensors.values()
    return {t.name: t.shape for t in found if len(t.shape) == 2 and t.name != "token_embd.weight"}


def merged(data: bytes, adapter: bytes, tokens: list[int]) -> np.ndarray:
    twin = ReferenceModel(parse(data), data, 128)
    twin.merge(parse(adapter), adapter)
    return np.asarray(twin.logits(tokens))


def all_rows(model: LlamaModel, adapter: Any, tokens: list[int]) -> np.ndarray:
    with model.sequence(len(tokens), adapter) as sequence:
        return np.array(model.forward_all(sequence, tokens))


def unpacked(rows: list[Any]) -> list[np.ndarray]:
    return [np.array(ffi.unpack(row, VOCAB)) for row in rows]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3", "phi3", "granite"])
def test_adapted_equals_merged(name: str, level: str) -> None:
    data = archmodel.file(archmodel.CASES[name])
    adapter = archmodel.adapter(archmodel.CASES[name].architecture, matrices(data))
    expected = merged(data, adapter, TOKENS)
    model = load(data, level=level)
    plain = all_rows(model, None, TOKENS)
    adapted = all_rows(model, attach(model, adapter), TOKENS)
    assert np.abs(adapted - expected).max() < 1e-4
    assert np.abs(adapted - plain).max() > 0.1
    # The base is what it was, to the bit.
    assert np.array_equal(all_rows(model, None, TOKENS), plain)
    model.close()


@pytest.mark.parametrize("part", ["attn_q", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"])
def test_single_tensors(part: str) -> None:
    data = archmodel.file(archmodel.CASES["llama"])
    some = {name: shape for name, shape in matrices(data).items() if part in name.split(".")}
    adapter = archmodel.adapter("llama", some, rank=1, alpha=2.0)
    model = load(data)
    loaded = attach(model, adapter)
    assert set(loaded.tensors) == set(some)
    assert np.abs(all_rows(model, loaded, TOKENS) - merged(data, adapter, TOKENS)).max() < 1e-4
    model.close()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("rank", [3, 16, 40])
def test_quantised_base_and_half_precision_pairs(rank: int, level: str) -> None:
    data = tinymodel.Tiny(type=tinymodel.Q4_1, n_ff=160).file()
    adapter = archmodel.adapter("llama", matrices(data), rank=rank, half=True)
    tokens = [t % 101 for t in range(3, 150, 2)]  # several pieces of work
    model = load(data, level=level)
    assert np.abs(all_rows(model, attach(model, adapter), tokens) - merged(data, adapter, tokens)).max() < 3e-2
    model.close()


def test_no_alpha_leaves_the_product_as_it_is() -> None:
    data = archmodel.file(archmodel.CASES["llama"])
    zero, same = (archmodel.adapter("llama", matrices(data), rank=4, alpha=alpha) for alpha in (0.0, 4.0))
    model = load(data)
    assert np.array_equal(
        all_rows(model, attach(model, zero), TOKENS), all_rows(model, attach(model, same), TOKENS)
    )
    model.close()


@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_a_batch_mixes_sequences_with_and_without(name: str) -> None:
    data = archmodel.file(archmodel.CASES[name])
    first, second = (
        archmodel.adapter(name, matrices(data), name=which, rank=rank) for which, rank in (("one", 5), ("two", 17))
    )
    expected = [None, merged(data, first, TOKENS), merged(data, second, TOKENS)]
    expected[0] = ReferenceModel(parse(data), data, 128).logits(TOKENS)
    model = load(data)
    adapters = [None, attach(model, first), attach(model, second)]
    order = [1, 0, 2, 1, 2, 2, 0]  # neighbours with the same adapter, and others
    sequences = [model.sequence(64, adapters[one]) for one in order]
    for start in range(0, 40, 8):
        pieces = [Piece(s, TOKENS[start : start + 7], i % 2 == 0) for i, s in enumerate(sequences)]
        rows = model.step(pieces)
        for i, row in enumerate(rows):
            assert (row is None) == (i % 2 == 1)
            if row is not None:
                np.testing.assert_allclose(unpacked([row])[0], expected[order[i]][start + 6], atol=1e-4)
        for row, one in zip(
            unpacked(model.step([Piece(s, TOKENS[start + 7 : start + 8]) for s in sequences])), order, strict=True
        ):
            np.testing.assert_allclose(row, expected[one][start + 7], atol=1e-4)
    model.close()


def test_company_and_threads_do_not_change_a_bit() -> None:
    data = archmodel.file(archmodel.CASES["llama"])
    model = load(data, threads=1)
    adapter = attach(model, archmodel.adapter("llama", matrices(data)))
    with model.sequence(64, adapter) as sequence:
        alone = unpacked([model.forward(sequence, TOKENS[:20])])[0]
    for threads in (1, 3):
        model.set_threads(threads)
        with model.sequence(64) as before, model.sequence(64, adapter) as sequence, model.sequence(64) as after:
            batch = [Piece(before, TOKENS[5:8]), Piece(sequence, TOKENS[:20]), Piece(after, TOKENS[9:20])]
            assert np.array_equal(unpacked(model.step(batch))[1], alone)
    model.close()


def test_attach_and_detach() -> None:
    data = archmodel.file(archmodel.CASES["llama"])
    model, other = load(data), load(data)
    before = model.memory_bytes
    adapter = attach(model, archmodel.adapter("llama", matrices(data)))
    assert model.memory_bytes == before + adapter.memory_bytes > before
    assert adapter in model.adapters
    sequence = model.sequence(64, adapter)
    model.forward(sequence, TOKENS[:4])
    with pytest.raises(BadRequest) as caught:
        other.forward(other.sequence(8, adapter), [1])
    assert caught.value.subject == "adapter"
    model.detach(adapter)
    model.detach(adapter)
    assert model.memory_bytes == before
    assert not model.adapters
    with pytest.raises(BadRequest) as caught:
        model.forward(sequence, [1])
    assert caught.value.subject == "adapter"
    assert sequence.length == 4
    sequence.close()
    late = attach(model, archmodel.adapter("llama", matrices(data)))
    model.close()
    with pytest.raises(BadRequest):
        late.live()
    with pytest.raises(BadRequest):
        attach(model, archmodel.adapter("llama", matrices(data)))
    other.close()


def test_the_file_is_not_needed_after_attach() -> None:
    data = archmodel.file(archmodel.CASES["llama"])
    raw = archmodel.adapter("llama", matrices(data))
    model = load(data)
    expected = all_rows(model, attach(model, raw), TOKENS)
    copy = bytearray(raw)
    adapter = model.attach(parse(copy), copy)
    copy[:] = bytes(len(copy))
    copy.clear()
    assert np.array_equal(all_rows(model, adapter, TOKENS), expected)
    model.close()


GOOD = {"blk.0.attn_q.weight": (64, 64)}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], type[ModelError], str]] = {
    "a model": (GOOD, {"general__type": "model"}, UnsupportedModel, "general.type"),
    "another kind": (GOOD, {"adapter__type": "dora"}, UnsupportedModel, "adapter.type"),
    "another architecture": (GOOD, {"general__architecture": "qwen2"}, UnsupportedModel, "general.architecture"),
    "another feature": (GOOD, {"adapter__alora__tokens": 4}, UnsupportedModel, "adapter.alora.tokens"),
    "alpha below zero": (GOOD, {"adapter__lora__alpha": -1.0}, BrokenModel, "adapter.lora.alpha"),
    "alpha that is none": (GOOD, {"adapter__lora__alpha": "8"}, UnsupportedModel, "adapter.lora.alpha"),
    "no tensors": ({}, {}, BrokenModel, "adapter"),
    "unknown tensor": ({"blk.9.attn_q.weight": (64, 64)}, {}, BrokenModel, "blk.9.attn_q.weight"),
    "the embedding": ({"token_embd.weight": (64, 48)}, {}, UnsupportedModel, "token_embd.weight"),
    "columns": ({"blk.0.attn_q.weight": (32, 64)}, {}, BrokenModel, "blk.0.attn_q.weight.lora_a"),
    "rows": ({"blk.0.attn_q.weight": (64, 80)}, {}, BrokenModel, "blk.0.attn_q.weight.lora_b"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_named(case: str) -> None:
    base, keys, kind, subject = WRONG[case]
    model = load(archmodel.file(archmodel.CASES["llama"]))
    with pytest.raises(kind) as caught:
        attach(model, archmodel.adapter("llama", base, **keys))
    assert caught.value.subject == subject
    assert not model.adapters
    model.close()


def test_halves_ranks_and_extents() -> None:
    model = load(archmodel.file(archmodel.CASES["llama"]))
    keys = parse(archmodel.adapter("llama", GOOD)).metadata
    name = "blk.0.attn_q.weight"
    down, up = (0, (64, 4), bytes(1024)), (0, (4, 64), bytes(1024))
    wide = 64 * 513 * 4
    for tensors, kind, subject in (
        ({f"{name}.lora_a": down}, BrokenModel, f"{name}.lora_a"),
        ({f"{name}.lora_b": up}, BrokenModel, f"{name}.lora_b"),
        ({name: down}, UnsupportedModel, name),
        ({f"{name}.lora_a": down, f"{name}.lora_b": (0, (8, 64), bytes(2048))}, BrokenModel, f"{name}.lora_b"),
        ({f"{name}.lora_a": (28, (64, 4), bytes(2048)), f"{name}.lora_b": up}, UnsupportedModel, f"{name}.lora_a"),
        ({f"{name}.lora_a": (0, (64,), bytes(256)), f"{name}.lora_b": up}, BrokenModel, f"{name}.lora_a"),
        (
            {
                f"{name}.lora_a": (0, (64, 513), bytes(wide)),
                f"{name}.lora_b": (0, (513, 64), bytes(wide)),
            },
            UnsupportedModel,
            f"{name}.lora_a",
        ),
    ):
        with pytest.raises(kind) as caught:
            attach(model, tinymodel.gguf(keys, tensors))
        assert caught.value.subject == subject
    data = archmodel.adapter("llama", GOOD)
    with pytest.raises(BrokenModel, match="do not lie in a file"):
        model.attach(parse(data), data[:-64])
    model.close()
