# SPDX-License-Identifier: Apache-2.0
"""What systemd-sentry's own eyes see of failed units: a program for the machine that they failed on.

`witness.py UNIT…` prints one line of JSON a unit: the slice and contextd's reply, as `read()` takes them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.sentry import evidence
from syntrop.sentry.manager import Manager
from syntrop.sentry.record import Record
from syntrop.sentry.slicing import Slicer, copies

KEY = b"k" * 32  # digests of secrets are to be the same on all machines


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


async def look(units: list[str]) -> None:
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
        print(json.dumps({"unit": unit, "slice": arguments, "context": known, "copies": near}))
    context.close()
    slicer.close()
    manager.close()


if __name__ == "__main__":
    loop.run(look(sys.argv[1:]))
