# SPDX-License-Identifier: Apache-2.0
"""What the files of the architectures may say, and what is refused by name."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.gguf import GGUF, Tensor, parse
from syntrop.runtimed.model.config import Config, read_config
from syntrop.runtimed.model.errors import BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.llama import LlamaModel
from syntrop.runtimed.model.plan import plan

_spec = importlib.util.spec_from_file_location("archmodel_c", Path(__file__).with_name("archmodel.py"))
assert _spec is not None and _spec.loader is not None
archmodel: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = archmodel
_spec.loader.exec_module(archmodel)

CASES: dict[str, Any] = archmodel.CASES
FILES = {name: archmodel.file(case) for name, case in CASES.items()}


def changed(name: str, keys: dict[str, Any]) -> tuple[GGUF, bytes]:
    """The file of a case with other metadata (None takes a key away) under the architecture's prefix."""
    header = parse(FILES[name])
    for key, value in keys.items():
        full = key if key.startswith("general.") else f"{CASES[name].architecture}.{key}"
        header.metadata[full] = value
        if value is None:
            del header.metadata[full]
    return header, FILES[name]


def config(name: str, context: int = 0, **keys: Any) -> Config:
    header, data = changed(name, {key.replace("__", "."): value for key, value in keys.items()})
    return read_config(header, data, context)


REFUSED: dict[str, tuple[str, dict[str, Any], type[ModelError], str]] = {
    "experts": ("qwen3", {"expert_count": 8}, UnsupportedModel, "qwen3.expert_count"),
    "a key of another family": ("llama", {"residual_scale": 0.5}, UnsupportedModel, "llama.residual_scale"),
    "window where none is known": (
        "qwen2",
        {"attention.sliding_window": 8},
        UnsupportedModel,
        "qwen2.attention.sliding_window",
    ),
    "both directions": ("gemma3", {"attention.causal": False}, UnsupportedModel, "gemma3.attention.causal"),
    "negative window": (
        "gemma3",
        {"attention.sliding_window": -1},
        BrokenModel,
        "gemma3.attention.sliding_window",
    ),
    "short pattern": (
        "gemma3",
        {"attention.sliding_window_pattern": [True, False]},
        BrokenModel,
        "gemma3.attention.sliding_window_pattern",
    ),
    "pattern of every none": (
        "gemma3",
        {"attention.sliding_window_pattern": 0},
        BrokenModel,
        "gemma3.attention.sliding_window_pattern",
    ),
    "negative cap": ("gemma3", {"final_logit_softcapping": -1.0}, BrokenModel, "gemma3.final_logit_softcapping"),
    "unknown stretch": ("phi3", {"rope.scaling.type": "dynamic"}, UnsupportedModel, "phi3.rope.scaling.type"),
    "stretch that is no text": ("llama", {"rope.scaling.type": 3}, UnsupportedModel, "llama.rope.scaling.type"),
    "yarn of another kind": (
        "llama_yarn",
        {"rope.scaling.yarn_ext_factor": 0.5},
        UnsupportedModel,
        "llama.rope.scaling.yarn_ext_factor",
    ),
    "yarn without measure": ("llama_yarn", {"rope.scaling.factor": 0.0}, BrokenModel, "llama.rope.scaling.factor"),
    "infinite base": ("qwen2", {"rope.freq_base": math.inf}, BrokenModel, "qwen2.rope.freq_base"),
    "base of one": ("llama_yarn", {"rope.freq_base": 1.0}, BrokenModel, "llama.rope.freq_base"),
    "local base below one": ("gemma3", {"rope.freq_base_swa": 0.5}, BrokenModel, "gemma3.rope.freq_base_swa"),
    "factor of nothing": (
        "llama_linear",
        {"rope.scaling.factor": 5e-324},
        BrokenModel,
        "llama.rope.scaling.factor",
    ),
    "endless window": (
        "gemma3",
        {"attention.sliding_window": 2**31},
        BrokenModel,
        "gemma3.attention.sliding_window",
    ),
    "no RoPE": ("granite", {"rope.scaling.finetuned": False}, UnsupportedModel, "granite.rope.scaling.finetuned"),
    "no logit scale": ("granite", {"logit_scale": None}, BrokenModel, "granite.logit_scale"),
    "zero residuals": ("granite", {"residual_scale": 0.0}, BrokenModel, "granite.residual_scale"),
    "unknown": ("llama", {"general.architecture": "mamba"}, UnsupportedModel, "general.architecture"),
    "a list": ("llama", {"general.architecture": ["llama"]}, UnsupportedModel, "general.architecture"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(case: str) -> None:
    name, keys, kind, subject = REFUSED[case]
    with pytest.raises(kind) as caught:
        read_config(*changed(name, keys))
    assert caught.value.subject == subject


def test_what_changes_nothing_is_passed_over() -> None:
    plain = config("llama")
    assert plain == config("llama", vocab_size=48, expert_count=0, tensor_data_layout="Meta AI original pth")


def test_windows_and_bases_by_layer() -> None:
    layers = config("gemma3").layers
    assert [(layer.window, layer.rope) for layer in layers] == [(7, 1), (7, 1), (0, 0)]
    flags = config("gemma3", attention__sliding_window_pattern=[False, True, False, True]).layers
    assert [(layer.window, layer.rope) for layer in flags] == [(0, 0), (7, 1), (0, 0)]
    assert not any(layer.window or layer.rope for layer in config("gemma3", attention__sliding_window=0).layers)
    plain = config("gemma3", rope__freq_base_swa=20000.0)
    assert plain.ropes[1].frequencies[1] == pytest.approx(20000.0 ** (-2 / 24))


def test_the_largest_gemma_scales_scores_by_its_width() -> None:
    header, data = changed("gemma3", {"block_count": 62, "attention.key_length": 32, "attention.value_length": 32})
    assert read_config(header, data).attn_scale == (64 / 4) ** -0.5


def test_long_factors_are_for_long_contexts() -> None:
    short, long = config("phi3_long", 32), config("phi3_long", 33)
    assert config("phi3_long") == long
    assert short.ropes[0].frequencies[1] > long.ropes[0].frequencies[1]
    assert short.ropes[0].magnitude == long.ropes[0].magnitude > 1
    assert short.consumed == {"rope_factors_long.weight", "rope_factors_short.weight"}


def test_old_names_of_a_linear_stretch() -> None:
    new = config("llama_linear")
    assert new.ropes == config("llama", rope__scale_linear=4.0).ropes
    assert new.ropes == config("llama", rope__scaling__factor=4.0).ropes
    assert config("llama", rope__scaling__type="none", rope__scaling__factor=4.0).ropes == config("llama").ropes


def test_yarn_may_tell_its_growth() -> None:
    assert config("llama_yarn").ropes[0].magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert config("llama_yarn", rope__scaling__yarn_attn_factor=1.5).ropes[0].magnitude == 1.5


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "blk.1.attn_k.bias"),
        ("qwen3", "blk.0.attn_q_norm.weight"),
        ("gemma3", "blk.2.post_ffw_norm.weight"),
        ("phi3", "blk.0.attn_qkv.weight"),
        ("granite", "blk.1.ffn_gate.weight"),
    ],
)
def test_missing_tensors_are_named(name: str, tensor: str) -> None:
    header, data = changed(name, {})
    del header.tensors[tensor]
    with pytest.raises(BrokenModel) as caught:
        plan(read_config(header, data), header.tensors)
    assert caught.value.subject == tensor


def test_fused_tensors_are_split_by_rows() -> None:
    header, data = changed("phi3", {})
    places = {(p.layer, p.slot): p for p in plan(read_config(header, data), header.tensors)}
    query, key, value = (places[0, slot] for slot in ("attn_q", "attn_k", "attn_v"))
    assert query.tensor is key.tensor is value.tensor
    assert [p.shape for p in (query, key, value)] == [(64, 64), (64, 32), (64, 32)]
    assert [p.offset for p in (query, key, value)] == [0, 64 * 64 * 4, 96 * 64 * 4]
    assert places[1, "ffn_up"].row == places[1, "ffn_gate"].shape[1]
    tensor = header.tensors["blk.0.attn_qkv.weight"]
    tensor.shape = (64, 127)
    with pytest.raises(BrokenModel) as caught:
        plan(read_config(header, data), header.tensors)
    assert caught.value.subject == tensor.name


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_divisors_that_cannot_be(value: float) -> None:
    header, _ = changed("llama", {})
    numbers = np.array([1.0] * 7 + [value], dtype=np.float32).tobytes()
    header.tensors["rope_freqs.weight"] = Tensor("rope_freqs.weight", 0, (8,), 0, 32)
    with pytest.raises(BrokenModel) as caught:
        read_config(header, numbers)
    assert caught.value.subject == "rope_freqs.weight"
    for tensor in (Tensor("", 0, (9,), 0, 36), Tensor("", 1, (8,), 0, 16), Tensor("", 0, (8,), 8, 32)):
        header.tensors["rope_freqs.weight"] = tensor
        with pytest.raises(ModelError) as caught:
            read_config(header, numbers)
        assert caught.value.subject == "rope_freqs.weight"


_KEYS = sorted({key for file in FILES.values() for key in parse(file).metadata})
_VALUES = st.one_of(
    st.integers(-2, 300),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=4),
    st.lists(st.integers(0, 2), max_size=4),
    st.lists(st.booleans(), max_size=4),
    st.sampled_from(["none", "linear", "yarn", "longrope", "llama", "gemma3"]),
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(CASES)), changes=st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=3))
def test_any_metadata_loads_or_is_refused(name: str, changes: dict[str, Any]) -> None:
    header, data = parse(FILES[name]), FILES[name]
    header.metadata.update(changes)
    try:
        LlamaModel.load(header, data, threads=1, context=None).close()
    except ModelError as error:
        assert error.subject
