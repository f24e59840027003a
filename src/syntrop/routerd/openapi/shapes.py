# SPDX-License-Identifier: Apache-2.0
"""JSON schemas in few words, as the parsers mean them: null counts as absent, and nothing unknown passes. Pure."""

from __future__ import annotations

from syntrop.common.http.fields import INTEGER_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]

ANY: Schema = {}


def text(least: int = 0, about: str | None = None) -> Schema:
    return _told({"type": "string"} | ({"minLength": least} if least else {}), about)


def whole(low: int, high: int = INTEGER_MAX, about: str | None = None) -> Schema:
    return _told({"type": "integer", "minimum": low, "maximum": high}, about)


def number(low: float, high: float, about: str | None = None) -> Schema:
    return _told({"type": "number", "minimum": low, "maximum": high}, about)


def flag(about: str | None = None) -> Schema:
    return _told({"type": "boolean"}, about)


def choice(*values: Any, about: str | None = None) -> Schema:
    return _told({"enum": list(values)}, about)


def only(*values: Any) -> Schema:
    """Built for these values alone; others are refused by the parameter's name."""
    return choice(*values, about="Other values are refused: they are not built.")


def refused() -> Schema:
    """Documented by the dialect's owner, and not built: anything but null is refused by its name."""
    return {"type": "null", "description": "Refused: it is not built."}


def array(items: Schema, least: int = 0, most: int | None = None, about: str | None = None) -> Schema:
    value: Schema = {"type": "array", "items": items}
    if least:
        value["minItems"] = least
    if most is not None:
        value["maxItems"] = most
    return _told(value, about)


def free(about: str | None = None) -> Schema:
    """An object of whatever fields."""
    return _told({"type": "object"}, about)


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def thing(given: dict[str, Schema], /, **maybe: Schema) -> Schema:
    """A request's object: with these fields, and perhaps with those, which may be null as well."""
    properties = given | {name: _or_null(schema) for name, schema in maybe.items()}
    value: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if given:
        value["required"] = list(given)
    return value


def reply(given: dict[str, Schema], /, **maybe: Schema) -> Schema:
    """An object of ours: with these fields, perhaps with those, and with no others."""
    return {
        "type": "object",
        "properties": given | maybe,
        "required": list(given),
        "additionalProperties": False,
    }


def nullable(schema: Schema) -> Schema:
    return _or_null(schema)


def _or_null(schema: Schema) -> Schema:
    if not schema or schema.get("type") == "null":
        return schema
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def _told(schema: Schema, about: str | None) -> Schema:
    return schema if about is None else {**schema, "description": about}
