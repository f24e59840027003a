# SPDX-License-Identifier: Apache-2.0
"""Encoders: the C forward against a float64 twin at every level, MiniLM against the published implementation."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed import folder
from syntrop.runtimed.model.encoder import EncoderModel, ffi, lib
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.llama import LEVELS, levels
from syntrop.runtimed.quant import dequantize

_spec = importlib.util.spec_from_file_location("tinymodel_e", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

VOCAB, CONTEXT = 97, 80
TEXTS = [[5], [1, 2, 3], list(range(17)), [7] * 16, [90, 3] * 25, list(range(80))]


def tiny(
    *,
    type: int = tinymodel.F32,
    n_embd: int = 64,
    heads: int = 4,
    n_ff: int = 96,
    layers: int = 2,
    **metadata: Any,
) -> tuple[dict[str, Any], dict[str, tuple[int, tuple[int, ...], bytes]]]:
    """Metadata and tensors of a tiny random encoder, to be tampered with before `tinymodel.gguf`."""
    rng = np.random.default_rng(3)
    given = {
        "general.architecture": "bert",
        "bert.block_count": layers,
        "bert.context_length": CONTEXT,
        "bert.embedding_length": n_embd,
        "bert.feed_forward_length": n_ff,
        "bert.attention.head_count": heads,
        "bert.attention.layer_norm_epsilon": 1e-12,
        **{key.replace("__", "."): value for key, value in metadata.items()},
    }
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        tensors[name] = (type, (cols, rows), tinymodel.encode(rng, type, rows, cols))

    def vector(name: str, n: int, around: float) -> None:
        values = (around + rng.uniform(-0.5, 0.5, n)).astype(np.float32)
        tensors[name] = (tinymodel.F32, (n,), values.tobytes())

    def norm(name: str) -> None:
        vector(f"{name}.weight", n_embd, 1)
        vector(f"{name}.bias", n_embd, 0)

    matrix("token_embd.weight", VOCAB, n_embd)
    matrix("position_embd.weight", CONTEXT, n_embd)
    matrix("token_types.weight", 2, n_embd)
    norm("token_embd_norm")
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"blk.{i}.{name}.weight", n_embd, n_embd)
            vector(f"blk.{i}.{name}.bias", n_embd, 0)
        matrix(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        vector(f"blk.{i}.ffn_up.bias", n_ff, 0)
        matrix(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
        vector(f"blk.{i}.ffn_down.bias", n_embd, 0)
        norm(f"blk.{i}.attn_output_norm")
        norm(f"blk.{i}.layer_output_norm")
    return given, tensors


def load(parts: tuple[Any, Any], **how: Any) -> EncoderModel:
    data = tinymodel.gguf(*parts)
    return EncoderModel.load(parse(data), data, threads=how.pop("threads", 2), **how)


class Twin:
    """The textbook's encoder in float64, one text at a time."""

    def __init__(self, parts: tuple[Any, Any]) -> None:
        metadata, tensors = parts
        self.layers = metadata["bert.block_count"]
        self.heads = metadata["bert.attention.head_count"]
        self.w = {
            name: dequantize(data, type, shape).astype(np.float64) for name, (type, shape, data) in tensors.items()
        }

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"])

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
        scaled = (x - x.mean(axis=-1, keepdims=True)) / deviation
        return np.asarray(scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"])

    def hidden(self, tokens: list[int]) -> np.ndarray:
        n = len(tokens)
        x = (
            self.w["token_embd.weight"][tokens]
            + self.w["position_embd.weight"][:n]
            + self.w["token_types.weight"][0]
        )
        x = self.norm("token_embd_norm", x)
        for i in range(self.layers):
            q, k, v = (
                self.linear(f"blk.{i}.attn_{part}", x).reshape(n, self.heads, -1).swapaxes(0, 1) for part in "qkv"
            )
            scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
            x = self.norm(f"blk.{i}.attn_output_norm", x + self.linear(f"blk.{i}.attn_output", mixed))
            h = self.linear(f"blk.{i}.ffn_up", x)
            h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
            x = self.norm(f"blk.{i}.layer_output_norm", x + self.linear(f"blk.{i}.ffn_down", h))
        return np.asarray(x)

    def embed(self, tokens: list[int], pooling: str) -> np.ndarray:
        hidden = self.hidden(tokens)
        vector = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        return np.asarray(vector / np.linalg.norm(vector))


SHAPES = [
    {},
    {"n_embd": 48, "heads": 3},  # heads of 16, rows that are not whole blocks of 32
    {"n_embd": 60, "heads": 5, "n_ff": 50},  # heads and rows that fill no register
    {"n_embd": 256, "heads": 1, "n_ff": 32, "layers": 1},  # the widest head
]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_forward_equals_the_twins(level: str, shape: dict[str, int]) -> None:
    parts = tiny(**shape)
    model, twin = load(parts, level=level), Twin(parts)
    for pooling in ("mean", "cls", "last"):
        for got, text in zip(model.embed(TEXTS, pooling), TEXTS, strict=True):
            np.testing.assert_allclose(got, twin.embed(text, pooling), atol=2e-6)
    model.close()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", tinymodel.TYPES)
def test_every_type_of_weights(level: str, name: str) -> None:
    parts = tiny(type=tinymodel.TYPES[name])
    model, twin = load(parts, level=level), Twin(parts)
    for got, text in zip(model.embed(TEXTS), TEXTS, strict=True):
        np.testing.assert_allclose(got, twin.embed(text, "mean"), atol=2e-3)
    model.close()


def test_a_text_is_the_same_in_any_company() -> None:
    model = load(tiny())
    alone = [model.embed([text])[0] for text in TEXTS]
    assert model.embed(TEXTS) == alone
    assert model.embed(TEXTS[::-1]) == alone[::-1]
    model.set_threads(1)
    assert model.embed(TEXTS) == alone
    model.close()


def test_as_many_texts_as_a_batch_has_room_for() -> None:
    model = load(tiny())
    rows = model.embed([[i % VOCAB] for i in range(model.batch_tokens)])
    assert rows[:VOCAB] == rows[VOCAB : 2 * VOCAB]
    with pytest.raises(BadRequest):
        model.embed([[1]] * (model.batch_tokens + 1))
    model.close()


@pytest.mark.parametrize("level", levels())
def test_gelu_is_the_one_by_the_error_function(level: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4000), [0.0, -0.0, 1e-30, -1e-30, 100, -100, 3e38, -3e38]])
    x = np.resize(x.astype(np.float32), 4016)
    y = np.empty_like(x)
    given, got = ffi.from_buffer("float[]", x), ffi.from_buffer("float[]", y)
    assert not lib.sy_test_gelu(LEVELS[level], len(x), given, got)
    exact = x.astype(np.float64) * 0.5 * np.vectorize(math.erfc)(-x.astype(np.float64) / math.sqrt(2))
    np.testing.assert_allclose(y, exact, atol=5e-7, rtol=2e-7)


@pytest.mark.parametrize(
    ("texts", "subject"),
    [
        ([], "tokens"),
        ([[]], "tokens"),
        ([[1], []], "tokens"),
        ([[1] * (CONTEXT + 1)], "tokens"),
        ([[-1]], "tokens"),
        ([[VOCAB]], "tokens"),
    ],
)
def test_texts_that_cannot_be_are_refused(texts: list[list[int]], subject: str) -> None:
    model = load(tiny())
    with pytest.raises(BadRequest) as caught:
        model.embed(texts)
    assert caught.value.subject == subject
    with pytest.raises(BadRequest, match="pooling"):
        model.embed([[1]], "max")
    model.close()
    with pytest.raises(BadRequest, match="closed"):
        model.embed([[1]])
    model.close()


def tampered() -> Iterator[tuple[str, Any, type[ModelError]]]:
    def metadata(key: str, value: Any) -> Any:
        def change(parts: Any) -> None:
            if value is None:
                del parts[0][key]
            else:
                parts[0][key] = value

        return change

    def tensor(name: str, value: Any) -> Any:
        def change(parts: Any) -> None:
            if value is None:
                del parts[1][name]
            else:
                parts[1][name] = value

        return change

    for key in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count"):
        yield f"bert.{key}", metadata(f"bert.{key}", None), BrokenModel
        yield f"bert.{key}", metadata(f"bert.{key}", 0), BrokenModel
    yield "bert.attention.head_count", metadata("bert.attention.head_count", 3), BrokenModel
    epsilon = "bert.attention.layer_norm_epsilon"
    yield epsilon, metadata(epsilon, float("nan")), BrokenModel
    yield "bert.pooling_type", metadata("bert.pooling_type", 4), UnsupportedModel
    yield "bert.attention.causal", metadata("bert.attention.causal", 1), UnsupportedModel
    yield "general.architecture", metadata("general.architecture", "nomic-bert-moe"), UnsupportedModel
    for name in ("token_embd.weight", "position_embd.weight", "blk.1.ffn_up.bias", "blk.0.attn_q.weight"):
        yield name, tensor(name, None), BrokenModel
    query, square = "blk.0.attn_q.weight", bytes(64 * 64 * 4)
    yield query, tensor(query, (0, (64, 63), square[: 64 * 63 * 4])), BrokenModel
    yield "blk.0.ffn_up.bias", tensor("blk.0.ffn_up.bias", (0, (96, 1), square[: 96 * 4])), BrokenModel
    yield query, tensor(query, (26, (64, 64), square)), UnsupportedModel
    yield "blk.2.attn_q.weight", tensor("blk.2.attn_q.weight", (0, (64, 64), square)), UnsupportedModel


@pytest.mark.parametrize(("subject", "change", "kind"), list(tampered()))
def test_files_that_cannot_be_run_say_what_is_wrong(subject: str, change: Any, kind: type[ModelError]) -> None:
    parts = tiny()
    change(parts)
    with pytest.raises(kind) as caught:
        load(parts)
    assert caught.value.subject == subject


def test_what_a_file_leaves_open() -> None:
    parts = tiny(bert__pooling_type=2)
    del parts[1]["token_types.weight"]
    model = load(parts, context=40)
    assert (model.pooling, model.context, model.dimensions) == ("cls", 40, 64)
    assert model.parameter_count == sum(int(np.prod(shape)) for _, shape, _ in parts[1].values())
    with pytest.raises(BadRequest):
        load(parts, context=CONTEXT + 1)
    parts[1]["token_types.weight"] = (0, (64, 2), bytes(64 * 2 * 4))
    zero = load(parts)
    assert model.embed(TEXTS[:3]) == zero.embed(TEXTS[:3])
    assert load(tiny(bert__pooling_type=0)).pooling == "mean"


@pytest.fixture(scope="module")
def minilm(minilm_path: Path) -> Iterator[EncoderModel]:
    paths = [str(path.relative_to(minilm_path)) for path in minilm_path.rglob("*") if path.is_file()]
    opened: dict[str, tuple[int, int]] = {}
    try:
        for path in folder.needed(paths):
            handle = os.open(minilm_path / path, os.O_RDONLY)
            opened[path] = handle, os.fstat(handle).st_size
        with folder.Weights(opened) as weights:
            model = EncoderModel.load(weights.header, weights.buffer, threads=2)
    finally:
        for handle, _ in opened.values():
            os.close(handle)
    yield model
    model.close()


def test_minilm_is_what_it_is(minilm: EncoderModel) -> None:
    assert (minilm.parameter_count, minilm.dimensions, minilm.context) == (22_565_376, 384, 512)
    assert minilm.pooling == "mean"


def test_minilm_embeds_as_the_published_implementation_does(minilm: EncoderModel, golden: Path) -> None:
    """The bar is a cosine of 0.9999; float32 on both sides leaves about 1e-7."""
    cases = json.loads((golden.parent / "minilm.json").read_text())["cases"]
    for case in cases:
        for pooling in ("mean", "cls", "last"):
            if pooling in case:
                wanted = np.frombuffer(base64.b64decode(case[pooling]), "<f4").astype(np.float64)
                (got,) = minilm.embed([case["tokens"]], pooling)
                assert np.dot(wanted, got) >= 1 - 1e-6, case["text"][:60]
    short = [case for case in cases if len(case["tokens"]) < 40]
    together = minilm.embed([case["tokens"] for case in short])
    for case, got in zip(short, together, strict=True):
        wanted = np.frombuffer(base64.b64decode(case["mean"]), "<f4").astype(np.float64)
        assert np.dot(wanted, got) >= 1 - 1e-6
