# SPDX-License-Identifier: Apache-2.0
"""Interfaces at run time: loading them, and checking values against them in both directions.

A value is checked and *normalised* in one walk: absent and null nullable fields are left out, integers that came
as decimal strings (what some JSON writers do above 2^53) become integers, integers given for a float become one.
"""

from __future__ import annotations

import json
import os
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

FOLDER: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "interfaces")
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


class Mismatch(Exception):
    """A value does not fit its type; `path` names the field, as in `slices[2].role`."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Method:
    """A method's signature."""

    __slots__ = ("input", "name", "output")

    def __init__(self, name: str, input: dict[str, Any], output: dict[str, Any]) -> None:
        self.name = name
        self.input = input
        self.output = output


_PLAIN = {"string": str, "bool": bool, "int": int}


class _Row:
    """A struct of plain types as most writers have it: every field there, in order, and of the very type.

    Long lists are checked much faster this way; what does not fit may still be right, and is looked at again.
    """

    __slots__ = ("_integers", "_names", "_types")

    def __init__(self, names: list[str], kinds: list[str]) -> None:
        self._names = names
        self._types = [_PLAIN[kind] for kind in kinds]
        self._integers = [name for name, kind in zip(names, kinds, strict=True) if kind == "int"]

    def fits(self, value: Any) -> bool:
        if type(value) is not dict or list(value) != self._names or list(map(type, value.values())) != self._types:
            return False
        for name in self._integers:  # noqa: SIM110 - in a loop of ten thousand, a generator is half of the time
            if not _INT_MIN <= value[name] <= _INT_MAX:
                return False
        return True


class Interface:
    """One interface in its compiled form."""

    __slots__ = ("_rows", "description", "errors", "methods", "name", "types")

    def __init__(self, compiled: dict[str, Any]) -> None:
        self.name: str = compiled["name"]
        self.description: str = compiled["description"]
        self.types: dict[str, Any] = compiled["types"]
        self._rows: dict[str, _Row | None] = {}
        # A method's parameters and an error's are always a struct: kept as its fields.
        self.methods = {
            name: Method(name, taken[1], given[1]) for name, (taken, given) in compiled["methods"].items()
        }
        self.errors: dict[str, dict[str, Any]] = {name: t[1] for name, t in compiled["errors"].items()}

    def check(self, fields: dict[str, Any], value: Any, path: str = "") -> dict[str, Any]:
        """`value` normalised to a struct of `fields`. Raises Mismatch."""
        if type(value) is not dict:
            raise Mismatch(path or "parameters")
        result = {}
        for name, kind in fields.items():
            given = value.get(name)
            if given is None:
                if kind[0] == "?":
                    continue
                raise Mismatch(f"{path}.{name}" if path else name)
            if kind[0] == "?":
                kind = kind[1]
            # The plain types that make up most traffic, without a call.
            known = type(given)
            if (known is str and kind == "string") or (known is bool and kind == "bool"):
                result[name] = given
            else:
                result[name] = self._check(kind, given, f"{path}.{name}" if path else name)
        if len(value) > len(result):
            for name in value:
                if name not in fields:
                    raise Mismatch(f"{path}.{name}" if path else str(name))
        return result

    def _row(self, content: Any) -> _Row | None:
        """The plain form of a list's elements, where they are named structs of plain types."""
        if type(content) is str or content[0] != "ref":
            return None
        name = content[1]
        if name not in self._rows:
            struct = self.types[name]
            fields = struct[1] if struct[0] == "struct" else {}
            kinds = [kind[1] if kind[0] == "?" else kind for kind in fields.values()]
            plain = bool(kinds) and all(type(kind) is str and kind in _PLAIN for kind in kinds)
            self._rows[name] = _Row(list(fields), kinds) if plain else None
        return self._rows[name]

    def _check(self, kind: Any, value: Any, path: str) -> Any:
        known = type(value)
        if kind == "string":
            if known is str:
                return value
        elif kind == "int":
            # bool is an int to Python, never to Varlink.
            if known is int and _INT_MIN <= value <= _INT_MAX:
                return value
            if known is str:
                return _decimal(value, path)
        elif kind == "bool":
            if known is bool:
                return value
        elif kind == "float":
            # JSON has no infinities; x - x is NaN for them and for NaN.
            if (known is float and value - value == 0.0) or known is int:
                return float(value)
        elif kind == "object":
            if known is dict:
                return value
        else:
            return self._check_composite(kind, value, path)
        raise Mismatch(path)

    def _check_composite(self, kind: Any, value: Any, path: str) -> Any:
        head, content = kind
        if head == "ref":
            return self._check(self.types[content], value, path)
        if head == "struct":
            return self.check(content, value, path)
        if head == "?":
            return None if value is None else self._check(content, value, path)
        if head == "[]":
            if type(value) is list:
                if content == "float" and all(type(v) is float for v in value):
                    if all(v - v == 0.0 for v in value):  # embeddings: long, and plain already
                        return value
                    raise Mismatch(path)
                if (row := self._row(content)) is not None:
                    return [
                        v if row.fits(v) else self._check(content, v, f"{path}[{i}]") for i, v in enumerate(value)
                    ]
                return [self._check(content, v, f"{path}[{i}]") for i, v in enumerate(value)]
        elif head == "{}":
            if type(value) is dict and all(type(k) is str for k in value):
                return {k: self._check(content, v, f"{path}[{k}]") for k, v in value.items()}
        elif head == "enum" and type(value) is str and value in content:
            return value
        raise Mismatch(path)


def _decimal(text: str, path: str) -> int:
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise Mismatch(path)
    value = int(text)
    # Smaller ones have no reason to come as a string.
    if abs(value) <= 2**53 or not _INT_MIN <= value <= _INT_MAX:
        raise Mismatch(path)
    return value


_loaded: dict[str, Interface] = {}


def load(name: str, folder: str | None = None) -> Interface:
    """The interface `name` of this package. Raises FileNotFoundError when there is none."""
    interface = _loaded.get(name)
    if interface is None:
        interface = _loaded[name] = Interface(_compiled(folder or FOLDER, name))
    return interface


def find(name: str) -> Interface | None:
    """The interface `name` where this package has it."""
    try:
        return load(name)
    except FileNotFoundError:
        return None


def _compiled(folder: str, name: str) -> dict[str, Any]:
    if "/" in name or "\0" in name:
        raise FileNotFoundError(name)
    with open(os.path.join(folder, name + ".varlink"), "rb") as file:
        source = file.read()
    try:
        with open(os.path.join(folder, name + ".idl.json"), "rb") as file:
            compiled: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        compiled = {}
    # Installers do not keep times, so the cache says itself which source it was made from.
    if compiled.get("crc") != crc32(source):
        from syntrop.common.varlink.compile import compile_interface  # a checkout that was not built

        compiled = compile_interface(source.decode())
    compiled["description"] = source.decode()
    return compiled


def parse(description: str) -> Interface:
    """An interface from its definition. Raises compile.InvalidInterface."""
    from syntrop.common.varlink.compile import compile_interface

    return Interface(compile_interface(description) | {"description": description})
