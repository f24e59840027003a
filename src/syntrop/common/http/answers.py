# SPDX-License-Identifier: Apache-2.0
"""Whole answers, gathered from the events of a generation. Pure."""

from __future__ import annotations

import json

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class Answer:
    """One choice. `end` is None until it has finished; `logprobs` is None where none were asked for."""

    __slots__ = ("calls", "end", "logprobs", "reasoning", "text")

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[chat.ToolCall] = []
        self.logprobs: list[chat.TokenLogprob] | None = None
        self.end: chat.Finished | None = None


def gather(events: Iterable[chat.Event]) -> list[Answer]:
    """The answers by their choice; those that said nothing are there, too, up to the highest that did."""
    answers: list[Answer] = []
    texts: list[list[str]] = []
    thoughts: list[list[str]] = []
    for event in events:
        while len(answers) <= event.choice:
            answers.append(Answer())
            texts.append([])
            thoughts.append([])
        answer = answers[event.choice]
        if isinstance(event, chat.Delta):
            texts[event.choice].append(event.text)
            if event.logprobs is not None:
                answer.logprobs = (answer.logprobs or []) + event.logprobs
        elif isinstance(event, chat.Reasoning):
            thoughts[event.choice].append(event.text)
        elif isinstance(event, chat.CallStarted):
            answer.calls.append(chat.ToolCall(event.id, event.name, ""))
        elif isinstance(event, chat.CallArguments):
            answer.calls[event.index].arguments += event.text
        else:
            answer.end = event
    for answer, text, thought in zip(answers, texts, thoughts, strict=True):
        answer.text = "".join(text)
        answer.reasoning = "".join(thought)
    return answers


class Usage:
    """What an answer took, in tokens. Choices of one prompt share it: its tokens count once."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "reasoning_tokens")

    def __init__(self, ends: Iterable[chat.Finished | None], n: int = 1) -> None:
        """`ends` of all choices, `n` of them for each prompt."""
        prompts: dict[int, int] = {}
        cached: dict[int, int] = {}
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        for end in ends:
            if end is None:
                continue
            prompt = end.choice // n
            prompts[prompt] = max(prompts.get(prompt, 0), end.prompt_tokens)
            # Another choice of ours may have left the prompt in the cache: what the first one found counts.
            cached[prompt] = min(cached.get(prompt, end.cached_tokens), end.cached_tokens)
            self.completion_tokens += end.completion_tokens
            self.reasoning_tokens += end.reasoning_tokens
        self.prompt_tokens = sum(prompts.values())
        self.cached_tokens = sum(cached.values())

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def arguments(call: chat.ToolCall) -> dict[str, Any]:
    """The arguments of a call as an object. Raises GenerationFailed when a model wrote something else."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise chat.GenerationFailed(f"The model called {call.name!r} with arguments that are no JSON object.")
    return value
