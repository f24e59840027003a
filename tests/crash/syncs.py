# SPDX-License-Identifier: Apache-2.0
"""Where the sources call for a sync, found by reading them."""

from __future__ import annotations

import ast
import os

from crashlab.explore import Line
from crashlab.tracer import TREE

_SYNCS = ("fsync", "fdatasync", "sync", "syncfs", "sync_folder", "_sync")


def written(sources: tuple[str, ...]) -> set[Line]:
    """Every line of these files, or files below these folders, that calls a sync or a helper named so."""
    return {(file, line) for source in sources for file in _files(source) for line in _calls(file)}


def _files(source: str) -> list[str]:
    if source.endswith(".py"):
        return [source]
    found = []
    for folder, _, names in os.walk(os.path.join(TREE, source)):
        found += [os.path.relpath(os.path.join(folder, one), TREE) for one in names if one.endswith(".py")]
    return found


def _calls(file: str) -> set[int]:
    with open(os.path.join(TREE, file), encoding="utf-8") as text:
        tree = ast.parse(text.read())
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in _SYNCS:
                lines.add(node.lineno)
    return lines
