# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: the real models (see `models.py`)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

# A busy machine is no failure: how long one example takes says nothing about what it shows.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


def _sibling(name: str) -> ModuleType:
    # Test folders are no packages (import mode importlib), so a helper is loaded by its path.
    spec = importlib.util.spec_from_file_location(f"syntrop_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _model(name: str) -> Path:
    path: Path = _sibling("models").path(name)
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: llama, byte-level BPE, ChatML."""
    return _model("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: SentencePiece with 262,144 tokens."""
    return _model("gemma3")


@pytest.fixture(scope="session")
def qwen2_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct: byte-level BPE, a template with tools."""
    return _model("qwen2")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the oracle's tokens and continuations, one file a model."""
    return Path(__file__).parent / "data" / "golden"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's own, which has the test's name and the number of the run in it: a socket's path may be
    107 bytes long (unix(7)), and the hundredth run of a machine would be over."""
    folder = Path(tempfile.mkdtemp(prefix="syn-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
