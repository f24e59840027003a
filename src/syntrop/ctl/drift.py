# SPDX-License-Identifier: Apache-2.0
"""`syntropctl drift`: what changed on the machine, or around a unit, likeliest cause first."""

from __future__ import annotations

import json
import time

from syntrop.ctl import chronology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


async def drift(unit: str | None, since: int, *, diffs: bool, as_json: bool) -> int:
    """Print the changes; the exit status."""
    if unit is None:
        found = await chronology.ask("ListRecentDiffs", {"since_seconds": since})
        if as_json:
            print(json.dumps(found["diffs"], indent=2))
            return 0
        if not found["diffs"]:
            print("no file changed in this time")
        for one in found["diffs"]:
            print(f"{chronology.clock(one['timestamp_us'])}  {one.get('summary') or one['file_path']}")
            if diffs:
                _indent(one["diff_content"])
        _caveat(found.get("watched_since_us"), since)
        chronology.caveats(found)
        return 0
    context = (await chronology.ask("GetUnitContext", {"unit": unit, "since_seconds": since}))["context"]
    if as_json:
        print(json.dumps(context, indent=2))
        return 0
    _show(context, diffs)
    _caveat(context.get("watched_since_us"), since)
    chronology.caveats(context)
    return 0


def _show(context: dict[str, Any], diffs: bool) -> None:
    print(context["summary"])
    by_id = {one.get("event_id") or one.get("summary"): one for one in context["config_diffs"]}
    for event in context.get("events") or ():
        print(f"\n{chronology.clock(event['timestamp_us'])}  {event['source']:<8} {event['summary']}")
        if event.get("reason"):
            print(f"    {event['reason']}")
        change = by_id.get(event["id"]) or by_id.get(event["summary"])  # what is not on record has no identifier
        if diffs and change is not None:
            _indent(change["diff_content"])
        elif diffs and event.get("details"):
            _indent(event["details"])
    entries = context.get("entries") or ()
    if entries:
        print("\njournal of the latest invocation:")
    for entry in entries:
        print(f"    {chronology.clock(entry['timestamp_us'])} {entry.get('identifier') or ''}: {entry['message']}")


def _caveat(watched_since_us: int | None, since: int) -> None:
    """Say so where the time that was asked about began before anybody watched."""
    if watched_since_us is None:
        print("\nThe first look at the machine is under way: what changed before it is not known.")
    elif watched_since_us > (time.time() - since) * 1e6:
        print(f"\nWatched since {chronology.clock(watched_since_us)}: what changed before is not known.")


def _indent(text: str) -> None:
    for line in text.splitlines():
        print(f"    {line}")
