# SPDX-License-Identifier: Apache-2.0
"""What form of a conversation a template reads: found out by letting it write some small ones.

Templates differ in whether a message's content may be a list of parts, or nothing at all beside calls of tools,
in whether a call's arguments are an object or JSON, and in how long its number is; none of them says so. Where a
template writes a marker as it should stand in a text, it reads the form that the marker came in.
"""

from __future__ import annotations

import json
from itertools import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Render = Callable[[list[dict[str, Any]]], str | None]  # None where the template fails

_MARK = "kYw7q"  # spells nothing that a template looks for
_IDENTIFIER = "call_0123456789abcdef"
_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
PROBE_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "probe", "description": "x", "parameters": _PARAMETERS}}
]


class Forms:
    """The forms that one template reads; each is found out when it is first needed."""

    __slots__ = ("_calls", "_parts", "_render", "_strings")

    def __init__(self, render: Render) -> None:
        self._render = render
        self._strings: bool | None = None
        self._parts: bool | None = None
        self._calls: tuple[bool, bool, bool] | None = None

    def shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same conversation in a form that the template reads, as far as there is one."""
        result = [dict(message) for message in messages]
        if any(isinstance(message.get("content"), list) for message in result) and not self._takes_parts():
            for message in result:
                message["content"] = _joined(message.get("content"))
        elif not self._takes_strings():
            for message in result:
                if isinstance(content := message.get("content"), str):
                    message["content"] = [{"type": "text", "text": content}]
        if any(message.get("tool_calls") for message in result):
            form = self._call_form()
            for message in result:
                _shape_calls(message, *form)
        return result

    def _takes_parts(self) -> bool:
        if self._parts is None:
            self._parts = self._shows([{"type": "text", "text": _MARK}])
        return self._parts

    def _takes_strings(self) -> bool:
        if self._strings is None:
            # Only one that is sure to read parts is given them in place of a text.
            self._strings = self._shows(_MARK) or not self._takes_parts()
        return self._strings

    def _shows(self, content: object) -> bool:
        text = self._render([{"role": "user", "content": content}])
        return text is not None and _MARK in text and f"'{_MARK}'" not in text and f'"{_MARK}"' not in text

    def _call_form(self) -> tuple[bool, bool, bool]:
        """Whether arguments are JSON, content beside calls is a text, and identifiers have nine characters."""
        if self._calls is None:
            forms = product((False, True), (False, True), (False, True))
            # Where none is read, calls are written nowhere, and nothing is to stand in their place.
            self._calls = next((form for form in forms if self._reads_calls(*form)), (False, True, False))
        return self._calls

    def _reads_calls(self, as_json: bool, as_text: bool, short: bool) -> bool:
        call = {
            "id": _IDENTIFIER,
            "type": "function",
            "function": {"name": "probe", "arguments": {_MARK: _MARK}},
        }
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "b", "tool_call_id": _IDENTIFIER, "name": "probe"},
        ]
        for message in messages:
            _shape_calls(message, as_json, as_text, short)
        text = self._render(messages)
        if text is None or _MARK not in text:
            return False
        if not as_text:
            # Nothing that is written as the word for it.
            other = self._render([{**message, "content": message["content"] or ""} for message in messages])
            if other is not None and text.count("None") > other.count("None"):
                return False
        # Written as Python writes an object, or as JSON within a string: the other form was expected.
        return f"'{_MARK}'" not in text and f'\\"{_MARK}' not in text


def _joined(content: object) -> object:
    """Parts as one text. Parts that are none stay as they are, for the template to refuse."""
    if not isinstance(content, list) or not all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return content
    return "\n".join(part["text"] for part in content)


def _shape_calls(message: dict[str, Any], as_json: bool, as_text: bool, short: bool) -> None:
    if as_text and message.get("content") is None:
        message["content"] = ""
    if short and "tool_call_id" in message:
        message["tool_call_id"] = _nine(message["tool_call_id"])
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        if as_json and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        identifier = _nine(call["id"]) if short else call["id"]
        calls.append({**call, "id": identifier, "function": {**call["function"], "arguments": arguments}})
    if calls:
        message["tool_calls"] = calls


def _nine(identifier: str) -> str:
    """Nine letters and digits, the same for the same identifier; what has that form already stays."""
    if len(identifier) == 9 and identifier.isascii() and identifier.isalnum():
        return identifier
    from zlib import crc32

    return f"{crc32(identifier.encode('utf-8', 'replace')):09d}"[-9:]
