# SPDX-License-Identifier: Apache-2.0
"""A model that is a folder: which of its files belong to it, and what they say. Pure.

A folder of safetensors (one file, or shards with their index) comes with its configuration and tokenizer; a
folder of GGUF shards consists of those. Pickled weights are never taken: reading them runs code.
"""

from __future__ import annotations

import json
import re

from syntrop.common.modelfiles import belongs, is_weights
from syntrop.modeld import formats, naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from syntrop.common.safetensors import Buffer

TEXT_MAX = 64 << 20  # bytes of a JSON file that is looked into
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|gguf)", re.ASCII)
_LICENSE = re.compile(r"^license:[ \t]*['\"]?([\w.+-]+)", re.MULTILINE)


class Incomplete(ValueError):
    """The folder is not a whole model; the text says what is missing."""


def is_wanted(path: str) -> bool:
    """Whether a file of a model's folder is taken along."""
    try:
        naming.parse_path(path)
    except naming.InvalidIdentifier:
        return False
    return belongs(path)


def choose(paths: Iterable[str]) -> tuple[str, list[str]]:
    """The format of a folder's model, and the files that belong to it. Raises Incomplete."""
    wanted = sorted(path for path in paths if is_wanted(path))
    tensors = [path for path in wanted if path.endswith(".safetensors")]
    if tensors:
        chosen = [path for path in wanted if not path.endswith(".gguf")]
        kind = formats.SAFETENSORS
    else:
        chosen = tensors = [path for path in wanted if path.endswith(".gguf")]
        kind = formats.GGUF
        if len(chosen) > 1 and not all(map(_SHARD.fullmatch, chosen)):
            raise Incomplete(f"several models: {', '.join(chosen)[:200]}; give one of the files")
    if not tensors:
        raise Incomplete("no safetensors or GGUF file in it")
    _check_shards(tensors)
    return kind, chosen


def _check_shards(paths: list[str]) -> None:
    """Shards tell how many there are: none may be missing."""
    present = set(paths)
    for path in paths:
        if found := _SHARD.fullmatch(path):
            stem, _, count, suffix = found.groups()
            for number in range(1, min(int(count), naming.PATH_MAX * 16) + 1):
                other = f"{stem}-{number:05}-of-{count}.{suffix}"
                if other not in present:
                    raise Incomplete(f"{other} is missing")


def describe(kind: str, files: Mapping[str, Buffer]) -> dict[str, Any]:
    """Metadata of the whole, JSON-ready; None where it does not tell. Raises UnknownFormat and Incomplete."""
    weights = {path: formats.describe(data, kind) for path, data in files.items() if is_weights(path)}
    first = weights[min(weights)]
    types: dict[str, int] = {}
    for one in weights.values():
        for name, count in one["tensor_types"].items():
            types[name] = types.get(name, 0) + count
    found = {
        **first,
        "parameter_count": sum(one["parameter_count"] for one in weights.values()),
        "tensor_types": types,
        "files": sorted(files),
    }
    if kind == formats.GGUF:
        return found
    _check_index(files)
    config = _json(files, "config.json")
    quantized = config.get("quantization_config")
    template = _template(files)
    from syntrop.common import gguf

    architectures = config.get("architectures")
    found.update(
        architecture=_text(config.get("model_type"))
        or (_text(architectures[0]) if isinstance(architectures, list) and architectures else None),
        name=_text(config.get("_name_or_path")),
        context_length=next(
            (
                config[key]
                for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
                if type(config.get(key)) is int
            ),
            None,
        ),
        license=_license(files),
        chat_template=template is not None,
        chat_abilities=gguf.chat_abilities(template or ""),
        tokenizer=any(path in files for path in ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")),
    )
    if isinstance(quantized, dict) and (method := _text(quantized.get("quant_method"))):
        found["quantization"] = method
    return found


def _template(files: Mapping[str, Buffer]) -> str | None:
    """The text of all chat templates; None where there is none."""
    found = []
    for path in sorted(files):
        if path.endswith(".jinja"):
            with memoryview(files[path]) as view:
                found.append(bytes(view[:TEXT_MAX]).decode("utf-8", "replace"))
    config = _json(files, "tokenizer_config.json")
    if "chat_template" in config:
        named = config["chat_template"]  # a text, or a list of named ones
        found.append(named if isinstance(named, str) else json.dumps(named, ensure_ascii=False))
    return "\n".join(found) if found else None


def _check_index(files: Mapping[str, Buffer]) -> None:
    """An index names the shard of every tensor: each must be there, and have it."""
    for path in files:
        if not path.endswith(".safetensors.index.json"):
            continue
        from syntrop.common import safetensors

        placed = _json(files, path).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(shard, str) for shard in placed.values()):
            raise Incomplete(f"{path} has no weight_map")
        folder = path.rpartition("/")[0]
        held = {}
        for shard in set(placed.values()):
            where = f"{folder}/{shard}" if folder else shard
            if where not in files:
                raise Incomplete(f"{where[:200]} is missing, which {path} names")
            held[shard] = safetensors.parse(files[where]).tensors
        for tensor, shard in placed.items():
            if tensor not in held[shard]:
                raise Incomplete(f"{shard} lacks the tensor {tensor[:200]!r}, which {path} names")


def _json(files: Mapping[str, Buffer], path: str) -> dict[str, Any]:
    """An object in a JSON file; an empty one where there is no such file. Raises Incomplete."""
    if path not in files:
        return {}
    with memoryview(files[path]) as view:
        raw = bytes(view) if len(view) <= TEXT_MAX else b""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise Incomplete(f"{path} is not JSON") from None
    if not isinstance(value, dict):
        raise Incomplete(f"{path} is not an object")
    return value


def _license(files: Mapping[str, Buffer]) -> str | None:
    """What a README's head says; the licence's own text has no short name."""
    if "README.md" not in files:
        return None
    with memoryview(files["README.md"]) as view:
        text = bytes(view[:65536]).decode("utf-8", "replace")
    if not text.startswith("---"):
        return None
    found = _LICENSE.search(text.partition("\n---")[0])
    return found[1] if found else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
