# SPDX-License-Identifier: Apache-2.0
"""Kinds of arguments, and what is a sound value of each. Pure: nothing here looks at the machine.

No value begins with a dash, so that none can pass for an option; none holds a NUL or a control character.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Value = str | int

UNIT, PATH, STRING, INT = "unit", "path", "string", "int"
LENGTH_MAX = 4096  # bytes of any argument (PATH_MAX)

_SUFFIXES = "service|socket|target|timer|mount|automount|swap|path|slice|scope|device"
# unit_name_is_valid(): these characters, at most 255, one @ at most and not first.
_UNIT = re.compile(rf"[A-Za-z0-9:_.\\-]{{1,250}}(@[A-Za-z0-9:_.\\-]{{0,250}})?\.({_SUFFIXES})")
_NAME = re.compile(r"[A-Za-z0-9_.@+:,~][A-Za-z0-9_.@+:,~ \\-]{0,254}")
_TIME = re.compile(r"[A-Za-z0-9:+][A-Za-z0-9 :+.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTENT = re.compile(r"[0-9a-f]{64}|absent")
_PROPERTY = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")


class Unsound(Exception):
    """An argument is not what its parameter takes: `parameter` is its name, `reason` says why."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(f"{parameter}: {reason}")
        self.parameter, self.reason = parameter, reason


class Parameter:
    """A typed parameter of a tool. `minimum` and `maximum` hold for numbers, the others for strings."""

    __slots__ = ("choices", "description", "kind", "maximum", "minimum", "name", "optional", "pattern")

    def __init__(
        self,
        name: str,
        kind: str,
        description: str,
        *,
        optional: bool = False,
        minimum: int = 0,
        maximum: int = 2**31,
        choices: Sequence[str] = (),
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self.name, self.kind, self.description, self.optional = name, kind, description, optional
        self.minimum, self.maximum = minimum, maximum
        self.choices = tuple(choices)
        self.pattern = pattern

    def parse(self, text: str) -> Value:
        """The value of an argument. Raises Unsound."""
        if not text or len(text.encode("utf-8", "surrogatepass")) > LENGTH_MAX:
            raise Unsound(self.name, "empty, or longer than 4096 bytes")
        if any(
            ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in text
        ):
            raise Unsound(self.name, "control characters")
        if self.kind == INT:
            return self._number(text)
        if text.startswith("-") and self.kind != UNIT:  # a unit may: "-.mount"
            raise Unsound(self.name, "begins with a dash")
        if self.kind == UNIT:
            return unit_name(text, self.name)
        if self.kind == PATH:
            return absolute_path(text, self.name)
        if self.choices and text not in self.choices:
            raise Unsound(self.name, f"none of {', '.join(self.choices)}")
        if self.pattern is not None and not self.pattern.fullmatch(text):
            raise Unsound(self.name, "characters that it does not take")
        return text

    def _number(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII):
            raise Unsound(self.name, "no number")
        number = int(text)
        if not self.minimum <= number <= self.maximum:
            raise Unsound(self.name, f"not from {self.minimum} to {self.maximum}")
        return number


def unit_name(text: str, parameter: str = "target_unit") -> str:
    """A unit's name, its suffix included. Raises Unsound. Templates (`x@.service`) cannot be acted on."""
    match = _UNIT.fullmatch(text)
    if match is None or len(text) > 255 or match[1] == "@":
        raise Unsound(parameter, "no name of a unit, such as nginx.service")
    return text


def absolute_path(text: str, parameter: str = "path") -> str:
    """A path that is absolute and says where it leads: no `..`, no `.`, nothing empty. Raises Unsound."""
    if text == "/":
        return text
    parts = text.split("/")
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
        raise Unsound(parameter, "no absolute path in its plain form")
    if any(len(part.encode()) > 255 for part in parts):
        raise Unsound(parameter, "a name longer than 255 bytes")
    return text


def file_name() -> re.Pattern[str]:
    """What the name of a file in a folder may look like."""
    return _NAME


def time_word() -> re.Pattern[str]:
    """What systemd.time(7) may look like, without a leading dash."""
    return _TIME


def digest() -> re.Pattern[str]:
    """SHA-256 in hexadecimal."""
    return _DIGEST


def content() -> re.Pattern[str]:
    """SHA-256 of a file's content in hexadecimal, or that there is no file."""
    return _CONTENT


def property_name() -> re.Pattern[str]:
    return _PROPERTY


def parse(parameters: Sequence[Parameter], arguments: Sequence[str]) -> dict[str, Value]:
    """The values of a call by parameter, in order; optional ones that are left out, or empty, are absent.

    Raises Unsound: for too many, for one that is missing, for one of the wrong kind.
    """
    if len(arguments) > len(parameters):
        raise Unsound("args", f"{len(arguments)} arguments for {len(parameters)} parameters")
    values: dict[str, Value] = {}
    for index, parameter in enumerate(parameters):
        text = arguments[index] if index < len(arguments) else ""
        if text:
            values[parameter.name] = parameter.parse(text)
        elif not parameter.optional:
            raise Unsound(parameter.name, "missing")
    return values
