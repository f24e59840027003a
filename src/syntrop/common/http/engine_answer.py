# SPDX-License-Identifier: Apache-2.0
"""The engine's text as the events of an answer: thoughts and calls told from it, each with its tokens. Pure."""

from __future__ import annotations

from syntrop.common.http import chat
from syntrop.common.http.engine_request import callable_tools
from syntrop.common.http.thinking import ThinkFilter
from syntrop.common.http.toolcalls import ToolCallFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Answer:
    """One choice, from the replies of `Runtime1.Generate`, which are given in their order.

    `enough` says that the rest of the text is of no use: the one call that was allowed is complete.
    """

    def __init__(self, request: chat.GenerateRequest, new_id: Callable[[], str]) -> None:
        tools = callable_tools(request)
        chats = request.messages is not None
        # A prompt that is continued as it is has no marks that would mean anything.
        self._thinking = ThinkFilter() if chats else None
        self._calling = ToolCallFilter([tool.name for tool in tools], new_id) if tools and chats else None
        self._single = not request.parallel_tool_calls
        self._ledger = None if request.top_logprobs is None else _Ledger()
        self._start: dict[str, Any] | None = None
        self._tokens: int | None = None  # generated so far, where the engine tells
        self._thought = 0  # tokens of thoughts
        self.enough = False

    def begin(self, start: dict[str, Any]) -> None:
        """The engine's `GenerationStart`."""
        self._start = start
        if self._thinking is not None and start["thinking"]:
            self._thinking = ThinkFilter(inside=True)

    def feed(self, reply: dict[str, Any]) -> list[chat.Event]:
        """The events that are certain after this reply."""
        if (start := reply.get("start")) is not None:
            self.begin(start)
        text = reply.get("delta") or ""
        tokens = reply.get("completion_tokens")
        if tokens is not None:
            self._tokens = tokens
        if self._ledger is None:
            return self._told(self._split(text)) if text and not self.enough else []
        events: list[chat.Event] = []
        for piece, named in by_token(text, [token_logprob(one) for one in reply.get("logprobs") or ()]):
            self._ledger.note(piece, named)
            if piece and not self.enough:
                events += self._told(self._split(piece))
        return events

    def finish(self, result: dict[str, Any]) -> tuple[list[chat.Event], chat.Finished]:
        """What was held back, and the end: the engine's `GenerationResult`."""
        events: list[chat.Event] = []
        inside = self._thinking is not None and self._thinking.inside
        if not self.enough:
            events = self._told(self._rest())
        if inside:
            self._thought = result["completion_tokens"]
        return events, self._finished(result["finish_reason"], result)

    def stop(self) -> chat.Finished | None:
        """The end of an answer of which there is `enough`; None where only the result tells its usage."""
        if self._start is None or self._tokens is None:
            return None
        return self._finished(
            "stop", {"prompt_tokens": self._start["prompt_tokens"], "completion_tokens": self._tokens}
        )

    def _finished(self, reason: str, result: dict[str, Any]) -> chat.Finished:
        if reason == "stop" and self._calling is not None and self._calling.calls:
            reason = "tool_calls"
        return chat.Finished(
            reason,
            result["prompt_tokens"],
            result["completion_tokens"],
            cached_tokens=0 if self._start is None else self._start["cached_tokens"],
            reasoning_tokens=self._thought,
            stop_sequence=result.get("stop_string") if reason == "stop" else None,
        )

    # --- filters -----------------------------------------------------------------------------------------

    def _split(self, text: str) -> list[chat.Event]:
        if self._thinking is None:
            return [chat.Delta(text)]
        before = self._thinking.inside
        pieces = self._thinking.feed(text)
        if (before or self._thinking.inside) and self._tokens is not None:
            self._thought = self._tokens  # the marks included
        return self._called(pieces)

    def _rest(self) -> list[chat.Event]:
        events = [] if self._thinking is None else self._called(self._thinking.finish())
        if self._calling is not None:
            events += self._calling.finish()
        return events

    def _called(self, pieces: list[tuple[bool, str]]) -> list[chat.Event]:
        events: list[chat.Event] = []
        for thought, text in pieces:
            if thought:
                events.append(chat.Reasoning(text))
            elif self._calling is None:
                events.append(chat.Delta(text))
            else:
                events += self._calling.feed(text)
        return events

    def _told(self, events: list[chat.Event]) -> list[chat.Event]:
        """The events with their tokens, up to the end of the one call where no more are allowed."""
        if self._ledger is not None:
            held = 0 if self._thinking is None else self._thinking.held
            held += 0 if self._calling is None else self._calling.held
            self._ledger.share(events, held)
        if self._single and self._calling is not None and self._calling.calls:
            for i, event in enumerate(events):
                if isinstance(event, chat.CallArguments):
                    self.enough = True
                    events = events[: i + 1]
                    break
        return events


class _Ledger:
    """Which tokens a piece of text is made of, when filters hold text back and drop marks from it.

    Positions count characters of the engine's text. A token belongs where the last of its characters is told.
    """

    def __init__(self) -> None:
        self._came = 0
        self._past = 0  # the text before this has been told, or dropped
        self._early: list[chat.TokenLogprob] = []  # whose text has not come yet
        self._waiting: list[tuple[int, chat.TokenLogprob]] = []

    def note(self, text: str, tokens: list[chat.TokenLogprob]) -> None:
        self._early += tokens
        if text:
            self._came += len(text)
            self._waiting += [(self._came, token) for token in self._early]
            self._early = []

    def share(self, events: list[chat.Event], held: int) -> None:
        """Give the tokens of the text that was told to those who told it."""
        start, self._past = self._past, self._came - held
        others = [i for i, event in enumerate(events) if not isinstance(event, chat.Delta)]
        first, last = (others[0], others[-1]) if others else (len(events), -1)
        if not others and sum(map(_length, events)) != self._past - start:
            first = 0  # a mark was dropped before the text
        at = start
        for event in events[:first]:
            at = self._give(event, at)
        behind = events[max(first, last + 1) :]
        at = self._past - sum(map(_length, behind))
        for event in behind:
            at = self._give(event, at)
        self._waiting = [(end, token) for end, token in self._waiting if end > self._past]
        for event in events:
            if isinstance(event, chat.Delta) and event.logprobs is None:
                event.logprobs = []

    def _give(self, event: chat.Event, start: int) -> int:
        assert isinstance(event, chat.Delta)
        end = start + len(event.text)
        event.logprobs = [token for at, token in self._waiting if start < at <= end]
        return end


def _length(event: chat.Event) -> int:
    return len(event.text) if isinstance(event, chat.Delta) else 0


def by_token(text: str, tokens: list[chat.TokenLogprob]) -> list[tuple[str, list[chat.TokenLogprob]]]:
    """A text in pieces that end where tokens do. The last token ends with it; the first may have begun before."""
    raw = text.encode()
    end = len(raw) - sum(len(token.bytes) for token in tokens)
    pieces: list[tuple[str, list[chat.TokenLogprob]]] = []
    named: list[chat.TokenLogprob] = []
    start = 0
    for token in tokens:
        end += len(token.bytes)
        named.append(token)
        cut = end
        while 0 < cut < len(raw) and raw[cut] & 0xC0 == 0x80:
            cut -= 1  # within a character
        if cut > start:
            pieces.append((raw[start:cut].decode(), named))
            start, named = cut, []
    if start < len(raw) or not pieces:
        pieces.append((raw[start:].decode(), named))
    else:
        pieces[-1][1].extend(named)
    return pieces


def token_logprob(told: dict[str, Any]) -> chat.TokenLogprob:
    top = [(one["text"], bytes(one["bytes"]), one["logprob"]) for one in told["top"]]
    return chat.TokenLogprob(told["text"], bytes(told["bytes"]), told["logprob"], top)
