# SPDX-License-Identifier: Apache-2.0
"""D-Bus marshalling: against itself, against byte layouts of the specification, and against rubbish."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import dbus, dbusprops

_BASIC: dict[str, st.SearchStrategy[Any]] = {
    "y": st.integers(0, 255),
    "b": st.booleans(),
    "n": st.integers(-(2**15), 2**15 - 1),
    "q": st.integers(0, 2**16 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "u": st.integers(0, 2**32 - 1),
    "x": st.integers(-(2**63), 2**63 - 1),
    "t": st.integers(0, 2**64 - 1),
    "d": st.floats(allow_nan=False),
    "s": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    "o": st.just("/a/b"),
    "g": st.sampled_from(["", "s", "a{sv}", "(ii)"]),
}


def _variant(value: tuple[str, Any]) -> tuple[str, tuple[str, Any]]:
    return "v", value


def _array(values: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    return values


def _typed(inner: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.one_of(
        inner.map(_variant),
        inner.map(lambda one: (f"a{one[0]}", [one[1]] * 3)),
        inner.map(lambda one: (f"a{one[0]}", [])),
        st.lists(inner, min_size=1, max_size=4).map(
            lambda many: (f"({''.join(k for k, _ in many)})", tuple(v for _, v in many))
        ),
        st.tuples(st.lists(_BASIC["s"], unique=True, max_size=3), inner).map(
            lambda pair: (f"a{{s{pair[1][0]}}}", dict.fromkeys(pair[0], pair[1][1]))
        ),
    )


_BASICS = st.sampled_from(sorted(_BASIC)).flatmap(lambda kind: st.tuples(st.just(kind), _BASIC[kind]))
_VALUES = st.recursive(_BASICS, _typed, max_leaves=6)


@given(st.lists(_VALUES, max_size=4), st.integers(0, 8))
def test_what_is_written_is_read(values: list[tuple[str, Any]], offset: int) -> None:
    signature = "".join(kind for kind, _ in values)
    writer = dbus.Writer()
    writer.data += bytes(offset)
    writer.put(signature, [value for _, value in values])
    reader = dbus.Reader(bytes(writer.data), "<", offset)
    assert reader.get(signature) == [value for _, value in values]
    assert reader.at == len(writer.data)


def test_layout_of_the_specification() -> None:
    writer = dbus.Writer()
    writer.put("yuas", [1, 2, ["ab"]])
    assert bytes(writer.data) == b"\1\0\0\0\2\0\0\0\7\0\0\0\2\0\0\0ab\0"
    # An empty array of structs is padded to where its first struct would be; the padding is not its length.
    writer = dbus.Writer()
    writer.put("a(ii)", [[]])
    assert bytes(writer.data) == bytes(8)


def test_big_endian_messages_are_read() -> None:
    assert dbus.Reader(struct.pack(">IQ", 7, 9).replace(b"\0" * 3 + b"\7", b"\0\0\0\7", 1), ">").get("u") == [7]


def test_a_call_reads_back_as_a_message() -> None:
    data = dbus.method_call(5, "a.b", "/c", "d.e", "F", "sa{sv}", ["x", {"k": ("u", 3)}])
    assert dbus.length(data[:15]) is None
    assert dbus.length(data) == len(data)
    message = dbus.Message(data)
    assert message.kind == dbus.METHOD_CALL
    assert message.signature == "sa{sv}"
    assert message.body == ["x", {"k": ("u", 3)}]


def _error(signature: str, body: bytes, *fields: tuple[int, tuple[str, Any]]) -> dbus.DBusError:
    head = dbus.Writer()
    fields = (*fields, (8, ("g", signature)))
    head.put("yyyyuua(yv)", [ord("l"), dbus.ERROR, 0, 1, len(body), 1, fields])
    head.pad(8)
    return dbus.Message(bytes(head.data) + body).error()


def test_an_error_has_its_name_whatever_its_words_are() -> None:
    name = (4, ("s", "a.b.Error"))
    told = dbus.Writer()
    told.put("su", ["it is not there", 3])
    error = _error("su", bytes(told.data), name)
    assert (error.name, str(error)) == ("a.b.Error", "it is not there (a.b.Error)")
    assert _error("u", bytes(4), name).name == "a.b.Error"
    for body in (b"\xff\xff\0\0x\0", b"\1\0\0\0\xff\0", b""):
        error = _error("s", body, name)
        assert (error.name, type(error)) == ("a.b.Error", dbus.DBusError)
    assert _error("", b"").name == "org.freedesktop.DBus.Error.Failed"


@pytest.mark.parametrize(
    "signature", ["a", "(", "()", "{sv}", "a{sv", "a{vs}", "a{s}", "a{svs}", "z", "a" * 80 + "y", "(" * 80]
)
def test_signatures_that_are_none(signature: str) -> None:
    with pytest.raises(dbus.Malformed):
        dbus.split(signature)


@pytest.mark.parametrize(
    ("signature", "value"), [("y", 256), ("u", -1), ("u", "1"), ("s", "a\0b"), ("v", ("ii", 1)), ("(ii)", (1,))]
)
def test_values_that_do_not_fit(signature: str, value: object) -> None:
    with pytest.raises(dbus.Malformed):
        dbus.Writer().put(signature, [value])


@given(st.binary(max_size=200))
def test_rubbish_is_refused_not_crashed_on(data: bytes) -> None:
    for head in (b"l", b"B", b""):
        try:
            dbus.length(head + data)
            dbus.Message(head + data)
        except dbus.Malformed:
            pass


@given(st.data())
def test_damaged_messages_are_refused_not_crashed_on(data: st.DataObject) -> None:
    whole = bytearray(dbus.method_call(5, "a.b", "/c", "d.e", "F", "sa{sv}as", ["x", {"k": ("u", 3)}, ["y"]]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for damaged in (bytes(whole), cut):
        try:
            dbus.Message(damaged)
        except dbus.Malformed:
            pass


def test_messages_that_are_too_long_are_refused() -> None:
    head = struct.pack("<4BIII", ord("l"), 1, 0, 1, dbus.MESSAGE_MAX, 1, 0)
    with pytest.raises(dbus.Malformed):
        dbus.length(head)


def _properties(values: dict[str, tuple[str, Any]], *, signal: bool) -> dbus.Message:
    signature, body = ("sa{sv}as", ["i.f", values, []]) if signal else ("a{sv}", [values])
    return dbus.Message(dbus.method_call(5, "a.b", "/c", "d.e", "F", signature, body))


@given(st.dictionaries(st.text("abcdef", max_size=3), _VALUES, max_size=6), st.data(), st.booleans())
def test_properties_are_picked_as_they_are_read(
    values: dict[str, tuple[str, Any]], data: st.DataObject, signal: bool
) -> None:
    wanted = frozenset(data.draw(st.lists(st.sampled_from(sorted(values)), max_size=3)) if values else ())
    message = _properties(values, signal=signal)
    everything = message.body[1 if signal else 0]
    interface, picked = dbusprops.pick(message, wanted)
    assert interface == ("i.f" if signal else "")
    assert repr(picked) == repr({name: value for name, (_, value) in everything.items() if name in wanted})


@given(st.data())
def test_damaged_properties_are_refused_not_crashed_on(data: st.DataObject) -> None:
    whole = bytearray(dbus.method_call(
        5, "a.b", "/c", "d.e", "F", "a{sv}", [{"k": ("u", 3), "l": ("a(sv)", [("x", ("v", ("as", ["y"])))])}],
    ))  # fmt: skip
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        dbusprops.pick(dbus.Message(bytes(whole)), frozenset("k"))
    except dbus.Malformed:
        pass
