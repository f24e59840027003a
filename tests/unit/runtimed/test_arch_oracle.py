# SPDX-License-Identifier: Apache-2.0
"""Every architecture on a tiny model, against logits of the reference implementation, kept as data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed.model import arch
from syntrop.runtimed.model.llama import LlamaModel, Piece, ffi, levels, lib
from syntrop.runtimed.reference import ReferenceModel

_spec = importlib.util.spec_from_file_location("archmodel_o", Path(__file__).with_name("archmodel.py"))
assert _spec is not None and _spec.loader is not None
archmodel: Any = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = archmodel
_spec.loader.exec_module(archmodel)

CASES: dict[str, Any] = archmodel.CASES
ORACLE = np.load(Path(__file__).parents[2] / "data" / "architectures" / "logits.npz")


def load(name: str, **options: Any) -> LlamaModel:
    case = CASES[name]
    data = archmodel.file(case)
    options = {"threads": 2, "kv_type": "f32", "context": case.context, **options}
    return LlamaModel.load(parse(data), data, **options)


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == set(arch.NAMES)
    assert set(ORACLE.files) == set(CASES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", levels())
def test_logits_of_the_reference_implementation(level: str, name: str) -> None:
    expected = ORACLE[name]
    model = load(name, level=level)
    ours = np.array(model.forward_all(model.sequence(len(expected)), archmodel.tokens(len(expected))))
    model.close()
    assert np.abs(ours - expected).max() < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_the_twin_agrees_too(name: str) -> None:
    case, expected = CASES[name], ORACLE[name]
    data = archmodel.file(case)
    twin = ReferenceModel(parse(data), data, case.context)
    assert np.abs(twin.logits(archmodel.tokens(len(expected))) - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["mistral", "gemma3", "phi3_long", "granite"])
def test_one_by_one_and_in_company(name: str) -> None:
    """Two sequences, one a token at a time and one in pieces, in the same steps."""
    expected = ORACLE[name]
    tokens = archmodel.tokens(len(expected))
    model = load(name)
    single, pieces = model.sequence(64), model.sequence(64)
    for i, token in enumerate(tokens):
        batch = [Piece(single, [token])]
        if i % 11 == 10:
            batch.insert(0, Piece(pieces, tokens[i - 10 : i + 1]))
        rows = [np.array(ffi.unpack(row, archmodel.VOCAB)) for row in model.step(batch)]
        for row in rows:
            np.testing.assert_allclose(row, expected[i], atol=1e-4)
    model.close()


def test_half_precision_keys_and_values_are_close() -> None:
    for name in ("gemma3", "qwen3"):
        model = load(name, kv_type="f16")
        ours = np.array(model.forward_all(model.sequence(44), archmodel.tokens()))
        model.close()
        assert np.abs(ours - ORACLE[name]).max() < 0.02


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", ["mistral", "phi3"])
def test_blocks_behind_the_window_are_not_read(name: str, level: str) -> None:
    """Numbers that are none would show wherever they are read, even where their weight is 0."""
    expected, tokens = ORACLE[name], archmodel.tokens()
    model = load(name, level=level)
    with model.sequence(64) as sequence:
        model.forward(sequence, tokens[:-4], logits=False)
        for index in (0, 1):  # the windows of the last four tokens begin at position 30 and 32
            if index * 16 + 16 <= len(tokens) - 4 - CASES[name].gguf["attention.sliding_window"] + 1:
                block = lib.sy_block_memory(model._handle, sequence.table[index])
                ffi.memmove(block, b"\xff" * model.kv.block_bytes, model.kv.block_bytes)
        ours = [np.array(ffi.unpack(model.forward(sequence, [token]), archmodel.VOCAB)) for token in tokens[-4:]]
    model.close()
    assert np.abs(np.array(ours) - expected[-4:]).max() < 1e-4
