# SPDX-License-Identifier: Apache-2.0
"""`syntropctl incidents`, `explain`, `triage`, `approve`, `reject`, `reset` and `maintenance` under the activator.

What they do where there is something to do, `tests/system/test_incidents.py` shows.
"""

from __future__ import annotations

import json
import os
from typing import Any


def test_a_machine_without_incidents(suite: Any) -> None:
    assert suite.ctl("incidents").stdout == "no incident in this time\n"
    assert json.loads(suite.ctl("incidents", "--unit", "web", "--status", "staged", "--json").stdout) == []
    said = suite.ctl("explain", "web", status=1).stderr
    assert said == "syntropctl: no incident of web.service is on record; `syntropctl triage` looks into a unit\n"
    for verb in ("approve", "reject"):
        said = suite.ctl(verb, "in-1", status=1).stderr
        assert said == "syntropctl: there is no incident in-1; `syntropctl incidents` lists them\n"
    assert suite.ctl("reset", "web").stdout == "web.service: actions are let through\n"
    assert json.loads(suite.ctl("reset", "web", "--json").stdout)["state"] == "closed"
    assert suite.ctl("maintenance").stdout == "no work is announced\n"
    said = suite.ctl("maintenance", "web", "db*", "--for", "1h", "--reason", "migration").stdout
    assert [line.partition(":")[0] for line in said.splitlines()] == ["db*.service", "web.service"]
    assert said.count(f"(user {os.getuid()}): migration") == 2
    assert suite.ctl("maintenance", "db*", "--end").stdout.startswith("web.service: ")
    (left,) = json.loads(suite.ctl("maintenance", "--json").stdout)
    assert (left["unit"], left["reason"]) == ("web.service", "migration")
    assert suite.ctl("maintenance", "web", "--for", "2d", status=1).stderr.startswith("syntropctl: ")
    assert suite.ctl("triage", "no/unit", "--dry-run", status=1).stderr.startswith("syntropctl: ")
