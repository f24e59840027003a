# SPDX-License-Identifier: Apache-2.0
"""`syntropctl leases`, `explain-lease`, `pressure` and `quarantine` under the embedded activator."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

INTERFACE = "io.syntrop.Inference1."


def lease(suite: Any, **more: Any) -> str:
    """A lease of this process; its identifier."""
    asked = {"priority": "EmergencyTriage", "memory_bytes": 3 << 20, "plane": "cpu0", "pid": os.getpid(), **more}
    # An emergency, since the machine that tests run on may be pressed hard; the interface grants those here alone.
    path = f"{suite.root}/syntrop/sentry.sock"
    return str(
        json.loads(suite.ctl("call", path, INTERFACE + "AcquireLease", json.dumps(asked)).stdout)["lease_id"]
    )


def test_leases_are_listed_and_explained(suite: Any) -> None:
    assert suite.ctl("leases").stdout == "nobody holds a lease\n"
    one = lease(suite, expire_ms=3_600_000)
    lease(suite, memory_bytes=1 << 20)  # what has ended is remembered while the daemon is awake
    head, line, _ = suite.ctl("leases").stdout.splitlines()
    assert head.split() == ["LEASE", "PLANE", "MEMORY", "PRIORITY", "STATE", "HOLDER"]
    assert line.split() == [one, "cpu0", "3.0", "MiB", "EmergencyTriage", "Active", "process", str(os.getpid())]
    told, _ = json.loads(suite.ctl("leases", "--json").stdout)
    assert told["allocated_memory"] == 3 << 20
    said = suite.ctl("explain-lease", one).stdout
    assert said.startswith("LEASE")
    assert "It ends in 3" in said and "unless it is renewed" in said
    assert "4.0 MiB are" in said
    call = ("call", INTERFACE.removesuffix("."), INTERFACE + "ReleaseLease", json.dumps({"lease_id": one}))
    suite.ctl(*call)
    said = suite.ctl("explain-lease", one).stdout
    assert "Released because its holder gave it back" in said
    assert json.loads(suite.ctl("explain-lease", one, "--json").stdout)["leases"][0]["state"] == "Released"
    assert "there is no lease l-0" in suite.ctl("explain-lease", "l-0", status=1).stderr


@contextmanager
def watching(suite: Any) -> Iterator[Any]:
    """What `leases --watch` tells, from when it does. As long as it watches, the daemon does not sleep."""
    environment = {**suite.environment, "SYNTROP_RUN_ROOT": suite.root, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "syntrop.ctl", "leases", "--watch", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            until = monotonic() + 120
            while not select.select([watch.stdout], [], [], 0)[0]:
                assert monotonic() < until, suite.log()
                lease(suite, expire_ms=1)  # until it watches, leases come and go unseen
            yield watch.stdout
        finally:
            watch.terminate()


def test_what_happens_is_followed(suite: Any) -> None:
    with watching(suite) as told:
        assert json.loads(told.readline())["kind"] in ("granted", "expired")


def test_pressure_and_quarantine(suite: Any) -> None:
    said = suite.ctl("pressure").stdout
    assert said.startswith("pressure is ")
    assert "cpu0" in said
    found = json.loads(suite.ctl("pressure", "--json").stdout)
    assert "cpu0" in {one["id"] for one in found["planes"]}
    with watching(suite):  # what has ended is remembered while the daemon is awake
        one = lease(suite)
        said = suite.ctl("quarantine", "cpu0", "--reason", "its memory is bad").stdout
        assert said == f"nothing is placed on cpu0 any more; 1 lease was revoked\n  {one}\n"
        why = "Revoked because plane cpu0 is in quarantine: its memory is bad"
        assert why in suite.ctl("explain-lease", one).stdout
    assert "in quarantine" in suite.ctl("devices").stdout
    assert suite.ctl("quarantine", "cpu0", "--clear").stdout == "cpu0 may be used again\n"
    lease(suite, expire_ms=1)
    assert "there is no plane gpu9" in suite.ctl("quarantine", "gpu9", status=1).stderr
