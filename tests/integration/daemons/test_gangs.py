# SPDX-License-Identifier: Apache-2.0
"""Gangs asked for by a crowd, on a machine of `tests/data/machines`: all or nothing, and nothing stays behind."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import gangs

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
