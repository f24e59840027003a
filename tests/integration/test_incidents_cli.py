# SPDX-License-Identifier: Apache-2.0
"""`syntropctl incidents`, `explain`, `triage`, `approve`, `reject`, `reset` and `maintenance` under the activator.

What they do where there is something to do, `tests/system/test_incidents.py` shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run(suite: Any, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**suite.environment, "SYNTROP_RUN_ROOT": suite.root}
    command = [sys.executable, "-m", "syntrop.ctl", *words]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr + suite.log()
    return done


def test_a_machine_without_incidents(suite: Any) -> None:
    assert run(suite, "incidents").stdout == "no incident in this time\n"
    assert json.loads(run(suite, "incidents", "--unit", "web", "--status", "staged", "--json").stdout) == []
    said = run(suite, "explain", "web", status=1).stderr
    assert said == "syntropctl: no incident of web.service is on record; `syntropctl triage` looks into a unit\n"
    for verb in ("approve", "reject"):
        said = run(suite, verb, "in-1", status=1).stderr
        assert said == "syntropctl: there is no incident in-1; `syntropctl incidents` lists them\n"
    assert run(suite, "reset", "web").stdout == "web.service: actions are let through\n"
    assert json.loads(run(suite, "reset", "web", "--json").stdout)["state"] == "closed"
    assert run(suite, "maintenance").stdout == "no work is announced\n"
    said = run(suite, "maintenance", "web", "db*", "--for", "1h", "--reason", "migration").stdout
    assert [line.partition(":")[0] for line in said.splitlines()] == ["db*.service", "web.service"]
    assert said.count(f"(user {os.getuid()}): migration") == 2
    assert run(suite, "maintenance", "db*", "--end").stdout.startswith("web.service: ")
    (left,) = json.loads(run(suite, "maintenance", "--json").stdout)
    assert (left["unit"], left["reason"]) == ("web.service", "migration")
    assert run(suite, "maintenance", "web", "--for", "2d", status=1).stderr.startswith("syntropctl: ")
    assert run(suite, "triage", "no/unit", "--dry-run", status=1).stderr.startswith("syntropctl: ")
