# SPDX-License-Identifier: Apache-2.0
"""`kernels/sampler.c` again, in numpy and with sorting: the reference that tests hold it against."""

from __future__ import annotations

import numpy as np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from syntrop.runtimed.sampler import Sampling

_MASK = (1 << 64) - 1
_NEGLIGIBLE = np.float32(64)


class Generator:
    """xoshiro256++, seeded by splitmix64; `draw()` is in [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._state = []
        x = seed & _MASK
        for _ in range(4):
            x = (x + 0x9E3779B97F4A7C15) & _MASK
            z = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
            z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
            self._state.append(z ^ z >> 31)

    def draw(self) -> float:
        s = self._state
        result = (_rotate_left((s[0] + s[3]) & _MASK, 23) + s[0]) & _MASK
        t = s[1] << 17 & _MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = _rotate_left(s[3], 45)
        return float(result >> 11) * 2.0**-53


def _rotate_left(x: int, by: int) -> int:
    return (x << by | x >> (64 - by)) & _MASK


def penalized(
    logits: NDArray[np.float32], how: Sampling, prompt: Sequence[int], generated: Sequence[int]
) -> NDArray[np.float32]:
    result = logits.copy()
    for token in {*prompt, *generated}:
        logit = result[token]
        penalty = np.float32(how.repetition_penalty)
        logit = logit / penalty if logit > 0 else logit * penalty
        if count := list(generated).count(token):
            logit -= np.float32(how.presence_penalty) + np.float32(how.frequency_penalty) * np.float32(count)
        result[token] = logit
    for token, bias in how.logit_bias.items():
        result[token] += np.float32(bias)
    return result


def logprobs(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of the probabilities of all tokens."""
    finite = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    peak = finite.max()
    return np.asarray(finite - peak - np.log(np.exp(finite - peak).sum()))


def distribution(logits: NDArray[np.float32], how: Sampling) -> NDArray[np.float64]:
    """Weights of all tokens after the filters, float64 [n_vocab]; those left out weigh 0."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    weights = np.zeros(len(logits))
    best = logits[order[0]]
    if how.temperature == 0:
        weights[order[0]] = 1
        return weights
    temperature = np.float32(how.temperature)
    order = order[logits[order] >= best - _NEGLIGIBLE * temperature]
    if how.top_k:
        order = order[: how.top_k]
    mass = np.exp((logits[order] - best) / temperature).astype(np.float64)
    if how.top_p < 1:
        need = np.float64(np.float32(how.top_p)) * mass.sum()
        order = order[: int(np.searchsorted(np.cumsum(mass), need)) + 1]
        mass = mass[: len(order)]
    if how.min_p:
        keep = mass >= np.float64(np.float32(how.min_p))
        keep[0] = True
        order, mass = order[keep], mass[keep]
    weights[order] = mass
    return weights


def sample(logits: NDArray[np.float32], how: Sampling, generator: Generator) -> int:
    weights = distribution(logits, how)
    if how.temperature == 0:
        return int(np.argmax(weights))
    point = generator.draw() * weights.sum()
    return int(np.searchsorted(np.cumsum(weights), point, side="right"))
