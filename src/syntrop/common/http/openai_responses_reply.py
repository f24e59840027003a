# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/responses`, the reply: events in, a response or the events of its stream out. Pure.

A stream is `response.created` and `response.in_progress`, then items (thoughts, messages, calls), each added,
told piece by piece and done, then `response.completed` or what else became of it. Everything is numbered.
"""

from __future__ import annotations

from syntrop.common.http import chat, openai, sse
from syntrop.common.http.answers import Usage
from syntrop.common.http.openai_chat import logprobs_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from syntrop.common.http.errors import HttpError
    from syntrop.common.http.openai_responses import ResponseRequest


class _Text:
    """A thought or a message, while it is told."""

    __slots__ = ("index", "item", "logprobs", "pieces")

    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.pieces: list[str] = []
        self.logprobs: list[dict[str, Any]] = []

    @property
    def thought(self) -> bool:
        return bool(self.item["type"] == "reasoning")

    def part(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        if self.thought:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "annotations": [], "logprobs": self.logprobs, "text": text}


class _Call:
    """A call, while it is told."""

    __slots__ = ("index", "item", "pieces")

    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.pieces: list[str] = []


class ResponseReply:
    """The objects of one answer (`dialect.Reply`).

    `created` is in seconds since 1970. `model` may be set to the one that answers, before anything is told.
    """

    headers = sse.HEADERS
    ping = sse.PING

    __slots__ = (
        "_begun",
        "_calls",
        "_end",
        "_number",
        "_output",
        "_shown",
        "_silent",
        "_told",
        "_writing",
        "created",
        "id",
        "model",
    )

    def __init__(self, id: str, created: int, request: ResponseRequest) -> None:
        self.id = id
        self.created = created
        self.model = request.model
        self._shown = request.shown
        self._silent = False
        self._begun = False
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._writing: _Text | None = None
        self._calls: dict[int, _Call] = {}
        self._end: chat.Finished | None = None
        self._told: list[bytes] = []

    def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
        self._silent = True
        for event in events:
            self._take(event)
        return self._response(self._status())

    def frames(self, events: Iterable[chat.Event]) -> bytes:
        self._open()
        for event in events:
            self._take(event)
        return self._flush()

    def end(self) -> bytes:
        status = self._status()
        self._tell(f"response.{status}", response=self._response(status))
        return self._flush()

    def broken(self, error: HttpError) -> bytes:
        self._open()
        # Both forms in which OpenAI's own clients look for an error.
        told = error.body()["error"]
        self._tell("error", code=error.code, message=error.message, param=error.param, error=told)
        self._finish_items("incomplete")
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._tell("response.failed", response=self._response("failed", {"code": code, "message": error.message}))
        return self._flush()

    # --- events in ---------------------------------------------------------------------------------------

    def _take(self, event: chat.Event) -> None:
        if isinstance(event, chat.Delta):
            self._piece(event.text, event.logprobs, thought=False)
        elif isinstance(event, chat.Reasoning):
            self._piece(event.text, None, thought=True)
        elif isinstance(event, chat.CallStarted):
            self._finish_text("completed")
            item = {"type": "function_call", "call_id": event.id, "name": event.name, "arguments": ""}
            self._calls[event.index] = _Call(*self._add("fc", item))
        elif isinstance(event, chat.CallArguments):
            call = self._calls[event.index]
            call.pieces.append(event.text)
            self._tell(
                "response.function_call_arguments.delta",
                item_id=call.item["id"],
                output_index=call.index,
                delta=event.text,
            )
        else:
            self._end = event
            self._finish_items("completed" if self._status() == "completed" else "incomplete")

    def _piece(self, text: str, logprobs: list[chat.TokenLogprob] | None, *, thought: bool) -> None:
        writing = self._writing
        if writing is None or writing.thought is not thought:
            self._finish_text("completed")
            writing = self._writing = self._begin(thought=thought)
        writing.pieces.append(text)
        where = {"item_id": writing.item["id"], "output_index": writing.index, "content_index": 0, "delta": text}
        if thought:
            self._tell("response.reasoning_text.delta", **where)
        else:
            told = logprobs_content(logprobs or [])
            writing.logprobs += told
            self._tell("response.output_text.delta", **where, logprobs=told)

    def _begin(self, *, thought: bool) -> _Text:
        if thought:
            writing = _Text(*self._add("rs", {"type": "reasoning", "summary": [], "content": []}))
        else:
            writing = _Text(*self._add("msg", {"type": "message", "role": "assistant", "content": []}))
        where = {"item_id": writing.item["id"], "output_index": writing.index, "content_index": 0}
        self._tell("response.content_part.added", **where, part=writing.part())
        return writing

    def _add(self, prefix: str, item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        index = len(self._output)
        item = {"id": f"{prefix}_{self.id.partition('_')[2] or self.id}_{index}", "status": "in_progress", **item}
        self._output.append(item)
        self._tell("response.output_item.added", output_index=index, item=item)
        return index, item

    def _finish_items(self, status: str) -> None:
        """Done with all items. Where the answer is incomplete, the last one is; calls stay open until here, since
        a server may tell several at once."""
        last = len(self._output) - 1
        writing = self._writing
        if writing is not None:
            self._finish_text(status if writing.index == last else "completed")
        for call in self._calls.values():
            arguments = "".join(call.pieces)
            self._tell(
                "response.function_call_arguments.done",
                item_id=call.item["id"],
                output_index=call.index,
                name=call.item["name"],
                arguments=arguments,
            )
            call.item["arguments"] = arguments
            self._done(call.index, call.item, status if call.index == last else "completed")
        self._calls.clear()

    def _finish_text(self, status: str) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        where = {"item_id": writing.item["id"], "output_index": writing.index, "content_index": 0}
        part = writing.part()
        if writing.thought:
            self._tell("response.reasoning_text.done", **where, text=part["text"])
        else:
            self._tell("response.output_text.done", **where, text=part["text"], logprobs=writing.logprobs)
        self._tell("response.content_part.done", **where, part=part)
        writing.item["content"] = [part]
        self._done(writing.index, writing.item, status)

    def _done(self, index: int, item: dict[str, Any], status: str) -> None:
        item["status"] = status
        self._tell("response.output_item.done", output_index=index, item=item)

    # --- bytes out ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._begun:
            self._begun = True
            for name in ("created", "in_progress"):
                self._tell(f"response.{name}", response=self._response("in_progress"))

    def _tell(self, sort: str, **fields: Any) -> None:
        if not self._silent:
            self._told.append(openai.frame({"type": sort, "sequence_number": self._number, **fields}, sort))
            self._number += 1

    def _flush(self) -> bytes:
        told = b"".join(self._told)
        self._told.clear()
        return told

    def _status(self) -> str:
        return "completed" if self._end is None or self._end.reason in ("stop", "tool_calls") else "incomplete"

    def _response(self, status: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
        why = None
        if status == "incomplete" and self._end is not None:
            why = {"reason": "max_output_tokens" if self._end.reason == "length" else self._end.reason}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": error,
            "incomplete_details": why,
            "model": self.model,
            "output": self._output,
            "usage": None if self._end is None else _usage(self._end),
            **self._shown,
        }


def _usage(end: chat.Finished) -> dict[str, Any]:
    usage = Usage([end])
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
