# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/responses`, the request: its JSON in, a chat out. Pure.

Nothing is kept between requests: what refers to something kept is refused, and so are the tools that OpenAI
runs itself. The reply is in `openai_responses_reply`.
"""

from __future__ import annotations

from syntrop.common.http import chat, openai
from syntrop.common.http.fields import parse_object
from syntrop.common.http.openai_chat import function_tool, take_call, take_text, take_tool_choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.fields import Fields

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LOGPROBS = "message.output_text.logprobs"


class ResponseRequest(chat.GenerateRequest):
    """A request, and what its response repeats of it: instructions, metadata and the like."""

    __slots__ = ("shown",)

    def __init__(self, model: str, messages: list[chat.Message]) -> None:
        super().__init__(model, messages)
        self.shown: dict[str, Any] = {}


def parse_responses(body: bytes) -> ResponseRequest:
    """The body of `POST /v1/responses`. Raises BadRequest."""
    fields = parse_object(body)
    model = openai.model_name(fields)
    instructions = fields.string("instructions")
    messages = _input(fields)
    if instructions:
        messages.insert(0, chat.Message("system", instructions))
    request = ResponseRequest(model, messages)
    request.stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    if options is not None:
        if not request.stream:
            raise fields.fail("stream_options", "is only allowed when 'stream' is true.", "invalid_value")
        options.only("include_obfuscation", False)
        options.done()
    request.max_tokens = fields.integer("max_output_tokens", 1)
    openai.take_temperature(fields, request)
    request.top_logprobs = fields.integer("top_logprobs", 0, openai.TOP_LOGPROBS_MAX)
    for i, one in enumerate(fields.array("include") or ()):
        if one != _LOGPROBS:
            raise fields.fail(f"include[{i}]", f"is supported only as {_LOGPROBS} so far.", "unsupported_value")
        request.top_logprobs = request.top_logprobs or 0
    request.tools = [_tool(fields.inside(f"tools[{i}]", one)) for i, one in enumerate(fields.array("tools") or ())]
    take_tool_choice(fields, request)
    request.reasoning_effort = _effort(fields)
    openai.take_routing(fields, request)
    request.shown = _shown(fields, request, instructions)
    _refused(fields)
    fields.done()
    return request


def _tool(fields: Fields) -> chat.Tool:
    sort = fields.string("type")
    if sort != "function":
        raise fields.fail("type", f"is supported only as function so far, not {sort!r}.", "unsupported_value")
    for name in ("allowed_callers", "output_schema"):
        fields.only(name)
    fields.only("defer_loading", False)
    return function_tool(fields)


def _effort(fields: Fields) -> str | None:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return None
    effort = openai.take_effort(reasoning, "effort")
    reasoning.only("summary", "auto")  # thoughts are told as they are, so there is none
    reasoning.only("generate_summary", "auto")
    reasoning.only("context", "auto")
    reasoning.only("mode", "standard")
    reasoning.done()
    return effort


def _shown(fields: Fields, request: ResponseRequest, instructions: str | None) -> dict[str, Any]:
    return {
        "background": False,
        "instructions": instructions,
        "max_output_tokens": request.max_tokens,
        # Counts calls of tools that OpenAI runs itself, of which there are none here.
        "max_tool_calls": fields.integer("max_tool_calls", 1),
        "metadata": _metadata(fields),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "prompt_cache_key": fields.string("prompt_cache_key"),
        "reasoning": {"effort": request.reasoning_effort, "summary": None},
        "safety_identifier": fields.string("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": request.tool_choice,
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in request.tools
        ],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "user": fields.string("user"),
    }


def _metadata(fields: Fields) -> dict[str, str]:
    value = fields.take("metadata")
    if value is None:
        return {}
    inside = fields.inside("metadata", value)
    if len(value) > 16:
        raise fields.fail("metadata", f"may hold at most 16 pairs, not {len(value)}.", "invalid_value")
    return {name: inside.checked(name, one) for name, one in value.items()}


def _refused(fields: Fields) -> None:
    fields.only("background", False)
    fields.only("context_management", [])
    fields.only("service_tier", "auto", "default")
    fields.only("store", False)
    fields.only("truncation", "disabled")
    text = fields.object("text")
    if text is not None:
        text.only("format", {"type": "text"})
        text.only("verbosity", "medium")
        text.done()
    for name in (
        "access_programs",
        "background_options",
        "conversation",
        "image",
        "moderation",
        "previous_response_id",
        "prompt",
        "prompt_cache_options",
        "prompt_cache_retention",
    ):
        fields.only(name)


# --- input -----------------------------------------------------------------------------------------------


def _input(fields: Fields) -> list[chat.Message]:
    value = fields.take("input")
    if isinstance(value, str):
        return [chat.Message("user", fields.checked("input", value))]
    if not isinstance(value, list) or not value:
        raise fields.fail("input", "must be a string, or an array of at least one item.", "invalid_type")
    items = _Items()
    for i, item in enumerate(value):
        items.add(fields.inside(f"input[{i}]", item))
    if items.reasoning is not None:
        raise fields.fail(f"input[{len(value) - 1}]", "must be followed by what was thought.", "invalid_value")
    if not items.messages:
        raise fields.fail("input", "holds nothing to answer.", "invalid_value")
    return items.messages


class _Items:
    """Items become messages: thoughts go with what follows, and calls with the answer before them."""

    def __init__(self) -> None:
        self.messages: list[chat.Message] = []
        self.reasoning: str | None = None

    def add(self, fields: Fields) -> None:
        sort = fields.string("type")
        if sort in (None, "message"):
            self._message(fields)
        elif sort == "reasoning":
            self._thought(fields)
        elif sort == "function_call":
            self._call(fields)
        elif sort == "function_call_output":
            self._no_thought(fields)
            self.messages.append(_output(fields))
        else:
            raise fields.fail("type", f"is not supported so far as {sort!r}.", "unsupported_value")
        fields.string("id")
        fields.string("status")
        fields.done()

    def _message(self, fields: Fields) -> None:
        role = fields.string("role")
        if role not in _ROLES:
            raise fields.fail("role", f"must be one of {', '.join(_ROLES)}, not {role!r}.", "invalid_value")
        sorts = ("output_text", "input_text") if role == "assistant" else ("input_text",)
        content = take_text(fields, "content", fields.take("content"), sorts)
        fields.only("phase")
        if role != "assistant":
            self._no_thought(fields)
        self.messages.append(chat.Message(_ROLES[role], content, reasoning=self._taken()))

    def _thought(self, fields: Fields) -> None:
        self._no_thought(fields)
        fields.only("encrypted_content")
        texts = [_part(fields, f"content[{i}]", one, "reasoning_text") for i, one in _each(fields, "content")]
        # Others' answers may have summaries alone.
        summary = [_part(fields, f"summary[{i}]", one, "summary_text") for i, one in _each(fields, "summary")]
        self.reasoning = "\n".join(texts or summary) or None

    def _call(self, fields: Fields) -> None:
        id = fields.string("call_id")
        if not id:
            raise fields.fail("call_id", "must be given.", "missing_required_parameter")
        call = chat.ToolCall(id, *take_call(fields))
        for name in ("async", "caller", "namespace"):
            fields.only(name)
        if self.reasoning is not None or not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(chat.Message("assistant", "", reasoning=self._taken()))
        self.messages[-1].tool_calls.append(call)

    def _taken(self) -> str | None:
        reasoning, self.reasoning = self.reasoning, None
        return reasoning

    def _no_thought(self, fields: Fields) -> None:
        if self.reasoning is not None:
            raise fields.fail("type", "may not follow a thought: what it led to is missing.", "invalid_value")


def _each(fields: Fields, name: str) -> list[tuple[int, Any]]:
    return list(enumerate(fields.array(name) or ()))


def _part(fields: Fields, name: str, value: Any, sort: str) -> str:
    part = fields.inside(name, value)
    if part.string("type") != sort:
        raise part.fail("type", f"must be {sort}.", "invalid_value")
    text = part.string("text")
    if text is None:
        raise part.fail("text", "must be given.", "missing_required_parameter")
    part.done()
    return text


def _output(fields: Fields) -> chat.Message:
    id = fields.string("call_id")
    if not id:
        raise fields.fail("call_id", "must be given.", "missing_required_parameter")
    content = take_text(fields, "output", fields.take("output"), ("input_text",))
    for name in ("caller", "namespace"):
        fields.only(name)
    return chat.Message("tool", content, name=fields.string("name"), tool_call_id=id)
