# SPDX-License-Identifier: Apache-2.0
"""Gangs asked for by a crowd, on a machine of `tests/data/machines`: all or nothing, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

import gangs
import machines
from calm import CALM

INTERFACE = "io.syntrop.Inference1."
SOCKET = "io.syntrop.Inference1"


def test_a_crowd_gets_all_or_nothing_and_leaves_nothing_behind(launch: Any, arbiter: Any) -> None:
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


def test_a_refusal_says_who_holds_what(launch: Any, arbiter: Any) -> None:
    client = launch.client(arbiter, SOCKET)
    planes = client.call(INTERFACE + "ListPlanes").parameters["planes"]
    gpus = {one["id"]: one["available_memory"] for one in planes if one["kind"] == "gpu"}
    assert len(gpus) == 2
    held = {}
    for name, free in gpus.items():
        reply = client.call(INTERFACE + "AcquireLease", priority="Interactive", memory_bytes=free // 2, plane=name)
        held[reply.parameters["lease_id"]] = name
    first, second = gpus

    def refused(policy: str, *slices: dict[str, Any]) -> dict[str, Any]:
        reply = client.call(
            INTERFACE + "AcquireCompositeLease", priority="Interactive", policy=policy, slices=list(slices)
        )
        assert reply.error == INTERFACE + "ResourceExhaustion"
        found: dict[str, Any] = reply.parameters
        assert all(one["priority"] == "Interactive" for one in found["holders"])
        assert all(held[one["id"]] == one["plane_id"] for one in found["holders"])
        return found

    # One part that has no room on the plane that it names.
    most = gpus[first]
    told = refused("BestEffort", {"role": "target", "memory_bytes": most, "plane": first})
    assert (told["plane"], told["requested"]) == (first, most)
    assert 0 < told["available"] <= most - most // 2
    assert [one["plane_id"] for one in told["holders"]] == [first]
    # Parts that have room each, and together have not.
    part = gpus[second] // 3
    told = refused("BestEffort", *({"role": "x", "memory_bytes": part, "plane": second} for _ in range(3)))
    assert told["requested"] == 3 * part
    assert {one["plane_id"] for one in told["holders"]} == {first, second}


def test_a_plane_that_is_kept_for_emergencies_is_refused_with_the_numbers(launch: Any, tmp_path: Path) -> None:
    place = machines.unpack("amd-pair", tmp_path / "machine")
    folder = tmp_path / "inferenced" / "etc"
    folder.mkdir(parents=True)
    (folder / "inferenced.toml").write_text(CALM + '[planes]\ntriage_planes = ["gpu-0000:43:00.0"]\n')
    unit = launch("inferenced", idle=300.0, environment={"SYNTROP_SYS_ROOT": place["SYNTROP_SYS_ROOT"]})
    kept = {"plane": "gpu-0000:43:00.0", "memory_bytes": 1 << 20}
    supervisor = launch.client(unit, "sentry.sock")
    reply = supervisor.call(INTERFACE + "AcquireLease", priority="EmergencyTriage", **kept)
    assert reply.error is None
    refused = launch.client(unit, SOCKET).call(INTERFACE + "AcquireLease", priority="Interactive", **kept)
    assert refused.error == INTERFACE + "ResourceExhaustion"
    told = refused.parameters
    assert (told["plane"], told["requested"], told["available"]) == (kept["plane"], 1 << 20, 0)
    assert [(one["id"], one["priority"]) for one in told["holders"]] == [
        (reply.parameters["lease_id"], "EmergencyTriage")
    ]
