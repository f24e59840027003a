# SPDX-License-Identifier: Apache-2.0
"""Gangs asked for by a crowd, on a machine of `tests/data/machines`: all or nothing, and nothing stays behind."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

INTERFACE = "io.syntrop.Inference1."
SOCKET = "io.syntrop.Inference1"
# A machine under test may be pressed hard by what else runs there; that is not what is tested here.
CALM = "[tuning]\ncritical_memory = 100.0\ncritical_memory_full = 100.0\ncritical_io = 100.0\n"


def helper(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"syntrop_{name}", Path(__file__).parents[2] / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def arbiter(launch: Any, tmp_path: Path) -> Any:
    """inferenced on a machine with two GPUs, whose processes are ours."""
    place = helper("machines").unpack("amd-pair", tmp_path / "machine")
    folder = tmp_path / "inferenced" / "etc"
    folder.mkdir(parents=True)
    (folder / "inferenced.toml").write_text(CALM)
    return launch("inferenced", idle=300.0, environment={"SYNTROP_SYS_ROOT": place["SYNTROP_SYS_ROOT"]})


def test_a_crowd_gets_all_or_nothing_and_leaves_nothing_behind(launch: Any, arbiter: Any) -> None:
    gangs = helper("gangs")
    client = launch.client(arbiter, SOCKET)
    planes = client.call(INTERFACE + "ListPlanes").parameters["planes"]
    free = {one["id"]: one["available_memory"] for one in planes}
    assert len(free) == 3
    path = str(arbiter.run / "syntrop" / SOCKET)
    smallest = min(free.values())
    outcome = gangs.Crowd(path, sorted(free), smallest).run(connections=200, requests=1000, patience=240.0)
    assert outcome.granted + outcome.refused == 1000
    assert outcome.granted > 0
    for one in planes:
        assert outcome.most[one["id"]] <= one["total_memory"]
    gangs.vanish(path, smallest, 20)
    until = monotonic() + 60
    while client.call(INTERFACE + "GetStatus").parameters["leases_count"]:
        assert monotonic() < until
        sleep(0.02)
    for one in sorted(free):
        # Nothing is booked, and nobody stands in line any more who would come before.
        while True:
            reply = client.call(INTERFACE + "AcquireLease", priority="Batch", memory_bytes=1 << 20, plane=one)
            if reply.error is None:
                break
            assert monotonic() < until, reply.parameters  # those who vanished may not have been missed yet
            sleep(0.02)
        told = client.call(INTERFACE + "ExplainLease", lease_id=reply.parameters["lease_id"]).parameters
        assert told["booked"] == 1 << 20
