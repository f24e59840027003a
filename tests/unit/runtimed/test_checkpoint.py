# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints run as they are: every architecture against logits of the reference implementation, which
had the same names, shapes and configurations; and what cannot be run says so."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import safetensors
from syntrop.common.safetensors import SafetensorsError
from syntrop.runtimed import folder
from syntrop.runtimed.model.checkpoint import FAMILIES, Stored, convert
from syntrop.runtimed.model.errors import BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.llama import LlamaModel


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_c", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


archmodel = _sibling("archmodel")
checkpoints = _sibling("checkpoints")
CASES: dict[str, Any] = archmodel.CASES
WORDS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "hidden_act",
    "hidden_activation", "layer_types", "sliding_window", "use_sliding_window", "sliding_window_pattern",
    "rope_parameters", "rope_scaling", "rope_theta", "rope_type", "type", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings", "long_factor", "short_factor", "attention_factor",
    "partial_rotary_factor", "full_attention", "sliding_attention", "query_pre_attn_scalar", "logits_scaling",
    "embedding_multiplier", "final_logit_softcapping", "quantization_config", "rope_local_base_freq",
)  # fmt: skip
ORACLE = np.load(Path(__file__).parents[2] / "data" / "architectures" / "logits.npz")


def config(name: str) -> dict[str, Any]:
    case = CASES[name]
    gemma = case.architecture == "gemma3"
    kinds = ["full_attention" if (i + 1) % 3 == 0 else "sliding_attention" for i in range(case.layers)]
    return {
        "model_type": "mistral" if name == "mistral" else "gemma3_text" if gemma else case.architecture,
        "architectures": ["Something"],
        "vocab_size": archmodel.VOCAB,
        "hidden_size": archmodel.D,
        "intermediate_size": archmodel.FF,
        "num_hidden_layers": case.layers,
        "num_attention_heads": archmodel.HEADS,
        "num_key_value_heads": archmodel.KV_HEADS,
        "head_dim": case.head_dim,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": case.tied,
        **({"hidden_activation": "gelu_pytorch_tanh", "layer_types": kinds} if gemma else {"hidden_act": "silu"}),
        **case.hf,
    }


def logits(where: Path, name: str) -> np.ndarray:
    expected = ORACLE[name]
    with checkpoints.opened(where) as files, folder.Weights(files) as weights:
        model = LlamaModel.load(
            weights.header, weights.buffer, threads=2, kv_type="f32", context=CASES[name].context
        )
    with model.sequence(len(expected)) as sequence:
        rows = np.array(model.forward_all(sequence, archmodel.tokens(len(expected))))
    model.close()
    return rows


@pytest.mark.parametrize("name", CASES)
def test_logits_of_the_reference_implementation(name: str, tmp_path: Path) -> None:
    checkpoints.write(tmp_path, config(name), archmodel.weights(CASES[name]), shards=3 if "llama" in name else 1)
    assert np.abs(logits(tmp_path, name) - ORACLE[name]).max() < 1e-4


def test_every_family_but_the_encoders_has_a_case() -> None:
    decoders = {kind for kind, family in FAMILIES.items() if family.metadata is None}
    assert {config(name)["model_type"] for name in CASES} == decoders
    assert set(FAMILIES) - decoders >= {"bert"}  # test_encoder_oracle.py has a case of each


def old_words(name: str) -> dict[str, Any]:
    """The configuration as older files put it."""
    given = config(name)
    rope = given.pop("rope_parameters")
    if "full_attention" in rope:
        given["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        given["sliding_window_pattern"] = 3
        del given["layer_types"]
    rope = dict(rope)
    given["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        given["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    given["rope_scaling"] = None if kind == "default" else {**rope, "type": kind}
    return given


@pytest.mark.parametrize("name", ["llama_yarn", "llama_llama3", "gemma3", "gemma3_linear_capped", "phi3_long"])
def test_older_configurations_say_the_same(name: str, tmp_path: Path) -> None:
    checkpoints.write(tmp_path, old_words(name), archmodel.weights(CASES[name]))
    assert np.abs(logits(tmp_path, name) - ORACLE[name]).max() < 1e-4


@pytest.mark.parametrize(("kind", "near"), [("F16", 0.01), ("BF16", 0.1)])
@pytest.mark.parametrize("name", ["gemma3", "granite"])
def test_half_precision(name: str, kind: str, near: float, tmp_path: Path) -> None:
    checkpoints.write(tmp_path, config(name), archmodel.weights(CASES[name]), kind=kind)
    got = logits(tmp_path, name)
    assert 0 < np.abs(got - ORACLE[name]).max() < near


def test_a_copy_of_a_tied_embedding_is_left_out(tmp_path: Path) -> None:
    weights = archmodel.weights(CASES["qwen3"])
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    checkpoints.write(tmp_path, config("qwen3"), weights)
    assert np.abs(logits(tmp_path, "qwen3") - ORACLE["qwen3"]).max() < 1e-4


def test_windows_of_some_layers_bound_the_context(tmp_path: Path) -> None:
    given = {**config("qwen2"), "sliding_window": 24, "use_sliding_window": True}
    checkpoints.write(tmp_path, given, archmodel.weights(CASES["qwen2"]))
    with checkpoints.opened(tmp_path) as files, folder.Weights(files) as weights:
        assert weights.header.metadata["qwen2.context_length"] == 24


def broken(where: Path) -> ModelError | SafetensorsError:
    refused = pytest.raises((ModelError, SafetensorsError))
    with checkpoints.opened(where) as files, refused as caught, folder.Weights(files) as weights:
        LlamaModel.load(weights.header, weights.buffer, threads=1).close()
    error: ModelError | SafetensorsError = caught.value
    return error


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"model_type": "nemotron"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, "blk.2."),
        ({"num_hidden_layers": 1}, "blk.1."),
        ({"intermediate_size": 97}, "ffn_"),
        ({"num_attention_heads": 5, "head_dim": None}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope_scaling"),
        ({"rope_parameters": []}, ""),
        ({"rope_parameters": [1]}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 5}}, "beta_fast"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_type": "longrope", "long_factor": "x"}}, "original_max_position_embeddings"),
    ],
    ids=str,
)
def test_configurations_that_cannot_be_run_name_the_key(
    change: dict[str, Any], subject: str, tmp_path: Path
) -> None:
    checkpoints.write(tmp_path, {**config("llama"), **change}, archmodel.weights(CASES["llama"]))
    if not subject:
        assert np.isfinite(logits(tmp_path, "llama")).all()
        return
    error = broken(tmp_path)
    assert isinstance(error, ModelError) and subject in error.subject


def test_gemmas_that_are_others_are_refused(tmp_path: Path) -> None:
    weights = archmodel.weights(CASES["gemma3"])
    for change in (
        {"query_pre_attn_scalar": 25},
        {"attn_logit_softcapping": 50.0},
        {"layer_types": ["full_attention"]},
        {"hidden_activation": "gelu"},
    ):
        checkpoints.write(tmp_path, {**config("gemma3"), **change}, weights)
        assert isinstance(broken(tmp_path), ModelError)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("model.layers.0.self_attn.q_proj.weight", None, BrokenModel),
        ("model.norm.weight", None, BrokenModel),
        ("model.norm.weight", np.zeros((3,), np.float32), BrokenModel),
        ("model.norm.weight", np.zeros((64, 1, 1), np.float32), UnsupportedModel),
        ("model.norm.weight", np.zeros((0,), np.float32), UnsupportedModel),
        ("model.norm.weight", np.zeros((64,), np.int64), UnsupportedModel),
        ("model.layers.0.self_attn.sinks.weight", np.zeros((4,), np.float32), UnsupportedModel),
        ("model.visual.weight", np.zeros((4,), np.float32), UnsupportedModel),
        ("model.layers.7.mlp.up_proj.weight", np.zeros((96, 64), np.float32), UnsupportedModel),
        ("norm.weight", np.zeros((64,), np.float32), BrokenModel),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    name: str, value: np.ndarray | None, kind: type[ModelError], tmp_path: Path
) -> None:
    weights = archmodel.weights(CASES["llama"])
    weights.pop(name, None)
    if value is not None:
        weights[name] = value
    checkpoints.write(tmp_path, config("llama"), weights)
    assert isinstance(broken(tmp_path), kind)


def test_numbers_that_are_not_needed_do_no_harm(tmp_path: Path) -> None:
    weights = archmodel.weights(CASES["llama"])
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros((8,), np.float32)
    checkpoints.write(tmp_path, config("llama"), weights)
    assert np.abs(logits(tmp_path, "llama") - ORACLE["llama"]).max() < 1e-4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["linear", "yarn", "llama3", "longrope", "default", 1, 2**31, 1e300, 1e-300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(name=st.sampled_from([*CASES]), changes=st.dictionaries(st.sampled_from(WORDS), JSON, max_size=4))
@settings(max_examples=300, deadline=None)
def test_whatever_a_configuration_says(name: str, changes: dict[str, Any]) -> None:
    """It is a header, or an error that names the key: nothing else, and no more memory than the file is worth."""
    stored = {
        key: Stored("F32", value.shape, 4 * index, 4)
        for index, (key, value) in enumerate(archmodel.weights(CASES[name]).items())
    }
    try:
        header, edits = convert({**config(name), **changes}, stored, 1 << 20)
    except ModelError as error:
        assert error.subject and error.reason
        return
    assert sum(one.tensor.nbytes for one in edits) < 1 << 20
    assert len(header.tensors) <= len(stored) + 2


# --- folders --------------------------------------------------------------------------------------------------


def test_what_is_needed_of_a_folder() -> None:
    assert folder.needed(["b.gguf", "a.gguf", "x/c.gguf", "readme"]) == ["a.gguf", "b.gguf", "x/c.gguf"]
    paths = [
        "config.json", "tokenizer.json", "vocab.txt", "model.safetensors", "consolidated.safetensors",
        "1_Pooling/config.json", "2_Dense/model.safetensors", "onnx/config.json", "modules.json", "LICENSE",
        "a.gguf",
    ]  # fmt: skip
    assert folder.needed(paths) == [
        "model.safetensors", "1_Pooling/config.json", "config.json", "modules.json", "tokenizer.json"
    ]  # fmt: skip
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert folder.needed([*shards, folder.INDEX]) == [*shards, folder.INDEX]
    assert folder.needed(["README"]) == []


def test_manifests(tmp_path: Path) -> None:
    def paths(content: bytes) -> list[str] | None:
        path = tmp_path / "manifest"
        path.write_bytes(content)
        with open(path, "rb") as file:
            return folder.manifest(file.fileno(), len(content))

    rows = [{"path": "config.json", "digest": "sha256:00", "size": 3}, {"path": "1_Pooling/config.json"}]
    whole = {"version": 1, "format": "safetensors", "files": rows}
    assert paths(json.dumps(whole).encode() + b"\n") == ["config.json", "1_Pooling/config.json"]
    for wrong in (
        b"", b"GGUF", b"{", b"{}", b"[]", b"{" * 100_000, b'{"version": 2, "files": []}', b'{"version": 1}',
        b'{"version": 1, "files": []}', b'{"version": 1, "files": [{"path": 5}]}', b'{"version": 1, "files": [5]}',
        json.dumps({"version": 1, "files": rows * 3000}).encode(),
    ):  # fmt: skip
        assert paths(wrong) is None


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    weights = archmodel.weights(CASES["llama"])
    checkpoints.write(tmp_path, config("llama"), weights, shards=2)
    second = tmp_path / "model-00002-of-00002.safetensors"
    data = second.read_bytes()
    second.unlink()
    assert "00002" in str(broken(tmp_path))
    second.write_bytes(data[:-1])
    assert isinstance(broken(tmp_path), SafetensorsError)
    second.write_bytes(data)
    with checkpoints.opened(tmp_path) as files:
        os.truncate(second, 0)  # after the store has told its size
        with pytest.raises(BrokenModel, match=f"00002.*: 0 bytes where {len(data)} are expected"):
            folder.Weights(files)
    second.write_bytes((tmp_path / "model-00001-of-00002.safetensors").read_bytes())
    assert "two files" in str(broken(tmp_path))
    second.write_bytes(data)
    index = tmp_path / folder.INDEX
    for wrong in ("{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
        index.write_text(wrong)
        assert broken(tmp_path).subject == folder.INDEX  # type: ignore[union-attr]
    index.unlink()
    (tmp_path / "config.json").unlink()
    assert broken(tmp_path).subject == "config.json"  # type: ignore[union-attr]
    with checkpoints.opened(tmp_path) as files:
        text = tmp_path / "config.json"
        for content in (b"[]", b"{", b"\xff"):
            text.write_bytes(content)
            with open(text, "rb") as file, pytest.raises(BrokenModel):
                folder.document({**files, "config.json": (file.fileno(), len(content))}, "config.json")


def test_shards_of_a_gguf_file_are_one_model(tmp_path: Path) -> None:
    gguf = _sibling("tinymodel").gguf
    case = CASES["qwen2"]
    tensors = {name: (0, value.shape[::-1], value.tobytes()) for name, value in archmodel.tensors(case).items()}
    names = list(tensors)
    for number in range(3):
        head = archmodel.metadata(case) if number == 0 else {}
        head |= {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        part = {name: tensors[name] for name in names[number::3]}
        (tmp_path / f"model-{number + 1:05}-of-00003.gguf").write_bytes(gguf(head, part))
    assert np.abs(logits(tmp_path, "qwen2") - ORACLE["qwen2"]).max() < 1e-4
    (tmp_path / "model-00002-of-00003.gguf").unlink()
    assert "number 1 of 2" in str(broken(tmp_path))


@pytest.mark.parametrize(
    ("modules", "pooling", "wanted"),
    [
        (None, None, 1),
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_cls_token": True}, 2),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        (None, {"pooling_mode_lasttoken": True}, 3),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_cls_token": True}, "Dense"),
        (None, {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        (None, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pooling_mode_mean_tokens"),
        (None, {}, "nothing"),
    ],
)
def test_pooling_as_sentence_transformers_ask_for_it(
    modules: list[str] | None, pooling: dict[str, bool] | None, wanted: int | str, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    if modules is not None:
        listed = [{"idx": i, "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(modules)]
        (tmp_path / "modules.json").write_text(json.dumps(listed))
    if pooling is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with checkpoints.opened(tmp_path) as files:
        if isinstance(wanted, int):
            assert folder.pooling(files) == wanted
        else:
            with pytest.raises(UnsupportedModel, match=wanted):
                folder.pooling(files)


@pytest.mark.parametrize("moment", ["header", "weights"])
def test_a_folder_whose_file_is_cut_short_while_it_is_loaded(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.write(tmp_path, config("llama"), archmodel.weights(CASES["llama"]), shards=2)
    second, parse = tmp_path / "model-00002-of-00002.safetensors", safetensors.parse

    def cutting(view: memoryview) -> safetensors.Header:
        if moment == "header":
            os.truncate(second, 0)
        return parse(view)

    monkeypatch.setattr(safetensors, "parse", cutting)
    with checkpoints.opened(tmp_path) as files:
        if moment == "header":
            with pytest.raises(BrokenModel, match="the file: it was cut short"):
                folder.Weights(files)
            return
        with folder.Weights(files) as weights:
            os.truncate(second, 0)
            model = LlamaModel.load(weights.header, weights.buffer, threads=2)
            with pytest.raises(BrokenModel, match="the file: it was cut short"):
                weights.watch.whole(model, LlamaModel.close)
