# SPDX-License-Identifier: Apache-2.0
"""What systemd-sentry's own eyes see of failed units: a program for the machine that they failed on.

`witness.py MODEL UNIT…` prints a line of JSON each: the slice and contextd's reply, as `read()` takes them, and
what the model chooses, where one is named and the signatures leave it anything to choose.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.sentry import causes, evidence, signatures
from syntrop.sentry.advice import Adviser
from syntrop.sentry.clock import Clock
from syntrop.sentry.manager import Manager
from syntrop.sentry.peers import Peers
from syntrop.sentry.record import Record
from syntrop.sentry.slicing import Slicer, copies
from syntrop.sentry.verdict import Answer

KEY = b"k" * 32  # digests of secrets are to be the same on all machines
PATIENCE_US = 120_000_000  # the first question has the model loaded
ANSWER = ("label", "confidence", "margin")


def packed(value: Any) -> Any:
    """Evidence as JSON."""
    if isinstance(value, Record):
        parts = {name: packed(getattr(value, name)) for name in value.__slots__}
        return {"record": type(value).__name__, **parts}
    if isinstance(value, (list, tuple)):
        return [packed(one) for one in value]
    return value


def unpacked(value: Any) -> Any:
    """What `packed` was given."""
    if isinstance(value, dict) and "record" in value:
        parts = {name: unpacked(one) for name, one in value.items() if name != "record"}
        return getattr(evidence, value["record"])(**parts)
    if isinstance(value, list):
        return tuple(unpacked(one) for one in value)
    return value


def read(told: dict[str, Any]) -> evidence.Evidence:
    """The evidence of a line that this program printed."""
    arguments = {name: unpacked(one) for name, one in told["slice"].items()}
    return evidence.Evidence(
        told["unit"],
        **arguments,
        changes=evidence.changes(told["context"], KEY),
        packages=evidence.packages(told["context"]),
        copies=told["copies"],
    )


async def advised(model: str, found: evidence.Evidence) -> Answer | str:
    """The model's choice, or why there is none."""
    if not model:
        return "no model was named"
    peers, clock = Peers(), Clock()
    try:
        ranked = causes.candidates(found, signatures.scan(found))
        deadline = clock.monotonic_us() + PATIENCE_US
        return await Adviser(peers, model, clock).choose(found, ranked, deadline=deadline)
    finally:
        peers.close()


async def look(model: str, units: list[str]) -> None:
    manager, slicer = Manager(), Slicer()
    context = await varlink.connect(paths.endpoint("io.syntrop.Context1"))
    for unit in units:
        taken = await slicer(manager, unit, KEY)
        asked = {"unit": unit}
        with await context.call("io.syntrop.Context1.GetUnitContext", asked, timeout=60.0) as reply:
            known = dict(reply.parameters["context"])
        near = copies(evidence.changes(known, KEY))
        for name in ("events", "entries"):
            known.pop(name, None)  # they are in the slice, or are for people
        arguments = {name: packed(one) for name, one in taken.arguments().items()}
        told = {"unit": unit, "slice": arguments, "context": known, "copies": near}
        answer = await advised(model, read(told))
        given = {name: getattr(answer, name) for name in ANSWER} if isinstance(answer, Answer) else None
        print(json.dumps({**told, "answer": given}))
    context.close()
    slicer.close()
    manager.close()


if __name__ == "__main__":
    loop.run(look(sys.argv[1], sys.argv[2:]))
