# SPDX-License-Identifier: Apache-2.0
"""What the routes of Ollama's dialect have in common: options, times, errors. Pure.

The default of `temperature` is Ollama's own. Those of `top_k`, `top_p` and `repeat_penalty` are left to the
engine, since not every provider takes them; a penalty counts the whole context, not the last 64 tokens.
"""

from __future__ import annotations

import json
import re

from syntrop.common.http import chat, openai
from syntrop.common.http.errors import HttpError
from syntrop.common.http.terms import in_terms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.fields import Fields

STOPS_MAX = 64
TEMPERATURE = 0.8
_INT64 = 2**63
KEEP_MAX = 604_800  # seconds
_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_PART = re.compile(r"([\d.]+)([a-zµμ]+)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# Where a model is put, and how: that is the engine's own affair. Values that leave it so pass.
_PLACING: dict[str, tuple[Any, ...]] = {
    "num_batch": (),
    "num_gpu": (-1,),
    "num_thread": (0,),
    "main_gpu": (0,),
    "numa": (False,),
    "low_vram": (False,),
    "f16_kv": (True,),
    "logits_all": (False,),
    "vocab_only": (False,),
    "embedding_only": (False,),
    "use_mmap": (True,),
    "use_mlock": (False,),
}
# How tokens are chosen.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "num_predict",
    "num_keep",
    "stop",
    "typical_p",
    "tfs_z",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "penalize_newline",
)
# What a parameter of `chat.GenerateRequest` is called here. Messages that one field of a client's became many
# of are blamed without their number.
_NAMES = {
    "messages": "messages…",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
    "context": "options.num_ctx",
    "keep": "keep_alive",
    **{name: f"options.{name}" for name in SAMPLING},
}


class OllamaError(HttpError):
    """An error in Ollama's shape: `{"error": message}`."""

    def __init__(self, error: HttpError) -> None:
        super().__init__(
            error.status,
            error.message,
            code=error.code,
            param=error.param,
            type=error.type,
            headers=error.headers,
        )

    def body(self) -> dict[str, Any]:
        return {"error": self.message}


def shape(error: HttpError, request_id: str = "") -> HttpError:
    """An error that was not made in this dialect, in its shape, which has no place for the request."""
    return OllamaError(error)


def failure(error: chat.EngineError, *, started: bool, prompt: str = "messages") -> HttpError:
    """How an engine's error is answered, before it is shaped. `prompt` is the field that a route has its prompt
    in. Where work had `started`, clients are told not to repeat it."""
    error = in_terms(error, {**_NAMES, "messages": f"{prompt}…", "prompt": f"{prompt}…"})
    return openai.failure(error, started=started, prompt=prompt)


# --- requests --------------------------------------------------------------------------------------------


def model_name(fields: Fields) -> str:
    """`model`, or its old name `name`. Empty leaves the choice to the router, as `auto` does."""
    old, model = fields.string("name"), fields.string("model")
    if model is None and old is None:
        raise fields.fail("model", "must name a model.", "missing_required_parameter")
    return (old if model is None else model) or ""


def take_keep_alive(fields: Fields, request: chat.GenerateRequest | chat.EmbedRequest) -> None:
    """How long the model is to stay after the answer, in seconds or as `5m`; what is negative is for ever."""
    value = fields.take("keep_alive")
    if value is None:
        return
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        if not _DURATION.fullmatch(fields.checked("keep_alive", value)):
            what = f"must be seconds, or a duration like 5m, not {value!r}."
            raise fields.fail("keep_alive", what, "invalid_value")
        sign = -1.0 if value.startswith("-") else 1.0
        seconds = sign * sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if not seconds <= KEEP_MAX:
        what = f"may be {KEEP_MAX} seconds at most; what is negative is for ever."
        raise fields.fail("keep_alive", what, "invalid_value")
    request.keep = -1.0 if seconds < 0 else float(seconds)


def take_options(fields: Fields, request: chat.GenerateRequest) -> None:
    """`options`: how tokens are chosen. What a model would have to be loaded anew for is refused."""
    given = fields.object("options") or fields.inside("options", {})
    temperature = given.number("temperature", 0, 2)
    request.temperature = TEMPERATURE if temperature is None else temperature
    request.top_p = given.number("top_p", 0, 1)
    request.top_k = given.integer("top_k", 0)
    request.min_p = given.number("min_p", 0, 1)
    request.repetition_penalty = given.number("repeat_penalty", 0.01, 100)
    request.presence_penalty = given.number("presence_penalty", -2, 2)
    request.frequency_penalty = given.number("frequency_penalty", -2, 2)
    seed = given.integer("seed", -_INT64, _INT64 - 1)
    request.seed = None if seed == -1 else seed  # -1: any will do
    request.max_tokens = _num_predict(given)
    request.stop = given.strings("stop", most=STOPS_MAX)
    if "" in request.stop:
        raise given.fail("stop", "may not hold an empty string.", "invalid_value")
    given.only("repeat_last_n", -1)
    given.only("typical_p", 1, 1.0)
    given.only("tfs_z", 1, 1.0)
    given.only("mirostat", 0)
    given.number("mirostat_tau", 0, 1000)  # without mirostat they say nothing
    given.number("mirostat_eta", 0, 1000)
    given.only("penalize_newline", True)
    given.integer("num_keep", -1)  # of a context that is shortened, as none is here
    take_placing(given, request)
    given.done()


def take_placing(options: Fields, request: chat.GenerateRequest | chat.EmbedRequest) -> None:
    """A context is always the model's own: what is not more than that is there."""
    request.context = options.integer("num_ctx", 1)
    for name, neutral in _PLACING.items():
        options.only(name, *neutral)


def _num_predict(options: Fields) -> int | None:
    most = options.integer("num_predict", -2)
    if most == 0:
        raise options.fail("num_predict", "must be positive; -1 stands for no bound.", "invalid_value")
    return None if most is None or most < 0 else most


def take_think(fields: Fields, request: chat.GenerateRequest) -> None:
    """`think`: whether to think, or how hard."""
    value = fields.take("think")
    if value is True:
        request.reasoning_effort = "medium"
    elif value is False:
        request.reasoning_effort = "none"
    elif value in ("low", "medium", "high", "max"):
        request.reasoning_effort = value
    elif value is not None:
        raise fields.fail("think", "must be true, false, low, medium, high or max.", "invalid_value")


def take_logprobs(fields: Fields, request: chat.GenerateRequest) -> None:
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, openai.TOP_LOGPROBS_MAX)
    if wanted:
        request.top_logprobs = top or 0
    elif top:
        raise fields.fail("top_logprobs", "is only allowed when 'logprobs' is true.", "invalid_value")


def take_stream(fields: Fields, request: chat.GenerateRequest) -> None:
    """`stream`, which is on unless it is off, and what is not built yet."""
    request.stream = fields.boolean("stream") is not False
    fields.only("format", "")  # nothing enforces it yet
    fields.only("truncate", False)  # a prompt that is too long is an error here
    fields.only("shift", False)


# --- replies ---------------------------------------------------------------------------------------------


def line(value: dict[str, Any]) -> bytes:
    """One line of a stream."""
    return _encode(value).encode() + b"\n"


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def timestamp(nanoseconds: int) -> str:
    """Time since 1970 as RFC 3339 has it."""
    from time import gmtime, strftime

    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(seconds))}.{rest:09}Z"
