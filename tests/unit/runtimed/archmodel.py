# SPDX-License-Identifier: Apache-2.0
"""Tiny models of every architecture: the same weights under the names of the reference implementation
(`transformers`) and as a GGUF file. `tests/data/architectures/make.py` ran the former; its logits are data."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

D, FF, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 48
TOKENS = 44
TRAINED = 32  # context before a stretch of RoPE: the tokens pass it
F32 = 0


class Case(NamedTuple):
    """`hf` and `gguf` say the same thing, one to the reference's configuration, the other as metadata."""

    architecture: str  # GGUF's word
    hf: dict[str, Any]
    gguf: dict[str, Any]
    layers: int = 2
    head_dim: int = 16
    context: int = 128  # with which our model is loaded
    tied: bool = False


def _theta(base: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
_YARN_GGUF = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": TRAINED,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
_LONG = [1.0 + 0.5 * i for i in range(6)]
_SHORT = [1.0 + 0.1 * i for i in range(6)]
_LONGROPE = {
    "rope_type": "longrope",
    "long_factor": _LONG,
    "short_factor": _SHORT,
    "original_max_position_embeddings": TRAINED,
    "partial_rotary_factor": 0.75,
}
_LONGROPE_GGUF = {
    "rope.scaling.original_context_length": TRAINED,
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(128 / TRAINED) / math.log(TRAINED)),
    "rope.dimension_count": 12,
    "attention.sliding_window": 0,
}
_GEMMA = {"sliding_window": 7}
_GEMMA_GGUF = {"attention.sliding_window": 7, "rope.freq_base": 50000.0, "attention.sliding_window_pattern": 3}


def _gemma_ropes(**full: Any) -> dict[str, Any]:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": 50000.0, **full},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }


_LONG_HF = {**_theta(10000.0, **_LONGROPE), "original_max_position_embeddings": TRAINED}

CASES: dict[str, Case] = {
    "llama": Case("llama", _theta(10000.0), {"rope.freq_base": 10000.0}),
    "llama_tied": Case("llama", _theta(500.0), {"rope.freq_base": 500.0}, tied=True),
    "llama_linear": Case(
        "llama",
        _theta(10000.0, rope_type="linear", factor=4.0),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama_yarn": Case("llama", _theta(10000.0, **_YARN), _YARN_GGUF),
    "llama_llama3": Case("llama", _theta(10000.0, **_LLAMA3), {}),
    "mistral": Case("llama", {**_theta(10000.0), "sliding_window": 9}, {"attention.sliding_window": 9}),
    "qwen2": Case("qwen2", _theta(1e6), {"rope.freq_base": 1e6}),
    "qwen2_yarn": Case("qwen2", _theta(1e6, **_YARN), {"rope.freq_base": 1e6, **_YARN_GGUF}),
    "qwen3": Case("qwen3", _theta(1e6), {"rope.freq_base": 1e6}, head_dim=32, tied=True),
    "gemma3": Case(
        "gemma3",
        {**_GEMMA, "query_pre_attn_scalar": 24, "rope_parameters": _gemma_ropes()},
        _GEMMA_GGUF,
        layers=3,
        head_dim=24,
        tied=True,
    ),
    "gemma3_linear_capped": Case(
        "gemma3",
        {
            **_GEMMA,
            "query_pre_attn_scalar": 16,
            "rope_parameters": _gemma_ropes(rope_type="linear", factor=8.0),
            "final_logit_softcapping": 5.0,
        },
        {
            **_GEMMA_GGUF,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 5.0,
        },
        layers=3,
        tied=True,
    ),
    "phi3": Case("phi3", {**_theta(10000.0), "sliding_window": 11}, {"attention.sliding_window": 11}),
    "phi3_short": Case("phi3", _LONG_HF, _LONGROPE_GGUF, context=TRAINED),
    "phi3_long": Case("phi3", _LONG_HF, _LONGROPE_GGUF),
    "granite": Case(
        "granite",
        {
            **_theta(10000.0),
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
        },
        {"embedding_scale": 6.0, "residual_scale": 0.4, "attention.scale": 0.2, "logit_scale": 3.0},
        tied=True,
    ),
}  # fmt: skip


def _uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [-1, 1) that depend on the name alone (splitmix64), so on no library's generator."""
    seed = int.from_bytes(name.encode()[-8:], "little") + sum(name.encode()) * 0x51ED2701
    with np.errstate(over="ignore"):
        z = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed % (1 << 64))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1).reshape(shape).astype(np.float32)


def tokens(count: int = TOKENS) -> list[int]:
    return [int(x) for x in (_uniform("tokens", (count,)) + 1) / 2 * VOCAB]


def weights(case: Case) -> dict[str, np.ndarray]:
    """Under the reference's names."""
    q, kv = HEADS * case.head_dim, KV_HEADS * case.head_dim
    gemma = case.architecture == "gemma3"
    out: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        out[name + ".weight"] = _uniform(name, (rows, cols)) * np.float32(math.sqrt(3 / cols))

    def norm(name: str, n: int = D) -> None:
        out[name + ".weight"] = _uniform(name, (n,)) * np.float32(0.5) + np.float32(0 if gemma else 1)

    scale = math.sqrt(3 / D) if case.tied else 1.0  # logits of about unit variance
    out["model.embed_tokens.weight"] = _uniform("embed", (VOCAB, D)) * np.float32(scale)
    norm("model.norm")
    if not case.tied:
        matrix("lm_head", VOCAB, D)
    for i in range(case.layers):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm")
        norm(at + "post_attention_layernorm")
        if case.architecture == "phi3":
            matrix(at + "self_attn.qkv_proj", q + 2 * kv, D)
            matrix(at + "mlp.gate_up_proj", 2 * FF, D)
        else:
            for one, rows in (("q", q), ("k", kv), ("v", kv)):
                matrix(at + f"self_attn.{one}_proj", rows, D)
                if case.architecture == "qwen2":
                    name = at + f"self_attn.{one}_proj.bias"
                    out[name] = _uniform(name, (rows,))
            matrix(at + "mlp.gate_proj", FF, D)
            matrix(at + "mlp.up_proj", FF, D)
        if case.architecture in ("qwen3", "gemma3"):
            norm(at + "self_attn.q_norm", case.head_dim)
            norm(at + "self_attn.k_norm", case.head_dim)
        if gemma:
            norm(at + "pre_feedforward_layernorm")
            norm(at + "post_feedforward_layernorm")
        matrix(at + "self_attn.o_proj", D, q)
        matrix(at + "mlp.down_proj", D, FF)
    return out


_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _gguf_name(case: Case, name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    if case.architecture == "gemma3" and part == "post_attention_layernorm":
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _neighbours(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of Q or K so that the columns of a head that rotate together become neighbours."""
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _llama3_divisors(head_dim: int, base: float) -> np.ndarray:
    """As conversion scripts write them, by wavelengths."""
    p, out = _LLAMA3, []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (i / head_dim)
        if wavelength < p["original_max_position_embeddings"] / p["high_freq_factor"]:
            out.append(1.0)
        elif wavelength > p["original_max_position_embeddings"] / p["low_freq_factor"]:
            out.append(p["factor"])
        else:
            smooth = p["original_max_position_embeddings"] / wavelength - p["low_freq_factor"]
            smooth /= p["high_freq_factor"] - p["low_freq_factor"]
            out.append(1 / ((1 - smooth) / p["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def tensors(case: Case) -> dict[str, np.ndarray]:
    """Under GGUF's names, converted as for a file."""
    out = {}
    for name, value in weights(case).items():
        target = _gguf_name(case, name)
        if case.architecture == "gemma3" and target.endswith("norm.weight"):
            value = value + np.float32(1)
        if case.architecture in ("llama", "granite") and (".attn_q." in target or ".attn_k." in target):
            value = _neighbours(value, case.head_dim)
        out[target] = value
    if "long_factor" in case.hf.get("rope_parameters", {}):
        out["rope_factors_long.weight"] = np.array(_LONG, dtype=np.float32)
        out["rope_factors_short.weight"] = np.array(_SHORT, dtype=np.float32)
    if case.hf.get("rope_parameters", {}).get("rope_type") == "llama3":
        out["rope_freqs.weight"] = _llama3_divisors(case.head_dim, 10000.0)
    return out


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_a", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def metadata(case: Case) -> dict[str, Any]:
    a = case.architecture
    return {
        "general.architecture": a,
        f"{a}.block_count": case.layers,
        f"{a}.embedding_length": D,
        f"{a}.feed_forward_length": FF,
        f"{a}.attention.head_count": HEADS,
        f"{a}.attention.head_count_kv": KV_HEADS,
        f"{a}.attention.key_length": case.head_dim,
        f"{a}.attention.value_length": case.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{a}.context_length": 128,
        **{f"{a}.{key}": value for key, value in case.gguf.items()},
    }


def file(case: Case) -> bytes:
    """The GGUF file, weights in F32."""
    body = {name: (F32, value.shape[::-1], value.tobytes()) for name, value in tensors(case).items()}
    data: bytes = _sibling("tinymodel").gguf(metadata(case), body)
    return data


def adapter(
    architecture: str,
    base: dict[str, tuple[int, ...]],
    *,
    name: str = "adapter",
    rank: int = 5,
    alpha: float = 8.0,
    half: bool = False,
    **more: Any,
) -> bytes:
    """A LoRA adapter as a GGUF file: a pair of `rank` for each tensor of `base`, by name and shape in ne order."""
    dtype, number = (np.float16, 1) if half else (np.float32, 0)
    body = {}
    for tensor, (columns, rows) in base.items():
        for suffix, (n, m) in (("lora_a", (rank, columns)), ("lora_b", (rows, rank))):
            values = _uniform(f"{tensor}.{suffix}.{name}", (n, m)) * np.float32(math.sqrt(1 / m))
            body[f"{tensor}.{suffix}"] = (number, (m, n), values.astype(dtype).tobytes())
    keys: dict[str, Any] = {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    data: bytes = _sibling("tinymodel").gguf(keys, body)
    return data
