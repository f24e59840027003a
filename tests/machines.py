# SPDX-License-Identifier: Apache-2.0
"""Machines of `data/machines`, unpacked: trees for SYNTROP_SYS_ROOT and SYNTROP_PROC_ROOT."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def unpack(name: str, target: Path) -> dict[str, str]:
    """Write a machine below `target`; the variables that lead there."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    made: list[tuple[str, str]] = []
    while lines:
        line = lines.pop(0)
        if line.endswith(" <<"):
            text = ""
            while lines and (lines[0].startswith("    ") or (not lines[0] and any(lines[1:]))):
                text += lines.pop(0)[4:] + "\n"
            made.append((line[:-3], text))
        elif " -> " in line:
            path, _, goal = line.partition(" -> ")
            at = target / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(goal)
            # The kernel's links lead somewhere; a driver's folder is otherwise empty here.
            Path(os.path.normpath(at.parent / goal)).mkdir(parents=True, exist_ok=True)
        elif " = " in line:
            path, _, text = line.partition(" = ")
            made.append((path, text + "\n"))
        elif line and not line.startswith("#"):
            folder, _, files = line.partition(": ")
            made += [
                (f"{folder}/{name}", text + "\n")
                for name, _, text in (one.partition("=") for one in files.split("; "))
            ]
    for path, text in made:
        at = target / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, encoding="utf-8")
    for top in ("sys", "proc"):
        (target / top).mkdir(exist_ok=True)
    return {"SYNTROP_SYS_ROOT": str(target / "sys"), "SYNTROP_PROC_ROOT": str(target / "proc")}
