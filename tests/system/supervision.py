# SPDX-License-Identifier: Apache-2.0
"""What tests of systemd-sentry on a machine have in common: units that fail, and what it tells of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from machine import Machine
from suite import CALL

SENTRY = "/run/systemd-sentry/sentry.sock"
SERVICE = "systemd-sentry.service"
UNITS = "/etc/systemd/system"
VICTIM = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/usr/bin/sleep infinity\n"
# No model, all the time that a busy machine needs, and no rate that gets into a test's way.
SETTINGS = """
[diagnose]
model = ""
patience_sec = 60.0
[policy]
actions_per_minute = 5000
actions_per_hour = 5000
[restore]
probation_sec = {probation}
"""
RATES = "[rates]\nchanges_per_minute = 5000\nchanges_per_unit_per_minute = 5000\n"


def configure(machine: Machine, *, probation: float, mode: str = "") -> None:
    """`mode` is left to the unit and its drop-ins where none is given."""
    watch = f'[watch]\nmode = "{mode}"\n' if mode else ""
    machine.write("/etc/syntrop/systemd-sentry.toml", watch + SETTINGS.format(probation=probation))
    machine.write("/etc/syntrop/toold.toml", RATES)


def call(machine: Machine, endpoint: str, method: str, **parameters: Any) -> dict[str, Any]:
    """The whole reply: `parameters`, and `error` where it is one."""
    reply: dict[str, Any] = json.loads(machine.run_python(CALL, endpoint, method, json.dumps(parameters)))
    return reply


def ask(machine: Machine, method: str, **parameters: Any) -> dict[str, Any]:
    """What systemd-sentry answers; it has to."""
    reply = call(machine, SENTRY, f"io.syntrop.Sentry1.{method}", **parameters)
    assert "error" not in reply, (reply, machine.journal(SERVICE))
    answer: dict[str, Any] = reply.get("parameters", {})
    return answer


def incidents(machine: Machine, unit: str | None = None) -> list[dict[str, Any]]:
    """Of a unit, or of all, oldest first."""
    found: list[dict[str, Any]] = ask(machine, "ListIncidents", unit=unit, limit=1000)["incidents"]
    return found[::-1]


def wait(
    condition: Callable[[], Any], what: str, seconds: float = 120.0, *, machine: Machine | None = None
) -> Any:
    """What the condition gives once that is something; `machine` says in its journal why it did not."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, (what, machine and machine.journal())
        time.sleep(0.05)
    return found
