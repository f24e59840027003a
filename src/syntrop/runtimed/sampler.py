# SPDX-License-Identifier: Apache-2.0
"""Choosing the next token: parameters, checked, and the sampler in C that applies them to a row of logits.

Order: penalties, biases, temperature, top-k, top-p, min-p, one draw from a generator that belongs to the request.
So the same seed gives the same text whatever else runs.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

BIAS_MAX = 100.0  # as much as makes a token certain or impossible
_INT32_MAX = (1 << 31) - 1


class SamplingError(ValueError):
    """A parameter cannot be honoured; `parameter` names it."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(f"{parameter} {reason}")
        self.parameter = parameter
        self.reason = reason


class NoToken(RuntimeError):
    """The model gave no finite logit, or memory ran out: there is no next token."""


class Sampling:
    """How to choose: see `sampler.cdef` for what switches each parameter off. Raises SamplingError."""

    __slots__ = (
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "temperature",
        "top_k",
        "top_p",
    )

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        _check("temperature", temperature, 0, 1e6)
        _check("top_p", top_p, 0, 1)
        _check("min_p", min_p, 0, 1)
        _check("repetition_penalty", repetition_penalty, 1e-6, 1e6)
        _check("presence_penalty", presence_penalty, -1e6, 1e6)
        _check("frequency_penalty", frequency_penalty, -1e6, 1e6)
        _check("top_k", top_k, 0, _INT32_MAX)
        self.temperature = float(temperature)
        self.top_k = top_k
        self.top_p = float(top_p)
        self.min_p = float(min_p)
        self.repetition_penalty = float(repetition_penalty)
        self.presence_penalty = float(presence_penalty)
        self.frequency_penalty = float(frequency_penalty)
        self.logit_bias = dict(logit_bias or {})
        for token, bias in self.logit_bias.items():
            _check("logit_bias", bias, -BIAS_MAX, BIAS_MAX)
            _check("logit_bias", token, 0, _INT32_MAX)
        self.seed = seed or _seed_of_clock()

    @property
    def penalizes(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not math.isfinite(value) or not least <= value <= most:
        raise SamplingError(name, f"must be {least:g} to {most:g}, not {value!r}")


def _seed_of_clock() -> int:
    """Positive, and exact in JSON numbers of any reader (below 2^53)."""
    import time

    return (time.time_ns() ^ time.monotonic_ns() << 20) & ((1 << 53) - 1) or 1


class Logprobs:
    """Natural logarithms of probabilities, before temperature, penalties and filters: of a token that was chosen,
    and of the likeliest ones, in order."""

    __slots__ = ("logprob", "token", "top")

    def __init__(self, token: int, logprob: float, top: list[tuple[int, float]]) -> None:
        self.token = token
        self.logprob = logprob
        self.top = top  # (token, logprob)


def logprobs(logits: Any, n_vocab: int, token: int, most: int = 0) -> Logprobs:
    """Of `token`, and of the `most` likeliest, by a row of float logits (a cffi pointer). Raises NoToken."""
    from syntrop.runtimed._kernels import ffi, lib

    own = ffi.new("float *")
    tokens, values = ffi.new("int32_t[]", most or 1), ffi.new("float[]", most or 1)
    have = lib.sy_logprobs(logits, n_vocab, token, own, most, tokens, values)
    if have < 0:
        raise NoToken("the model gave no finite logit")
    return Logprobs(token, own[0], list(zip(tokens[0:have], values[0:have], strict=True)))


class Sampler:
    """One request's sampler."""

    __slots__ = ("_ffi", "_lib", "_penalizes", "_sampler")

    def __init__(self, n_vocab: int, how: Sampling) -> None:
        from syntrop.runtimed._kernels import ffi, lib

        self._ffi: Any = ffi
        self._lib: Any = lib
        self._penalizes = how.penalizes
        parameters = ffi.new("sy_sampling *")
        parameters.temperature = how.temperature
        parameters.top_p = how.top_p
        parameters.min_p = how.min_p
        parameters.repetition = how.repetition_penalty
        parameters.presence = how.presence_penalty
        parameters.frequency = how.frequency_penalty
        parameters.top_k = how.top_k
        parameters.seed = how.seed & ((1 << 64) - 1)
        sampler = lib.sy_sampler_new(n_vocab, parameters)
        if sampler == ffi.NULL:
            raise MemoryError
        self._sampler: Any = ffi.gc(sampler, lib.sy_sampler_free)
        for token, bias in how.logit_bias.items():
            if lib.sy_sampler_bias(self._sampler, token, bias):
                raise MemoryError

    def accept(self, tokens: Sequence[int], *, generated: bool) -> None:
        """Note tokens for the penalties. Without penalties this costs nothing."""
        if self._penalizes and tokens:
            array = self._ffi.new("int32_t[]", tokens)
            if self._lib.sy_sampler_accept(self._sampler, array, len(tokens), generated):
                raise MemoryError

    def sample(self, logits: Any) -> int:
        """A token by a row of float logits (a cffi pointer). Raises NoToken."""
        token: int = self._lib.sy_sampler_sample(self._sampler, logits)
        if token < 0:
            raise NoToken("the model gave no finite logit")
        return token

    def close(self) -> None:
        """Give the memory back now rather than when Python gets to it."""
        self._ffi.release(self._sampler)
