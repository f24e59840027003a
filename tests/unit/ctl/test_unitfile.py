# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.ctl import unitfile
from syntrop.ctl.unitfile import UnitError, UnitFile


def read(text: str) -> UnitFile:
    return UnitFile("test.service").read(text)


def test_sections_comments_and_repeated_keys():
    unit = read(
        "# a comment\n; another\n[Unit]\nDescription = A  thing \n\n[Service]\n"
        "Environment=A=1\nEnvironment=B=2\n[Unit]\nAfter=x\n"
    )
    assert unit.last("Unit", "Description") == "A  thing"
    assert unit.all("Service", "Environment") == ["A=1", "B=2"]
    assert unit.last("Unit", "After") == "x"
    assert unit.last("Unit", "Before", "none") == "none"
    assert unit.keys("Unit") == ["Description", "After"]
    assert unit.warnings == []


def test_an_empty_assignment_forgets_what_came_before():
    unit = read("[Service]\nExecStart=/bin/a\nExecStart=\nExecStart=/bin/b\nPrivateTmp=yes\nPrivateTmp=\n")
    assert unit.all("Service", "ExecStart") == ["/bin/b"]
    assert unit.last("Service", "PrivateTmp", "default") == "default"
    assert unit.keys("Service") == ["ExecStart"]


def test_a_drop_in_continues_the_unit():
    unit = read("[Service]\nUMask=0077\nEnvironment=A=1\n")
    unit.read("[Service]\nUMask=0022\nEnvironment=\nEnvironment=B=2\n", "10-local.conf")
    assert unit.last("Service", "UMask") == "0022"
    assert unit.all("Service", "Environment") == ["B=2"]


def test_continuation_lines_are_joined_by_a_space_and_skip_comments():
    unit = read("[Service]\nExecStart=/bin/a \\\n  one \\\n# not this\n; nor this\n  two\nUMask=0022\n")
    assert unit.last("Service", "ExecStart").split() == ["/bin/a", "one", "two"]
    assert unit.last("Service", "UMask") == "0022"


def test_a_continuation_at_the_end_of_the_file():
    assert read("[Service]\nExecStart=/bin/a \\").last("Service", "ExecStart") == "/bin/a"


def test_nonsense_is_a_warning_with_its_line():
    unit = read("Early=1\n[Service]\nno assignment here\n=value\nUMask=0022\n")
    assert unit.last("Service", "UMask") == "0022"
    assert [warning.split(":")[:2] for warning in unit.warnings] == [
        ["test.service", "1"], ["test.service", "3"], ["test.service", "4"],
    ]  # fmt: skip


@given(st.text())
def test_any_text_can_be_read(text: str):
    unit = read(text)
    for section, key, _ in unit.entries:
        unit.all(section, key)


def test_specifiers():
    known = {**unitfile.unit_specifiers("web@a-b.service"), "t": "/run/x", "S": "/var/lib"}
    assert unitfile.expand("%t/%p/%i %n %N %I 100%%", known) == "/run/x/web/a-b web@a-b.service web@a-b a/b 100%"
    with pytest.raises(UnitError, match="%z"):
        unitfile.expand("%z", known)
    with pytest.raises(UnitError):
        unitfile.expand("ends in %", known)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a  b\tc", ["a", "b", "c"]),
        ("'one two' \"three four\"", ["one two", "three four"]),
        ('"" x', ["", "x"]),
        (r'"a\"b" \x41 \101 \u00e9 a\sb \n', ['a"b', "A", "A", "é", "a b", "\n"]),
        ("'a'\"b\"c", ["abc"]),
    ],
)
def test_words(text: str, expected: list[str]):
    assert unitfile.words(text) == expected


@pytest.mark.parametrize("text", ['"open', "'open", "a\\", r"\xZZ", r"\q", r"\7", r"\U00110000"])
def test_words_that_are_none(text: str):
    with pytest.raises(UnitError):
        unitfile.words(text)


@given(st.lists(st.text(st.characters(exclude_characters="\\\0", exclude_categories=["Cs"]), min_size=1)))
def test_quoted_words_come_back(values: list[str]):
    # shlex closes a single quote as '"'"': both quotes at work
    assert unitfile.words(" ".join(map(shlex.quote, values))) == values


def test_environment():
    values = ['A=1 "B=two words"', "C=x=y D=", "A=again"]
    assert unitfile.assignments(values) == {"A": "again", "B": "two words", "C": "x=y", "D": ""}
    with pytest.raises(UnitError):
        unitfile.assignments(["1A=x"])


def test_environment_file():
    text = "# comment\nA=1\n B = spaced out \nC='quoted #'\nbad line\nD=\"x\\ty\"\n"
    assert unitfile.environment_file(text) == {"A": "1", "B": "spaced out", "C": "quoted #", "D": "x\ty"}


def test_command_lines():
    environment = {"ONE": "1", "MANY": "a b  c"}
    line = "-/bin/tool ${ONE}x $MANY ${NONE} $$HOME 'x ${ONE}' $ONE"
    words, forgiven = unitfile.command(line, environment)
    assert words == ["/bin/tool", "1x", "a", "b", "c", "", "$HOME", "x 1", "1"]
    assert forgiven
    assert unitfile.command("@/bin/x y", {}) == (["/bin/x", "y"], False)
    with pytest.raises(UnitError):
        unitfile.command("  ", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5.0), ("2min 200ms", 120.2), ("1h30m", 5400.0), ("infinity", float("inf")), ("1.5s", 1.5), ("0", 0.0)],
)
def test_time_spans(text: str, expected: float):
    assert unitfile.seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-1", "1 2x"])
def test_no_time_spans(text: str):
    with pytest.raises(UnitError):
        unitfile.seconds(text)


def test_other_values():
    assert [unitfile.boolean(text) for text in ("yes", "On", "1", "no", "false")] == [True] * 3 + [False] * 2
    assert unitfile.octal("0660") == 0o660
    assert unitfile.limit("infinity") == (-1, -1)
    assert unitfile.limit("1K:2M") == (1024, 2 << 20)
    for parse, text in (
        (unitfile.boolean, "maybe"), (unitfile.octal, "0o7"), (unitfile.octal, "888"),
        (unitfile.limit, "1:2:3"), (unitfile.limit, "many"), (unitfile.integer, "1.5"),
    ):  # fmt: skip
        with pytest.raises(UnitError):
            parse(text)
