# SPDX-License-Identifier: Apache-2.0
"""Ollama's `/api/chat` and `/api/generate`, the reply: events in, one object or lines of them out. Pure but for
a clock.

Every object of a stream is a line. Calls are told whole and at the end, since their arguments are an object here.
"""

from __future__ import annotations

from time import monotonic_ns

from syntrop.common.http import chat, ollama
from syntrop.common.http.answers import arguments, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from syntrop.common.http.errors import HttpError

HEADERS = (
    ("content-type", "application/x-ndjson"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would collect the stream before it passes it on
)


class ChatReply:
    """The objects of one answer (`dialect.Reply`) of `/api/chat`.

    `created` is in seconds since 1970, `clock` tells nanoseconds. `model` may be set to the one that answers,
    before anything is told. Raises GenerationFailed where a model's call cannot be told.
    """

    headers = HEADERS
    # White space before an object belongs to its line. An empty line would be no object.
    ping = b" "

    def __init__(
        self, id: str, created: int, request: chat.GenerateRequest, clock: Callable[[], int] = monotonic_ns
    ) -> None:
        self.model = request.model
        self._request = request
        self._created = created * 1_000_000_000
        self._clock = clock
        self._began = self._now = clock()
        self._first: int | None = None  # when the first piece came
        self._calls: list[chat.ToolCall] = []
        self._end: chat.Finished | None = None

    def arrived(self) -> None:
        """Events have come: the first ones end what counts as the prompt's time."""
        self._now = self._clock()
        if self._first is None:
            self._first = self._now

    def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
        self.arrived()
        (answer,) = gather(events)
        self._end = answer.end
        value = self._object(answer.text, answer.reasoning, answer.calls, answer.logprobs)
        return value | self._done()

    def loaded(self) -> dict[str, Any]:
        """The whole answer to a request without a prompt: its model is in memory, or is to be no more."""
        self._now = self._clock()
        reason = "unload" if self._request.keep == 0 else "load"
        return self._object() | {"done": True, "done_reason": reason}

    def frames(self, events: Iterable[chat.Event]) -> bytes:
        self.arrived()
        return b"".join(ollama.line(value) for event in events for value in self._told(event))

    def end(self) -> bytes:
        self._now = self._clock()
        return ollama.line(self._object() | self._done())

    def broken(self, error: HttpError) -> bytes:
        return ollama.line({"error": error.message})

    # --- events ------------------------------------------------------------------------------------------

    def _told(self, event: chat.Event) -> Iterator[dict[str, Any]]:
        if isinstance(event, chat.Delta):
            yield self._object(event.text, logprobs=event.logprobs)
        elif isinstance(event, chat.Reasoning):
            yield self._object(thought=event.text)
        elif isinstance(event, chat.CallStarted):
            self._calls.append(chat.ToolCall(event.id, event.name, ""))
        elif isinstance(event, chat.CallArguments):
            self._calls[event.index].arguments += event.text
        else:
            self._end = event
            if self._calls:
                yield self._object(calls=self._calls)

    def _object(
        self,
        text: str = "",
        thought: str = "",
        calls: Iterable[chat.ToolCall] = (),
        logprobs: list[chat.TokenLogprob] | None = None,
    ) -> dict[str, Any]:
        value: dict[str, Any] = {
            "model": self.model,
            "created_at": ollama.timestamp(self._created + self._now - self._began),
            **self._answer(text, thought, calls),
            "done": False,
        }
        if logprobs is not None:
            value["logprobs"] = [
                {**_token(one.text, one.bytes, one.logprob), "top_logprobs": [_token(*other) for other in one.top]}
                for one in logprobs
            ]
        return value

    def _answer(self, text: str, thought: str, calls: Iterable[chat.ToolCall]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought:
            message["thinking"] = thought
        told = [
            {"id": call.id, "function": {"index": i, "name": call.name, "arguments": arguments(call)}}
            for i, call in enumerate(calls)
        ]
        if told:
            message["tool_calls"] = told
        return {"message": message}

    def _done(self) -> dict[str, Any]:
        """How it ended. The engine does not tell a model's loading from the reading of the prompt, so that its
        time is part of the prompt's."""
        end = self._end
        assert end is not None and self._first is not None
        return {
            "done": True,
            "done_reason": "stop" if end.reason == "tool_calls" else end.reason,
            "total_duration": self._now - self._began,
            "load_duration": 0,
            "prompt_eval_count": end.prompt_tokens,
            "prompt_eval_duration": self._first - self._began,
            "eval_count": end.completion_tokens,
            "eval_duration": self._now - self._first,
        }


class GenerateReply(ChatReply):
    """The objects of one answer of `/api/generate`."""

    def _answer(self, text: str, thought: str, calls: Iterable[chat.ToolCall]) -> dict[str, Any]:
        return {"response": text, "thinking": thought} if thought else {"response": text}


def _token(text: str, data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(data)}
