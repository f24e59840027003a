# SPDX-License-Identifier: Apache-2.0
"""Failures as systemd 252 and 257 told them: `tests/data/incidents` (its README says how they were taken)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from syntrop.sentry import evidence

DATA = Path(__file__).parents[2] / "data" / "incidents"
RELEASES = ("252", "257")
KEY = b"k" * 32


@cache
def incidents(release: str) -> dict[str, dict[str, Any]]:
    """The captured failures of a release by name."""
    lines = (DATA / f"systemd-{release}.jsonl").read_text().splitlines()
    return {one["name"]: one for one in map(json.loads, lines)}


def names() -> list[str]:
    return sorted(incidents("257"))


def of_unit(text: dict[str, Any], **more: Any) -> evidence.Evidence:
    """The evidence of a captured failure; `more` is what contextd and the counters would have told."""
    unit = text["unit"]
    properties = text["units"][unit]
    entries = [evidence.entry(number, fields, KEY) for number, fields in enumerate(text["entries"], 1)]
    failed = [one.time_us for one in entries if one.field("UNIT_RESULT")]
    neighbours = [
        evidence.Neighbour(f"n{number}", name, active=other["ActiveState"], result=other.get("Result", ""))
        for number, (name, other) in enumerate(text["units"].items(), 1)
        if name != unit and name in f"{properties.get('Requires', '')} {properties.get('BindsTo', '')}".split()
    ]
    return evidence.Evidence(
        unit,
        invocation=properties.get("InvocationID", ""),
        failed_us=failed[0] if failed else (entries[-1].time_us if entries else None),
        **{
            "exit": evidence.leaving(properties),
            "facts": evidence.facts(properties),
            "entries": entries,
            "neighbours": neighbours,
            **more,
        },
    )


def captured(release: str, name: str, **more: Any) -> evidence.Evidence:
    return of_unit(incidents(release)[name], **more)
