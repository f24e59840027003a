# SPDX-License-Identifier: Apache-2.0
"""Calls of tools as servers stream them, with indices that hold. Pure.

Some servers leave `index` out, some say 0 for every call, and clients then take several calls for one. What tells
calls apart is then the id, or that a name is given when the call before it is complete.
"""

from __future__ import annotations

import json

from syntrop.common.http import chat
from syntrop.routerd.providers.text import Joiner, mended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Told = list[chat.Event]


CALLS_MAX = 256  # of one answer


class _Call:
    __slots__ = ("arguments", "id", "joiner", "key", "name", "started", "told")

    def __init__(self, key: int | None) -> None:
        self.key = key  # the index that the server gave
        self.id = ""
        self.name = ""
        self.joiner = Joiner()
        self.arguments: list[str] = []
        self.started = False
        self.told = 0  # how many of the arguments' pieces


class Calls:
    """Those of one choice, told one behind the other, even where they are written side by side: not every dialect
    can mix them. `new_id` makes identifiers for calls that come without."""

    __slots__ = ("_calls", "_choice", "_current", "_new_id")

    def __init__(self, new_id: Callable[[], str], *, choice: int = 0) -> None:
        self._calls: list[_Call] = []
        self._choice = choice
        self._current = 0  # the one that is being told
        self._new_id = new_id

    def __len__(self) -> int:
        return len(self._calls)

    def feed(self, piece: dict[str, Any]) -> Told:
        """One entry of `tool_calls`. Raises ValueError when it is none."""
        function = piece.get("function")
        if function is None:
            function = {}
        key, id = piece.get("index"), piece.get("id")
        if not isinstance(function, dict) or not isinstance(id, str | None) or type(key) not in (int, type(None)):
            raise ValueError("a call of a tool that is ill-formed")
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(name, str | None) or not isinstance(arguments, str | None):
            raise ValueError("a call of a tool that is ill-formed")
        call = self._find(key, id or "", name or "")
        call.id = call.id or mended(id or "")
        call.name = call.name or mended(name or "")
        if arguments := call.joiner.feed(arguments or ""):
            if call in self._calls[: self._current] and arguments.strip():
                raise ValueError("arguments behind the end of a call")
            call.arguments.append(arguments)
        return self._advance()

    def end(self) -> Told:
        """The answer is complete. Raises ValueError where a call has no name."""
        for call in self._calls[self._current :]:
            if not call.name:
                raise ValueError("a call of a tool without a name")
            if rest := call.joiner.end():
                call.arguments.append(rest)
            if not "".join(call.arguments).strip():
                call.arguments.append("{}")
        told: Told = []
        for index in range(self._current, len(self._calls)):
            told += self._tell(index)
        return told

    def _find(self, key: int | None, id: str, name: str) -> _Call:
        """The call that an entry goes on with, or a new one."""
        known = [one for one in self._calls if one.key == key] if key is not None else self._calls
        if id and (same := [one for one in known if one.id == id]):
            return same[-1]
        last = known[-1] if known else None
        if last is not None and not self._begins(last, id, name):
            return last
        if len(self._calls) == CALLS_MAX:
            raise ValueError(f"over {CALLS_MAX} calls of tools")
        call = _Call(key)
        self._calls.append(call)
        return call

    def _begins(self, last: _Call, id: str, name: str) -> bool:
        """Whether an entry begins another call than the one before it in its place."""
        if id and last.id:
            return True  # another id, since the same was looked for
        if not name or not last.name:
            return False
        return name != last.name or _complete(last)

    def _advance(self) -> Told:
        """Tell what may be told: the current call, and the next ones as soon as it is complete."""
        told = self._tell(self._current)
        while self._current + 1 < len(self._calls) and _complete(self._calls[self._current]):
            self._current += 1
            told += self._tell(self._current)
        return told

    def _tell(self, index: int) -> Told:
        call = self._calls[index]
        if not call.name:
            return []
        told: Told = []
        if not call.started:
            call.started = True
            call.id = call.id or self._new_id()
            told.append(chat.CallStarted(index, call.id, call.name, choice=self._choice))
        text = "".join(call.arguments[call.told :])
        call.told = len(call.arguments)
        if text:
            told.append(chat.CallArguments(index, text, choice=self._choice))
        return told


def _complete(call: _Call) -> bool:
    if not call.name:
        return False
    try:
        return isinstance(json.loads("".join(call.arguments)), dict)
    except (ValueError, RecursionError):
        return False
