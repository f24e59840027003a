# SPDX-License-Identifier: Apache-2.0
"""How encoders are published: the names of their tensors, and their configurations in GGUF's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel
from syntrop.runtimed.model.published import LAYERS_MAX, Family, number, only, real, rope_of

if TYPE_CHECKING:
    from syntrop.runtimed.model.published import Config

# With a head for another task the encoder is a part, under a name of its own.
PREFIXES = ("bert.", "roberta.", "distilbert.", "nomic_bert.")
WHOLE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "emb_ln": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
}
_BERT = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_DISTILBERT = {
    "attention.q_lin": "attn_q",
    "attention.k_lin": "attn_k",
    "attention.v_lin": "attn_v",
    "attention.out_lin": "attn_output",
    "sa_layer_norm": "attn_output_norm",
    "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down",
    "output_layer_norm": "layer_output_norm",
}
_NOMIC = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
    # As transformers has them today.
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}
_MODERN = {
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
}


def current(name: str) -> str:
    """A tensor's name as of today: norms of old checkpoints have a gamma and a beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _sizes(
    architecture: str, config: Config, pooling: int, keys: dict[str, str], epsilon: float = 1e-12
) -> dict[str, object]:
    """What all have; `keys` are those under which a configuration has it, where they are not BERT's; `epsilon` is
    what norms add if nothing is said."""

    def size(name: str) -> int:
        return number(config, keys.get(name, name))

    values = {
        "block_count": size("num_hidden_layers"),
        "context_length": size("max_position_embeddings"),
        "embedding_length": size("hidden_size"),
        "feed_forward_length": size("intermediate_size"),
        "attention.head_count": size("num_attention_heads"),
        "attention.layer_norm_epsilon": real(config, keys.get("layer_norm_eps", "layer_norm_eps"), epsilon),
        "attention.causal": False,
        "pooling_type": pooling,
    }
    return {"general.architecture": architecture, **{f"{architecture}.{key}": one for key, one in values.items()}}


def _bert(config: Config, pooling: int) -> dict[str, object]:
    only(config, {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False})
    return _sizes("bert", config, pooling, {})


def _roberta(config: Config, pooling: int) -> dict[str, object]:
    positions = number(config, "max_position_embeddings") - _padding(config)
    return {**_bert(config, pooling), "bert.context_length": max(1, positions)}


def _padding(config: Config) -> int:
    """Rows of RoBERTa's table of positions up to that of the padding token: no text begins there."""
    return 1 + (number(config, "pad_token_id", 1) if config.get("pad_token_id") != 0 else 0)


def _distilbert(config: Config, pooling: int) -> dict[str, object]:
    only(config, {"activation": "gelu"})
    names = {
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_attention_heads": "n_heads",
    }
    # Its norms add 1e-12, whatever is configured.
    return _sizes("bert", {**config, "layer_norm_eps": 1e-12}, pooling, names)


def _nomic(config: Config, pooling: int) -> dict[str, object]:
    only(config, {"moe_every_n_layers": 0, "num_experts": 0})
    if "n_embd" in config:  # in the words of its own code
        return _nomic_of_its_own(config, pooling)
    only(config, {"hidden_act": "silu"})
    turns = rope_of(config)
    only(turns, {"rope_type": "default"})
    width, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    return {
        **_sizes("nomic-bert", config, pooling, {}),
        "nomic-bert.attention.key_length": number(config, "head_dim", max(1, width // heads)),
        "nomic-bert.rope.freq_base": real({**config, **turns}, "rope_theta", 1000.0),
    }


def _nomic_of_its_own(config: Config, pooling: int) -> dict[str, object]:
    only(
        config,
        {
            "activation_function": "swiglu",
            "causal": False,
            "prenorm": False,
            "parallel_block": False,
            "use_rms_norm": False,
            "qkv_proj_bias": False,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": 0,
        },
    )
    names = {
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_attention_heads": "n_head",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    metadata = _sizes("nomic-bert", config, pooling, names)
    # Beyond what it was trained for its own code stretches the rotations by the length of each text.
    trained = min(number(config, "n_positions"), number(config, "max_trained_positions", 2048))
    metadata["nomic-bert.context_length"] = trained
    return {**metadata, "nomic-bert.rope.freq_base": real(config, "rotary_emb_base", 1000.0)}


def _modern(config: Config, pooling: int) -> dict[str, object]:
    only(config, {"attention_bias": False, "mlp_bias": False, "norm_bias": False})
    layers = number(config, "num_hidden_layers")
    if layers > LAYERS_MAX:
        raise UnsupportedModel("config.json: num_hidden_layers", f"{layers}, at most {LAYERS_MAX}")
    kinds = config.get("layer_types")
    if kinds is None:
        every = number(config, "global_attn_every_n_layers", 3)
        kinds = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise BrokenModel(
            "config.json: layer_types", f"not one of {' and '.join(known)} for each of {layers} layers"
        )
    bases = {}
    for kind, key, default in (("full", "global", 160000.0), ("sliding", "local", 10000.0)):
        turns = rope_of(config, f"{kind}_attention")
        only(turns, {"rope_type": "default", "type": "default"})
        bases[key] = real(turns, "rope_theta", real(config, f"{key}_rope_theta", default))
    activation = config.get("hidden_activation", "gelu")
    if not isinstance(activation, str):
        raise BrokenModel("config.json: hidden_activation", "not a string")
    return {
        **_sizes("modern-bert", config, pooling, {"layer_norm_eps": "norm_eps"}, 1e-5),
        "modern-bert.attention.sliding_window": number(config, "local_attention", 128),
        "modern-bert.attention.sliding_window_pattern": [kind != "full_attention" for kind in kinds],
        "modern-bert.rope.freq_base": bases["global"],
        "modern-bert.rope.freq_base_swa": bases["local"],
        "modern-bert.hidden_activation": activation,
    }


_MASKS = r"pooler\..*|cls\..*"  # heads of BERT's own training
_LM_HEAD = rf"{_MASKS}|lm_head\..*"
_VOCABULARY = r"vocab_(?:transform|layer_norm|projector)\..*"
FAMILIES = {  # by `model_type`
    "bert": Family("bert", _BERT, metadata=_bert, heads=_MASKS),
    "roberta": Family("bert", _BERT, metadata=_roberta, heads=_LM_HEAD, unused_positions=_padding),
    "xlm-roberta": Family("bert", _BERT, metadata=_roberta, heads=_LM_HEAD, unused_positions=_padding),
    "distilbert": Family("bert", _DISTILBERT, metadata=_distilbert, heads=_VOCABULARY),
    "nomic_bert": Family("nomic-bert", _NOMIC, metadata=_nomic, heads=_MASKS),
    "modernbert": Family("modern-bert", _MODERN, metadata=_modern, heads=r"head\..*|decoder\..*"),
}
