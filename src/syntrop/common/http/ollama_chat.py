# SPDX-License-Identifier: Apache-2.0
"""Ollama's `/api/chat` and `/api/generate`, the request: its JSON in, a chat or a prompt out. Pure.

Ollama's calls need no identifiers: those that come without are numbered, and the results of tools find theirs by
the tool's name, or else by their order. The reply is in `ollama_reply`.
"""

from __future__ import annotations

from syntrop.common.http import chat, ollama, openai
from syntrop.common.http.fields import parse_object
from syntrop.common.http.openai_chat import function_tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.fields import Fields

_ROLES = ("system", "user", "assistant", "tool")


def parse_chat(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /api/chat`. Raises BadRequest."""
    fields = parse_object(body)
    model = ollama.model_name(fields)
    reader = _Messages()
    for i, item in enumerate(fields.array("messages") or ()):
        reader.add(fields.inside(f"messages[{i}]", item))
    request = chat.GenerateRequest(model, reader.messages)
    request.load = not reader.messages
    items = fields.array("tools") or []
    request.tools = [_tool(fields.inside(f"tools[{i}]", one)) for i, one in enumerate(items)]
    names = [tool.name for tool in request.tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise fields.fail(f"tools[{i}]", f"has the name of another tool, {name!r}.", "invalid_value")
    ollama.take_think(fields, request)
    _common(fields, request)
    return request


def parse_generate(body: bytes) -> chat.GenerateRequest:
    """The body of `POST /api/generate`. Raises BadRequest."""
    fields = parse_object(body)
    model = ollama.model_name(fields)
    prompt = fields.string("prompt") or ""
    raw = fields.boolean("raw") or False
    for name in ("system", "template", "suffix"):
        if raw or name != "system":
            fields.only(name, "")
    system = fields.string("system")
    if raw:
        request = chat.GenerateRequest(model, None, prompt)
        fields.only("think", False)  # in a text that is continued as it is no marks mean anything
    else:
        messages = [chat.Message("system", system)] if system else []
        request = chat.GenerateRequest(model, [*messages, chat.Message("user", prompt)])
        ollama.take_think(fields, request)
    request.load = not prompt
    fields.only("images", [])
    fields.only("context", [])
    for name in ("width", "height", "steps"):
        fields.only(name, 0)
    _common(fields, request)
    return request


def _common(fields: Fields, request: chat.GenerateRequest) -> None:
    ollama.take_stream(fields, request)
    ollama.take_options(fields, request)
    ollama.take_logprobs(fields, request)
    ollama.take_keep_alive(fields, request)
    openai.take_routing(fields, request)
    fields.done()


def _tool(fields: Fields) -> chat.Tool:
    sort = fields.string("type")
    if sort not in (None, "function"):
        raise fields.fail("type", f"is supported only as function so far, not {sort!r}.", "unsupported_value")
    function = fields.object("function")
    if function is None:
        raise fields.fail("function", "must be given.", "missing_required_parameter")
    fields.done()
    return function_tool(function)


class _Messages:
    """Messages with the calls that are still to be answered, as (id, name), and all identifiers so far."""

    def __init__(self) -> None:
        self.messages: list[chat.Message] = []
        self._open: list[tuple[str, str]] = []
        self._ids: set[str] = set()
        self._count = 0

    def add(self, fields: Fields) -> None:
        role = fields.string("role")
        if role not in _ROLES:
            raise fields.fail("role", f"must be one of {', '.join(_ROLES)}, not {role!r}.", "invalid_value")
        message = chat.Message(role, "")
        content = fields.string("content")
        fields.only("images", [])
        if role == "assistant":
            message.reasoning = fields.string("thinking") or None
            items = fields.array("tool_calls") or ()
            message.tool_calls = [
                self._call(fields.inside(f"tool_calls[{i}]", one)) for i, one in enumerate(items)
            ]
        else:
            fields.only("thinking", "")
            fields.only("tool_calls", [])
        if role == "tool":
            message.tool_call_id = self._answered(fields)
        else:
            fields.only("tool_name", "")
            fields.only("tool_call_id", "")
        # What only thought or called has said nothing.
        if content is None and not message.tool_calls and message.reasoning is None:
            raise fields.fail("content", "must be given.", "missing_required_parameter")
        message.content = content or ""
        fields.done()
        self.messages.append(message)

    def _call(self, fields: Fields) -> chat.ToolCall:
        fields.only("type", "function")
        id = fields.string("id") or self._new_id()
        self._ids.add(id)
        function = fields.object("function")
        if function is None:
            raise fields.fail("function", "must be given.", "missing_required_parameter")
        fields.done()
        name = function.string("name")
        if not name:
            raise function.fail("name", "must be given.", "missing_required_parameter")
        function.integer("index", 0)
        function.string("description")
        value: Any = function.take("arguments")
        value = {} if value is None else value
        function.inside("arguments", value)
        function.done()
        self._open.append((id, name))
        return chat.ToolCall(id, name, function.json("arguments", value))

    def _new_id(self) -> str:
        while True:
            self._count += 1
            if (id := f"call_{self._count}") not in self._ids:
                return id

    def _answered(self, fields: Fields) -> str:
        """The call that a result is of."""
        id, name = fields.string("tool_call_id"), fields.string("tool_name")
        for i, one in enumerate(self._open):
            if one[0] == id if id else one[1] == name if name else True:
                del self._open[i]
                return one[0]
        what = "must name a call" if id or name else "is the result of no call"
        raise fields.fail(
            "tool_call_id" if id else "tool_name", f"{what} that an assistant made.", "invalid_value"
        )
