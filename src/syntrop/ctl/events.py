# SPDX-License-Identifier: Apache-2.0
"""`syntropctl events`: the chronology, newest last, and as it goes on."""

from __future__ import annotations

import json

from syntrop.common import paths
from syntrop.common.varlink import client as varlink
from syntrop.ctl import chronology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


async def events(unit: str | None, since: int, limit: int, *, as_json: bool) -> int:
    """Print the newest events; the exit status."""
    parameters: dict[str, Any] = {"since_seconds": since, "limit": limit}
    if unit is not None:
        parameters["unit"] = unit
    reply = await chronology.ask("ListEvents", parameters)
    found = reply["events"]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print("nothing was recorded in this time")
    for event in reversed(found):
        _show(event)
    chronology.caveats(reply)
    return 0


async def follow(unit: str | None, *, as_json: bool) -> int:
    """Print events as they come, until interrupted."""
    client = await varlink.connect(paths.endpoint(chronology.ENDPOINT))
    try:
        parameters = {} if unit is None else {"unit": unit}
        async for reply in client.stream(f"{chronology.ENDPOINT}.Watch", parameters, timeout=None):
            with reply:
                event = reply.parameters.get("event")
                if event is not None:
                    print(json.dumps(event), flush=True) if as_json else _show(event)
    finally:
        client.close()
    return 0


async def record(source: str, unit: str | None, summary: str, details: str | None) -> int:
    """Record an event; prints its identifier."""
    parameters: dict[str, Any] = {"source": source, "summary": summary, "allowInteractiveAuthentication": True}
    if unit is not None:
        parameters["unit"] = unit
    if details is not None:
        parameters["details"] = details
    print((await chronology.ask("RecordEvent", parameters))["event_id"])
    return 0


def _show(event: dict[str, Any]) -> None:
    unit = f" [{event['unit']}]" if event.get("unit") else ""
    print(f"{chronology.clock(event['timestamp_us'])}  {event['source']:<8} {event['summary']}{unit}", flush=True)
