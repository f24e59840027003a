# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: `common`, then daemon cores, services, `__main__`; no daemon another, `ctl` only common."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "syntrop"
DAEMONS = {"routerd", "inferenced", "modeld", "contextd", "toold", "runtimed", "sentry"}
PARTS = DAEMONS | {"common", "ctl", "interfaces"}
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
HEAVY = {"numpy": {"runtimed", "inferenced"}, "jinja2": {"runtimed"}, "pyudev": {"inferenced"}}


def imports(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever in it; relative ones made absolute."""
    tree = ast.parse((PACKAGE / path).read_text())
    package = ["syntrop", *path.parent.parts]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from syntrop.common import loop` names a module too
            found.update([module, *(f"{module}.{alias.name}" for alias in node.names)])
    return found


def part_of(module: str) -> str:
    words = module.split(".")
    return words[1] if words[0] == "syntrop" and len(words) > 1 else ""


def test_every_part_is_known():
    assert {path.parts[0] for path in FILES if len(path.parts) > 1} == PARTS


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_down_the_ladder(path: Path):
    if len(path.parts) == 1:
        return
    own = path.parts[0]
    allowed = {own, "common", "interfaces", "", "__version__"}
    wrong = sorted(name for name in imports(path) if part_of(name) not in allowed)
    assert not wrong, f"{path} imports {', '.join(wrong)}"


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] in DAEMONS], ids=str)
def test_only_the_main_imports_a_service(path: Path):
    if path.stem in ("__main__", "service"):
        return
    service = f"syntrop.{path.parts[0]}.service"
    assert service not in imports(path), f"{path} imports its own service"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_heavy_libraries_stay_in_their_daemons(path: Path):
    for library, owners in HEAVY.items():
        if any(name.split(".")[0] == library for name in imports(path)):
            assert path.parts[0] in owners, f"{path} imports {library}"
