# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as they are published, written into a folder: for tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from syntrop.runtimed import folder


def safetensors(tensors: Mapping[str, np.ndarray], kind: str = "F32") -> bytes:
    """A file of these tensors as F32, F16 or BF16 (cut off, not rounded)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, value in tensors.items():
        value = np.ascontiguousarray(value)
        stored = kind if value.dtype == np.float32 else "I64"
        if stored == "F16":
            data = value.astype(np.float16).tobytes()
        elif stored == "BF16":
            data = (value.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            data = value.tobytes()
        places = [len(body), len(body) + len(data)]
        header[name] = {"dtype": stored, "shape": list(value.shape), "data_offsets": places}
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + body


def write(
    where: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    kind: str = "F32",
    shards: int = 1,
) -> None:
    """The folder of a checkpoint."""
    (where / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (where / "model.safetensors").write_bytes(safetensors(tensors, kind))
        return
    names = list(tensors)
    places = {}
    for number in range(shards):
        path = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number::shards]}
        (where / path).write_bytes(safetensors(part, kind))
        places |= dict.fromkeys(part, path)
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@contextmanager
def opened(where: Path) -> Iterator[dict[str, tuple[int, int]]]:
    """The files that are needed of a folder, as modeld would open them."""
    paths = [str(path.relative_to(where)) for path in where.rglob("*") if path.is_file()]
    files: dict[str, tuple[int, int]] = {}
    try:
        for path in folder.needed(paths):
            handle = os.open(where / path, os.O_RDONLY)
            files[path] = handle, os.fstat(handle).st_size
        yield files
    finally:
        for handle, _ in files.values():
            os.close(handle)
