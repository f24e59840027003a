# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/chat/completions`: the request's JSON in, a completion or its chunks out. Pure.

Every documented parameter is honoured, or refused with a 400 that names it. What an engine cannot enforce is
refused unless its value asks for nothing, since clients send such values unasked.
"""

from __future__ import annotations

from syntrop.common.http import chat, openai, sse
from syntrop.common.http.answers import Usage, gather
from syntrop.common.http.fields import Fields, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from syntrop.common.http.answers import Answer
    from syntrop.common.http.errors import HttpError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def parse_chat(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /v1/chat/completions`. Raises BadRequest."""
    fields = parse_object(body)
    model = openai.model_name(fields)
    request = chat.GenerateRequest(model, _messages(fields))
    openai.take_stream(fields, request)
    short = fields.integer("max_tokens", 1)
    request.max_tokens = fields.integer("max_completion_tokens", 1) or short
    openai.take_sampling(fields, request)
    _logprobs(fields, request)
    request.tools = [_tool(fields.inside(f"tools[{i}]", one)) for i, one in enumerate(fields.array("tools") or ())]
    take_tool_choice(fields, request)
    request.reasoning_effort = openai.take_effort(fields, "reasoning_effort")
    openai.take_routing(fields, request)
    if not fields.empty:  # nothing is left of most requests
        openai.take_labels(fields)
        _refused(fields)
        fields.done()
    return request


def _logprobs(fields: Fields, request: chat.GenerateRequest) -> None:
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, openai.TOP_LOGPROBS_MAX)
    if wanted:
        request.top_logprobs = top or 0
    elif top:
        raise fields.fail("top_logprobs", "is only allowed when 'logprobs' is true.", "invalid_value")


def take_tool_choice(fields: Fields, request: chat.GenerateRequest) -> None:
    """`tool_choice` and `parallel_tool_calls`, behind the tools. What would have to be enforced is refused."""
    names = [tool.name for tool in request.tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise fields.fail(f"tools[{i}]", f"has the name of another tool, {name!r}.", "invalid_value")
    choice = fields.take("tool_choice")
    if choice in ("none", "auto"):
        request.tool_choice = choice
    elif choice is not None:
        raise fields.fail("tool_choice", "is supported only as none or auto so far.", "unsupported_value")
    parallel = fields.boolean("parallel_tool_calls")
    request.parallel_tool_calls = parallel is not False


def _tool(fields: Fields) -> chat.Tool:
    sort = fields.string("type")
    if sort != "function":
        raise fields.fail("type", f"is supported only as function so far, not {sort!r}.", "unsupported_value")
    function = fields.object("function")
    if function is None:
        raise fields.fail("function", "must be given.", "missing_required_parameter")
    fields.done()
    return function_tool(function)


def function_tool(fields: Fields) -> chat.Tool:
    """The tool that is described by these fields."""
    name = fields.string("name")
    if not name:
        raise fields.fail("name", "must be given.", "missing_required_parameter")
    description = fields.string("description")
    parameters = fields.take("parameters")
    if parameters is not None:
        fields.inside("parameters", parameters)
    fields.only("strict", False)  # nothing enforces it yet
    fields.done()
    return chat.Tool(name, description, parameters)


def _refused(fields: Fields) -> None:
    fields.only("response_format", {"type": "text"})
    fields.only("functions", [])
    fields.only("function_call", "none", "auto")  # without functions both mean none
    fields.only("modalities", ["text"])
    fields.only("verbosity", "medium")
    fields.only("service_tier", "auto", "default")
    fields.only("store", False)
    fields.only("metadata", {})
    for name in (
        "audio",
        "max_thinking_tokens",
        "moderation",
        "prediction",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_budget",
        "reasoning_content",
        "web_search_options",
    ):
        fields.only(name)


# --- messages --------------------------------------------------------------------------------------------


def _messages(fields: Fields) -> list[chat.Message]:
    items = fields.array("messages")
    if not items:
        raise fields.fail("messages", "must hold at least one message.", "missing_required_parameter")
    return [_message(fields.inside(f"messages[{i}]", item)) for i, item in enumerate(items)]


def _message(fields: Fields) -> chat.Message:
    role = fields.string("role")
    if role is None:
        raise fields.fail("role", "must be given.", "missing_required_parameter")
    if role not in _ROLES:
        what = f"must be one of {', '.join(_ROLES)}, not {role!r}."
        raise fields.fail("role", what, "unsupported_value" if role == "function" else "invalid_value")
    name = fields.string("name")
    message = chat.Message(_ROLES[role], "", name=name)
    if role == "assistant":
        # Clients are split over the name, and some send both.
        reasoning = fields.string("reasoning_content")
        message.reasoning = fields.string("reasoning") or reasoning
        calls = fields.array("tool_calls") or ()
        message.tool_calls = [_call(fields.inside(f"tool_calls[{i}]", one)) for i, one in enumerate(calls)]
        for unbuilt in ("function_call", "refusal", "audio"):
            fields.only(unbuilt)
        fields.only("annotations", [])
    elif role == "tool":
        message.tool_call_id = fields.string("tool_call_id")
        if not message.tool_call_id:
            raise fields.fail("tool_call_id", "must be given.", "missing_required_parameter")
    content = fields.take("content")
    if content is not None or not message.tool_calls:
        message.content = take_text(fields, "content", content, ("text",))
    fields.done()
    return message


def take_text(fields: Fields, name: str, value: Any, sorts: tuple[str, ...]) -> str:
    """The text of a string, or of an array of parts of these sorts."""
    if isinstance(value, str):
        return fields.checked(name, value)
    if not isinstance(value, list):
        raise fields.fail(name, "must be a string or an array of text parts.", "invalid_type")
    texts = []
    for i, item in enumerate(value):
        part = fields.inside(f"{name}[{i}]", item)
        sort = part.string("type")
        if sort not in sorts:
            raise part.fail("type", f"may only be {' or '.join(sorts)} so far, not {sort!r}.", "unsupported_value")
        text = part.string("text")
        if text is None:
            raise part.fail("text", "must be given.", "missing_required_parameter")
        part.only("prompt_cache_breakpoint")
        if sort == "output_text":
            # Our own answers, handed back; what the text was made of says nothing to a model.
            part.only("annotations", [])
            part.array("logprobs")
        part.done()
        texts.append(text)
    return "\n".join(texts)


def _call(fields: Fields) -> chat.ToolCall:
    sort = fields.string("type")
    if sort not in (None, "function"):
        raise fields.fail("type", f"is supported only as function so far, not {sort!r}.", "unsupported_value")
    fields.integer("index", 0)  # of a streamed call that a client put together
    id = fields.string("id")
    if not id:
        raise fields.fail("id", "must be given.", "missing_required_parameter")
    function = fields.object("function")
    if function is None:
        raise fields.fail("function", "must be given.", "missing_required_parameter")
    call = chat.ToolCall(id, *take_call(function))
    function.done()
    fields.done()
    return call


def take_call(fields: Fields) -> tuple[str, str]:
    """Name and arguments of a call that a model made."""
    name = fields.string("name")
    if not name:
        raise fields.fail("name", "must be given.", "missing_required_parameter")
    arguments = fields.string("arguments")
    if arguments is None:
        raise fields.fail("arguments", "must be given, as JSON text.", "missing_required_parameter")
    return name, arguments


# --- replies ---------------------------------------------------------------------------------------------


class ChatReply:
    """The objects of one answer (`dialect.Reply`): the same id, time and model in all of them.

    `created` is in seconds since 1970. `model` may be set to the one that answers, before anything is told.
    """

    headers = sse.HEADERS
    ping = sse.PING

    __slots__ = ("_begun", "_ends", "_request", "created", "id", "model")

    def __init__(self, id: str, created: int, request: chat.GenerateRequest) -> None:
        self.id = id
        self.created = created
        self.model = request.model
        self._request = request
        self._begun = False
        self._ends: list[chat.Finished] = []

    def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
        answers = gather(events)
        return {
            **self._frame("chat.completion", [self._choice(i, answer) for i, answer in enumerate(answers)]),
            "usage": openai.usage(Usage((answer.end for answer in answers), self._request.n)),
        }

    def frames(self, events: Iterable[chat.Event]) -> bytes:
        return b"".join(openai.frame(chunk) for event in events for chunk in self._chunks(event))

    def end(self) -> bytes:
        if not self._request.include_usage:
            return sse.DONE
        last = self._frame("chat.completion.chunk", [])
        last["usage"] = openai.usage(Usage(self._ends, self._request.n))
        return openai.frame(last) + sse.DONE

    def broken(self, error: HttpError) -> bytes:
        return openai.frame(error.body())

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        calls = [_call_object(call.id, call.name, call.arguments) for call in answer.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not answer.text else answer.text,
            "refusal": None,
        }
        if answer.reasoning:
            message |= _reasoning(answer.reasoning)
        if calls:
            message["tool_calls"] = calls
        logprobs = None if self._request.top_logprobs is None else _logprobs_object(answer.logprobs or [])
        reason = None if answer.end is None else answer.end.reason
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _chunks(self, event: chat.Event) -> Iterator[dict[str, Any]]:
        choice = event.choice
        if not self._begun:
            # All choices in their order: OpenAI's own client fails on a stream that begins with another than 0.
            self._begun = True
            for each in range(self._request.n):
                yield self._chunk(each, {"role": "assistant", "content": None})
        if isinstance(event, chat.Delta):
            yield self._chunk(choice, {"content": event.text}, event.logprobs)
        elif isinstance(event, chat.Reasoning):
            yield self._chunk(choice, _reasoning(event.text))
        elif isinstance(event, chat.CallStarted):
            call = {"index": event.index, **_call_object(event.id, event.name, "")}
            yield self._chunk(choice, {"tool_calls": [call]})
        elif isinstance(event, chat.CallArguments):
            piece = {"index": event.index, "function": {"arguments": event.text}}
            yield self._chunk(choice, {"tool_calls": [piece]})
        else:
            self._ends.append(event)
            yield self._chunk(choice, {}, reason=event.reason)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: list[chat.TokenLogprob] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        told = None if logprobs is None else _logprobs_object(logprobs)
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        chunk = self._frame("chat.completion.chunk", [choice])
        if self._request.include_usage:
            chunk["usage"] = None
        return chunk

    def _frame(self, sort: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": sort,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names: clients are split over it."""
    return {"reasoning_content": text, "reasoning": text}


def _call_object(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _logprobs_object(tokens: list[chat.TokenLogprob]) -> dict[str, Any]:
    return {"content": logprobs_content(tokens), "refusal": None}


def logprobs_content(tokens: list[chat.TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            **_token(token.text, token.bytes, token.logprob),
            "top_logprobs": [_token(*choice) for choice in token.top],
        }
        for token in tokens
    ]


def _token(text: str, data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(data)}
