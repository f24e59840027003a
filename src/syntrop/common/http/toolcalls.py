# SPDX-License-Identifier: Apache-2.0
"""Calls of tools, told from the rest of an answer in a stream of text. Pure.

Every family of models writes calls in a way of its own (the sources are their published templates):

  Hermes, Qwen   <tool_call>{"name": …, "arguments": {…}}</tool_call>, once a call
  Qwen coder     <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>
  Mistral        [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]NAME[ARGS]{…}
  Llama 3        <|python_tag|>{"name": …, "parameters": {…}}, or such an object as the whole answer
  Granite, Phi   <|tool_call|>[…], <tool_call>[…], functools[…]
  DeepSeek       tool calls begin, tool call begin, `function`, tool sep, NAME … {…} … tool call end: all in marks
                 with a wide bar and a low block for a space

A call is told when it is complete, so that nobody gets half of one. What turns out to be no call is told as the
text that it is: nothing is lost.
"""

from __future__ import annotations

import json
import re

from syntrop.common.http import chat, markers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Calls = list[tuple[str, str]]  # name, JSON text of the arguments

_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"

# Opening mark: the marks that close it (none: the end of the answer does).
_MARKS: dict[str, tuple[str, ...]] = {
    "<tool_call>": ("</tool_call>",),
    "<|tool_call|>": ("<|/tool_call|>", "<|end_tool_call|>"),
    "<|python_tag|>": ("<|eom_id|>",),
    "[TOOL_CALLS]": (),
    "functools[": (),
    "<\uff5ctool\u2581call\u2581begin\uff5c>": ("<\uff5ctool\u2581call\u2581end\uff5c>",),
}
# Written around calls, and nothing in themselves.
_AROUND = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")


class ToolCallFilter:
    """Splits a text that comes in pieces into `chat.Delta`, `chat.CallStarted` and `chat.CallArguments`.

    `names` are the tools that may be called. `new_id` makes the identifiers of calls.
    """

    def __init__(self, names: Iterable[str], new_id: Callable[[], str], *, choice: int = 0) -> None:
        self._names = frozenset(names)
        self._new_id = new_id
        self._choice = choice
        self._rest = ""
        self._mark: str | None = None  # the mark that is open
        self._space = ""  # before it
        self._bare = True  # nothing but whitespace has come: the answer may be a call without a mark
        self.calls = 0

    @property
    def held(self) -> int:
        """How many of the characters that came are held back."""
        return len(self._rest) + (0 if self._mark is None else len(self._space) + len(self._mark))

    def feed(self, text: str) -> list[chat.Delta | chat.CallStarted | chat.CallArguments]:
        self._rest += text
        return list(self._split())

    def finish(self) -> list[chat.Delta | chat.CallStarted | chat.CallArguments]:
        """What was held back, at the end of the answer: a model may end without closing its last call."""
        rest, self._rest = self._rest, ""
        mark, self._mark = self._mark, None
        if mark is not None:
            calls = _parse(mark, rest)
            return self._told(calls) if calls else self._text(self._space + mark + rest)
        if self._bare and (calls := self._bare_calls(rest)):
            return self._told(calls)
        return self._text(rest)

    def _split(self) -> Iterable[chat.Delta | chat.CallStarted | chat.CallArguments]:
        while True:
            if self._mark is not None:
                found = markers.find(self._rest, _MARKS[self._mark])
                if found is None:
                    return
                at, close = found
                inside, self._rest = self._rest[:at], self._rest[at + len(close) :]
                mark, self._mark = self._mark, None
                calls = _parse(mark, inside)
                yield from self._told(calls) if calls else self._text(self._space + mark + inside + close)
                continue
            marks = (*_MARKS, *_AROUND)
            if self._bare:
                start = self._rest.lstrip()
                if not start:
                    return
                if start[0] in "{[" and not any(start.startswith(mark) for mark in marks):
                    return  # a call without a mark, or an answer in JSON: the end will tell
                if not any(mark.startswith(start) or start.startswith(mark) for mark in marks):
                    self._bare = False
            found = markers.find(self._rest, marks)
            if found is None:
                size = len(self._rest) - markers.held(self._rest, marks)
                # Whitespace may turn out to stand before a call, where it means nothing.
                size = len(self._rest[:size].rstrip())
                text, self._rest = self._rest[:size], self._rest[size:]
                yield from self._text(text)
                return
            at, mark = found
            before, self._rest = self._rest[:at], self._rest[at + len(mark) :]
            text = before.rstrip()
            self._space = before[len(text) :]
            yield from self._text(text)
            self._bare = False
            if mark in _MARKS:
                self._mark = mark

    def _text(self, text: str) -> list[chat.Delta | chat.CallStarted | chat.CallArguments]:
        # Whitespace between and behind calls is layout.
        return [chat.Delta(text, choice=self._choice)] if text.strip() or (text and not self.calls) else []

    def _told(self, calls: Calls) -> list[chat.Delta | chat.CallStarted | chat.CallArguments]:
        told: list[chat.Delta | chat.CallStarted | chat.CallArguments] = []
        for name, arguments in calls:
            told.append(chat.CallStarted(self.calls, self._new_id(), name, choice=self._choice))
            told.append(chat.CallArguments(self.calls, arguments, choice=self._choice))
            self.calls += 1
        return told

    def _bare_calls(self, text: str) -> Calls | None:
        """Calls without a mark: only where the whole answer is one, or a list of them, of tools that there are."""
        calls = _objects(text.strip())
        if calls and all(name in self._names for name, _ in calls):
            return calls
        return None


def _parse(mark: str, text: str) -> Calls | None:
    """The calls behind a mark, or None when it is none."""
    text = text.strip()
    if mark == "functools[":
        return _objects("[" + text)
    if mark == "[TOOL_CALLS]" and "[ARGS]" in text:
        calls = [_named(*part.partition("[ARGS]")[::2]) for part in text.split("[TOOL_CALLS]")]
        return None if None in calls else [call for call in calls if call is not None]
    if _SEPARATOR in text:
        name, _, rest = text.partition(_SEPARATOR)[2].partition("\n")
        call = _named(name or "", re.sub(r"^```(json)?\n|\n?```$", "", rest.strip()))
        return call and [call]
    if text.startswith("<function="):
        return _coder(text)
    return _objects(text)


def _named(name: str, arguments: str) -> tuple[str, str] | None:
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return (name.strip(), _dump(value)) if name.strip() and isinstance(value, dict) else None


def _objects(text: str) -> Calls | None:
    """JSON objects with a name and arguments: one, a list, or several behind each other."""
    decoder = json.JSONDecoder()
    values: list[Any] = []
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        values += value if isinstance(value, list) else [value]
        while at < len(text) and text[at] in " \t\r\n;,":
            at += 1
    calls = [_object(value) for value in values]
    return None if None in calls else [call for call in calls if call is not None]


def _object(value: object) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return None
    if isinstance(inner := value.get("function"), dict):  # in the shape of OpenAI's own
        value = inner
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, _dump(arguments)


_FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)\s*>(.*?)</parameter>\s*", re.DOTALL)


def _coder(text: str) -> Calls | None:
    """Calls in tags. A value that is JSON is taken as such, any other is a string."""
    calls = []
    at = 0
    while at < len(text):
        function = _FUNCTION.match(text, at)
        if function is None:
            return None
        at = function.end()
        arguments = {}
        body, inner = function[2].strip(), 0
        while inner < len(body):
            parameter = _PARAMETER.match(body, inner)
            if parameter is None:
                return None
            inner = parameter.end()
            value = parameter[2].removeprefix("\n").removesuffix("\n")
            try:
                arguments[parameter[1]] = json.loads(value)
            except ValueError:
                arguments[parameter[1]] = value
        calls.append((function[1], _dump(arguments)))
    return calls


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
