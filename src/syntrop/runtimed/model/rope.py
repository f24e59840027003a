# SPDX-License-Identifier: Apache-2.0
"""Rotary frequencies, and the ways to stretch them beyond the context of the training.

linear      positions divided by a factor (Chen et al. 2023)
yarn        low frequencies divided, high ones kept, a ramp between; cosine and sine grow (Peng et al. 2023)
llama3      the same idea with bounds on the wavelength; GGUF carries the result as divisors, `rope_freqs.weight`
longrope    divisors found by search, one set for contexts within the training and one beyond (Ding et al. 2024)
"""

from __future__ import annotations

from math import ceil, floor, isfinite, log, pi
from typing import TYPE_CHECKING, NamedTuple

from syntrop.runtimed.model.errors import BrokenModel, UnsupportedModel

if TYPE_CHECKING:
    from syntrop.runtimed.model.keys import Keys


class Rope(NamedTuple):
    """Radians a position, one a pair of columns; and by what cosine and sine are multiplied."""

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def base(keys: Keys, name: str) -> float:
    """The base under this key. Raises UnsupportedModel and BrokenModel."""
    value = keys.number(name, 10000.0)
    if value <= 1:
        raise BrokenModel(keys.full(name), f"{value} is not more than 1")
    return value


def plain(theta: float, dim: int) -> Rope:
    """θ^(-2i / dim), not scaled."""
    return Rope(tuple(theta ** (-2.0 * i / dim) for i in range(dim // 2)))


def read(keys: Keys, dim: int) -> Rope:
    """What the keys under `rope.` and the tensors of divisors say. Raises UnsupportedModel and BrokenModel."""
    theta = base(keys, "rope.freq_base")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    kind = keys.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    frequencies = list(plain(theta, dim).frequencies)
    magnitude = keys.number("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        frequencies = [f / factor for f in frequencies]
    elif kind == "yarn":
        frequencies, grown = _yarn(keys, frequencies, theta, dim, factor)
        magnitude *= grown
    elif kind not in ("none", "longrope"):
        raise UnsupportedModel(keys.full("rope.scaling.type"), f"{kind!r} is not supported")
    divisors = _divisors(keys, dim // 2)
    if divisors is not None:
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    if not all(map(isfinite, frequencies)):
        raise BrokenModel(keys.full("rope.scaling.factor"), f"{factor} leaves no finite frequencies")
    return Rope(tuple(frequencies), magnitude)


def _divisors(keys: Keys, n: int) -> tuple[float, ...] | None:
    long, short = keys.vector("rope_factors_long.weight", n), keys.vector("rope_factors_short.weight", n)
    always = keys.vector("rope_freqs.weight", n)
    if always is not None:
        return always
    return long if keys.context > _trained(keys) else short


def _trained(keys: Keys) -> int:
    most = keys.integer("context_length", 1 << 31)
    return keys.integer("rope.scaling.original_context_length", 1 << 31, most)


def _yarn(
    keys: Keys, frequencies: list[float], theta: float, dim: int, factor: float
) -> tuple[list[float], float]:
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise UnsupportedModel(keys.full("rope.scaling.yarn_ext_factor"), "only 1 is supported")
    trained = _trained(keys)

    def pair_that_turns(times: float) -> float:
        return dim * log(trained / (times * 2 * pi)) / (2 * log(theta))

    low = max(0, floor(pair_that_turns(keys.number("rope.scaling.yarn_beta_fast", 32.0))))
    high = min(dim - 1, ceil(pair_that_turns(keys.number("rope.scaling.yarn_beta_slow", 1.0))))
    stretched = []
    for i, frequency in enumerate(frequencies):
        ramp = min(1.0, max(0.0, (i - low) / max(0.001, high - low)))  # 0 keeps, 1 divides
        stretched.append(frequency * (1 - ramp) + frequency / factor * ramp)
    grown = 0.1 * log(factor) + 1.0 if factor > 1 else 1.0
    return stretched, keys.number("rope.scaling.yarn_attn_factor", grown)
