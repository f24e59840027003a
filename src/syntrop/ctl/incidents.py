# SPDX-License-Identifier: Apache-2.0
"""`syntropctl incidents`, `explain`, `triage`, `approve`, `reject`, `reset`, `maintenance`: failures, what came of
them, and what nothing shall come of."""

from __future__ import annotations

import json
import sys

from syntrop.common.varlink.errors import VarlinkError
from syntrop.ctl import supervision
from syntrop.ctl.chronology import clock
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

REMEMBERED = 400 * 86400  # seconds: longer than incidents are kept
_ASKING = {"allowInteractiveAuthentication": True}


async def incidents(unit: str | None, status: str | None, since: int, limit: int, *, as_json: bool) -> int:
    """List incidents, newest last; the exit status."""
    parameters: dict[str, Any] = {"since_seconds": since, "limit": limit}
    if unit is not None:
        parameters["unit"] = supervision.full_name(unit)
    if status is not None:
        parameters["status"] = status
    found = (await supervision.ask("ListIncidents", parameters))["incidents"]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print("no incident in this time")
    for one in reversed(found):
        print(line(one))
    for one in (await supervision.ask("GetStatus"))["breakers"]:
        if unit is None or one["unit"] == parameters["unit"]:
            print(breaker(one), file=sys.stderr)
    return 0


async def follow(unit: str | None, *, as_json: bool) -> int:
    """Print incidents as they come and change, until interrupted."""
    client = await supervision.connect()
    try:
        parameters = {} if unit is None else {"unit": supervision.full_name(unit)}
        async for reply in client.stream(f"{supervision.INTERFACE}.WatchIncidents", parameters, timeout=None):
            with reply:
                one = reply.parameters.get("incident")
                if one is not None:
                    print(json.dumps(one) if as_json else line(one), flush=True)
    finally:
        client.close()
    return 0


async def explain(what: str, *, as_json: bool) -> int:
    """Tell what happened in the newest incident of a unit, or in an incident by its identifier."""
    wanted = {"unit": supervision.full_name(what), "since_seconds": REMEMBERED, "limit": 1}
    found = (await supervision.ask("ListIncidents", wanted))["incidents"]
    try:
        reply = await supervision.ask("GetIncident", {"id": found[0]["id"] if found else what})
    except VarlinkError as error:
        if found or error.name != "NoSuchIncident":
            raise
        return fail(f"no incident of {wanted['unit']} is on record; `syntropctl triage` looks into a unit")
    if as_json:
        print(json.dumps(reply, indent=2))
        return 0
    print("\n".join(told(reply)))
    return 0


async def triage(unit: str, *, dry_run: bool, as_json: bool) -> int:
    """Look into a unit, and put it right unless `dry_run`; phases are shown as they end."""
    parameters = {"unit": supervision.full_name(unit), "dry_run": dry_run, **_ASKING}
    client = await supervision.connect()
    one: dict[str, Any] | None = None
    try:
        replies = client.stream(f"{supervision.INTERFACE}.TriageUnit", parameters, timeout=supervision.PATIENCE)
        async for reply in replies:
            with reply:
                step = reply.parameters.get("phase")
                one = reply.parameters.get("incident") or one
                if step is not None and not as_json:
                    print(phase(step), flush=True)
    finally:
        client.close()
    if one is None:
        return fail("systemd-sentry broke off")
    if as_json:
        print(json.dumps(one, indent=2))
        return 0
    print("\n".join(verdict(one)))
    return 0


async def approve(id: str, *, as_json: bool) -> int:
    """Let a staged action be carried out."""
    one = (await supervision.ask("ApproveAction", {"id": id, **_ASKING}))["incident"]
    print(json.dumps(one, indent=2) if as_json else "\n".join(verdict(one)))
    return 0


async def reject(id: str, reason: str | None, *, as_json: bool) -> int:
    """Drop a staged action."""
    why = {} if reason is None else {"reason": reason}
    one = (await supervision.ask("RejectAction", {"id": id, **why, **_ASKING}))["incident"]
    print(json.dumps(one, indent=2) if as_json else line(one))
    return 0


async def reset(unit: str, *, as_json: bool) -> int:
    """Let actions on a unit pass again."""
    parameters = {"unit": supervision.full_name(unit), **_ASKING}
    one = (await supervision.ask("ResetCircuitBreaker", parameters))["breaker"]
    print(json.dumps(one, indent=2) if as_json else breaker(one))
    return 0


async def maintenance(units: list[str], seconds: int, reason: str | None, *, as_json: bool) -> int:
    """Announce work on units, or that it is over (0 seconds); without units tell what is announced."""
    if units:
        why = {} if reason is None else {"reason": reason}
        named = [supervision.full_name(one) for one in units]
        parameters = {"units": named, "seconds": seconds, **why, **_ASKING}
        found = (await supervision.ask("AnnounceMaintenance", parameters))["planned"]
    else:
        found = (await supervision.ask("GetStatus"))["planned"]
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        print("no work is announced")
    for one in found:
        why_so = f": {one['reason']}" if one["reason"] else ""
        print(
            f"{one['unit']}: whatever happens is wanted until {clock(one['until_us'])} (user {one['uid']}){why_so}"
        )
    return 0


def line(one: dict[str, Any]) -> str:
    """An incident on one line."""
    cause = one["causes"][0] if one["causes"] else None
    words = (
        f"{cause['explanation']} ({cause['fault_class']}, {cause['confidence']:.2f})" if cause else "not known yet"
    )
    status = one["status"].replace("_", " ")
    return f"{clock(one['timestamp_us'])}  {one['id']}  {status:<11} {one['unit']}: {words}"


def phase(one: dict[str, Any]) -> str:
    """A phase on one line."""
    note = f"  {one['note']}" if one.get("note") else ""
    when = f"{one['start_us'] / 1e3:9.1f} ms {one['duration_us'] / 1e3:+9.1f} ms"
    return f"{one['name']:<10} {when}  {one['outcome']}{note}"


def verdict(one: dict[str, Any]) -> Iterator[str]:
    """What was found, and what was or is to be done."""
    yield line(one)
    action = one.get("action")
    if action is None or action["tool"] == "none":
        yield f"nothing is to be done{': ' + action['reason'] if action else ''}"
        return
    yield f"{' '.join([action['tool'], *action['args']])}: {action['reason']}"
    if one["status"] == "staged":
        yield f"this waits for a person: syntropctl approve {one['id']}, or syntropctl reject {one['id']}"
    elif action.get("rollback_id") and one["status"] != "rolled_back":
        yield f"to take that back: syntropctl rollback {action['rollback_id']}"


def told(reply: dict[str, Any]) -> Iterator[str]:
    """An incident in full: the verdict, its timeline, and the unit's last words."""
    yield from verdict(reply["incident"])
    yield ""
    yield from reply["timeline"]
    excerpt = reply["incident"].get("journal_excerpt")
    if excerpt:
        yield ""
        yield "its last words:"
        yield from (f"    {text}" for text in excerpt)


def breaker(one: dict[str, Any]) -> str:
    """A breaker on one line."""
    if one["state"] == "locked":
        return f"{one['unit']}: no actions until `syntropctl reset {one['unit']}`"
    if one["state"] == "open":
        return f"{one['unit']}: no actions for {(one.get('cooldown_ms') or 0) / 1000:.0f} s"
    state = "one action is let through" if one["state"] == "half_open" else "actions are let through"
    return f"{one['unit']}: {state}"
