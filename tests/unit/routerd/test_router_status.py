# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.pressure import level, read
from syntrop.common.psi import Line, Pressure
from syntrop.common.varlink import idl
from syntrop.routerd.status import Counters, read_rss


def pressure(cpu: float = 0, memory: float = 0, io: float = 0, full: float = 0) -> dict[str, Pressure]:
    def line(value: float) -> Line:
        return Line(value, 0.0, 0.0, 0)

    return {
        "cpu": Pressure(line(cpu), None),
        "memory": Pressure(line(memory), line(full)),
        "io": Pressure(line(io), line(0)),
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "normal"),
        ({"memory": 15.1}, "elevated"),
        ({"io": 20.1}, "elevated"),
        ({"cpu": 60.1}, "elevated"),
        ({"memory": 40.1}, "critical"),
        ({"io": 50.1}, "critical"),
        ({"full": 10.1}, "critical"),
        ({"cpu": 100}, "elevated"),
    ],
)
def test_levels(given: dict[str, float], expected: str) -> None:
    assert level(pressure(**given)) == expected


def test_a_machine_that_tells_nothing() -> None:
    assert level({}) == "unknown"


def test_report_fits_the_interface() -> None:
    counters = Counters()
    with counters:
        report = counters.report("1", read(), read_rss(), 2, 1)
    assert report["active_requests"] == 1 and report["total_requests"] == 1
    assert counters.active == 0
    assert report["rss_bytes"] > 2**20
    interface = idl.load("io.syntrop.Router1")
    assert interface.check(interface.methods["GetStatus"].output, report)


def test_degraded_is_where_nobody_is_healthy() -> None:
    report = Counters().report("1", {}, 0, 2, 1)
    assert (report["status"], report["providers_count"], report["healthy_providers_count"]) == ("ok", 2, 1)
    assert Counters().report("1", {}, 0, 2, 0)["status"] == "degraded"
