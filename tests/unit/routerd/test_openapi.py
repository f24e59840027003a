# SPDX-License-Identifier: Apache-2.0
"""`/openapi.json` against the parsers: the same parameters, and the same values of them."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from syntrop.common.http import anthropic_messages, ollama_models
from syntrop.common.http.errors import BadRequest
from syntrop.common.http.fields import Fields
from syntrop.routerd import dialects, openapi
from syntrop.routerd.routes import ROUTES

DOCUMENT = openapi.document()
# Rules between fields: valid by itself, and refused in its company.
RULES = re.compile(
    r"is only allowed when '(stream|logprobs)' is true"
    r"|is supported only with the value of 'n'"
    r"|choices over all prompts"
    r"|holds nothing to answer|must be followed by what was thought|may not follow a thought"
    r"|must not end with an assistant's"
    r"|has the name of another tool"
    r"|says how hard to think, and 'thinking' says not to"
    r"|must be less than 'max_tokens'"
    r"|that an assistant made"
    r"|'(system|think)' is supported only as"  # beside `raw`
    r"|must name a model"  # an empty one, where nobody could choose
    r"|or a duration like 5m"
)


def parser(name: str) -> Any:
    if name == "count-tokens":
        return anthropic_messages.parse_count_tokens
    if name == "ollama-show":
        return ollama_models.parse_show
    return dialects.find(name).parse


def asked(path: str, methods: tuple[str, ...]) -> str | None:
    """The name of a route's schema for requests."""
    operation = DOCUMENT["paths"][path][methods[0].lower()]
    body = operation.get("requestBody")
    return None if body is None else body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]


ROUTE = {schema: name for path, methods, name in ROUTES if (schema := asked(path, methods)) is not None}


def test_every_route_is_in_it() -> None:
    assert list(DOCUMENT["paths"]) == [path for path, _, _ in ROUTES]
    assert len(ROUTE) == 11
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    told = json.dumps(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in told, f"nothing has {name}"
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_it_is_imported_when_it_is_asked_for() -> None:
    look = "import sys; from syntrop.routerd import ingress; print([m for m in sys.modules if 'openapi' in m])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def documented(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The full names of all parameters, as errors have them; `[]` for any index."""
    for one in schema.get("anyOf", ()):
        yield from documented(one, path)
    if "items" in schema:
        yield from documented(schema["items"], path + "[]")
    for name, inner in schema.get("properties", {}).items():
        full = f"{path}.{name}" if path else name
        yield full
        yield from documented(inner, full)


def places(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects within a value, itself included, with their paths."""
    if isinstance(value, dict):
        yield path, value
        for name, one in list(value.items()):
            yield from places(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for one in value:
            yield from places(one, path + "[]")


def examples(schema: str) -> list[dict[str, Any]]:
    """The document's own, and what it takes besides to come by every parameter."""
    whole = openapi.EXAMPLES[schema]
    absent = {name: None for name in DOCUMENT["components"]["schemas"][schema]["properties"] if name not in whole}
    found = [whole, whole | absent]
    if schema in ("MessageRequest", "TokenCountRequest"):
        cached = copy.deepcopy(found[0]) | {"tool_choice": {"type": "none"}, "thinking": {"type": "adaptive"}}
        known = set(documented(DOCUMENT["components"]["schemas"][schema]))
        for path, place in list(places(cached)):
            if f"{path}.cache_control".lstrip(".") in known and place.get("type") != "thinking":
                place["cache_control"] = {"type": "ephemeral"}
        for message in cached["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "thinking":
                    block.pop("cache_control", None)
        found.append(cached)
    return found


@pytest.mark.parametrize("schema", ROUTE)
def test_the_parser_knows_the_same_parameters(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every parameter in the document is taken by the parser, and every one that it takes is in the document."""
    taken: set[str] = set()
    take = Fields.take

    def note(fields: Fields, name: str) -> Any:
        taken.add(re.sub(r"\[\d+\]", "[]", fields.path(name)))
        return take(fields, name)

    monkeypatch.setattr(Fields, "take", note)
    for example in examples(schema):
        parser(ROUTE[schema])(json.dumps(example).encode())
    known = {name for name in taken if not name.startswith("logit_bias.")}
    assert known == set(documented(DOCUMENT["components"]["schemas"][schema]))


PROBES: list[Any] = [
    None, True, False, 0, 1, -1, -2, -3, 2, 3, 5, 6, 16, 20, 21, 64, 65, 128, 129, 1024, 0.5, 1.5, 2.5, -2.5,
    100.5, 2**31, 2**53 - 1, 2**53, 2**63, 604_800, 604_801,
    "", "x", "auto", "none", "fast", "hard", "low", "medium", "high", "max", "minimal", "function", "custom",
    "text", "float", "base64", "5m", "1h", "user", "assistant", "tool", "system", "standard", "ephemeral",
    "disabled", [], [1], [""], ["x"], ["text"], [{}], [[]], [[1]], ["x"] * 5, ["x"] * 65, [True], [1.5], [2**31],
    ["direct"],
    {}, {"x": 1}, {"x": "y"}, {"5": 1}, {"5": 101}, {"type": "text"}, {"type": "direct"}, {"type": "auto"},
    {"type": "none"}, {"type": "ephemeral"}, {"type": "disabled"}, {str(n): "x" for n in range(17)},
]  # fmt: skip


@pytest.mark.parametrize("schema", ROUTE)
def test_the_parser_takes_the_same_values(schema: str) -> None:
    """Each probe in the place of each parameter: what is invalid by the document is refused, and what is valid is
    taken, but for rules between fields."""
    whole = DOCUMENT["components"]["schemas"][schema]
    validator = jsonschema_rs.Draft202012Validator(whole)
    parse = parser(ROUTE[schema])
    names: dict[str, set[str]] = {}
    for full in documented(whole):
        path, _, name = full.rpartition(".")
        names.setdefault(path, {"nonsense"}).add(name)
    disagreements, tried = [], 0
    body = copy.deepcopy(openapi.EXAMPLES[schema])
    assert all(map(validator.is_valid, examples(schema)))
    for path, place in list(places(body)):
        for name in sorted(names.get(path, ())):
            before = place.get(name, place)  # itself: there was none
            for probe in PROBES:
                place[name] = probe
                why = None
                try:
                    parse(json.dumps(body).encode())
                except BadRequest as error:
                    why = error.message
                valid, tried = validator.is_valid(body), tried + 1
                if valid is not (why is None) and not (valid and RULES.search(why or "")):
                    disagreements.append((path, name, probe, "valid" if valid else "invalid", why))
            if before is place:
                del place[name]
            else:
                place[name] = before
    assert tried >= len(PROBES) and not disagreements, disagreements[:20]
