# SPDX-License-Identifier: Apache-2.0
"""`syntropctl run`: a tool's words and options in whatever order people write them."""

from __future__ import annotations

import pytest

from syntrop.ctl import commands
from syntrop.ctl.run import usage


@pytest.mark.parametrize(
    "line",
    [
        "set_unit_property --unit a.service MemoryMax 1G",
        "--unit a.service set_unit_property MemoryMax 1G",
        "set_unit_property MemoryMax 1G --unit a.service",
        "set_unit_property MemoryMax --unit a.service 1G",
        "set_unit_property --unit=a.service -- MemoryMax 1G",
    ],
)
def test_options_stand_anywhere(line: str) -> None:
    options = commands.parsed(["run", *line.split()])
    assert (options.tool, options.arguments, options.unit) == (
        "set_unit_property",
        ["MemoryMax", "1G"],
        "a.service",
    )


def test_what_comes_after_two_dashes_is_a_word() -> None:
    assert commands.parsed(["run", "tool", "-u", "a.service", "--", "-5"]).arguments == ["-5"]
    assert commands.parsed(["run", "tool", "--", "--json"]).arguments == ["--json"]
    options = commands.parsed(["run", "--", "tool", "-5"])
    assert (options.tool, options.arguments) == ("tool", ["-5"])


@pytest.mark.parametrize(
    "line", ["run tool --nonsense", "run tool -u a --nonsense x", "history x", "rollback a b"]
)
def test_what_is_unknown_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.parsed(line.split())
    assert ended.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


def test_how_a_tool_is_called() -> None:
    parameters = [{"name": "property", "optional": False}, {"name": "value", "optional": True}]
    assert usage({"name": "t", "unit": "needed", "parameters": parameters}) == "t --unit UNIT PROPERTY [VALUE]"
