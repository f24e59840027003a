# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: the real models (see `models.py`)."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

import models

# A busy machine is no failure: how long one example takes says nothing about what it shows.
hypothesis.settings.register_profile(
    "suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: llama, byte-level BPE, ChatML."""
    return models.path("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M: SentencePiece with 262,144 tokens."""
    return models.path("gemma3")


@pytest.fixture(scope="session")
def qwen2_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct: byte-level BPE, a template with tools."""
    return models.path("qwen2")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """Folder of all-MiniLM-L6-v2: a BERT for embeddings, safetensors in F32, WordPiece."""
    return models.folder("minilm")


@pytest.fixture(scope="session")
def llama_cpp_models() -> Path:
    """llama.cpp's vocabularies without weights, and its collection of chat templates."""
    return models.llama_cpp()


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
