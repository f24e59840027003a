# SPDX-License-Identifier: Apache-2.0
"""Speed counts at equal quality only: perplexity of the real models within 0.5 % of the float32 twin's."""

from __future__ import annotations

import importlib.util
import json
import math
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common.gguf import parse
from syntrop.runtimed import tokenizer
from syntrop.runtimed.model.llama import LlamaModel, ffi, levels


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


perplexity = _sibling("perplexity")
TWIN: dict[str, dict[str, Any]] = json.loads(perplexity.DATA.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TWIN)
def test_perplexity_is_the_twins_at_every_level(name: str, request: pytest.FixtureRequest) -> None:
    """The scalar level would take minutes, and differs by rounding only (test_llama_smollm2)."""
    path: Path = request.getfixturevalue(f"{name}_path")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        header = parse(data)
        tokens = tokenizer.load(header.metadata).encode(perplexity.TEXT)
        assert len(tokens) == TWIN[name]["tokens"]
        for level in levels()[1:] or levels():
            model = LlamaModel.load(header, data, threads=2, level=level)
            size = model.config.n_vocab * 4
            with model.sequence(len(tokens)) as sequence:
                rows = model.forward_rows(sequence, tokens[:-1])
                surprise = [
                    perplexity.nats(np.frombuffer(ffi.buffer(row, size), dtype=np.float32), token)
                    for row, token in zip(rows, tokens[1:], strict=True)
                ]
            model.close()
            ratio = math.exp(float(np.mean(surprise)) - TWIN[name]["nats"])
            print(f"{name}, {level}: {ratio - 1:+.4%}")
            assert abs(ratio - 1) <= 0.005, level
