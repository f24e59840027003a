# SPDX-License-Identifier: Apache-2.0
"""Arguments: what is unknown or ill-typed is refused, whatever it is, before anything looks at it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syntrop.toold import arguments, catalog, commands
from syntrop.toold.arguments import Unsound


@given(text=st.text())
@example("-.mount")
@example("x@.service")
def test_a_unit_name_is_one_word_of_harmless_letters(text: str) -> None:
    try:
        name = arguments.unit_name(text)
    except Unsound:
        return
    assert name == text
    assert not set(name) & set(" /\n\0*?[]$`;|&<>'\"%")
    assert "@." not in name
    assert len(name) <= 255


@pytest.mark.parametrize(
    "name", ["nginx.service", "a@b.service", "-.mount", "dev-sda1.swap", "x\\x2dy.mount", "n" * 247 + ".service"]
)
def test_units(name: str) -> None:
    assert arguments.unit_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "nginx", "a/b.service", "..", "x@.service", "a b.service", "a.service\n", "é.service", "a*.service"],
)
def test_no_units(name: str) -> None:
    with pytest.raises(Unsound):
        arguments.unit_name(name)


@given(text=st.text())
@example("/etc/../shadow")
@example("/")
@example("//etc")
def test_a_path_is_plain(text: str) -> None:
    try:
        path = arguments.absolute_path(text)
    except Unsound:
        return
    assert path == "/" or (path.startswith("/") and not {"", ".", ".."} & set(path.split("/")[1:]))


@given(tool=st.sampled_from(catalog.TOOLS), args=st.lists(st.text(), max_size=5), unit=st.none() | st.text())
def test_whatever_comes_is_refused_or_sound(tool: catalog.Tool, args: list[str], unit: str | None) -> None:
    try:
        call = catalog.parse(tool, args, unit)
    except Unsound as error:
        assert error.parameter in {"args", "target_unit", *(one.name for one in tool.parameters)}
        return
    assert (call.unit is None) == (unit is None)
    command = commands.build(call)
    if command is not None:
        for word in command.argv:
            assert "\0" not in word and "\n" not in word


@given(args=st.lists(st.text(max_size=40), max_size=3))
def test_no_argument_becomes_an_option(args: list[str]) -> None:
    for name in ("journal_slice", "disk_usage", "net_listeners", "coredump_info"):
        try:
            command = commands.build(catalog.parse(catalog.find(name), args, None))
        except Unsound:
            continue
        assert command is not None
        for argument in args:
            if argument.startswith("-"):
                assert argument not in command.argv


def test_too_many_and_too_few() -> None:
    tool = catalog.find("set_unit_property")
    for args in ([], ["MemoryMax"], ["MemoryMax", "1G", "more"]):
        with pytest.raises(Unsound):
            catalog.parse(tool, args, "a.service")
    with pytest.raises(Unsound) as caught:
        catalog.parse(catalog.find("unit_restart"), [], None)
    assert caught.value.parameter == "target_unit"
    with pytest.raises(Unsound):
        catalog.parse(catalog.find("daemon_reload"), [], "a.service")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("journal_slice", ["nginx.service"]),
        ("journal_slice", ["nginx.service", "20"]),
        ("coredump_info", ["nginx"]),
    ],
)
def test_who_gives_the_unit_as_an_argument_is_told_where_it_goes(name: str, args: list[str]) -> None:
    with pytest.raises(Unsound, match="target_unit, to syntropctl as --unit"):
        catalog.parse(catalog.find(name), args, None)


def test_who_gave_the_unit_or_a_wrong_number_is_told_nothing_of_it() -> None:
    for args, unit in ((["ten"], "a.service"), (["0"], None)):
        with pytest.raises(Unsound) as caught:
            catalog.parse(catalog.find("journal_slice"), args, unit)
        assert "unit" not in caught.value.reason


@pytest.mark.parametrize("text", ["0", "1001", "-1", "1.5", "ten", "1e3", " 5", "٣", "99999999999"])
def test_numbers(text: str) -> None:
    with pytest.raises(Unsound):
        catalog.parse(catalog.find("journal_slice"), [text], None)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("MemoryMax", "512M", ("MemoryMax", "t", 512 << 20)),
        ("MemoryMax", "infinity", ("MemoryMax", "t", 2**64 - 1)),
        ("CPUQuota", "50%", ("CPUQuotaPerSecUSec", "t", 500_000)),
        ("CPUWeight", "100", ("CPUWeight", "t", 100)),
        ("TasksMax", "10", ("TasksMax", "t", 10)),
    ],
)
def test_properties(name: str, text: str, expected: tuple[str, str, int]) -> None:
    assert catalog.property_value(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("MemoryMax", "50%"), ("CPUQuota", "50"), ("CPUWeight", "0"), ("TasksMax", "0"), ("CPUWeight", "infinity")],
)
def test_no_values_of_properties(name: str, text: str) -> None:
    with pytest.raises(Unsound):
        catalog.property_value(name, text)


def test_older_names_are_known() -> None:
    assert catalog.find("unit.restart").name == "unit_restart"
    with pytest.raises(KeyError):
        catalog.find("sh")


def test_every_declaration_is_whole() -> None:
    wanted = {
        "unit_status", "journal_slice", "unit_verify", "net_listeners", "disk_usage", "coredump_info",
        "daemon_reload", "unit_restart", "unit_reset_failed", "unit_stop", "revert_dropin", "restore_file",
        "set_unit_property", "clear_cache",
    }  # fmt: skip
    assert {tool.name for tool in catalog.TOOLS} == wanted
    for tool in catalog.TOOLS:
        assert tool.mode in (catalog.SAFE, catalog.REMEDIATION, catalog.MAINTENANCE)
        assert tool.description.endswith(".")
        assert tool.timeout_ms >= 1000
        assert bool(tool.writes) == tool.changes
        assert tool.undone
        optional = [parameter.optional for parameter in tool.parameters]
        assert optional == sorted(optional), "optional ones come last"
