# SPDX-License-Identifier: Apache-2.0
"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`, the request: its JSON in, a chat out. Pure.

The blocks of one message become several messages where they must: each result of a tool is one, and so is what
an assistant says behind a call. The reply is in `anthropic_reply`.
"""

from __future__ import annotations

from syntrop.common.http import chat, openai
from syntrop.common.http.fields import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from syntrop.common.http.fields import Fields

STOPS_MAX = 64
BUDGET_MIN = 1024  # tokens
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
# A budget is a target, not a bound: under so many tokens it asks for so much effort.
_BUDGETS = ((8192, "low"), (16384, "medium"))


def parse_messages(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /v1/messages`. Raises BadRequest."""
    fields = parse_object(body)
    request = _prompt(fields)
    request.max_tokens = fields.integer("max_tokens", 1)
    if request.max_tokens is None:
        raise fields.fail("max_tokens", "must be given.", "missing_required_parameter")
    request.stream = fields.boolean("stream") or False
    temperature = fields.number("temperature", 0, 1)
    # Anthropic's own default: an engine's may differ.
    request.temperature = 1.0 if temperature is None else temperature
    request.top_p = fields.number("top_p", 0, 1)
    request.top_k = fields.integer("top_k", 0)
    request.stop = fields.strings("stop_sequences", most=STOPS_MAX)
    if "" in request.stop:
        raise fields.fail("stop_sequences", "may not hold an empty string.", "invalid_value")
    _thinking(fields, request)
    openai.take_routing(fields, request)
    metadata = fields.object("metadata")
    if metadata is not None:
        metadata.string("user_id")  # a name that a service gives its own users; no answer depends on it
        metadata.done()
    fields.only("service_tier", "auto", "standard_only")
    for name in ("container", "diagnostics", "inference_geo"):
        fields.only(name)
    _foreign(fields)
    fields.done()
    return request


def parse_count_tokens(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /v1/messages/count_tokens`: a request whose prompt alone counts. Raises BadRequest."""
    fields = parse_object(body)
    request = _prompt(fields)
    _thinking(fields, request)
    openai.take_routing(fields, request)
    _foreign(fields)
    fields.done()
    return request


def _foreign(fields: Fields) -> None:
    """What belongs to Anthropic's own service."""
    for name in ("context_management", "user_profile_id", "workspace_id"):
        fields.only(name)
    fields.only("mcp_servers", [])


def token_count(tokens: int) -> dict[str, Any]:
    """The reply of `count_tokens`."""
    return {"input_tokens": tokens}


def _prompt(fields: Fields) -> chat.GenerateRequest:
    """Everything that the model reads."""
    model = openai.model_name(fields)
    messages = list(_system(fields))
    items = fields.array("messages")
    if not items:
        raise fields.fail("messages", "must hold at least one message.", "missing_required_parameter")
    for i, item in enumerate(items):
        messages += _message(fields.inside(f"messages[{i}]", item))
    if messages[-1].role == "assistant":
        # Its text would be the beginning of the answer, and nothing here makes sure of that.
        what = "must not end with an assistant's: an answer cannot be begun for the model."
        raise fields.fail("messages", what, "unsupported_value")
    request = chat.GenerateRequest(model, messages)
    items = fields.array("tools") or []
    request.tools = [_tool(fields.inside(f"tools[{i}]", one)) for i, one in enumerate(items)]
    names = [tool.name for tool in request.tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise fields.fail(f"tools[{i}]", f"has the name of another tool, {name!r}.", "invalid_value")
    _tool_choice(fields, request)
    _cache_control(fields)
    fields.only("speed", "standard")
    return request


def _cache_control(fields: Fields) -> None:
    """What may be cached. Prefixes of prompts are cached unasked, so this asks for nothing more."""
    control = fields.object("cache_control")
    if control is not None:
        sort, ttl = control.string("type"), control.string("ttl")
        if sort != "ephemeral":
            raise control.fail("type", f"must be ephemeral, not {sort!r}.", "invalid_value")
        if ttl not in (None, "5m", "1h"):
            raise control.fail("ttl", f"must be 5m or 1h, not {ttl!r}.", "invalid_value")
        control.done()


def _tool(fields: Fields) -> chat.Tool:
    sort = fields.string("type")
    if sort not in (None, "custom"):
        raise fields.fail("type", f"is supported only as custom so far, not {sort!r}.", "unsupported_value")
    name = fields.string("name")
    if not name:
        raise fields.fail("name", "must be given.", "missing_required_parameter")
    description = fields.string("description")
    schema = fields.take("input_schema")
    if schema is None:
        raise fields.fail("input_schema", "must be given.", "missing_required_parameter")
    fields.inside("input_schema", schema)
    fields.json("input_schema", schema)
    fields.only("strict", False)  # nothing enforces it yet
    fields.only("defer_loading", False)
    fields.only("eager_input_streaming", True)  # arguments are told as they come
    fields.only("allowed_callers", ["direct"])
    fields.only("input_examples", [])
    _cache_control(fields)
    fields.done()
    return chat.Tool(name, description, schema)


def _tool_choice(fields: Fields, request: chat.GenerateRequest) -> None:
    choice = fields.object("tool_choice")
    if choice is None:
        return
    sort = choice.string("type")
    if sort not in ("auto", "none"):
        # The others would have to be enforced.
        raise choice.fail("type", f"is supported only as auto or none so far, not {sort!r}.", "unsupported_value")
    request.tool_choice = sort
    if sort == "auto":
        request.parallel_tool_calls = not choice.boolean("disable_parallel_tool_use")
    choice.done()


def _thinking(fields: Fields, request: chat.GenerateRequest) -> None:
    """`thinking` and `output_config`, which say in two ways how hard to think."""
    sort, effort = None, None
    thinking = fields.object("thinking")
    if thinking is not None:
        sort = thinking.string("type")
        if sort == "enabled":
            effort = _budget(thinking, request)
        elif sort not in ("disabled", "adaptive"):
            what = f"is supported only as enabled, adaptive or disabled so far, not {sort!r}."
            raise thinking.fail("type", what, "unsupported_value")
        if sort != "disabled":
            thinking.only("display", "summarized")  # thoughts are told as they are
        thinking.done()
    config = fields.object("output_config")
    if config is not None:
        named = config.string("effort")
        if named not in (None, *_EFFORTS):
            raise config.fail("effort", f"must be one of {', '.join(_EFFORTS)}, not {named!r}.", "invalid_value")
        if named not in (None, "high") and sort == "disabled":
            what = "says how hard to think, and 'thinking' says not to."
            raise config.fail("effort", what, "unsupported_value")
        config.only("format")
        config.done()
        effort = named or effort
    request.reasoning_effort = "none" if sort == "disabled" else effort


def _budget(thinking: Fields, request: chat.GenerateRequest) -> str:
    budget = thinking.integer("budget_tokens", BUDGET_MIN)
    if budget is None:
        raise thinking.fail("budget_tokens", "must be given.", "missing_required_parameter")
    if request.max_tokens is not None and budget >= request.max_tokens:
        raise thinking.fail("budget_tokens", "must be less than 'max_tokens'.", "invalid_value")
    return next((effort for most, effort in _BUDGETS if budget < most), "high")


# --- messages --------------------------------------------------------------------------------------------


def _system(fields: Fields) -> Iterator[chat.Message]:
    value = fields.take("system")
    if value is not None and (text := _text(fields, "system", value)):
        yield chat.Message("system", text)


def _text(fields: Fields, name: str, value: Any) -> str:
    """The text of a string, or of an array of blocks of text."""
    if isinstance(value, str):
        return fields.checked(name, value)
    return "\n".join(_text_block(block) for _, block in _blocks(fields, name, value, ("text",)))


def _blocks(fields: Fields, name: str, value: Any, sorts: tuple[str, ...]) -> Iterator[tuple[str, Fields]]:
    """Blocks with their types, which must be among these."""
    if not isinstance(value, list):
        raise fields.fail(name, "must be a string or an array of blocks.", "invalid_type")
    for i, one in enumerate(value):
        block = fields.inside(f"{name}[{i}]", one)
        sort = block.string("type")
        if sort not in sorts:
            what = f"may only be {' or '.join(sorts)} so far, not {sort!r}."
            raise block.fail("type", what, "unsupported_value")
        yield sort, block


def _text_block(block: Fields) -> str:
    text = _given(block, "text")
    block.only("citations", [])
    _cache_control(block)
    block.done()
    return text


def _given(block: Fields, name: str) -> str:
    value = block.string(name)
    if value is None:
        raise block.fail(name, "must be given.", "missing_required_parameter")
    return value


def _message(fields: Fields) -> list[chat.Message]:
    role = fields.string("role")
    if role not in ("user", "assistant", "system"):
        raise fields.fail("role", f"must be user, assistant or system, not {role!r}.", "invalid_value")
    content = fields.take("content")
    fields.done()
    if isinstance(content, str):
        return [chat.Message(role, fields.checked("content", content))]
    if content == [] or content is None:
        raise fields.fail("content", "must not be empty.", "missing_required_parameter")
    if role == "system":
        return [chat.Message(role, _text(fields, "content", content))]
    if role == "user":
        return _user(fields, content)
    return _assistant(fields, content)


def _user(fields: Fields, content: Any) -> list[chat.Message]:
    messages: list[chat.Message] = []
    for sort, block in _blocks(fields, "content", content, ("text", "tool_result")):
        if sort == "tool_result":
            messages.append(_result(block))
        elif messages and messages[-1].role == "user":
            messages[-1].content += "\n" + _text_block(block)
        else:
            messages.append(chat.Message("user", _text_block(block)))
    return messages


def _result(block: Fields) -> chat.Message:
    id = block.string("tool_use_id")
    if not id:
        raise block.fail("tool_use_id", "must be given.", "missing_required_parameter")
    value = block.take("content")
    content = "" if value is None else _text(block, "content", value)
    failed = block.boolean("is_error") or False
    block.only("toolset_name")
    _cache_control(block)
    block.done()
    return chat.Message("tool", content, tool_call_id=id, failed=failed)


_ORDER = ("thinking", "text", "tool_use")


def _assistant(fields: Fields, content: Any) -> list[chat.Message]:
    """Thoughts, then text, then calls are one message: what comes out of this order begins another."""
    messages: list[chat.Message] = []
    last = ""
    for sort, block in _blocks(fields, "content", content, _ORDER):
        if not messages or _ORDER.index(sort) < _ORDER.index(last):
            messages.append(chat.Message("assistant", ""))
        message = messages[-1]
        if sort == "tool_use":
            message.tool_calls.append(_call(block))
        elif sort == "text":
            text = _text_block(block)
            message.content = f"{message.content}\n{text}" if last == sort else text
        else:
            thought = _given(block, "thinking")
            block.string("signature")  # of whoever thought it; nothing here can tell whether it is true
            block.done()
            message.reasoning = f"{message.reasoning}\n{thought}" if last == sort else thought
        last = sort
    return messages


def _call(block: Fields) -> chat.ToolCall:
    id, name = block.string("id"), block.string("name")
    if not id:
        raise block.fail("id", "must be given.", "missing_required_parameter")
    if not name:
        raise block.fail("name", "must be given.", "missing_required_parameter")
    value = block.take("input")
    if value is None:
        raise block.fail("input", "must be given.", "missing_required_parameter")
    block.inside("input", value)
    block.only("caller", {"type": "direct"})
    block.only("toolset_name")
    _cache_control(block)
    block.done()
    return chat.ToolCall(id, name, block.json("input", value))
