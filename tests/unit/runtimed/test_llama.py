# SPDX-License-Identifier: Apache-2.0
"""The llama forward on tiny random models, against the numpy twin; and that nothing bad gets through to C."""

from __future__ import annotations

import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed.model.errors import BadRequest, BrokenModel, ModelError, UnsupportedModel
from syntrop.runtimed.model.kv import Sequence
from syntrop.runtimed.model.llama import MAX_BATCH, MAX_LOGITS, LlamaModel, Piece, ffi, levels
from syntrop.runtimed.reference import ReferenceModel

_spec = importlib.util.spec_from_file_location("tinymodel_l", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)
Tiny = tinymodel.Tiny
Q4_1, Q8_0, F16, F32, BF16, Q4_0 = (tinymodel.TYPES[n] for n in ("Q4_1", "Q8_0", "F16", "F32", "BF16", "Q4_0"))

CODES = 4e-2  # what activations' codes of 11 and 12 bits do to the logits of tiny random models, at most
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 101, 60)]


def load(data: bytes, **options: Any) -> LlamaModel:
    options = {"threads": 2, "kv_type": "f32", **options}
    return LlamaModel.load(parse(data), data, **options)


def close_to_twin(tiny: Any, tokens: list[int] = TOKENS, tolerance: float = CODES, **options: Any) -> None:
    data = tiny.file()
    expected = ReferenceModel(parse(data), data).logits(tokens)
    model = load(data, **options)
    ours = np.array(model.forward_all(model.sequence(len(tokens)), tokens))
    model.close()
    assert np.abs(ours - expected).max() < tolerance, np.abs(ours - expected).max()


def row(model: LlamaModel, pointer: Any) -> np.ndarray:
    return np.array(ffi.unpack(pointer, model.config.n_vocab), dtype=np.float32)


SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "every head its own keys": {"heads": 3, "heads_kv": 3},
    "one key head for all": {"heads": 6, "heads_kv": 1},
    "more heads to a key than rows in a tile": {"heads": 40, "heads_kv": 1, "head_dim": 16, "n_embd": 32},
    "head that is no multiple of 32": {"heads": 4, "heads_kv": 4, "head_dim": 24},
    "head of 80": {"heads": 2, "heads_kv": 1, "head_dim": 80},
    "widest head": {"heads": 2, "heads_kv": 1, "head_dim": 256},
    "head and embedding differ": {"heads": 4, "heads_kv": 2, "head_dim": 64, "n_embd": 96},
    "odd panels": {"n_ff": 160, "n_embd": 96, "vocab": 33},
    "partly rotated": {"llama__rope__dimension_count": 16},
    "linear scaling": {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0},
    "divided frequencies": {"factors": True},
    "output of its own": {"output": Q8_0},
    "several types": {"type": Q4_1, "embed": Q8_0, "output": F16},
}


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(level: str, shape: str) -> None:
    tokens = [t % 33 for t in TOKENS]
    close_to_twin(Tiny(**SHAPES[shape]), tokens, level=level)
    if not SHAPES[shape].keys() & {"type", "output"}:  # without codes, to rounding
        close_to_twin(Tiny(type=F32, **SHAPES[shape]), tokens, tolerance=2e-5, level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("type", tinymodel.TYPES)
def test_types(level: str, type: str) -> None:
    close_to_twin(Tiny(type=tinymodel.TYPES[type]), level=level)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("type", [F32, F16, BF16])
@pytest.mark.parametrize(("embd", "ff"), [(30, 41), (10, 6), (83, 64)])
def test_float_weights_need_no_blocks_at_any_level(level: str, type: int, embd: int, ff: int) -> None:
    tiny = Tiny(type=type, heads=3, heads_kv=1, head_dim=10, n_embd=embd, n_ff=ff, vocab=102)
    close_to_twin(tiny, tolerance=2e-5, level=level)


@pytest.mark.parametrize("level", levels())
def test_long_contexts_pass_several_chunks_of_attention(level: str) -> None:
    tokens = [int(t) for t in np.random.default_rng(9).integers(0, 101, 600)]
    close_to_twin(Tiny(layers=1, type=F32), tokens, tolerance=2e-5, level=level)
    close_to_twin(Tiny(layers=1), tokens, level=level)


@pytest.mark.parametrize("level", levels())
def test_half_precision_cache(level: str) -> None:
    close_to_twin(Tiny(type=F32), tolerance=2e-2, level=level, kv_type="f16")


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("head_dim", [10, 24, 32, 80])
def test_eight_bit_cache(level: str, head_dim: int) -> None:
    tiny = Tiny(type=F32, head_dim=head_dim, n_embd=32, n_ff=32)
    close_to_twin(tiny, tolerance=0.1, level=level, kv_type="q8")


def test_eight_bit_caches_of_all_levels_are_alike_to_rounding() -> None:
    rows = []
    for level in levels():
        model = load(Tiny(type=F32, head_dim=24).file(), level=level, kv_type="q8")
        rows.append(np.array(model.forward_all(model.sequence(60), TOKENS)))
        # layers × KV heads × tokens × (codes of keys and values, scales of runs of 8 and of 16) of a padded head
        assert model.kv.block_bytes == 2 * 2 * 16 * (32 + 32 + 2 * 32 // 8 + 2 * 32 // 16)
        model.close()
    for row_of_level in rows[1:]:
        assert np.abs(row_of_level - rows[0]).max() < 2e-2  # a code may fall to either side


def test_values_that_no_code_can_hold_stay_numbers() -> None:
    tiny = Tiny(type=F32)
    for name in ("attn_k", "attn_v"):
        key = f"blk.0.{name}.weight"
        type, shape, data = tiny.tensors[key]
        values = np.frombuffer(data, np.float32).reshape(shape[1], shape[0]).copy()
        values[0:8] *= 1e-9  # scales of a run of these are no halves any more
        values[8:16] *= 1e-6
        tiny.tensors[key] = (type, shape, values.tobytes())
    close_to_twin(tiny, tolerance=5e-2, kv_type="q8")


@pytest.mark.parametrize("level", levels())
def test_one_by_one_equals_all_at_once(level: str) -> None:
    model = load(Tiny().file(), level=level)
    together = np.array(model.forward_all(model.sequence(60), TOKENS))
    sequence = model.sequence(60)
    for i, token in enumerate(TOKENS):
        np.testing.assert_allclose(row(model, model.forward(sequence, [token])), together[i], atol=1e-5)
    assert sequence.length == 60
    model.close()


def test_prompts_longer_than_a_batch() -> None:
    tokens = [i % 101 for i in range(MAX_BATCH + 77)]
    model = load(Tiny(layers=1).file())
    a, b = model.sequence(1000), model.sequence(1000)
    expected = row(model, model.forward(a, tokens))
    assert model.forward(b, tokens[:100], logits=False) is None
    np.testing.assert_allclose(row(model, model.forward(b, tokens[100:])), expected, atol=1e-5)
    model.close()


def test_threads_do_not_change_a_bit() -> None:
    model = load(Tiny().file(), threads=1)
    expected = row(model, model.forward(model.sequence(60), TOKENS))
    for threads in (2, 3, 5, 1):
        model.set_threads(threads)
        assert np.array_equal(row(model, model.forward(model.sequence(60), TOKENS)), expected)
    model.close()


def test_a_step_carries_prompts_and_single_tokens_of_several_sequences() -> None:
    model = load(Tiny().file())
    alone = []
    for start in range(3):
        sequence = model.sequence(64)
        model.forward(sequence, TOKENS[start : start + 20], logits=False)
        alone.append(row(model, model.forward(sequence, [start])))
    sequences = [model.sequence(64) for _ in range(3)]
    rows = model.step([Piece(s, TOKENS[i : i + 20], False) for i, s in enumerate(sequences[:2])])
    assert rows == [None, None]
    batch = [
        Piece(sequences[0], [0]),
        Piece(sequences[2], TOKENS[2:22], False),
        Piece(sequences[1], [1]),
    ]
    rows = model.step(batch)
    assert rows[1] is None
    np.testing.assert_allclose(row(model, rows[0]), alone[0], atol=1e-5)
    np.testing.assert_allclose(row(model, rows[2]), alone[1], atol=1e-5)
    np.testing.assert_allclose(row(model, model.forward(sequences[2], [2])), alone[2], atol=1e-5)
    model.close()


def test_truncation_forgets_and_gives_blocks_back() -> None:
    model = load(Tiny().file())
    sequence = model.sequence(64)
    assert sequence.kv_bytes == 0
    expected = row(model, model.forward(sequence, TOKENS[:20]))
    assert sequence.kv_bytes == 2 * model.kv.block_bytes
    model.forward(sequence, TOKENS[20:50])
    assert sequence.kv_bytes == 4 * model.kv.block_bytes
    sequence.truncate(19)
    assert (sequence.length, sequence.kv_bytes) == (19, 2 * model.kv.block_bytes)
    np.testing.assert_allclose(row(model, model.forward(sequence, TOKENS[19:20])), expected, atol=1e-5)
    sequence.truncate(0)
    assert sequence.kv_bytes == 0
    for wrong in (-1, 1):
        with pytest.raises(BadRequest):
            sequence.truncate(wrong)
    model.close()


def test_the_file_is_not_needed_after_load() -> None:
    data = bytearray(Tiny().file())
    model = load(data)
    expected = row(model, model.forward(model.sequence(60), TOKENS))
    data[:] = bytes(len(data))
    data.clear()  # would raise BufferError were it still exported
    assert np.array_equal(row(model, model.forward(model.sequence(60), TOKENS)), expected)
    model.close()


def test_models_share_the_pool_from_several_threads() -> None:
    models = [load(Tiny(seed=seed).file(), threads=2) for seed in (1, 2)]
    expected = [row(m, m.forward(m.sequence(60), TOKENS)) for m in models]
    wrong: list[str] = []

    def work(index: int) -> None:
        for _ in range(30):
            with models[index].sequence(60) as sequence:
                out = row(models[index], models[index].forward(sequence, TOKENS))
            if not np.array_equal(out, expected[index]):
                wrong.append(f"model {index}")

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong
    for model in models:
        model.close()


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_the_last_model_ends_the_pool() -> None:
    before = _threads()
    models = [load(Tiny().file(), threads=3) for _ in range(2)]
    assert _threads() >= before
    for model in models:
        model.close()
        model.close()
    until = time.monotonic() + 60
    while _threads() > before:  # one that was waited for is listed a moment longer
        assert time.monotonic() < until


def test_what_is_asked_of_a_model_is_checked() -> None:
    model = load(Tiny(context=64).file())
    sequence = model.sequence(10)
    for tokens in ([], [101], [-1], list(range(11)), [2**40]):
        with pytest.raises(BadRequest) as caught:
            model.forward(sequence, tokens)
        assert caught.value.subject == "tokens"
    assert sequence.length == 0
    for wrong in (0, 65):
        with pytest.raises(BadRequest):
            model.sequence(wrong)
    for wrong in (0, -1, 10_000):
        with pytest.raises(BadRequest):
            model.set_threads(wrong)
    with pytest.raises(BadRequest, match="twice"):
        model.step([Piece(sequence, [1]), Piece(sequence, [2])])
    with pytest.raises(BadRequest, match="empty"):
        model.step([])
    many = [model.sequence(1) for _ in range(MAX_LOGITS + 1)]
    with pytest.raises(BadRequest, match="rows of logits"):
        model.step([Piece(s, [1]) for s in many])
    other = load(Tiny().file())
    with pytest.raises(BadRequest, match="another model"):
        model.forward(other.sequence(5), [1])
    other.close()
    sequence.close()
    with pytest.raises(BadRequest, match="closed"):
        model.forward(sequence, [1])
    model.close()
    late: Sequence = many[0]
    with pytest.raises(BadRequest, match="closed"):
        model.forward(late, [1])
    late.close()


@pytest.mark.parametrize("context", [0, -3, 1025])
def test_contexts_out_of_range(context: int) -> None:
    with pytest.raises(BadRequest, match="context"):
        load(Tiny().file(), context=context)


def test_levels_are_forced_by_name() -> None:
    for level in levels():
        model = load(Tiny().file(), level=level)
        assert model.level == level
        model.close()
    model = load(Tiny().file())
    assert model.level == levels()[-1]
    model.close()
    with pytest.raises(BadRequest, match="mmx"):
        load(Tiny().file(), level="mmx")


def test_memory_and_parameters_are_told() -> None:
    tiny = Tiny()
    model = load(tiny.file(), kv_type="f16")
    assert model.parameter_count == sum(int(np.prod(shape)) for _, shape, _ in tiny.tensors.values())
    assert model.memory_bytes > sum(len(data) for _, _, data in tiny.tensors.values())
    # layers × KV heads × (keys, values) × head × tokens of a block × bytes
    assert model.kv.block_bytes == 2 * 2 * 2 * 32 * 16 * 2
    model.close()


BROKEN: dict[str, tuple[str, Any, type[ModelError], str]] = {
    "another architecture": ("general.architecture", "mamba", UnsupportedModel, "general.architecture"),
    "no layers": ("llama.block_count", 0, BrokenModel, "llama.block_count"),
    "a layer too many": ("llama.block_count", 3, BrokenModel, "blk.2.attn_norm.weight"),
    "absurd layers": ("llama.block_count", 2**31, BrokenModel, "llama.block_count"),
    "embedding mismatch": ("llama.embedding_length", 96, BrokenModel, "token_embd.weight"),
    "ff mismatch": ("llama.feed_forward_length", 64, BrokenModel, "blk.0.ffn_gate.weight"),
    "heads do not divide": ("llama.attention.head_count_kv", 3, BrokenModel, "llama.attention.head_count_kv"),
    "heads mismatch": ("llama.attention.head_count", 2, BrokenModel, "blk.0.attn_q.weight"),
    "heads by layer": ("llama.attention.head_count", [4, 4], UnsupportedModel, "llama.attention.head_count"),
    "head too wide": ("llama.attention.key_length", 512, BrokenModel, "llama.attention.key_length"),
    "odd rotation": ("llama.rope.dimension_count", 31, BrokenModel, "llama.rope.dimension_count"),
    "rotation too wide": ("llama.rope.dimension_count", 64, BrokenModel, "llama.rope.dimension_count"),
    "another stretch": ("llama.rope.scaling.type", "dynamic", UnsupportedModel, "llama.rope.scaling.type"),
    "a key that nobody reads": ("llama.swin_norm", 1, UnsupportedModel, "llama.swin_norm"),
    "experts": ("llama.expert_count", 8, UnsupportedModel, "llama.expert_count"),
    "no epsilon": (
        "llama.attention.layer_norm_rms_epsilon",
        float("nan"),
        BrokenModel,
        "llama.attention.layer_norm_rms_epsilon",
    ),
    "no base": ("llama.rope.freq_base", 0.0, BrokenModel, "llama.rope.freq_base"),
    "text for a number": ("llama.context_length", "8192", UnsupportedModel, "llama.context_length"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_metadata_that_cannot_be_is_named(case: str) -> None:
    key, value, kind, subject = BROKEN[case]
    tiny = Tiny()
    tiny.metadata[key] = value
    with pytest.raises(kind) as caught:
        load(tiny.file())
    assert caught.value.subject == subject


def test_missing_metadata_is_named() -> None:
    tiny = Tiny()
    del tiny.metadata["llama.block_count"]
    with pytest.raises(BrokenModel, match=r"llama\.block_count: missing"):
        load(tiny.file())


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"])
def test_missing_tensors_are_named(name: str) -> None:
    tiny = Tiny()
    del tiny.tensors[name]
    with pytest.raises(BrokenModel) as caught:
        load(tiny.file())
    assert caught.value.subject == name


def test_tensors_that_would_be_ignored_are_refused() -> None:
    tiny = Tiny()
    tiny.tensors["blk.0.attn_q.bias"] = (F32, (128,), bytes(512))  # qwen2 has one, llama has not
    with pytest.raises(UnsupportedModel) as caught:
        load(tiny.file())
    assert caught.value.subject == "blk.0.attn_q.bias"


@pytest.mark.parametrize(
    ("name", "tensor", "kind"),
    [
        ("blk.0.attn_q.weight", (F32, (64, 64), bytes(64 * 64 * 4)), BrokenModel),
        ("blk.0.attn_q.weight", (F32, (128, 64), bytes(64 * 128 * 4)), BrokenModel),
        ("blk.0.attn_q.weight", (F32, (64 * 128,), bytes(64 * 128 * 4)), BrokenModel),
        ("blk.0.attn_q.weight", (28, (64, 128), bytes(64 * 128 * 8)), UnsupportedModel),
        ("output_norm.weight", (Q8_0, (64,), bytes(68)), UnsupportedModel),
        ("token_embd.weight", (F32, (64,), bytes(256)), BrokenModel),
    ],
)
def test_tensors_that_cannot_be_are_named(
    name: str, tensor: tuple[int, tuple[int, ...], bytes], kind: type[ModelError]
) -> None:
    tiny = Tiny()
    tiny.tensors[name] = tensor
    with pytest.raises(kind) as caught:
        load(tiny.file())
    assert caught.value.subject == name


def test_a_header_for_another_file_is_refused() -> None:
    data = Tiny().file()
    header = parse(data)
    with pytest.raises(BrokenModel, match="do not lie in a file"):
        LlamaModel.load(header, data[:-4096], threads=1)


def test_nothing_heavy_is_imported_before_a_first_token() -> None:
    import subprocess
    import sys

    code = (
        "import sys, syntrop.runtimed.service, syntrop.runtimed.engine, syntrop.runtimed.leases\n"
        "from syntrop.runtimed import loading\n"
        "loading.warm()\n"
        "assert not {'numpy', 'jinja2', 'asyncio', 'dataclasses', 'inspect', 'ssl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": "src"})
