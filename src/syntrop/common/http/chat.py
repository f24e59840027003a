# SPDX-License-Identifier: Apache-2.0
"""One chat turn in no particular dialect: what is asked, what an engine says, and how it may fail."""

from __future__ import annotations


class Message:
    """One message. `role` is system, user or assistant."""

    __slots__ = ("content", "name", "reasoning", "role")

    def __init__(self, role: str, content: str, *, name: str | None = None, reasoning: str | None = None) -> None:
        self.role = role
        self.content = content
        self.name = name
        self.reasoning = reasoning


class ChatRequest:
    """What a client asks for. None means that the client left it open."""

    __slots__ = (
        "include_usage",
        "max_tokens",
        "messages",
        "min_p",
        "model",
        "repetition_penalty",
        "seed",
        "stop",
        "stream",
        "temperature",
        "top_k",
        "top_p",
    )

    def __init__(self, model: str, messages: list[Message]) -> None:
        self.model = model
        self.messages = messages
        self.stream = False
        self.include_usage = False
        self.max_tokens: int | None = None
        self.temperature: float | None = None
        self.top_p: float | None = None
        self.top_k: int | None = None
        self.min_p: float | None = None
        self.repetition_penalty: float | None = None
        self.seed: int | None = None
        self.stop: list[str] = []


class Delta:
    """The next piece of the answer, whole characters only."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Finished:
    """The answer is complete. `reason` is stop or length."""

    __slots__ = ("completion_tokens", "prompt_tokens", "reason")

    def __init__(self, reason: str, prompt_tokens: int, completion_tokens: int) -> None:
        self.reason = reason
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens


class EngineError(Exception):
    """An engine did not answer. `message` is fit for the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ModelNotFound(EngineError):
    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{model}' does not exist.")
        self.model = model


class ContextExceeded(EngineError):
    """The prompt does not fit, in tokens."""

    def __init__(self, requested: int, most: int) -> None:
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, your messages resulted in "
            f"{requested} tokens. Please reduce the length of the messages."
        )
        self.requested = requested
        self.most = most


class Unhonoured(EngineError):
    """The engine cannot honour a parameter."""

    def __init__(self, parameter: str, reason: str | None = None) -> None:
        super().__init__(f"The engine cannot honour '{parameter}': {reason or 'not with this value'}.")
        self.parameter = parameter


class Overloaded(EngineError):
    """Nothing was started; the same request may succeed in a moment."""


class Unavailable(EngineError):
    """There is no engine to ask, or it is going away."""


class EngineTimeout(EngineError):
    """The engine said nothing for too long."""


class Unfit(EngineError):
    """This machine cannot run it."""


class GenerationFailed(EngineError):
    """The engine broke down over this request, or its connection was lost."""
