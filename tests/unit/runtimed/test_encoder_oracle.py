# SPDX-License-Identifier: Apache-2.0
"""Every encoder's architecture on a tiny model, as published and as a GGUF file, against vectors of the reference
implementation, kept as data; and what is not supported is refused by name."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common.gguf import parse
from syntrop.runtimed import folder
from syntrop.runtimed.model import encoders
from syntrop.runtimed.model.checkpoint import FAMILIES, Stored, convert
from syntrop.runtimed.model.encoder import BATCH, EncoderModel
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.llama import levels
from syntrop.runtimed.quant import dequantize


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_eo", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


encodermodel = _sibling("encodermodel")
checkpoints = _sibling("checkpoints")
tinymodel = encodermodel.tinymodel
CASES: dict[str, Any] = encodermodel.CASES
TEXTS: list[list[int]] = encodermodel.texts()
ORACLE = np.load(Path(__file__).parents[2] / "data" / "encoders" / "vectors.npz")
ROTATED = [name for name, case in CASES.items() if case.of != "bert"]


def oracle(name: str) -> np.ndarray:
    vectors: np.ndarray = ORACLE[CASES[name].oracle or name]
    return vectors


def load(name: str, **how: Any) -> EncoderModel:
    data = encodermodel.file(name)
    return EncoderModel.load(parse(data), data, threads=how.pop("threads", 2), **how)


def published(where: Path, **how: Any) -> EncoderModel:
    with checkpoints.opened(where) as files, folder.Weights(files) as weights:
        return EncoderModel.load(weights.header, weights.buffer, threads=2, **how)


def vectors(model: EncoderModel) -> np.ndarray:
    """[text, pooling, column]: the short texts in one batch, and the long one alone."""
    rows = [
        model.embed(TEXTS[:-1], pooling) + model.embed(TEXTS[-1:], pooling) for pooling in encodermodel.POOLINGS
    ]
    model.close()
    return np.array(rows).swapaxes(0, 1)


def test_every_architecture_has_a_case() -> None:
    assert {case.of for case in CASES.values()} == set(encoders.NAMES)
    assert {case.config["model_type"] for case in CASES.values()} == {
        kind for kind, family in FAMILIES.items() if family.metadata
    }
    assert set(ORACLE.files) == {name for name, case in CASES.items() if not case.oracle}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", levels())
def test_vectors_of_the_reference_implementation(level: str, name: str, tmp_path: Path) -> None:
    checkpoints.write(tmp_path, CASES[name].config, encodermodel.weights(name), shards=3 if name == "bert" else 1)
    for model in (published(tmp_path, level=level), load(name, level=level)):
        np.testing.assert_allclose(vectors(model), oracle(name), atol=2e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", levels())
def test_a_text_is_the_same_in_any_company(level: str, name: str) -> None:
    model = load(name, level=level)
    alone = [model.embed([text])[0] for text in TEXTS]
    assert model.embed(TEXTS) == alone
    assert model.embed(TEXTS[::-1]) == alone[::-1]
    model.set_threads(1)
    assert model.embed(TEXTS) == alone
    model.close()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", tinymodel.TYPES)
@pytest.mark.parametrize("name", ["nomic_bert_as_published", "modernbert"])
def test_every_type_of_weights(name: str, kind: str, level: str) -> None:
    """Against the same model with those weights in float32."""
    given = encodermodel.tensors(name, tinymodel.TYPES[kind])
    plain = {
        key: (0, shape, np.ascontiguousarray(dequantize(data, type, shape), dtype=np.float32).tobytes())
        for key, (type, shape, data) in given.items()
    }
    got, wanted = (
        vectors(EncoderModel.load(parse(data), data, threads=2, level=level))
        for data in (tinymodel.gguf(encodermodel.metadata(name), one) for one in (given, plain))
    )
    np.testing.assert_allclose(got, wanted, atol=2e-3)


@pytest.mark.parametrize(("kind", "near"), [("F16", 0.002), ("BF16", 0.02)])
@pytest.mark.parametrize("name", ["xlm_roberta", "modernbert"])
def test_half_precision(name: str, kind: str, near: float, tmp_path: Path) -> None:
    checkpoints.write(tmp_path, CASES[name].config, encodermodel.weights(name), kind=kind)
    assert 0 < np.abs(vectors(published(tmp_path)) - oracle(name)).max() < near


@pytest.mark.parametrize("name", ROTATED)
def test_texts_longer_than_a_batch_of_several(name: str) -> None:
    metadata = encodermodel.metadata(name)
    metadata[f"{CASES[name].of}.context_length"] = 1500
    data = tinymodel.gguf(metadata, encodermodel.tensors(name))
    model = EncoderModel.load(parse(data), data, threads=2)
    assert (model.context, model.batch_tokens) == (1500, BATCH)
    plain = EncoderModel.load(parse(data), data, threads=1, level="scalar")
    long = (TEXTS[-1] * 5)[:1500]
    np.testing.assert_allclose(model.embed([long]), plain.embed([long]), atol=2e-6)
    assert model.embed([[7]] * BATCH) == model.embed([[7]]) * BATCH
    for texts in ([long, [7]], [[7]] * (BATCH + 1), [[*long, 7]]):
        with pytest.raises(BadRequest, match="tokens"):
            model.embed(texts)
    short = EncoderModel.load(parse(data), data, threads=1, context=64)
    assert short.memory_bytes < model.memory_bytes
    for one in (model, plain, short):
        one.close()


def test_a_window_is_what_is_seen(tmp_path: Path) -> None:
    """With windows in all layers a token far away changes nothing."""
    name = "modernbert"
    config = {**CASES[name].config, "layer_types": ["sliding_attention"] * 4}
    checkpoints.write(tmp_path, config, encodermodel.weights(name))
    model = published(tmp_path)
    text = TEXTS[-1]
    reach = 4 * 6  # layers, and half a window each
    for at, same in ((reach, False), (reach + 1, True), (250, True)):
        other = [*text[:at], 5 + (text[at] + 1) % 90, *text[at + 1 :]]
        assert (model.embed([text], "cls") == model.embed([other], "cls")) is same
    model.close()


def test_files_of_another_task_have_the_same_encoder(tmp_path: Path) -> None:
    """With prefixes and heads, and with the norms' names of old."""
    heads = {
        "bert": ("bert.", ["cls.predictions.bias", "pooler.dense.weight"]),
        "roberta": ("roberta.", ["lm_head.dense.weight", "lm_head.bias"]),
        "distilbert": ("distilbert.", ["vocab_transform.weight", "vocab_projector.bias"]),
        "modernbert": ("model.", ["head.dense.weight", "decoder.bias"]),
        "nomic_bert": ("nomic_bert.", ["cls.predictions.transform.dense.weight"]),
    }
    for name, (prefix, more) in heads.items():
        weights = {prefix + key: value for key, value in encodermodel.weights(name).items()}
        weights |= dict.fromkeys(more, np.zeros((3,), np.float32))
        if name == "bert":
            old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
            for new, given_name in old.items():
                weights = {key.replace(new, given_name): value for key, value in weights.items()}
        checkpoints.write(tmp_path, CASES[name].config, weights)
        np.testing.assert_allclose(vectors(published(tmp_path)), oracle(name), atol=2e-6)


@pytest.mark.parametrize("name", ["bert", "nomic_bert", "modernbert"])
@pytest.mark.parametrize("normalized", [True, False])
def test_keys_of_another_converter_that_change_nothing(name: str, normalized: bool) -> None:
    """Ollama's notes whether its own engine is to normalise: we always do."""
    metadata = {**encodermodel.metadata(name), f"{CASES[name].of}.normalize_embeddings": normalized}
    data = tinymodel.gguf(metadata, encodermodel.tensors(name))
    model = EncoderModel.load(parse(data), data, threads=1)
    np.testing.assert_allclose(vectors(model), oracle(name), atol=2e-6)


def test_rotations_in_newer_words(tmp_path: Path) -> None:
    name = "modernbert_silu"
    config = {key: value for key, value in CASES[name].config.items() if "rope" not in key and "every" not in key}
    config["layer_types"] = ["full_attention", "sliding_attention"] * 2
    config["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 80000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    }
    checkpoints.write(tmp_path, config, encodermodel.weights(name))
    np.testing.assert_allclose(vectors(published(tmp_path)), oracle(name), atol=2e-6)


# --- what cannot be run ---------------------------------------------------------------------------------------


def refusals() -> Iterator[tuple[str, dict[str, Any], str, type[ModelError]]]:
    for name in CASES:
        yield name, {"quantization_config": {"bits": 4}}, "quantization_config", UnsupportedModel
    for name in ("bert", "roberta", "xlm_roberta"):
        yield name, {"hidden_act": "relu"}, "hidden_act", UnsupportedModel
        yield name, {"is_decoder": True}, "is_decoder", UnsupportedModel
        yield name, {"position_embedding_type": "relative_key"}, "position_embedding_type", UnsupportedModel
    yield "roberta", {"pad_token_id": CONTEXT + 5}, "position_embeddings", BrokenModel
    yield "roberta", {"pad_token_id": -1}, "pad_token_id", BrokenModel
    yield "roberta", {"pad_token_id": "1"}, "pad_token_id", BrokenModel
    yield "distilbert", {"activation": "relu"}, "activation", UnsupportedModel
    yield "distilbert", {"dim": None}, "dim", BrokenModel
    yield "distilbert", {"n_heads": 5}, "head_count", BrokenModel
    for key, value in {
        "moe_every_n_layers": 2, "activation_function": "geglu", "causal": True, "prenorm": True,
        "qkv_proj_bias": True, "rotary_emb_fraction": 0.5, "rotary_emb_interleaved": True,
        "rotary_emb_scale_base": 512, "use_rms_norm": True, "parallel_block": True, "mlp_fc1_bias": True,
        "mlp_fc2_bias": True,
    }.items():  # fmt: skip
        yield "nomic_bert_as_published", {key: value}, key, UnsupportedModel
    yield "nomic_bert_as_published", {"n_inner": None}, "n_inner", BrokenModel
    yield "nomic_bert", {"hidden_act": "gelu"}, "hidden_act", UnsupportedModel
    yield "nomic_bert", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type", UnsupportedModel
    yield "nomic_bert", {"head_dim": 32}, "key_length", UnsupportedModel
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        yield "modernbert", {key: True}, key, UnsupportedModel
    yield "modernbert", {"hidden_activation": "relu"}, "hidden_activation", UnsupportedModel
    yield "modernbert", {"layer_types": ["full_attention"]}, "layer_types", BrokenModel
    yield "modernbert", {"layer_types": ["chunked"] * 4}, "layer_types", BrokenModel
    yield "modernbert", {"local_attention": 1}, "sliding_window", UnsupportedModel
    yield "modernbert", {"local_attention": 0}, "local_attention", BrokenModel
    yield "modernbert", {"num_hidden_layers": 1 << 20}, "num_hidden_layers", UnsupportedModel
    yield "modernbert", {"global_rope_theta": -1}, "global_rope_theta", BrokenModel
    yield "modernbert", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type", UnsupportedModel


CONTEXT: int = encodermodel.CONTEXT


@pytest.mark.parametrize(("name", "change", "subject", "kind"), list(refusals()))
def test_configurations_that_cannot_be_run_name_the_key(
    name: str, change: dict[str, Any], subject: str, kind: type[ModelError], tmp_path: Path
) -> None:
    checkpoints.write(tmp_path, {**CASES[name].config, **change}, encodermodel.weights(name))
    with pytest.raises(kind) as caught:
        published(tmp_path)
    assert subject in caught.value.subject


@pytest.mark.parametrize(
    ("name", "change", "subject", "kind"),
    [
        ("nomic_bert", {"nomic-bert.context_length": None}, "nomic-bert.context_length", BrokenModel),
        (
            "nomic_bert",
            {"nomic-bert.rope.dimension_count": 8},
            "nomic-bert.rope.dimension_count",
            UnsupportedModel,
        ),
        ("nomic_bert", {"nomic-bert.attention.causal": True}, "nomic-bert.attention.causal", UnsupportedModel),
        ("nomic_bert", {"nomic-bert.moe_every_n_layers": 2}, "nomic-bert.moe_every_n_layers", UnsupportedModel),
        ("nomic_bert", {"general.architecture": "nomic-bert-moe"}, "general.architecture", UnsupportedModel),
        ("nomic_bert", {"general.architecture": "jina-bert-v2"}, "general.architecture", UnsupportedModel),
        ("bert", {"bert.attention.head_count_kv": 2}, "bert.attention.head_count_kv", UnsupportedModel),
        ("bert", {"bert.classifier.output_labels": ["a"]}, "bert.classifier.output_labels", UnsupportedModel),
        ("modernbert", {"modern-bert.attention.sliding_window": 1}, "sliding_window", UnsupportedModel),
        ("modernbert", {"modern-bert.attention.sliding_window_pattern": [True]}, "window_pattern", BrokenModel),
        ("modernbert", {"modern-bert.hidden_activation": "relu"}, "hidden_activation", UnsupportedModel),
        ("modernbert", {"modern-bert.rope.freq_base_swa": 0.5}, "freq_base_swa", BrokenModel),
        ("modernbert", {"modern-bert.attention.layer_norm_rms_epsilon": 1e-6}, "rms_epsilon", UnsupportedModel),
        ("modernbert", {"modern-bert.pooling_type": 4}, "modern-bert.pooling_type", UnsupportedModel),
    ],
    ids=str,
)
def test_files_that_cannot_be_run_name_the_key(
    name: str, change: dict[str, Any], subject: str, kind: type[ModelError]
) -> None:
    metadata = {**encodermodel.metadata(name), **change}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    data = tinymodel.gguf(metadata, encodermodel.tensors(name))
    with pytest.raises(kind) as caught:
        EncoderModel.load(parse(data), data, threads=1)
    assert subject in caught.value.subject


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("modernbert", "blk.1.attn_norm.weight", None),
        ("modernbert", "output_norm.weight", None),
        ("modernbert", "blk.0.attn_qkv.weight", (64, 191)),
        ("modernbert", "blk.0.ffn_up.weight", (64, 96)),
        ("nomic_bert", "blk.0.ffn_gate.weight", None),
        ("nomic_bert", "blk.1.attn_v.weight", None),
        ("nomic_bert_as_published", "blk.1.attn_qkv.weight", (64, 64)),
    ],
)
def test_tensors_that_do_not_fit_are_named(name: str, tensor: str, shape: tuple[int, int] | None) -> None:
    tensors = encodermodel.tensors(name)
    del tensors[tensor]
    if shape is not None:
        tensors[tensor] = (0, shape, bytes(4 * shape[0] * shape[1]))
    data = tinymodel.gguf(encodermodel.metadata(name), tensors)
    with pytest.raises(BrokenModel) as caught:
        EncoderModel.load(parse(data), data, threads=1)
    assert caught.value.subject == tensor


WORDS = sorted({key for case in CASES.values() for key in case.config} | {
    "layer_types", "rope_scaling", "rope_theta", "rope_type", "full_attention", "sliding_attention", "factor",
    "num_experts", "moe_every_n_layers", "head_dim", "is_decoder", "quantization_config", "global_rope_theta",
})  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["default", "dynamic", "gelu", "silu", 0, 1, 5, 2**20, 2**31, 1e300, 1e-300, "roberta"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(name=st.sampled_from([*CASES]), changes=st.dictionaries(st.sampled_from(WORDS), JSON, max_size=4))
@settings(max_examples=300, deadline=None)
def test_whatever_a_configuration_says(name: str, changes: dict[str, Any]) -> None:
    """It is a model, or an error that names the key: nothing else."""
    stored: dict[str, Stored] = {}
    buffer = bytearray()
    for key, value in encodermodel.weights(name).items():
        stored[key] = Stored("F32", value.shape, len(buffer), value.nbytes)
        buffer += value.tobytes()
    try:
        header, edits = convert({**CASES[name].config, **changes}, stored, len(buffer))
        assert not edits
        model = EncoderModel.load(header, buffer, threads=1)
    except ModelError as error:
        assert error.subject and error.reason
        return
    assert np.isfinite(model.embed([[7, 8, 9]])).all()
    model.close()


VALUES = (
    st.integers(0, 2**31 - 1) | st.booleans() | st.floats(width=32) | st.text(max_size=6)
    | st.lists(st.booleans(), max_size=4)
    | st.sampled_from([0, 1, 2, 3, 4, 7, 16, 64, 400, 1 << 20, 1e-30, 1e30, "yarn", "linear"])
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_the_metadata_of_a_file_say(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["bert", "nomic_bert", "modernbert"]))
    metadata = encodermodel.metadata(name)
    more = (
        "rope.scaling.type",
        "rope.scaling.factor",
        "pooling_type",
        "hidden_activation",
        "rope.dimension_count",
    )
    keys = sorted({*metadata, *(f"{CASES[name].of}.{one}" for one in more)} - {"general.architecture"})
    metadata |= data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3))
    content = tinymodel.gguf(metadata, TENSORS[name])
    try:
        model = EncoderModel.load(parse(content), content, threads=1)
    except ModelError as error:
        assert error.subject and error.reason
        return
    assert all(len(row) == 64 for row in model.embed([[7, 8, 9][: model.context]]))
    model.close()


TENSORS = {name: encodermodel.tensors(name) for name in ("bert", "nomic_bert", "modernbert")}


def test_poolings_of_sentence_transformers(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, CASES["roberta"].config, encodermodel.weights("roberta"))
    place = tmp_path / "1_Pooling"
    place.mkdir()
    for config, pooling in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ):
        (place / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **config}))
        model = published(tmp_path)
        assert model.pooling == pooling
        model.close()
    for wrong in ({"pooling_mode": "max"}, {"pooling_mode": 1}, {"pooling_mode": ["mean", "max"]}, {}):
        (place / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(UnsupportedModel, match="pooling by"):
            published(tmp_path)
