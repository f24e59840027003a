# SPDX-License-Identifier: Apache-2.0
"""A model of several files: a published checkpoint (configuration, tokenizer, safetensors), or shards of a GGUF.

`needed` tells which files of a manifest to open. `Weights` maps those that hold tensors side by side and gives one
header for all of them, as if they were one GGUF file; `document` reads the JSON beside them.
"""

from __future__ import annotations

import errno
import json
import os
import re
from typing import TYPE_CHECKING

from syntrop.common import gguf, safetensors
from syntrop.runtimed.model.errors import BrokenModel, NoMemory, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from syntrop.runtimed.model.checkpoint import Stored
    from syntrop.runtimed.tokenizer import Tokenizer

    File = tuple[int, int]  # descriptor and size

SAFETENSORS, GGUF = ".safetensors", ".gguf"
INDEX = "model.safetensors.index.json"
MANIFEST_MAX = 4 << 20
DOCUMENT_MAX = 64 << 20
FILES_MAX = 4096
_TEXTS = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "modules.json",
    INDEX,
)
_POOLING = re.compile(r"[^/]*Pooling/config\.json")
# Of files that say true or false to each, and of newer ones that name one.
_POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
_MODES = {"mean": 1, "cls": 2, "lasttoken": 3}
_MODULES = ("Transformer", "Pooling", "Normalize")


def manifest(handle: int, size: int) -> list[str] | None:
    """The paths that modeld's manifest of a folder names; None for a file that is none."""
    if size > MANIFEST_MAX or os.pread(handle, 1, 0) != b"{":
        return None
    try:
        value = json.loads(os.pread(handle, size, 0))
        files = [one["path"] for one in value["files"]] if value["version"] == 1 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not files or len(files) > FILES_MAX or not all(isinstance(path, str) for path in files):
        return None
    return files


def needed(paths: Iterable[str]) -> list[str]:
    """Those files of a folder that loading it looks into."""
    paths = sorted(paths)
    tensors = [path for path in paths if "/" not in path and path.endswith(SAFETENSORS)]
    if not tensors:
        return [path for path in paths if path.endswith(GGUF)]
    if INDEX not in paths and "model" + SAFETENSORS in tensors:
        tensors = ["model" + SAFETENSORS]
    return tensors + [path for path in paths if path in _TEXTS or _POOLING.fullmatch(path)]


def document(files: Mapping[str, File], path: str) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no such file. Raises BrokenModel."""
    if path not in files:
        return {}
    value = _json(text(files, path), path)
    if not isinstance(value, dict):
        raise BrokenModel(path, "not an object")
    return value


def text(files: Mapping[str, File], path: str) -> str:
    """A file as text. Raises BrokenModel."""
    handle, size = files[path]
    if size > DOCUMENT_MAX:
        raise BrokenModel(path, f"{size} bytes, at most {DOCUMENT_MAX} are read")
    try:
        return os.pread(handle, size, 0).decode()
    except UnicodeDecodeError:
        raise BrokenModel(path, "not UTF-8") from None


def _json(content: str, path: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BrokenModel(path, "not JSON") from None


def pooling(files: Mapping[str, File]) -> int:
    """GGUF's number of the pooling that sentence-transformers' files ask for, 1 (mean) without them."""
    if "modules.json" in files:
        modules = _json(text(files, "modules.json"), "modules.json")
        if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
            raise BrokenModel("modules.json", "not a list of objects")
        for one in modules:
            kind = str(one.get("type")).rpartition(".")[2]
            if kind not in _MODULES:
                raise UnsupportedModel("modules.json", f"a {kind} module; supported are {', '.join(_MODULES)}")
    path = next((path for path in sorted(files) if _POOLING.fullmatch(path)), None)
    if path is None:
        return 1
    config = document(files, path)
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    known = _POOLINGS
    if isinstance(mode := config.get("pooling_mode"), str):
        modes, known = [mode], _MODES
    if len(modes) != 1 or modes[0] not in known:
        raise UnsupportedModel(path, f"pooling by {', '.join(modes) or 'nothing'}; one of mean, cls and last is")
    return known[modes[0]]


def words(files: Mapping[str, File], header: gguf.GGUF) -> tuple[Tokenizer, str | None]:
    """The tokenizer of a folder, and the source of its chat template. Raises ModelError and TokenizerError."""
    from syntrop.runtimed import tokenizer as tokenizers

    if "tokenizer.ggml.model" in header.metadata:
        source = header.metadata.get("tokenizer.chat_template")
        return tokenizers.load(header.metadata), source if isinstance(source, str) else None
    from syntrop.runtimed.tokenizer_json import load_json, template_of

    if "tokenizer.json" not in files:
        raise UnsupportedModel("tokenizer.json", "missing")
    config = text(files, "tokenizer_config.json").encode() if "tokenizer_config.json" in files else None
    tokenizer = load_json(text(files, "tokenizer.json").encode(), config)
    ends = document(files, "generation_config.json").get("eos_token_id")
    numbers = ends if isinstance(ends, list) else [ends]
    tokenizer.ends |= {one for one in numbers if type(one) is int and 0 <= one < len(tokenizer)}
    if "chat_template.jinja" in files:
        return tokenizer, text(files, "chat_template.jinja")
    return tokenizer, template_of(config) if config else None


class Weights:
    """The tensors of a folder's files, mapped, as a context. `watch` is that of what is mapped."""

    def __init__(self, files: Mapping[str, File]) -> None:
        """Raises ModelError, GGUFError, SafetensorsError. The descriptors stay the caller's."""
        from syntrop.runtimed.watching import Watch

        self._files = files
        self._base: Any = None
        self._total = 0
        self.watch = Watch(b"", 0)
        parts = [path for path in needed(files) if path.endswith((SAFETENSORS, GGUF))]
        if not parts:
            raise UnsupportedModel("the folder", "no safetensors or GGUF file in it")
        try:
            self.header = self._joined(parts) if parts[0].endswith(GGUF) else self._converted(parts)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    @property
    def buffer(self) -> Any:
        """All parts, as one."""
        from syntrop.runtimed._kernels import ffi

        return ffi.buffer(self._base, self._total)

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *how: object) -> None:
        from syntrop.runtimed._kernels import lib

        base, self._base = self._base, None
        try:
            self.watch.__exit__(*how)
        finally:
            if base is not None:
                lib.sy_parts_unmap(base, self._total)

    def _view(self, start: int, length: int) -> memoryview:
        from syntrop.runtimed._kernels import ffi

        return memoryview(ffi.buffer(self._base + start, length)).cast("B")

    def _map(self, parts: list[str], extra: int = 0) -> list[int]:
        """Where each part begins, and the space behind them."""
        from syntrop.runtimed._kernels import ffi, lib
        from syntrop.runtimed.watching import Watch

        self.__exit__(None, None, None)
        for path in parts:
            handle, size = self._files[path]
            if (there := os.fstat(handle).st_size) < size:  # to read behind the end would be a fault
                raise BrokenModel(path, f"{there} bytes where {size} are expected")
        starts, total = ffi.new("size_t[]", len(parts) + 1), ffi.new("size_t *")
        handles = ffi.new("int32_t[]", [self._files[path][0] for path in parts])
        sizes = ffi.new("size_t[]", [self._files[path][1] for path in parts])
        base = lib.sy_parts_map(len(parts), handles, sizes, extra, starts, total)
        if base == ffi.NULL:
            kind = NoMemory if ffi.errno == errno.ENOMEM else UnsupportedModel
            raise kind("the folder", f"cannot be mapped: {os.strerror(ffi.errno)}")
        self._base, self._total = base, total[0]
        self.watch = Watch(self.buffer, self._total)
        return list(starts)

    def _converted(self, parts: list[str]) -> gguf.GGUF:
        """The header of a checkpoint, and what it stores differently written behind its files."""
        from syntrop.runtimed.model.checkpoint import convert

        if "config.json" not in self._files:
            raise UnsupportedModel("config.json", "missing: a checkpoint without it cannot be run")
        config = document(self._files, "config.json")
        if isinstance(inner := config.get("text_config"), dict):
            config = inner
        pooled = pooling(self._files)
        parts = _shards(self._files, parts)
        starts = self._map(parts)
        header, edits = convert(config, self._stored(parts, starts), starts[-1], pooled)
        if edits:
            # Its size is known now: map again, with room for it.
            last = edits[-1].tensor
            starts = self._map(parts, last.offset + last.nbytes - starts[-1])
            header, edits = convert(config, self._stored(parts, starts), starts[-1], pooled)
        for tensor, source, make in edits:
            place = (source.offset, source.nbytes) if source else (0, 0)
            with self._view(*place) as raw, self._view(tensor.offset, tensor.nbytes) as target:
                target[:] = make(raw)
        return header

    def _stored(self, parts: list[str], starts: list[int]) -> dict[str, Stored]:
        from syntrop.runtimed.model.checkpoint import Stored

        stored: dict[str, Stored] = {}
        for path, start in zip(parts, starts, strict=False):
            with self._view(start, self._files[path][1]) as view:
                header = safetensors.parse(view)
            for name, tensor in header.tensors.items():
                if name in stored:
                    raise BrokenModel(name, "in two files")
                length = tensor.end - tensor.start
                stored[name] = Stored(tensor.type_name, tensor.shape, start + tensor.start, length)
        return stored

    def _joined(self, parts: list[str]) -> gguf.GGUF:
        """One header for the shards of a GGUF file: the first one's metadata, the tensors of all."""
        whole = gguf.GGUF(3, gguf.DEFAULT_ALIGNMENT, {}, {}, 0)
        for index, (path, start) in enumerate(zip(parts, self._map(parts), strict=False)):
            with self._view(start, self._files[path][1]) as view:
                one = gguf.parse(view)
            if one.metadata.pop("split.count", 1) != len(parts) or one.metadata.pop("split.no", 0) != index:
                raise BrokenModel(path, f"does not say that it is number {index + 1} of {len(parts)} shards")
            one.metadata.pop("split.tensors.count", None)
            whole.metadata = whole.metadata or one.metadata
            for name, tensor in one.tensors.items():
                if name in whole.tensors:
                    raise BrokenModel(name, "in two files")
                tensor.offset += start
                whole.tensors[name] = tensor
        return whole


def _shards(files: Mapping[str, File], parts: list[str]) -> list[str]:
    """The files that the index names, where there is one."""
    if INDEX not in files:
        return parts
    places = document(files, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(one, str) for one in places.values()):
        raise BrokenModel(INDEX, "no weight_map")
    named = sorted(set(places.values()))
    for path in named:
        if path not in files:
            raise BrokenModel(INDEX, f"{path[:200]} is missing")
    return named
