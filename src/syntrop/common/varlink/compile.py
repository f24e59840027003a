# SPDX-License-Identifier: Apache-2.0
"""Interface definitions to their compiled form: JSON that a daemon loads without a parser.

The definition is read by the `varlink` package. Its scanner lets a member be defined twice and a type be named
that is nowhere defined; both are refused here. Types become

    "bool" "int" "float" "string" "object"    ["?", T] nullable    ["[]", T] array    ["{}", T] map
    ["enum", [name, …]]    ["struct", {field: T, …}]    ["ref", name]
"""

from __future__ import annotations

import json
import os
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".idl.json"


class InvalidInterface(ValueError):
    """The definition cannot be read, or contradicts itself."""


def _type(parsed: Any) -> Any:
    from varlink import scanner

    # The scanner stands an instance of bool, int, float or str for the plain types.
    if isinstance(parsed, bool):
        return "bool"
    if isinstance(parsed, int):
        return "int"
    if isinstance(parsed, float):
        return "float"
    if isinstance(parsed, str):
        return "string"
    if isinstance(parsed, set):
        return ["{}", ["struct", {}]]
    if isinstance(parsed, scanner._Object):
        return "object"
    if isinstance(parsed, scanner._Maybe):
        return ["?", _type(parsed.element_type)]
    if isinstance(parsed, scanner._Array):
        return ["[]", _type(parsed.element_type)]
    if isinstance(parsed, scanner._Dict):
        return ["{}", _type(parsed.element_type)]
    if isinstance(parsed, scanner._CustomType):
        return ["ref", parsed.name]
    if isinstance(parsed, scanner._Enum):
        return ["enum", list(parsed.fields)]
    if isinstance(parsed, scanner._Struct):
        return ["struct", {name: _type(t) for name, t in parsed.fields.items()}]
    raise InvalidInterface(f"unknown type {parsed!r}")


def _references(compiled: Any) -> list[str]:
    if isinstance(compiled, str):
        return []
    kind, content = compiled
    if kind == "ref":
        return [content]
    if kind == "struct":
        return [name for t in content.values() for name in _references(t)]
    if kind == "enum":
        return []
    return _references(content)


def compile_interface(description: str) -> dict[str, Any]:
    """The compiled form of one definition. Raises InvalidInterface."""
    from varlink import scanner

    try:
        parser = scanner.Scanner(description)
        parser.expect("interface")
        name = parser.expect("interface-name")
        parser.current_doc = ""
        members = []
        while not parser.end():
            members.append(parser.read_member())
    except SyntaxError as error:
        raise InvalidInterface(str(error)) from error

    types: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for member in members:
        if member.name in types or member.name in methods or member.name in errors:
            raise InvalidInterface(f"{name}.{member.name} is defined twice")
        if isinstance(member, scanner._Alias):
            types[member.name] = _type(member.type)
        elif isinstance(member, scanner._Method):
            methods[member.name] = [_type(member.in_type), _type(member.out_type)]
        else:
            errors[member.name] = _type(member.type)
    used = [t for pair in methods.values() for t in pair] + list(types.values()) + list(errors.values())
    for reference in sorted({r for t in used for r in _references(t)}):
        if reference not in types:
            raise InvalidInterface(f"{name} uses the type {reference}, which it does not define")
    return {
        "name": name,
        "crc": crc32(description.encode()),
        "types": types,
        "methods": methods,
        "errors": errors,
    }


def compile_all(folder: str) -> list[str]:
    """Write the compiled form beside every definition in `folder`; returns the paths written."""
    written = []
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".varlink"):
            continue
        with open(os.path.join(folder, entry), encoding="utf-8") as source:
            compiled = compile_interface(source.read())
        path = os.path.join(folder, entry.removesuffix(".varlink") + SUFFIX)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as target:
            json.dump(compiled, target, separators=(",", ":"))
        os.replace(temporary, path)
        written.append(path)
    return written
