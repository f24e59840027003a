# SPDX-License-Identifier: Apache-2.0
"""What the config.json of a published checkpoint says, checked as it is read; errors name its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Config = Mapping[str, Any]

LAYERS_MAX = 1 << 10


class Family(NamedTuple):
    """How an architecture is published: GGUF's name for it, and what sets it apart from llama.

    Encoders have `metadata`, which gives theirs for a configuration and GGUF's number of a pooling. `heads` match
    the tensors that embedding does not use; `unused_positions` are the rows before the first position's.
    """

    architecture: str
    names: Mapping[str, str]
    paired: bool = False  # GGUF has the rows of queries and keys in another order
    offset_norms: bool = False
    metadata: Callable[[Config, int], dict[str, object]] | None = None
    heads: str = ""
    unused_positions: Callable[[Config], int] | None = None


def rope_of(config: Config, part: str = "full_attention") -> Mapping[str, Any]:
    """What is said of rotations: `rope_scaling`, in newer files `rope_parameters`, perhaps by kind of layer."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise BrokenModel("config.json: rope_scaling", "not an object")
    nested = given.get(part)
    if isinstance(nested, dict):
        return nested
    return given if part == "full_attention" else {}


def number(config: Config, key: str, default: int | None = None) -> int:
    """A size: at least 1. Raises BrokenModel."""
    value = config.get(key)
    if value is None:
        value = default
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise BrokenModel(f"config.json: {key}", "missing" if value is None else f"{value!r} is no size")
    return value


def real(config: Config, key: str, default: float | None = None) -> float:
    """A positive number. Raises BrokenModel."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise BrokenModel(
            f"config.json: {key}", "missing" if value is None else f"{value!r} is no positive number"
        )
    return float(value)


def only(config: Config, wanted: Mapping[str, object]) -> None:
    """Refuse a configuration that has another value than these under their keys. Raises UnsupportedModel."""
    for key, value in wanted.items():
        given = config.get(key)
        if given is not None and (given != value or isinstance(given, bool) != isinstance(value, bool)):
            raise UnsupportedModel(f"config.json: {key}", f"{str(given)[:80]!r}; only {value!r} is supported")
