# SPDX-License-Identifier: Apache-2.0
"""Models that are folders, from a store that gives out a manifest and its files one by one: MiniLM, from a text to
the published vector, and folders that cannot be run."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from syntrop.common import loop
from syntrop.runtimed.embedding import Embedder
from syntrop.runtimed.library import CannotLoad, Library
from syntrop.runtimed.prompt import text_tokens

DIGEST = "sha256:" + "5" * 64
NAME = "minilm:l6"
GONE = ("generation_config.json",)


class Reply:
    """As much of a Varlink reply as the library reads."""

    def __init__(self, parameters: dict[str, Any], handle: int = -1) -> None:
        self.parameters = parameters
        self._handle = handle

    def take_fd(self, index: int) -> int:
        handle, self._handle = self._handle, -1
        return handle

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)


class Folders(Library):
    """A library whose store has one model, the folder `where`: `Open` gives its manifest, or one of its files."""

    def __init__(self, where: Path) -> None:
        super().__init__(nullcontext, threads=2, models_max=2, context_max=0, timeout=5.0)
        self.where = where
        self.opened: list[str] = []

    async def _call(self, method: str, parameters: dict[str, Any]) -> Reply:
        if method == "Inspect":
            return Reply({"info": {"id": NAME, "digest": DIGEST, "size_bytes": 1}})
        assert (method, parameters["id"]) == ("Open", DIGEST)
        file = parameters.get("file")
        self.opened.append(file or "")
        if file is None:
            paths = sorted(str(path.relative_to(self.where)) for path in self.where.rglob("*") if path.is_file())
            rows = [{"path": path, "digest": DIGEST, "size": 1} for path in paths]
            data = json.dumps({"version": 1, "format": "safetensors", "files": rows}).encode()
            handle = os.memfd_create("manifest")
            os.write(handle, data)
        else:
            if file in GONE:
                raise CannotLoad("the model store failed")
            handle = os.open(self.where / file, os.O_RDONLY)
        return Reply({"fd": 0, "size": os.fstat(handle).st_size}, handle)


def run(where: Path, body: Callable[[Folders], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with loop.deadline(60):
            await body(Folders(where))

    before = len(os.listdir("/proc/self/fd"))
    loop.run(main())
    assert len(os.listdir("/proc/self/fd")) <= before, "no descriptor of a file is left"


def test_minilm_embeds_texts_as_published(minilm_path: Path, golden: Path) -> None:
    cases = json.loads((golden.parent / "minilm.json").read_text())["cases"]

    async def body(library: Folders) -> None:
        loaded = await library.get(NAME)
        assert not loaded.generates
        assert loaded.describe()["architecture"] == "bert"
        assert "model.safetensors" in library.opened and "vocab.txt" not in library.opened
        tokens = [text_tokens(loaded.tokenizer, case["text"], loaded.model.context + 1) for case in cases]
        assert tokens == [case["tokens"] for case in cases]
        vectors = await Embedder(4).embed(loaded.model, tokens)
        for case, vector in zip(cases, vectors, strict=True):
            wanted = np.frombuffer(base64.b64decode(case["mean"]), "<f4").astype(np.float64)
            assert np.dot(wanted, vector) >= 0.9999, case["text"][:60]
        await library.unload(loaded)
        assert library.loaded() == []

    run(minilm_path, body)


def test_folders_that_cannot_be_run_say_why(tmp_path: Path, minilm_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(minilm_path / name)

    async def body(library: Folders) -> None:
        with pytest.raises(CannotLoad, match=r"tokenizer\.json: missing"):
            await library.get(NAME)
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(CannotLoad, match=r"minilm:l6 cannot be loaded"):
            await library.get(NAME)
        (tmp_path / "config.json").unlink()
        with pytest.raises(CannotLoad, match=r"config\.json: missing"):
            await library.get(NAME)
        (tmp_path / "config.json").symlink_to(minilm_path / "config.json")
        (tmp_path / GONE[0]).write_text("{}")
        with pytest.raises(CannotLoad, match="store failed"):
            await library.get(NAME)
        assert library.loaded() == []

    run(tmp_path, body)
