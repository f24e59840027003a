# SPDX-License-Identifier: Apache-2.0
"""The interfaces as text: valid for systemd's parser and for PyPI's, whole, documented, true to what is published.

The reader below is our own, after the rules of sd-varlink-idl: it is stricter than either parser about where a
comment may stand, because it also collects what the comments say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import varlink

from syntrop.common.varlink.compile import compile_interface

FOLDER = Path(__file__).parents[3] / "src/syntrop/interfaces"
PUBLISHED = Path(__file__).parent / "published"
NAMES = sorted(path.name.removesuffix(".varlink") for path in FOLDER.glob("*.varlink"))

MAY_BE_UNKNOWN = {
    "ComputePlane.total_memory",
    "ComputePlane.available_memory",
    "DeviceLink.bandwidth_bytes_sec",
    "DrmWatermarkInfo.vram_used",
    "DrmWatermarkInfo.vram_total",
    "DrmWatermarkInfo.used_percentage",
}
BUILTIN = {"bool", "int", "float", "string", "object"}
INTERFACE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+")
SYMBOL_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
FIELD_NAME = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*")
TOKEN = re.compile(r"#[^\n]*|->|\[\]|\[string\]|[(),:?]|[A-Za-z0-9._-]+")


class Invalid(Exception):
    pass


@dataclass
class Field:
    name: str
    type: str = ""  # as text, without the question mark; nothing for a value of an enum
    nullable: bool = False
    doc: str = ""


@dataclass
class Member:
    kind: str
    name: str
    doc: str
    input: list[Field] = field(default_factory=list)
    output: list[Field] = field(default_factory=list)  # of a method only

    @property
    def fields(self) -> list[Field]:
        return self.input + self.output


@dataclass
class Interface:
    name: str
    doc: str
    members: dict[str, Member]

    def of(self, kind: str) -> dict[str, Member]:
        return {name: member for name, member in self.members.items() if member.kind == kind}


class Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            if text[at] in " \t\n":
                at += 1
                continue
            match = TOKEN.match(text, at)
            if match is None:
                raise Invalid(f"unexpected {text[at : at + 20]!r}")
            self.tokens.append(match[0])
            at = match.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.next
        if not token or (expected and token != expected) or token.startswith("#"):
            raise Invalid(f"{token!r} where {expected or 'a word'} should be")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.next == token:
            self.at += 1
            return True
        return False

    def comments(self) -> str:
        lines = []
        while self.next.startswith("#"):
            lines.append(self.next[1:].strip())
            self.at += 1
        return "\n".join(lines)

    def interface(self) -> Interface:
        doc = self.comments()
        self.take("interface")
        name = self.take()
        if not INTERFACE_NAME.fullmatch(name):
            raise Invalid(f"interface {name}")
        members: dict[str, Member] = {}
        while self.next:
            member = self.member()
            if member.name in members:
                raise Invalid(f"{member.name} is defined twice")
            members[member.name] = member
        types = {name for name, member in members.items() if member.kind == "type"}
        for member in members.values():
            for one in member.fields:
                base = one.type.removeprefix("[]").removeprefix("[string]")
                if one.type and base not in BUILTIN and base not in types:
                    raise Invalid(f"{member.name}.{one.name} is of the unknown type {base}")
        return Interface(name, doc, members)

    def member(self) -> Member:
        doc = self.comments()
        kind = self.take()
        if kind not in ("type", "method", "error"):
            raise Invalid(f"a member of kind {kind!r}")
        name = self.take()
        if not SYMBOL_NAME.fullmatch(name) or name in BUILTIN:
            raise Invalid(f"{kind} {name}")
        member = Member(kind, name, doc, self.struct())
        if kind == "type" and not member.input:
            raise Invalid(f"type {name} is empty")
        if kind != "type" and any(not one.type for one in member.input):
            raise Invalid(f"{kind} {name} is an enum")
        if kind == "method":
            self.take("->")
            member.output = self.struct()
        return member

    def struct(self) -> list[Field]:
        """Fields, or the values of an enum: one kind only, each name once, no comma after the last."""
        self.take("(")
        fields: list[Field] = []
        if self.accept(")"):
            return fields
        while True:
            doc = self.comments()
            name = self.take()
            if not FIELD_NAME.fullmatch(name) or any(name == one.name for one in fields):
                raise Invalid(f"field {name}")
            one = Field(name, doc=doc)
            if self.accept(":"):
                one.nullable = self.accept("?")
                prefix = self.take() if self.next in ("[]", "[string]") else ""
                base = self.take()
                if base not in BUILTIN and not SYMBOL_NAME.fullmatch(base):
                    raise Invalid(f"field {name} of type {base!r}")
                one.type = prefix + base
            fields.append(one)
            if bool(one.type) != bool(fields[0].type):
                raise Invalid(f"field {name} mixes a struct and an enum")
            if self.accept(")"):
                return fields
            self.take(",")


def read(path: Path) -> Interface:
    return Reader(path.read_text(encoding="utf-8")).interface()


def ours(name: str) -> Interface:
    return read(FOLDER / f"{name}.varlink")


def published() -> Iterator[str]:
    return (path.name.removesuffix(".varlink") for path in sorted(PUBLISHED.glob("*.varlink")))


def test_there_are_these_interfaces() -> None:
    suite = ("Context1", "Fetch1", "Inference1", "Model1", "Router1", "Runtime1", "Sentry1", "Tool1")
    assert [*(f"io.syntrop.{name}" for name in suite), "org.varlink.service"] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_both_parsers_read_it_alike(name: str) -> None:
    text = (FOLDER / f"{name}.varlink").read_text(encoding="utf-8")
    mine = ours(name)
    assert mine.name == name
    theirs = varlink.Interface(text)
    assert theirs.name == name
    assert list(theirs.members) == list(mine.members)
    compiled = compile_interface(text)
    for kind, key in (("type", "types"), ("method", "methods"), ("error", "errors")):
        assert set(compiled[key]) == set(mine.of(kind))
    for method, (taken, given) in compiled["methods"].items():
        assert list(taken[1]) == [one.name for one in mine.members[method].input]
        assert list(given[1]) == [one.name for one in mine.members[method].output]


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_documented(name: str) -> None:
    mine = ours(name)
    assert mine.doc.startswith("SPDX-License-Identifier: Apache-2.0")
    assert len(mine.doc.splitlines()) > 2
    bare = [member.name for member in mine.members.values() if not member.doc]
    bare += [
        f"{member.name}.{one.name}" for member in mine.members.values() for one in member.fields if not one.doc
    ]
    assert bare == []
    for member in mine.members.values():
        for one in member.fields:
            assert one.doc.endswith("."), f"{member.name}.{one.name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_interface_has_methods_and_declares_its_errors(name: str) -> None:
    mine = ours(name)
    assert mine.of("method")
    assert mine.of("error")


@pytest.mark.parametrize("name", NAMES)
def test_what_may_be_left_out_has_a_documented_default(name: str) -> None:
    silent = [
        f"{method.name}.{one.name}"
        for method in ours(name).of("method").values()
        for one in method.input
        if one.nullable and "Default" not in one.doc
    ]
    assert silent == []


@pytest.mark.parametrize("name", NAMES)
def test_layout(name: str) -> None:
    lines = (FOLDER / f"{name}.varlink").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert len(line) <= 110
        assert line == line.rstrip()
        assert "\t" not in line
        # PyPI's parser takes what follows the last hash of a line for the comment, and ends a method's signature
        # at the first closing parenthesis.
        assert line.count("#") <= 1
        if line.startswith(" "):
            assert line.startswith(" " * 8)
            assert line[8] != " "
            if line[8] == "#":
                assert ")" not in line
            else:
                assert re.fullmatch(r"\w+(: \??(\[\]|\[string\])?\w+)?,?", line.strip())


@pytest.mark.parametrize("name", NAMES)
def test_what_streams_says_so(name: str) -> None:
    """The mark that systemd's own tools write, and fields that are null where a reply does not have them."""
    for method in ours(name).of("method").values():
        assert ("'more' flag]" in method.doc) == bool(
            re.search(r"^\[(Supports|Requires) 'more' flag\]$", method.doc, re.MULTILINE)
        )


@pytest.mark.parametrize("name", list(published()))
def test_nothing_published_is_dropped_or_renamed(name: str) -> None:
    """Old callers and old readers go on working: nothing is gone, nothing is of another type, and what is new
    may be left out. What a caller may leave out may have become more; what a reply has may be missing only where
    there are several replies, or where the kernel may not tell it: what is unknown is never shown as a number."""
    old, new = read(PUBLISHED / f"{name}.varlink"), ours(name)
    assert set(old.members) <= set(new.members)
    for member in old.members.values():
        now = new.members[member.name]
        assert now.kind == member.kind
        streams = "'more' flag]" in now.doc
        for before, after, is_input in (
            (member.input, now.input, member.kind == "method"),
            (member.output, now.output, False),
        ):
            known = {one.name: one for one in after}
            for one in before:
                same = known.pop(one.name)
                where = f"{member.name}.{one.name}"
                assert same.type == one.type, where
                if same.nullable != one.nullable:
                    assert same.nullable, where
                    assert is_input or streams or where in MAY_BE_UNKNOWN, where
            for one in known.values():
                assert one.nullable, f"{member.name}.{one.name} is new and has to be given"


def test_old_and_new_calls_of_generate() -> None:
    from syntrop.common.varlink import idl

    runtime = idl.load("io.syntrop.Runtime1")
    taken = runtime.methods["Generate"].input
    old = {"model": "m", "prompt": "p", "max_tokens": 8, "temperature": 0.5}
    assert runtime.check(taken, old) == old
    long = {
        **old,
        "top_k": 40,
        "top_p": 0.9,
        "seed": 7,
        "image": None,
        "grammar_type": None,
        "grammar": None,
        "speculative_draft_model": None,
        "reasoning_budget": 5,
        "reasoning_effort": "low",
    }
    assert runtime.check(taken, long) == {key: value for key, value in long.items() if value is not None}
    new = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stop": ["x"], "min_p": 0.1}
    assert runtime.check(taken, new) == new


@pytest.mark.parametrize(
    "text",
    [
        "interface a\nmethod A() -> ()",
        "interface 1.b\nmethod A() -> ()",
        "interface a.b-\nmethod A() -> ()",
        "interface a.b\ntype A ()",
        "interface a.b\ntype a (x: int)",
        "interface a.b\ntype A (x: int, x: int)",
        "interface a.b\ntype A (x: int, y)",
        "interface a.b\ntype A (x: int,)",
        "interface a.b\ntype A (_x: int)",
        "interface a.b\ntype A (x_: int)",
        "interface a.b\ntype A (x__y: int)",
        "interface a.b\ntype A (x: [][]int)",
        "interface a.b\ntype A (x: []?int)",
        "interface a.b\ntype A (x: ??int)",
        "interface a.b\ntype A (x: any)",
        "interface a.b\ntype A (x: B)",
        "interface a.b\nerror B (y: int)\ntype A (x: B)",
        "interface a.b\ntype A (x: int)\nmethod A() -> ()",
        "interface a.b\nmethod A(x, y) -> ()",
        "interface a.b\nmethod A() # no\n -> ()",
        "interface a.b\ntype A (x: int # no\n)",
        "interface a.b\nmethod A()",
        "interface a.b\nstruct A (x: int)",
    ],
)
def test_the_reader_refuses(text: str) -> None:
    with pytest.raises(Invalid):
        Reader(text).interface()
