# SPDX-License-Identifier: Apache-2.0
"""Answers of Anthropic's Messages API as events. Pure. Types of events that we do not know are passed over, as its
rules for versions ask; types of content that we do not know are not, since they would be missing in the answer."""

from __future__ import annotations

import json

from syntrop.common.http import chat
from syntrop.routerd.providers.text import Joiner, mended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.sse import ServerEvent
    from syntrop.routerd.providers.failures import Teller

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_SILENT = ("redacted_thinking",)  # blocks that have nothing to be told


class _Block:
    """A block of content that is open. `call`: the index of the call that it is."""

    __slots__ = ("call", "given", "joiner", "sort", "told")

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self.joiner = Joiner()
        self.call = 0
        self.given: dict[str, Any] = {}  # arguments that came at the start
        self.told = False


class Answer:
    """The reading of one answer (`remote.Reader`)."""

    def __init__(self, request: chat.GenerateRequest, teller: Teller) -> None:
        self.done = False
        self._model = request.model
        self._teller = teller
        self._blocks: dict[int, _Block] = {}
        self._calls = 0
        self._reason: str | None = None
        self._sequence: str | None = None  # the client's text that ended it
        self._usage: dict[str, int] = {}
        self._thought = 0  # tokens of the output that were thought, where it is told

    def take(self, event: ServerEvent) -> list[chat.Event]:
        try:
            value = json.loads(event.data)
        except (ValueError, RecursionError):
            raise self._teller.broken("an event is no JSON") from None
        try:
            return self._event(value)
        except (TypeError, ValueError, AttributeError) as error:
            # ValueError is ours, the others are what ill-typed fields lead to.
            why = str(error) if type(error) is ValueError else "an event is ill-formed"
            raise self._teller.broken(why) from None

    def whole(self, value: Any) -> list[chat.Event]:
        try:
            return self._whole(value)
        except (TypeError, ValueError, AttributeError) as error:
            why = str(error) if type(error) is ValueError else "the answer is ill-formed"
            raise self._teller.broken(why) from None

    def end(self) -> list[chat.Event]:
        if not self.done or self._reason is None:
            raise chat.GenerationFailed(f"{self._teller.id} ended the answer before it was complete.")
        usage = self._usage
        cached = usage.get("cache_read_input_tokens", 0)
        prompt = usage.get("input_tokens", 0) + usage.get("cache_creation_input_tokens", 0) + cached
        output = usage.get("output_tokens", 0)
        return [
            chat.Finished(
                self._reason,
                prompt,
                output,
                cached_tokens=cached,
                reasoning_tokens=min(self._thought, output),
                stop_sequence=self._sequence,
            ),
        ]

    # --- events ------------------------------------------------------------------------------------------

    def _event(self, value: dict[str, Any]) -> list[chat.Event]:
        match value.get("type"):
            case "message_start":
                self._count(value.get("message", {}).get("usage"))
            case "content_block_start":
                return self._start(_index(value), value.get("content_block", {}))
            case "content_block_delta":
                return self._delta(self._block(value), value.get("delta", {}))
            case "content_block_stop":
                return self._stop(_index(value), self._block(value))
            case "message_delta":
                self._ends(value.get("delta", {}))
                self._count(value.get("usage"))
            case "message_stop":
                self.done = True
            case "error":
                raise self._teller.told(value.get("error"), self._model)
        return []

    def _block(self, value: dict[str, Any]) -> _Block:
        block = self._blocks.get(_index(value))
        if block is None:
            raise ValueError("a piece of a block that has not begun")
        return block

    def _start(self, index: int, given: dict[str, Any]) -> list[chat.Event]:
        if index in self._blocks:
            raise ValueError("a block that begins twice")
        sort = given.get("type")
        block = self._blocks[index] = _Block(str(sort))
        if sort == "text":
            return self._piece(block, given.get("text"))
        if sort == "thinking":
            return self._piece(block, given.get("thinking"))
        if sort == "tool_use":
            id, name, arguments = given.get("id"), given.get("name"), given.get("input") or {}
            if not isinstance(id, str) or not isinstance(name, str) or not name or not isinstance(arguments, dict):
                raise ValueError("a call of a tool that is ill-formed")
            block.call = self._calls
            block.given = arguments
            self._calls += 1
            return [chat.CallStarted(block.call, mended(id), mended(name))]
        if sort not in _SILENT:
            raise ValueError(f"a block of the type {str(sort)[:40]!r}")
        return []

    def _delta(self, block: _Block, given: dict[str, Any]) -> list[chat.Event]:
        match block.sort, given.get("type"):
            case "text", "text_delta":
                return self._piece(block, given.get("text"))
            case "thinking", "thinking_delta":
                return self._piece(block, given.get("thinking"))
            case "tool_use", "input_json_delta":
                return self._piece(block, given.get("partial_json"))
            case _, "signature_delta" | "citations_delta":
                return []
            case _, sort:
                raise ValueError(f"a piece of the type {str(sort)[:40]!r}")

    def _piece(self, block: _Block, text: Any) -> list[chat.Event]:
        if text is not None and not isinstance(text, str):
            raise ValueError("a text is no string")
        return self._told(block, block.joiner.feed(text or ""))

    def _stop(self, index: int, block: _Block) -> list[chat.Event]:
        told = self._told(block, block.joiner.end())
        if block.sort == "tool_use" and not block.told:
            told += self._told(block, mended(json.dumps(block.given, ensure_ascii=False)))
        del self._blocks[index]
        return told

    def _told(self, block: _Block, text: str) -> list[chat.Event]:
        if not text:
            return []
        block.told = True
        if block.sort == "tool_use":
            return [chat.CallArguments(block.call, text)]
        return [chat.Reasoning(text) if block.sort == "thinking" else chat.Delta(text)]

    def _ends(self, told: dict[str, Any]) -> None:
        reason, sequence = told.get("stop_reason"), told.get("stop_sequence")
        if reason is None:
            return
        if reason not in _REASONS:
            raise ValueError(f"the answer ended for the reason {str(reason)[:40]!r}")
        self._reason = _REASONS[reason]
        self._sequence = sequence if isinstance(sequence, str) else None

    def _count(self, usage: Any) -> None:
        """Counts are of the whole answer so far: the last of each stands."""
        if isinstance(usage, dict):
            details = usage.get("output_tokens_details")
            if isinstance(details, dict) and type(n := details.get("thinking_tokens")) is int and n >= 0:
                self._thought = n
            self._usage |= {name: n for name, n in usage.items() if type(n) is int and n >= 0}

    def _whole(self, value: dict[str, Any]) -> list[chat.Event]:
        if value.get("type") == "error":
            raise self._teller.told(value.get("error"), self._model)
        told: list[chat.Event] = []
        for index, block in enumerate(value.get("content") or ()):
            told += self._start(index, block)
            told += self._stop(index, self._blocks[index])
        self._ends(value)
        self._count(value.get("usage"))
        self.done = True
        return told


def _index(value: dict[str, Any]) -> int:
    index = value.get("index")
    if type(index) is not int:
        raise ValueError("a block without a number")
    return index
