# SPDX-License-Identifier: Apache-2.0
"""Anthropic's `/v1/messages`, the reply: events in, a message or the events of its stream out. Pure.

A stream is `message_start`, then blocks (thoughts, texts, calls) one behind the other, each started, told piece
by piece and stopped, then `message_delta` with the reason and the usage, then `message_stop`.
"""

from __future__ import annotations

from syntrop.common.http import anthropic, chat, openai, sse
from syntrop.common.http.answers import Usage, arguments, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from syntrop.common.http.errors import HttpError

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_PING = sse.encode('{"type":"ping"}', "ping")


class MessageReply:
    """The objects of one answer (`dialect.Reply`). `id` begins with `msg_`; its request's with `req_`.

    `model` may be set to the one that answers, before anything is told. Raises GenerationFailed where a model's
    call cannot be told.
    """

    headers = sse.HEADERS

    __slots__ = ("_begun", "_end", "_index", "_open", "id", "model")

    def __init__(self, id: str, created: int, request: chat.GenerateRequest) -> None:
        self.id = id
        self.model = request.model
        self._begun = False
        self._index = -1  # of the block that was begun last
        self._open: tuple[str, int] | None = None  # what it is, and of a call its index
        self._end: chat.Finished | None = None

    @property
    def ping(self) -> bytes:
        # Some clients want `message_start` to be the first event; a comment is none.
        return _PING if self._begun else sse.PING

    def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
        (answer,) = gather(events)
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments(call)}
            for call in answer.calls
        ]
        return self._message(blocks, answer.end)

    def frames(self, events: Iterable[chat.Event]) -> bytes:
        frames = [] if self._begun else [self._start()]
        for event in events:
            frames += self._told(event)
        return b"".join(frames)

    def end(self) -> bytes:
        assert self._end is not None
        ending = _ending(self._end)
        usage = _usage(self._end)
        return _frame("message_delta", delta=ending, usage=usage) + _frame("message_stop")

    def broken(self, error: HttpError) -> bytes:
        return openai.frame(anthropic.told(error, anthropic.request_id(self.id)), "error")

    # --- events ------------------------------------------------------------------------------------------

    def _start(self) -> bytes:
        self._begun = True
        return _frame("message_start", message=self._message([], None))

    def _told(self, event: chat.Event) -> list[bytes]:
        if isinstance(event, chat.Delta):
            return self._piece("text", {"text": ""}, {"type": "text_delta", "text": event.text})
        if isinstance(event, chat.Reasoning):
            empty = {"thinking": "", "signature": ""}
            return self._piece("thinking", empty, {"type": "thinking_delta", "thinking": event.text})
        if isinstance(event, chat.CallStarted):
            return self._begin("tool_use", {"id": event.id, "name": event.name, "input": {}}, event.index)
        if isinstance(event, chat.CallArguments):
            if self._open != ("tool_use", event.index):
                raise chat.GenerationFailed("The model's calls came mixed with each other.")
            return [self._delta({"type": "input_json_delta", "partial_json": event.text})]
        self._end = event
        return self._stop()

    def _piece(self, sort: str, empty: dict[str, Any], delta: dict[str, Any]) -> list[bytes]:
        frames = [] if self._open == (sort, 0) else self._begin(sort, empty)
        return [*frames, self._delta(delta)]

    def _begin(self, sort: str, block: dict[str, Any], number: int = 0) -> list[bytes]:
        frames = self._stop()
        self._index += 1
        self._open = (sort, number)
        block = {"type": sort, **block}
        return [*frames, _frame("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [_frame("content_block_stop", index=self._index)]

    def _message(self, content: list[dict[str, Any]], end: chat.Finished | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **_ending(end),
            "usage": _usage(end),
        }


def _frame(sort: str, **rest: Any) -> bytes:
    return openai.frame({"type": sort, **rest}, sort)


def _ending(end: chat.Finished | None) -> dict[str, Any]:
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    reason = _REASONS.get(end.reason, end.reason)
    if end.reason == "stop" and end.stop_sequence is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": end.stop_sequence}


def _usage(end: chat.Finished | None) -> dict[str, Any]:
    """Tokens so far. At the start none have been counted; the last ones that are told count. Those that came
    from a cache are not part of `input_tokens`."""
    usage = Usage([end])
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
