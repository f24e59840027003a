# SPDX-License-Identifier: Apache-2.0
"""The compiled form of an interface says what its source says, and is not used when the source has moved on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from syntrop.common.varlink import idl
from syntrop.common.varlink.compile import InvalidInterface, compile_all, compile_interface

NAMES = sorted(entry.removesuffix(".varlink") for entry in os.listdir(idl.FOLDER) if entry.endswith(".varlink"))


def content(interface: idl.Interface) -> dict[str, Any]:
    methods = {name: (method.input, method.output) for name, method in interface.methods.items()}
    return {
        "name": interface.name,
        "description": interface.description,
        "types": interface.types,
        "methods": methods,
        "errors": interface.errors,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        shutil.copy(Path(idl.FOLDER, name + ".varlink"), tmp_path)
    compile_all(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_parsed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (folder / f"{name}.varlink").read_text()
    parsed = content(idl.parse(source))
    assert parsed["name"] == name and parsed["methods"]
    monkeypatch.setattr(idl, "_loaded", {})
    (folder / f"{name}.varlink").touch()  # times say nothing: installers do not keep them
    # The parser must not be needed: whoever imports it here fails.
    monkeypatch.setitem(__import__("sys").modules, "syntrop.common.varlink.compile", None)
    assert content(idl.load(name, str(folder))) == parsed


@pytest.mark.parametrize("name", NAMES)
def test_what_this_tree_loads_equals_its_source(name: str) -> None:
    """After a build that is the compiled form in the package itself."""
    source = Path(idl.FOLDER, name + ".varlink").read_text()
    assert content(idl.load(name)) == content(idl.parse(source))


def test_a_changed_source_is_compiled_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idl, "_loaded", {})
    source = folder / "io.syntrop.Model1.varlink"
    source.write_text(source.read_text() + "\n# Added.\nmethod Added() -> ()\n")
    assert "Added" in idl.load("io.syntrop.Model1", str(folder)).methods


@pytest.mark.parametrize(
    "text",
    [
        "interface a.b\nmethod A() -> ()\nmethod A() -> ()\n",
        "interface a.b\ntype A (x: int)\nerror A ()\n",
        "interface a.b\nmethod A(x: Nowhere) -> ()\n",
        "interface a.b\nmethod A(x: []?[string]Nowhere) -> ()\n",
        "interface a.b\nmethod A( -> ()\n",
        "interface\n",
        "",
    ],
)
def test_contradictory_definitions_are_refused(text: str) -> None:
    with pytest.raises(InvalidInterface):
        compile_interface(text)
