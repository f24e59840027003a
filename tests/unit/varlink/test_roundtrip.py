# SPDX-License-Identifier: Apache-2.0
"""Random interfaces, random values: what a caller says arrives, and comes back, as its type allows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from varlink_pair import Raw, client_of, run, server_of

from syntrop.common.varlink.errors import InvalidReply, VarlinkError

# --- generating interfaces --------------------------------------------------------------------------------

NAMES = ["a", "b", "x", "role", "type", "error", "method", "self", "call", "kv_cache", "p2p_links", "vram0"]
FIELD = st.sampled_from(NAMES)
TYPE_NAME = st.sampled_from(["Plane", "A", "Device2", "XyZ"])

PLAIN = st.sampled_from(["bool", "int", "float", "string", "object"])


def composite(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda kind: ("[]", kind)),
        inner.map(lambda kind: ("{}", kind)),
        inner.filter(lambda kind: kind[0] != "?").map(lambda kind: ("?", kind)),
        st.dictionaries(FIELD, inner, min_size=1, max_size=3).map(lambda fields: ("struct", fields)),
        # The `varlink` package does not read an enum of one symbol.
        st.lists(FIELD, min_size=2, max_size=4, unique=True).map(lambda names: ("enum", names)),
    )


KIND = st.recursive(PLAIN, composite, max_leaves=4)
FIELDS = st.dictionaries(FIELD, KIND, min_size=1, max_size=3)
TYPES = st.dictionaries(TYPE_NAME, st.dictionaries(FIELD, KIND, min_size=1, max_size=2), max_size=2)


def text_of(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    head, content = kind
    if head == "[]":
        return "[]" + text_of(content)
    if head == "{}":
        return "[string]" + text_of(content)
    if head == "?":
        return "?" + text_of(content)
    if head == "enum":
        return "(" + ", ".join(content) + ")"
    if head == "ref":
        return str(content)
    return struct_of(content)


def struct_of(fields: dict[str, Any]) -> str:
    return "(" + ", ".join(f"{name}: {text_of(kind)}" for name, kind in fields.items()) + ")"


def interface_of(types: dict[str, Any], fields: dict[str, Any]) -> str:
    lines = ["interface org.example.random"]
    lines += [f"type {name} {struct_of(content)}" for name, content in types.items()]
    lines += [f"method Echo{struct_of(fields)} -> {struct_of(fields)}", f"error Failed {struct_of(fields)}"]
    return "\n".join(lines) + "\n"


@st.composite
def interfaces(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """IDL text, its named types, and the fields of its method `Echo`."""
    types = draw(TYPES)
    fields = draw(FIELDS)
    for position, name in enumerate(types):
        fields[f"named{position}"] = draw(
            st.sampled_from([("ref", name), ("[]", ("ref", name)), ("?", ("ref", name))])
        )
    return interface_of(types, fields), types, fields


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def value_of(kind: Any, types: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "bool":
        return st.booleans()
    if kind == "int":
        return st.integers(-(2**63), 2**63 - 1)
    if kind == "float":
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind == "string":
        return st.text(max_size=10)
    if kind == "object":
        return st.dictionaries(st.text(max_size=5), JSON, max_size=3)
    head, content = kind
    if head == "[]":
        return st.lists(value_of(content, types), max_size=3)
    if head == "{}":
        return st.dictionaries(st.text(max_size=5), value_of(content, types), max_size=3)
    if head == "?":
        return st.none() | value_of(content, types)
    if head == "enum":
        return st.sampled_from(content)
    if head == "ref":
        return struct_values(types[content], types)
    return struct_values(content, types)


def struct_values(fields: dict[str, Any], types: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({name: value_of(kind, types) for name, kind in fields.items()})


def without_nulls(kind: Any, value: Any, types: dict[str, Any]) -> Any:
    """The normal form: null fields of structs are left out; what is inside an `object` stays as it is."""
    if value is None or isinstance(kind, str):
        return value
    head, content = kind
    if head == "[]":
        return [without_nulls(content, item, types) for item in value]
    if head == "{}":
        return {key: without_nulls(content, item, types) for key, item in value.items()}
    if head == "?":
        return without_nulls(content, value, types)
    if head == "enum":
        return value
    fields = types[content] if head == "ref" else content
    return {n: without_nulls(fields[n], item, types) for n, item in value.items() if item is not None}


WRONG: dict[str, list[Any]] = {
    "bool": [0, 1, "true", [], {}],
    "int": [True, False, 1.0, 1.5, "1", "x", 2**63, -(2**63) - 1, [], {}],
    "float": [True, "1.0", [], {}],
    "string": [0, True, ["x"], {}],
    "object": [0, "x", [], True],
    "[]": [0, "x", {}, True],
    "{}": [0, "x", [], True],
    "struct": [0, "x", [], True],
    "enum": [0, "no such symbol", [], True],
}


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, dict[str, Any], str]:
    """An interface, parameters of which one is wrong, and the name of the field that is."""
    text, types, fields = draw(interfaces())
    value = draw(struct_values(fields, types))
    name = draw(st.sampled_from(sorted(fields)))
    kind = fields[name]
    how = draw(st.sampled_from(["missing", "null", "unknown", "ill-typed"]))
    if how == "unknown":
        value["unknown_field"] = draw(JSON)
        return text, value, "unknown_field"
    if how in ("missing", "null"):
        assume(kind[0] != "?")
        if how == "missing":
            del value[name]
        else:
            value[name] = None
        return text, value, name
    while kind[0] == "?":
        kind = kind[1]
    if kind[0] == "ref":
        kind = ("struct", types[kind[1]])
    value[name] = draw(st.sampled_from(WRONG[kind if isinstance(kind, str) else kind[0]]))
    return text, value, name


# --- the properties ---------------------------------------------------------------------------------------

FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


class Echo:
    """Gives back what it was given, or what it is told to give."""

    def __init__(self, instead: dict[str, Any] | None = None) -> None:
        self.instead = instead
        self.seen: dict[str, Any] | None = None

    async def Echo(self, call: Any, /, **parameters: Any) -> dict[str, Any]:
        self.seen = parameters
        return parameters if self.instead is None else self.instead


@FEW
@given(st.data())
def test_values_arrive_and_come_back(data: st.DataObject) -> None:
    text, types, fields = data.draw(interfaces())
    value = data.draw(struct_values(fields, types))
    normal = without_nulls(("struct", fields), value, types)

    async def main() -> None:
        echo = Echo()
        client = client_of(server_of(text, echo))
        with await client.call("org.example.random.Echo", value) as reply:
            assert reply.parameters == normal
            assert echo.seen == normal
            # Equal is not enough: True == 1 and 1 == 1.0 to Python.
            assert json.dumps(echo.seen) == json.dumps(reply.parameters)
        client.close()

    run(main)


@FEW
@given(spoiled())
def test_a_wrong_request_is_refused_by_the_name_of_its_field(case: tuple[str, dict[str, Any], str]) -> None:
    text, value, name = case

    async def main() -> None:
        echo = Echo()
        raw = Raw(server_of(text, echo))
        reply = await raw.ask("org.example.random.Echo", value)
        assert reply["error"] == "org.varlink.service.InvalidParameter"
        assert reply["parameters"] == {"parameter": name}
        assert echo.seen is None
        raw.close()

    run(main)


@FEW
@given(spoiled(), st.data())
def test_a_wrong_reply_is_our_fault_and_tells_nothing(
    case: tuple[str, dict[str, Any], str], data: st.DataObject
) -> None:
    text, wrong, _ = case

    async def main() -> None:
        from syntrop.common.varlink import idl

        interface = idl.parse(text)
        good = {n: _sample(k, interface.types) for n, k in interface.methods["Echo"].input.items()}
        raw = Raw(server_of(text, Echo(wrong)))
        reply = await raw.ask("org.example.random.Echo", good)
        assert reply == {
            "error": "io.systemd.System",
            "parameters": {"origin": "syntrop", "errnoName": "EIO", "errno": 5},
        }
        raw.close()

    run(main)


def _sample(kind: Any, types: dict[str, Any]) -> Any:
    """The plainest value of a compiled type."""
    plain = {"bool": False, "int": 0, "float": 0.0, "string": "", "object": {}}
    if isinstance(kind, str):
        return plain[kind]
    head, content = kind
    if head == "struct":
        return {name: _sample(inner, types) for name, inner in content.items()}
    if head == "ref":
        return _sample(types[content], types)
    return {"[]": [], "{}": {}, "?": None}[head] if head != "enum" else content[0]


@FEW
@given(spoiled())
def test_a_wrong_error_is_our_fault_too(case: tuple[str, dict[str, Any], str]) -> None:
    text, wrong, _ = case

    class Failing:
        async def Echo(self, call: Any, /, **_parameters: Any) -> dict[str, Any]:
            error = VarlinkError("org.example.random.Failed")
            error.parameters = wrong
            raise error

    async def main() -> None:
        from syntrop.common.varlink import idl

        interface = idl.parse(text)
        good = {n: _sample(k, interface.types) for n, k in interface.methods["Echo"].input.items()}
        raw = Raw(server_of(text, Failing()))
        assert (await raw.ask("org.example.random.Echo", good))["error"] == "io.systemd.System"
        raw.close()

    run(main)


def test_our_client_checks_both_directions(monkeypatch: Any) -> None:
    """A client that knows the interface refuses its own bad request, and the service's bad reply."""
    from syntrop.common.varlink import idl

    text = "interface org.example.known\nmethod Echo(number: int) -> (number: int)\n"
    lax = "interface org.example.known\nmethod Echo(number: int) -> (number: string)\n"
    monkeypatch.setitem(idl._loaded, "org.example.known", idl.parse(text))

    async def main() -> None:
        client = client_of(server_of(lax, Echo({"number": "seven"})))
        try:
            await client.call("org.example.known.Echo", {"number": True})
            raise AssertionError("a bool was taken for an int")
        except VarlinkError as error:
            assert error.error == "org.varlink.service.InvalidParameter"
            assert error.parameters == {"parameter": "number"}
        client.close()
        client = client_of(server_of(lax, Echo({"number": "seven"})))
        try:
            await client.call("org.example.known.Echo", {"number": 7})
            raise AssertionError("a wrong reply was taken")
        except InvalidReply as fault:
            assert "number" in str(fault)
        assert client.closed

    run(main)
