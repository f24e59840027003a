# SPDX-License-Identifier: Apache-2.0
"""The units as systemd 257 judges them: well formed, and no more exposed than promised and explained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from machine import run_in_layers
from roots import TREE, Roots
from suite import DAEMONS, Daemon

REMOTE = (
    "mkdir -p /etc/systemd/system/routerd.service.d && "
    "cp /usr/lib/syntrop/units/optional/routerd.service.d/remote.conf /etc/systemd/system/routerd.service.d/ && "
)
CASES = [
    *((f"{daemon.name}", daemon.service, "", daemon.gate) for daemon in DAEMONS),
    ("routerd with remote.conf", "routerd.service", REMOTE, 1.4),
    ("modeld-pull", "modeld-pull@.service", "", 1.3),
    ("inferenced-lookout", "inferenced-lookout@.service", "", 1.2),
]


@pytest.fixture(scope="session")
def layers(roots: dict[str, Roots]) -> list[Path]:
    return roots["trixie"].layers()


def analyze(layers: list[Path], unit: str, before: str) -> tuple[float, dict[str, str]]:
    """The exposure of a unit, and the lines that it still counts with the manager's own words for them."""
    security = f"systemd-analyze security --offline=yes --no-pager {unit}"
    shown = run_in_layers(layers, f"{before}{security} && {security} --json=short").stdout
    text, _, table = shown.partition("\n[")
    overall = re.search(r"Overall exposure level for \S+: (\d+\.\d)", text)
    assert overall, text
    rows = json.loads("[" + table)
    return float(overall[1]), {
        row["name"]: row["description"] for row in rows if not row["set"] and row["exposure"]
    }


@pytest.mark.parametrize(("name", "unit", "before", "gate"), CASES, ids=[case[0] for case in CASES])
def test_exposure(layers: list[Path], name: str, unit: str, before: str, gate: float) -> None:
    exposure, open_lines = analyze(layers, unit, before)
    assert exposure <= gate
    page = (TREE / "docs/security.md").read_text()
    assert re.search(
        rf"^\| `{unit}`{' with `remote.conf`' if before else ''} \| {exposure} \| {gate} \|$", page, re.M
    )
    explained = {}
    for line, units, why in re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", page, re.M):
        explained[line.replace("\\", "")] = {entry.strip() for entry in units.split(",")}
        assert why.strip()
    missing = {
        line
        for line in open_lines
        if not {"all", name, unit.removesuffix(".service").removesuffix("@")} & explained.get(line, set())
    }
    assert not missing, {line: open_lines[line] for line in missing}


def test_toold_as_the_oldest_release_judges_it(roots: dict[str, Roots]) -> None:
    """It is the nearest to its gate, and 252 knows less of what follows from what."""
    gate = next(daemon.gate for daemon in DAEMONS if daemon.name == "toold")
    exposure, _ = analyze(roots["bookworm"].layers(), "toold.service", "")
    assert exposure <= gate


def test_every_unit_is_well_formed(layers: list[Path]) -> None:
    done = run_in_layers(
        layers,
        "cd /usr/lib/systemd/system && systemd-analyze verify --recursive-errors=no $(ls -d syntrop* "
        + " ".join(f"{daemon.name}*" for daemon in DAEMONS)
        + " | grep -v '[.]d$')",  # drop-ins are read with their units
    )
    # What a chroot without /proc says about the kernel is not about the units.
    assert [line for line in done.stderr.splitlines() if "IPv6" not in line] == []


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)
def test_the_account_is_static(layers: list[Path], daemon: Daemon) -> None:
    entry = run_in_layers(layers, f"getent passwd {daemon.user}").stdout.split(":")
    assert int(entry[2]) < 1000
    assert entry[6].strip().endswith("nologin")
