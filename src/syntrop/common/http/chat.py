# SPDX-License-Identifier: Apache-2.0
"""Requests in no particular dialect: what is asked, what an engine says, and how it may fail.

Each dialect is a pair of pure functions: its bytes to one of these requests, and these events to its bytes. Each
provider takes the same requests and gives the same events. So every dialect works with every provider.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ToolCall:
    """A call that an assistant made. `arguments` is the JSON text of an object, as the model wrote it."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str, name: str, arguments: str) -> None:
        self.id = id
        self.name = name
        self.arguments = arguments


class Tool:
    """A function that the model may call. `parameters` is a JSON Schema, None for a function without any."""

    __slots__ = ("description", "name", "parameters")

    def __init__(self, name: str, description: str | None, parameters: dict[str, Any] | None) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters


class Message:
    """One message. `role` is system, user, assistant or tool.

    Only an assistant's message has `reasoning` and `tool_calls`, and then `content` may be empty; only a tool's
    has `tool_call_id`, the call that it answers, and `failed`: its content says what went wrong.
    """

    __slots__ = ("content", "failed", "name", "reasoning", "role", "tool_call_id", "tool_calls")

    def __init__(
        self,
        role: str,
        content: str,
        *,
        name: str | None = None,
        reasoning: str | None = None,
        tool_calls: list[ToolCall] | None = None,
        tool_call_id: str | None = None,
        failed: bool = False,
    ) -> None:
        self.role = role
        self.content = content
        self.name = name
        self.reasoning = reasoning
        self.tool_calls = tool_calls or []
        self.tool_call_id = tool_call_id
        self.failed = failed


class Routing:
    """What a client says about the way of its request: a `tier` of difficulty (fast, hard; None: open), which
    never raises the lease's tier; `local`: it must not leave this machine; `priority`: whose turn it is at the
    local engine, as that spells it (None: left to the engine); `leased`: bytes of its memory that are leased
    already for each sequence (None: not any)."""

    __slots__ = ("leased", "local", "priority", "tier")

    def __init__(self, tier: str | None = None, *, local: bool = False) -> None:
        self.tier = tier
        self.local = local
        self.priority: str | None = None
        self.leased: int | None = None


class GenerateRequest:
    """What a client asks for. None means that the client left it open.

    `messages` is a chat; where it is None, `prompt` is to be continued as it is: a text, or token ids.
    `context`: tokens that the model's context must have; `keep`: seconds for which the model is to stay in memory
    after the answer, -1 for ever; `load`: it is only to be loaded, and there is no prompt.
    """

    __slots__ = (
        "context",
        "frequency_penalty",
        "include_usage",
        "keep",
        "load",
        "logit_bias",
        "max_tokens",
        "messages",
        "min_p",
        "model",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "reasoning_effort",
        "repetition_penalty",
        "routing",
        "seed",
        "stop",
        "stream",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    )

    def __init__(self, model: str, messages: list[Message] | None, prompt: str | list[int] | None = None) -> None:
        self.model = model
        self.messages = messages
        self.prompt = prompt
        self.routing = Routing()
        self.stream = False
        self.include_usage = False
        self.n = 1
        self.max_tokens: int | None = None
        self.temperature: float | None = None
        self.top_p: float | None = None
        self.top_k: int | None = None
        self.min_p: float | None = None
        self.repetition_penalty: float | None = None
        self.presence_penalty: float | None = None
        self.frequency_penalty: float | None = None
        self.logit_bias: dict[int, float] = {}
        self.top_logprobs: int | None = None  # None: no log-probabilities; 0: those of the chosen tokens alone
        self.seed: int | None = None
        self.stop: list[str] = []
        self.tools: list[Tool] = []
        self.tool_choice = "auto"  # or none; without tools it says nothing
        self.parallel_tool_calls = True
        self.context: int | None = None
        self.keep: float | None = None
        self.load = False
        self.reasoning_effort: str | None = None  # none, minimal, low, medium, high, xhigh, max


class EmbedRequest:
    """Texts, or lists of token ids, to be embedded. `dimensions`: the length that is asked for.

    `base64`: the client wants the vectors so, each as the bytes of its little-endian float32 numbers.
    `context` and `keep` are those of a GenerateRequest.
    """

    __slots__ = ("base64", "context", "dimensions", "inputs", "keep", "model", "routing")

    def __init__(self, model: str, inputs: list[str] | list[list[int]], dimensions: int | None = None) -> None:
        self.model = model
        self.inputs = inputs
        self.dimensions = dimensions
        self.base64 = False
        self.context: int | None = None
        self.keep: float | None = None
        self.routing = Routing()


class Embeddings:
    """One vector (float32 numbers) an input, in their order."""

    __slots__ = ("model", "prompt_tokens", "vectors")

    def __init__(self, model: str, vectors: list[list[float]], prompt_tokens: int) -> None:
        self.model = model
        self.vectors = vectors
        self.prompt_tokens = prompt_tokens


class TokenLogprob:
    """A token, its bytes, its log-probability (nat), and the likeliest tokens in its place."""

    __slots__ = ("bytes", "logprob", "text", "top")

    def __init__(self, text: str, bytes: bytes, logprob: float, top: list[tuple[str, bytes, float]]) -> None:
        self.text = text
        self.bytes = bytes
        self.logprob = logprob
        self.top = top


GRACE = 0.05  # seconds that a request which was accepted waits for its first event, to be told with it


class Accepted:
    """The request is known to be good and is waited for now: no piece of an answer, and told by those who know it,
    once, before all else. `Attempts` keep it to themselves."""

    __slots__ = ("choice",)

    def __init__(self) -> None:
        self.choice = 0


class Delta:
    """The next piece of the answer's text, whole characters only. `logprobs`: of the tokens that end in it."""

    __slots__ = ("choice", "logprobs", "text")

    def __init__(self, text: str, *, logprobs: list[TokenLogprob] | None = None, choice: int = 0) -> None:
        self.text = text
        self.logprobs = logprobs
        self.choice = choice


class Reasoning:
    """The next piece of what the model thinks before it answers."""

    __slots__ = ("choice", "text")

    def __init__(self, text: str, *, choice: int = 0) -> None:
        self.text = text
        self.choice = choice


class CallStarted:
    """The model calls a tool: the `index`-th call of this answer. Its arguments follow."""

    __slots__ = ("choice", "id", "index", "name")

    def __init__(self, index: int, id: str, name: str, *, choice: int = 0) -> None:
        self.index = index
        self.id = id
        self.name = name
        self.choice = choice


class CallArguments:
    """The next piece of the JSON text of a call's arguments."""

    __slots__ = ("choice", "index", "text")

    def __init__(self, index: int, text: str, *, choice: int = 0) -> None:
        self.index = index
        self.text = text
        self.choice = choice


class Finished:
    """The answer is complete. `reason` is stop, length, tool_calls or content_filter.

    `cached_tokens` of the prompt were not computed again; `reasoning_tokens` of the completion were thought.
    `stop_sequence` is the client's own text that ended it, where the provider tells.
    """

    __slots__ = (
        "cached_tokens",
        "choice",
        "completion_tokens",
        "prompt_tokens",
        "reason",
        "reasoning_tokens",
        "stop_sequence",
    )

    def __init__(
        self,
        reason: str,
        prompt_tokens: int,
        completion_tokens: int,
        *,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
        stop_sequence: str | None = None,
        choice: int = 0,
    ) -> None:
        self.reason = reason
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        self.reasoning_tokens = reasoning_tokens
        self.stop_sequence = stop_sequence
        self.choice = choice


# What a generation says, in its order; every choice ends with its Finished.
if TYPE_CHECKING:
    Event = Delta | Reasoning | CallStarted | CallArguments | Finished
    Told = Event | Accepted


class EngineError(Exception):
    """An engine did not answer. `message` is fit for the client; `retry_after`: seconds after which it asks to be
    tried again, where it says so."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


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

    reason: str | None = None

    def __init__(self, parameter: str, reason: str | None = None) -> None:
        super().__init__(f"The engine cannot honour '{parameter}': {reason or 'not with this value'}.")
        self.parameter: str | None = parameter
        self.reason = reason


class Refused(Unhonoured):
    """A provider says that the request itself is wrong, in its own words; `parameter` where it says which, `code`
    a word for programs."""

    def __init__(self, message: str, parameter: str | None = None, code: str | None = None) -> None:
        EngineError.__init__(self, message)
        self.parameter = parameter
        self.code = code


class Overloaded(EngineError):
    """Nothing was started; the same request may succeed in a moment."""


class Unavailable(EngineError):
    """There is no engine to ask, or it is going away."""


class Denied(Unavailable):
    """A provider does not let the router in, or its address is wrong: to ask it again is no use until somebody has
    mended the configuration. The message never has the key."""


class EngineTimeout(EngineError):
    """The engine said nothing for too long."""


class Unfit(EngineError):
    """This machine cannot run it."""


class GenerationFailed(EngineError):
    """The engine broke down over this request, or its connection was lost."""
