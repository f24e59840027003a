# SPDX-License-Identifier: Apache-2.0
"""Tiny encoders of every architecture: the same weights as published (`transformers`) and as a GGUF file.
`tests/data/encoders/make.py` ran the former; the vectors of its texts are data."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

D, FF, HEADS, VOCAB, CONTEXT = 64, 96, 4, 97, 400
LENGTHS = (1, 3, 17, 44, 300)  # tokens of the texts; the last one is more than a chunk of attention
POOLINGS = ("mean", "cls", "last")
F32 = 0


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_e", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_uniform = _sibling("archmodel")._uniform
tinymodel = _sibling("tinymodel")


class Case(NamedTuple):
    """`config` is the published one; `gguf` says the same as metadata of the architecture `of`. `oracle` is the
    case whose vectors these are, if it has none of its own."""

    config: dict[str, Any]
    of: str
    gguf: dict[str, Any] = {}  # noqa: RUF012
    layers: int = 2
    oracle: str = ""


_SIZES = {
    "hidden_size": D,
    "intermediate_size": FF,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "vocab_size": VOCAB,
}
_PADDED = {**_SIZES, "max_position_embeddings": CONTEXT + 2, "pad_token_id": 1, "layer_norm_eps": 1e-5}
_MODERN = {
    **_SIZES,
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "local_attention": 12,
    "global_attn_every_n_layers": 3,
    "norm_eps": 1e-5,
    "pad_token_id": 0,
}
_MODERN_GGUF = {
    "attention.sliding_window": 12,
    "attention.sliding_window_pattern": 3,
    "rope.freq_base": 160000.0,
    "rope.freq_base_swa": 10000.0,
    "rope.scaling.type": "none",
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": VOCAB,
    "classifier.pooling_type": 2,
}
CASES: dict[str, Case] = {
    "bert": Case({**_SIZES, "model_type": "bert", "type_vocab_size": 2, "hidden_act": "gelu"}, "bert"),
    "roberta": Case({**_PADDED, "model_type": "roberta", "type_vocab_size": 1}, "bert"),
    "xlm_roberta": Case(
        {**_PADDED, "model_type": "xlm-roberta", "type_vocab_size": 1, "pad_token_id": 4,
         "max_position_embeddings": CONTEXT + 5}, "bert"
    ),
    "distilbert": Case(
        {"model_type": "distilbert", "dim": D, "hidden_dim": FF, "n_layers": 2, "n_heads": HEADS,
         "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "activation": "gelu"}, "bert"
    ),
    "nomic_bert": Case(
        {**_SIZES, "model_type": "nomic_bert", "type_vocab_size": 2, "hidden_act": "silu",
         "layer_norm_eps": 1e-12, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        "nomic-bert", {"rope.freq_base": 1000.0},
    ),
    "nomic_bert_as_published": Case(
        {"model_type": "nomic_bert", "n_embd": D, "n_inner": FF, "n_layer": 2, "n_head": HEADS,
         "n_positions": 4 * CONTEXT, "max_trained_positions": CONTEXT, "vocab_size": VOCAB, "type_vocab_size": 2,
         "activation_function": "swiglu", "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000,
         "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
         "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "causal": False},
        "nomic-bert", {"rope.freq_base": 1000.0}, oracle="nomic_bert",
    ),
    "modernbert": Case(_MODERN, "modern-bert", _MODERN_GGUF, layers=4),
    "modernbert_silu": Case(
        {**_MODERN, "hidden_activation": "silu", "global_rope_theta": 80000.0, "local_rope_theta": 500.0,
         "global_attn_every_n_layers": 2},
        "modern-bert",
        {**_MODERN_GGUF, "hidden_activation": "silu", "rope.freq_base": 80000.0, "rope.freq_base_swa": 500.0,
         "attention.sliding_window_pattern": [False, True, False, True]},
        layers=4,
    ),
}  # fmt: skip


def texts() -> list[list[int]]:
    """Tokens from 5 on: lower ones stand for padding somewhere."""
    return [[5 + int(x) for x in (_uniform(f"text {n}", (n,)) + 1) / 2 * (VOCAB - 5)] for n in LENGTHS]


class _Weights(dict[str, np.ndarray]):
    """Numbers that depend on their tensor's name alone."""

    def matrix(self, name: str, rows: int, cols: int) -> None:
        self[f"{name}.weight"] = _uniform(name, (rows, cols)) * np.float32(math.sqrt(3 / cols))

    def linear(self, name: str, rows: int, cols: int, biased: bool = True) -> None:
        self.matrix(name, rows, cols)
        if biased:
            self[f"{name}.bias"] = _uniform(f"{name}.bias", (rows,)) * np.float32(0.5)

    def norm(self, name: str, biased: bool = True) -> None:
        self[f"{name}.weight"] = _uniform(name, (D,)) * np.float32(0.5) + np.float32(1)
        if biased:
            self[f"{name}.bias"] = _uniform(f"{name}.bias", (D,)) * np.float32(0.5)


_BERT = ("query", "key", "value")
# Of each architecture: the folder of a layer, its matrices with rows and columns, and its norms.
_LAYERS: dict[str, tuple[str, dict[str, tuple[int, int]], tuple[str, ...]]] = {
    "bert": (
        "encoder.layer.",
        {**{f"attention.self.{one}": (D, D) for one in _BERT}, "attention.output.dense": (D, D),
         "intermediate.dense": (FF, D), "output.dense": (D, FF)},
        ("attention.output.LayerNorm", "output.LayerNorm"),
    ),
    "distilbert": (
        "transformer.layer.",
        {**{f"attention.{one}_lin": (D, D) for one in ("q", "k", "v", "out")}, "ffn.lin1": (FF, D),
         "ffn.lin2": (D, FF)},
        ("sa_layer_norm", "output_layer_norm"),
    ),
    "nomic_bert": (
        "layers.",
        {**{f"self_attn.{one}_proj": (D, D) for one in "qkvo"}, "mlp.gate_proj": (FF, D), "mlp.up_proj": (FF, D),
         "mlp.down_proj": (D, FF)},
        ("post_attention_layernorm", "post_mlp_layernorm"),
    ),
    "modernbert": (
        "layers.",
        {"attn.Wqkv": (3 * D, D), "attn.Wo": (D, D), "mlp.Wi": (2 * FF, D), "mlp.Wo": (D, FF)},
        ("attn_norm", "mlp_norm"),
    ),
}  # fmt: skip


def weights(name: str) -> dict[str, np.ndarray]:
    """Under the names as published."""
    case = CASES[name]
    kind = case.config["model_type"]
    biased = kind not in ("nomic_bert", "modernbert")
    out = _Weights()
    if kind == "modernbert":
        out.matrix("embeddings.tok_embeddings", VOCAB, D)
        out.norm("embeddings.norm", biased=False)
        out.norm("final_norm", biased=False)
    else:
        out.matrix("embeddings.word_embeddings", VOCAB, D)
        if kind != "nomic_bert":
            out.matrix("embeddings.position_embeddings", case.config["max_position_embeddings"], D)
        if kind != "distilbert":
            out.matrix("embeddings.token_type_embeddings", case.config["type_vocab_size"], D)
        out.norm("embeddings.LayerNorm")
    folder, matrices, norms = _LAYERS.get(kind, _LAYERS["bert"])
    for i in range(case.layers):
        for one, (rows, cols) in matrices.items():
            out.linear(f"{folder}{i}.{one}", rows, cols, biased)
        for one in norms:
            if (one, i) != ("attn_norm", 0):
                out.norm(f"{folder}{i}.{one}", biased=kind != "modernbert")
    return _in_its_own_words(out) if name == "nomic_bert_as_published" else out


def _in_its_own_words(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """nomic's weights as its own code names them, with Q, K and V in one."""
    out = {}
    for name, value in given.items():
        if ".k_proj" in name or ".v_proj" in name:
            continue
        if ".q_proj" in name:
            value = np.concatenate([given[name.replace("q_proj", f"{one}_proj")] for one in "qkv"])
        for new, old in (
            ("layers.", "encoder.layers."), ("embeddings.LayerNorm", "emb_ln"), ("self_attn.q_proj", "attn.Wqkv"),
            ("self_attn.o_proj", "attn.out_proj"), ("post_attention_layernorm", "norm1"),
            ("post_mlp_layernorm", "norm2"), ("gate_proj", "fc12"), ("up_proj", "fc11"), ("down_proj", "fc2"),
        ):  # fmt: skip
            name = name.replace(new, old)
        out[name] = value
    return out


_GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.tok_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm", "embeddings.norm": "token_embd_norm", "emb_ln": "token_embd_norm",
    "final_norm": "output_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "attn.Wqkv": "attn_qkv", "attention.output.dense": "attn_output", "attention.out_lin": "attn_output",
    "self_attn.o_proj": "attn_output", "attn.out_proj": "attn_output", "attn.Wo": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "sa_layer_norm": "attn_output_norm",
    "post_attention_layernorm": "attn_output_norm", "norm1": "attn_output_norm",
    "output.LayerNorm": "layer_output_norm", "output_layer_norm": "layer_output_norm",
    "post_mlp_layernorm": "layer_output_norm", "norm2": "layer_output_norm",
    "attn_norm": "attn_norm", "mlp_norm": "ffn_norm",
    "intermediate.dense": "ffn_up", "ffn.lin1": "ffn_up", "mlp.up_proj": "ffn_up", "mlp.fc11": "ffn_up",
    "mlp.Wi": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.fc12": "ffn_gate",
    "output.dense": "ffn_down", "ffn.lin2": "ffn_down", "mlp.down_proj": "ffn_down", "mlp.fc2": "ffn_down",
    "mlp.Wo": "ffn_down",
}  # fmt: skip


def tensors(name: str, type: int = F32) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Under GGUF's names, as llama.cpp converts them, with matrices of `type`: (type, ne, bytes)."""
    out = {}
    rng = np.random.default_rng(5)
    for published, value in weights(name).items():
        stem, _, part = published.rpartition(".")
        layer = next((i for i in range(9) if f".{i}." in f".{stem}."), None)
        if layer is None:
            target = _GGUF_NAMES[stem]
        else:
            target = f"blk.{layer}.{_GGUF_NAMES[stem.partition(f'{layer}.')[2]]}"
        if target == "position_embd":
            value = value[len(value) - CONTEXT :]
        if type == F32 or value.ndim == 1:
            out[f"{target}.{part}"] = (F32, value.shape[::-1], value.tobytes())
        else:
            out[f"{target}.{part}"] = (type, value.shape[::-1], tinymodel.encode(rng, type, *value.shape))
    return out


def metadata(name: str) -> dict[str, Any]:
    case = CASES[name]
    eps = [case.config.get(key) for key in ("layer_norm_eps", "norm_eps", "layer_norm_epsilon")]
    keys = {
        "block_count": case.layers,
        "context_length": CONTEXT,
        "embedding_length": D,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": next((one for one in eps if one), 1e-12),
        "attention.causal": False,
        **case.gguf,
    }
    return {"general.architecture": case.of, **{f"{case.of}.{key}": value for key, value in keys.items()}}


def file(name: str, type: int = F32) -> bytes:
    """The GGUF file."""
    data: bytes = tinymodel.gguf(metadata(name), tensors(name, type))
    return data
