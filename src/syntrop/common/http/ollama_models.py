# SPDX-License-Identifier: Apache-2.0
"""Ollama's `/api/tags`, `/api/show`, `/api/ps` and `/api/version`. Pure.

Models are told as `io.syntrop.Model1` and `Runtime1` describe them. Of a model that a provider elsewhere has
nothing but its name is known; what is unknown is empty, and times that nobody keeps are left out.
"""

from __future__ import annotations

from syntrop.common.http import ollama
from syntrop.common.http.fields import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


_ENCODERS = ("bert", "nomic-bert", "roberta", "xlm-roberta", "jina-bert-v2")  # as files name their architecture


def tags(models: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of `/api/tags`: of each model its `id`, and from the store `digest`, `size_bytes` and `format`."""
    return {"models": [_tag(model) for model in models]}


def _tag(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": model["id"],
        "model": model["id"],
        "size": model.get("size_bytes", 0),
        "digest": model.get("digest", "").removeprefix("sha256:"),
        "details": _details(form=model.get("format", "")),
    }


def parse_show(body: bytes) -> str:
    """The body of `POST /api/show`: the model's name. Raises BadRequest."""
    fields = parse_object(body)
    model = ollama.model_name(fields)
    if not model:
        raise fields.fail("model", "must name a model.", "missing_required_parameter")
    fields.boolean("verbose")  # there is nothing that is left out
    fields.only("system", "")
    fields.only("template", "")
    fields.only("options", {})
    fields.done()
    return model


def show(model: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of `/api/show`: a model as in `tags`, and what its file says of itself (`Model1.Inspect`)."""
    family = metadata.get("architecture") or ""
    info = {
        "general.architecture": metadata.get("architecture"),
        "general.parameter_count": metadata.get("parameter_count"),
        f"{family}.context_length": metadata.get("context_length") if family else None,
    }
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",  # the store tells that there is one, not which
        "license": metadata.get("license") or "",
        "details": _details(
            model.get("format", ""),
            family,
            metadata.get("parameter_count") or 0,
            metadata.get("quantization") or "",
        ),
        "model_info": {name: value for name, value in info.items() if value is not None},
        "capabilities": _capabilities(family, metadata.get("chat_abilities") or ()),
    }


def _capabilities(family: str, abilities: Iterable[str]) -> list[str]:
    """An encoder makes vectors, others text. `abilities`: what a model's own template has a place for."""
    return ["embedding"] if family in _ENCODERS else ["completion", *abilities]


def ps(models: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The reply of `/api/ps`: models in memory, as `Runtime1.ListLoadedModels` tells them."""
    return {
        "models": [
            {
                "name": model["name"],
                "model": model["name"],
                "size": model["memory_bytes"],
                "size_vram": model["memory_bytes"] if model["compute_backend"].startswith("cuda") else 0,
                "digest": "",
                "details": _details("", model["architecture"], model["parameter_count"]),
                "context_length": model["context_window"],
            }
            for model in models
        ]
    }


def version(version: str) -> dict[str, Any]:
    """The reply of `/api/version`."""
    return {"version": version}


def _details(form: str = "", family: str = "", parameters: int = 0, quantization: str = "") -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": form,
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _size(parameters),
        "quantization_level": quantization,
    }


def _size(parameters: int) -> str:
    """135.5M, 8.0B: how many parameters, as people say it."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters) if parameters else ""
