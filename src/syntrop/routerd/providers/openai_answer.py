# SPDX-License-Identifier: Apache-2.0
"""Answers of OpenAI's API and of the many servers that are more or less compatible to it, as events. Pure.

The end of each choice is told at the very end, since usage comes behind all of them. Usage is that of all
choices: the first one carries the tokens of the completions. Where a server says nothing of it, it is 0.
"""

from __future__ import annotations

import json
import math

from syntrop.common.http import chat
from syntrop.routerd.providers.calls import Calls
from syntrop.routerd.providers.text import Joiner, mended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from syntrop.common.http.sse import ServerEvent
    from syntrop.routerd.providers.failures import Teller

_decode = json.JSONDecoder().decode  # what `json.loads` comes to in the end
DONE = "[DONE]"
_LEAST = -9999.0  # what OpenAI says of a token that is most unlikely; JSON has no infinity
_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class _Choice:
    __slots__ = ("calls", "judged", "reason", "text", "thoughts")

    def __init__(self, index: int, new_id: Callable[[], str]) -> None:
        self.text = Joiner()
        self.thoughts = Joiner()
        self.calls = Calls(new_id, choice=index)
        self.reason: str | None = None
        self.judged = False  # log-probabilities have come


class Answer:
    """The reading of one answer (`remote.Reader`)."""

    def __init__(self, request: chat.GenerateRequest, teller: Teller, new_id: Callable[[], str]) -> None:
        self.done = False
        self._plain = request.messages is None
        self._logprobs = request.top_logprobs is not None
        self._model = request.model
        self._teller = teller
        self._choices = [_Choice(i, new_id) for i in range(request.n)]
        self._usage: dict[str, Any] = {}

    def take(self, event: ServerEvent) -> list[chat.Event]:
        if event.data.strip() == DONE:
            self.done = True
            return []
        try:
            value = _decode(event.data)
        except (ValueError, RecursionError):
            raise self._teller.broken("an event is no JSON") from None
        if event.type == "error" and isinstance(value, dict) and "error" not in value:
            raise self._teller.told(value, self._model)
        return self._object(value, "delta")

    def whole(self, value: Any) -> list[chat.Event]:
        return self._object(value, "message")

    def end(self) -> list[chat.Event]:
        if any(one.reason is None for one in self._choices):
            raise chat.GenerationFailed(f"{self._teller.id} ended the answer before it was complete.")
        told: list[chat.Event] = []
        try:
            for index, one in enumerate(self._choices):
                told += _pieces(one.thoughts.end(), one.text.end(), None, index)
                told += one.calls.end()
        except ValueError as error:
            raise self._teller.broken(str(error)) from None
        return told + [self._finished(index, one) for index, one in enumerate(self._choices)]

    def _finished(self, index: int, one: _Choice) -> chat.Finished:
        reason = one.reason or "stop"
        # Some say `stop` behind a call, and some `tool_calls` without one.
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if len(one.calls) else "stop"
        first = index == 0
        return chat.Finished(
            reason,
            _count(self._usage, "prompt_tokens"),
            _count(self._usage, "completion_tokens") if first else 0,
            cached_tokens=_count(self._usage.get("prompt_tokens_details"), "cached_tokens"),
            reasoning_tokens=_count(self._usage.get("completion_tokens_details"), "reasoning_tokens")
            if first
            else 0,
            choice=index,
        )

    # --- objects -----------------------------------------------------------------------------------------

    def _object(self, value: Any, sort: str) -> list[chat.Event]:
        if not isinstance(value, dict):
            raise self._teller.broken("an event is no JSON object")
        if value.get("error"):
            raise self._teller.told(value["error"], self._model)
        if value.get("object") == "error":
            raise self._teller.told(value, self._model)
        if isinstance(usage := value.get("usage"), dict):
            self._usage = usage
        told: list[chat.Event] = []
        try:
            for place, choice in enumerate(value.get("choices") or ()):
                told += self._choice(choice, place if sort == "message" else 0, sort)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            # ValueError is ours, the others are what ill-typed fields lead to.
            why = str(error) if type(error) is ValueError else "an event is ill-formed"
            raise self._teller.broken(why) from None
        return told

    def _choice(self, choice: dict[str, Any], place: int, sort: str) -> list[chat.Event]:
        index = choice.get("index", place)
        if type(index) is not int or not 0 <= index < len(self._choices):
            raise ValueError("an answer that was not asked for")
        one = self._choices[index]
        told: list[chat.Event] = []
        if self._plain:
            logprobs = list(_old_logprobs(choice.get("logprobs"))) if self._logprobs else None
            told += self._text(one, index, _string(choice.get("text")), logprobs)
        else:
            logprobs = list(_logprobs(choice.get("logprobs"))) if self._logprobs else None
            told += self._said(one, index, choice.get(sort) or {}, logprobs)
        reason = choice.get("finish_reason")
        if reason not in (None, ""):  # the latter is what some say while it goes on
            if reason not in _REASONS:
                raise ValueError(f"the answer ended for the reason {str(reason)[:40]!r}")
            one.reason = _REASONS[reason]
        return told

    def _said(
        self, one: _Choice, index: int, said: dict[str, Any], logprobs: list[chat.TokenLogprob] | None
    ) -> list[chat.Event]:
        thoughts = _string(said.get("reasoning_content")) or _string(said.get("reasoning"))
        content = said.get("content")
        if isinstance(content, list):  # parts, as Mistral's models that think give them
            inner, content = _parts(content)
            thoughts += inner
        # A refusal is what the model says, too.
        text = _string(content) + _string(said.get("refusal"))
        told = _pieces(one.thoughts.feed(thoughts), "", None, index)
        told += self._text(one, index, text, logprobs)
        for call in said.get("tool_calls") or ():
            told += one.calls.feed(call)
        return told

    def _text(
        self, one: _Choice, index: int, text: str, logprobs: list[chat.TokenLogprob] | None
    ) -> list[chat.Event]:
        one.judged = one.judged or bool(logprobs)
        if self._logprobs and text and not one.judged:
            raise chat.Unhonoured("logprobs", f"{self._teller.id} gives none")
        return _pieces("", one.text.feed(text), logprobs or None, index)


def _pieces(thoughts: str, text: str, logprobs: list[chat.TokenLogprob] | None, index: int) -> list[chat.Event]:
    told: list[chat.Event] = []
    if thoughts:
        told.append(chat.Reasoning(thoughts, choice=index))
    if text or logprobs:
        told.append(chat.Delta(text, logprobs=logprobs, choice=index))
    return told


def _string(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError("a text is no string")
    return value


def _parts(content: list[Any]) -> tuple[str, str]:
    """(thoughts, text) of a content in parts."""
    thoughts = text = ""
    for part in content:
        if part.get("type") == "text":
            text += _string(part.get("text"))
        elif part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts += _parts(inner)[1] if isinstance(inner, list) else _string(inner)
        else:
            raise ValueError(f"a part of the answer is of the type {str(part.get('type'))[:40]!r}")
    return thoughts, text


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value >= 0 else 0


# --- log-probabilities -----------------------------------------------------------------------------------


def _logprobs(value: Any) -> Iterator[chat.TokenLogprob]:
    for token in (value or {}).get("content") or ():
        top = [_token(one) for one in token.get("top_logprobs") or ()]
        yield chat.TokenLogprob(*_token(token), top)


def _token(token: dict[str, Any]) -> tuple[str, bytes, float]:
    text = _string(token.get("token"))
    data = token.get("bytes")
    if data is None:
        return _named(text, token.get("logprob"))
    if not isinstance(data, list):
        raise ValueError("the bytes of a token are no list")
    return mended(text), bytes(data), _number(token.get("logprob"))


def _old_logprobs(value: Any) -> Iterator[chat.TokenLogprob]:
    """Those of completions: lists side by side."""
    value = value or {}
    names = value.get("tokens") or ()
    numbers = value.get("token_logprobs") or ()
    tops = value.get("top_logprobs") or [None] * len(names)
    for name, number, top in zip(names, numbers, tops, strict=True):
        likeliest = [_named(_string(one), logprob) for one, logprob in (top or {}).items()]
        yield chat.TokenLogprob(*_named(_string(name), number), likeliest)


def _named(name: str, logprob: Any) -> tuple[str, bytes, float]:
    """A token by its name, which may be of its bytes, as in `bytes:\\xf0\\x9f`."""
    if name.startswith("bytes:\\x"):
        data = bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))
        return data.decode("utf-8", "replace"), data, _number(logprob)
    text = mended(name)
    return text, text.encode(), _number(logprob)


def _number(value: Any) -> float:
    if value is None:  # of a prompt's first token
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a log-probability is no number")
    return max(float(value), _LEAST) if math.isfinite(value) else _LEAST
