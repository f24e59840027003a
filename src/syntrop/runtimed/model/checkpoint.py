# SPDX-License-Identifier: Apache-2.0
"""A published checkpoint (config.json and safetensors) told in GGUF's names, so that one reader serves both.

`convert` gives a header as `common.gguf` would: metadata under GGUF's keys and tensors under GGUF's names, which
still lie where they are. What the two formats store differently becomes an `Edit`: numbers to be written beside
the mapped files before the weights are read.

- Gemma's norms are stored as the distance from 1.
- llama3's and phi3's stretched rotations are numbers in the configuration, and tensors of divisors in a GGUF file.

The rows of llama's query and key projections are ordered for rotations of (i, i + half), where GGUF has them so
that pairs are neighbours. They stay as they are: a key of our own, `rope.halves`, says so.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from syntrop.common.gguf import GGUF, Tensor
from syntrop.runtimed.model import published_encoders as encoders
from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel
from syntrop.runtimed.model.published import LAYERS_MAX, Family, number, real, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Config = Mapping[str, Any]

TYPES = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}  # safetensors' name: ggml's number, bytes of an element
F32 = 0


class Stored(NamedTuple):
    """A tensor where it lies: `shape` has the slowest axis first; `offset` is in the mapped parts."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Edit(NamedTuple):
    """Bytes for the space behind the mapped files: what `make` returns, given the bytes of the source."""

    tensor: Tensor
    source: Stored | None
    make: Callable[[memoryview], bytes]


_COMMON = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LLAMA = {**_COMMON, "post_attention_layernorm": "ffn_norm"}
_NORMED = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_GEMMA = {
    **_COMMON,
    **_NORMED,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PHI = {**_LLAMA, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
FAMILIES = {  # by `model_type`
    "llama": Family("llama", _LLAMA, paired=True),
    "mistral": Family("llama", _LLAMA, paired=True),
    "granite": Family("granite", _LLAMA, paired=True),
    "qwen2": Family("qwen2", _LLAMA),
    "qwen3": Family("qwen3", {**_LLAMA, **_NORMED}),
    "gemma3_text": Family("gemma3", _GEMMA, offset_norms=True),
    "phi3": Family("phi3", _PHI),
    **encoders.FAMILIES,
}
_WHOLE = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    **encoders.WHOLE,
}
# Not weights of the network.
_LEFT_OUT = re.compile(r"embeddings\.position_ids|.*\.rotary_emb\.inv_freq")
_LAYER = re.compile(r"(?:encoder\.|transformer\.)?layers?\.(\d+)\.(.+)\.(weight|bias)", re.ASCII)


def convert(
    config: Config, stored: Mapping[str, Stored], behind: int, pooling: int = 0
) -> tuple[GGUF, list[Edit]]:
    """The header of a checkpoint, and what is to be written from byte `behind` of the parts on, in this order.

    `pooling` is GGUF's number, for encoders. Raises UnsupportedModel and BrokenModel, naming key or tensor.
    """
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise UnsupportedModel("config.json: model_type", f"{kind!r} is none of {', '.join(sorted(FAMILIES))}")
    if config.get("quantization_config"):
        raise UnsupportedModel("config.json: quantization_config", "quantised checkpoints are not read")
    metadata = family.metadata(config, pooling) if family.metadata else _decoder(config, family)
    tensors: dict[str, Tensor] = {}
    edits: list[Edit] = []

    def place(tensor: Tensor) -> Tensor:
        nonlocal behind
        tensor.offset = behind
        behind += (tensor.nbytes + 63) // 64 * 64
        return tensor

    for name, source in stored.items():
        given = _renamed(name, family, config)
        if given is None:
            continue
        if given in tensors:
            raise BrokenModel(name, "stands for the same as another tensor")
        if source.kind not in TYPES:
            raise UnsupportedModel(name, f"{source.kind} weights; read are {', '.join(TYPES)}")
        if not 1 <= len(source.shape) <= 2 or 0 in source.shape:
            raise UnsupportedModel(name, f"shape {list(source.shape)}")
        code, _ = TYPES[source.kind]
        tensor = Tensor(given, code, tuple(reversed(source.shape)), source.offset, source.nbytes)
        if given == "position_embd.weight" and family.unused_positions:
            tensor = _behind(name, tensor, family.unused_positions(config))
        if family.offset_norms and given.endswith("norm.weight"):
            tensor = place(Tensor(given, F32, tensor.shape, 0, 4 * tensor.shape[0]))
            edits.append(Edit(tensor, source, _plus_one(source.kind)))
        tensors[given] = tensor
    if family.metadata is None:
        for name, divisors in _divisors(config).items():
            tensor = place(Tensor(name, F32, (len(divisors),), 0, 4 * len(divisors)))
            edits.append(Edit(tensor, None, _given(divisors)))
            tensors[name] = tensor
    return GGUF(3, 32, metadata, tensors, 0), edits


def _renamed(name: str, family: Family, config: Config) -> str | None:
    """GGUF's name of a tensor; None for one that is not needed. Raises UnsupportedModel."""
    short = name
    for prefix in ("model.", *encoders.PREFIXES):
        short = short.removeprefix(prefix)
    if family.metadata:
        short = encoders.current(short)
    if _LEFT_OUT.fullmatch(short) or (family.heads and re.fullmatch(family.heads, short)):
        return None
    if found := _LAYER.fullmatch(short):
        given = family.names.get(found[2])
        if given is not None:
            return f"blk.{int(found[1])}.{given}.{found[3]}"
    else:
        base, _, part = short.rpartition(".")
        if base == "lm_head" and config.get("tie_word_embeddings", family.architecture == "gemma3"):
            return None  # a copy of the embedding
        if base in _WHOLE and part in ("weight", "bias"):
            return f"{_WHOLE[base]}.{part}"
    raise UnsupportedModel(name, f"a tensor that {config.get('model_type')} is not known to have")


def _behind(name: str, tensor: Tensor, rows: int) -> Tensor:
    """A matrix without its first rows. Raises BrokenModel."""
    left = tensor.shape[-1] - rows
    if len(tensor.shape) != 2 or left < 1:
        raise BrokenModel(name, f"shape {list(tensor.shape)[::-1]}, without its first {rows} rows")
    length = tensor.nbytes // tensor.shape[1] * left
    offset = tensor.offset + tensor.nbytes - length
    return Tensor(tensor.name, tensor.type, (tensor.shape[0], left), offset, length)


# --- metadata ---------------------------------------------------------------------------------------------------


def _decoder(config: Config, family: Family) -> dict[str, object]:
    act = config.get("hidden_activation") or config.get("hidden_act")
    expected = "gelu_pytorch_tanh" if family.architecture == "gemma3" else "silu"
    if act != expected:
        raise UnsupportedModel("config.json: hidden_act", f"{act!r}; only {expected!r} is supported")
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    head = number(config, "head_dim", width // heads if width % heads == 0 else None)
    context = number(config, "max_position_embeddings")
    partial = real({**config, **rope_of(config)}, "partial_rotary_factor", 1.0)
    values: dict[str, object] = {
        "block_count": number(config, "num_hidden_layers"),
        "context_length": context,
        "embedding_length": width,
        "feed_forward_length": number(config, "intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": number(config, "num_key_value_heads", heads),
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": real(config, "rms_norm_eps", 1e-6),
        "rope.dimension_count": int(head * partial),
    }
    if family.paired:
        values["rope.halves"] = True
    window = config.get("sliding_window") and number(config, "sliding_window")
    if family.architecture == "gemma3":
        values |= _gemma(config, head)
    elif window and family.architecture in ("qwen2", "qwen3"):
        if config.get("use_sliding_window"):
            # In some layers only. Within the window all see everything: that much context is exact.
            values["context_length"] = min(context, window)
    elif window:
        values["attention.sliding_window"] = window
    if family.architecture == "granite":
        values |= {
            "embedding_scale": real(config, "embedding_multiplier", 1.0),
            "residual_scale": real(config, "residual_multiplier", 1.0),
            "attention.scale": real(config, "attention_multiplier", 1.0),
            "logit_scale": real(config, "logits_scaling", 1.0),
        }
    values |= _rotation(config)
    metadata: dict[str, object] = {"general.architecture": family.architecture}
    return metadata | {f"{family.architecture}.{key}": value for key, value in values.items()}


def _gemma(config: Config, head: int) -> dict[str, object]:
    """Layers that see a window, rotated by a base of their own, between some that see everything."""
    layers, width = number(config, "num_hidden_layers"), number(config, "hidden_size")
    if layers > LAYERS_MAX:
        raise UnsupportedModel("config.json: num_hidden_layers", f"{layers}, at most {LAYERS_MAX}")
    # GGUF has no key for what queries are divided by: it follows from the size (model/arch/gemma3.py).
    divisor = width // number(config, "num_attention_heads") if layers == 62 else head
    if config.get("query_pre_attn_scalar", divisor) != divisor:
        raise UnsupportedModel("config.json: query_pre_attn_scalar", f"differs from {divisor}")
    if config.get("attn_logit_softcapping"):
        raise UnsupportedModel("config.json: attn_logit_softcapping", "not supported")
    kinds = config.get("layer_types")
    if kinds is None:
        every = number(config, "sliding_window_pattern", config.get("_sliding_window_pattern", 6))
        windowed = [(i + 1) % every != 0 for i in range(layers)]
    elif isinstance(kinds, list) and len(kinds) == layers:
        windowed = [kind != "full_attention" for kind in kinds]
    else:
        raise BrokenModel("config.json: layer_types", f"not one for each of {layers} layers")
    local = {"rope_theta": config.get("rope_local_base_freq"), **rope_of(config, "sliding_attention")}
    values: dict[str, object] = {
        "attention.sliding_window": number(config, "sliding_window"),
        "attention.sliding_window_pattern": windowed,
        "rope.freq_base_swa": real(local, "rope_theta", 10000.0),
    }
    if config.get("final_logit_softcapping"):
        values["final_logit_softcapping"] = real(config, "final_logit_softcapping")
    return values


def _rotation(config: Config) -> dict[str, object]:
    rope = rope_of(config)
    values: dict[str, object] = {"rope.freq_base": real({**config, **rope}, "rope_theta", 10000.0)}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("linear", "yarn"):
        values["rope.scaling.type"] = kind
        values["rope.scaling.factor"] = real(rope, "factor")
        if kind == "yarn":
            original = rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))
            values["rope.scaling.original_context_length"] = original
            for key in ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"):
                if rope.get(key) not in (None, {"beta_fast": 32, "beta_slow": 1}.get(key)):
                    raise UnsupportedModel(f"config.json: rope_scaling.{key}", "not supported")
    elif kind == "longrope":
        trained = number(config, "original_max_position_embeddings", rope.get("original_max_position_embeddings"))
        stretch = number(config, "max_position_embeddings") / trained
        grown = math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 and trained > 1 else 1.0
        values["rope.scaling.type"] = kind
        values["rope.scaling.original_context_length"] = trained
        values["rope.scaling.attn_factor"] = real(rope, "attention_factor", grown)
    elif kind not in ("default", "llama3"):
        raise UnsupportedModel("config.json: rope_scaling", f"{kind!r} is not supported")
    return values


def _divisors(config: Config) -> dict[str, list[float]]:
    """What the frequencies of the rotations are divided by, under the names of GGUF's tensors."""
    rope = rope_of(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "longrope":
        found = {}
        for key in ("long", "short"):
            given = rope.get(f"{key}_factor")
            if not isinstance(given, list) or not given:
                raise BrokenModel(f"config.json: rope_scaling.{key}_factor", "no list of numbers")
            found[f"rope_factors_{key}.weight"] = [real({"factor": one}, "factor") for one in given]
        return found
    return {"rope_freqs.weight": _llama3(config, rope)} if kind == "llama3" else {}


def _llama3(config: Config, rope: Config) -> list[float]:
    """`factor` for long waves, 1 for short ones, in between for those in between."""
    factor, low, high = (real(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = number(rope, "original_max_position_embeddings")
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    head = number(config, "head_dim", width // heads)
    base = real({**config, **rope}, "rope_theta", 10000.0)
    if not high > low:
        raise BrokenModel("config.json: rope_scaling", f"high_freq_factor {high} is not above {low}")
    divisors = []
    for i in range(0, head, 2):
        turns = original / (2 * math.pi * base ** (i / head))  # of the original context
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


# --- numbers ----------------------------------------------------------------------------------------------------


def _given(values: list[float]) -> Callable[[memoryview], bytes]:
    from array import array

    return lambda _source: array("f", values).tobytes()


def _plus_one(kind: str) -> Callable[[memoryview], bytes]:
    def make(raw: memoryview) -> bytes:
        from array import array

        if kind == "BF16":
            halves = array("H", bytes(raw))
            values = array("f", array("I", [half << 16 for half in halves]).tobytes())
        elif kind == "F16":
            import struct

            values = array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
        else:
            values = array("f", bytes(raw))
        return array("f", [value + 1 for value in values]).tobytes()

    return make
