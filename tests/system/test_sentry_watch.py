# SPDX-License-Identifier: Apache-2.0
"""How systemd-sentry hears of failures under a real service manager: by OnFailure=, or by staying."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from machine import Machine
from suite import DAEMONS, set_idle
from supervision import SERVICE, UNITS, VICTIM, ask, configure, incidents, wait

OPTIONAL = "/usr/lib/syntrop/units/optional"
DROP_IN = "50-syntrop-triage.conf"
# The manager gives up on it however long a start takes.
FLAPPING = (
    "[Unit]\nStartLimitIntervalSec=1h\n[Service]\nExecStart=/usr/bin/false\nRestart=always\nRestartSec=100ms\n"
)
STORM = 50
RESIDENT_KIB = 28 << 10


@pytest.fixture(scope="module")
def host(machine: Machine) -> Iterator[Machine]:
    """Every service that fails is told of; nothing of the supervisor stays."""
    configure(machine, probation=1.0)
    for name, text in (("victim", VICTIM), ("victim@", VICTIM), ("flapping", FLAPPING)):
        machine.write(f"{UNITS}/{name}.service", text)
    machine.run(f"mkdir -p {UNITS}/service.d && ln -s {OPTIONAL}/service.d/{DROP_IN} {UNITS}/service.d/")
    set_idle(machine, "systemd-sentry", 0.3)
    yield machine


def crash(machine: Machine, *units: str) -> None:
    """Not by `systemctl kill`: what somebody asks the manager for is no failure."""
    machine.run(f"kill -SEGV $(systemctl show --value -p MainPID {' '.join(units)} | grep -v '^$')")


def restarted(machine: Machine, unit: str, before: str) -> Callable[[], bool]:
    def looked() -> bool:
        active = machine.property(unit, "ActiveState") == "active"
        return active and machine.property(unit, "InvocationID") != before

    return looked


def test_services_are_told_of_and_the_suites_own_are_not(host: Machine) -> None:
    assert host.property("victim.service", "OnFailure") == "syntrop-triage@victim.service.service"
    assert host.property("victim@x.service", "OnFailure") == "syntrop-triage@victim@x.service.service"
    own = [daemon.service for daemon in DAEMONS] + ["modeld-pull@x.service", "syntrop-triage@x.service.service"]
    assert {unit: host.property(unit, "OnFailure") for unit in own} == dict.fromkeys(own, "")


def test_a_failure_wakes_the_supervisor_which_leaves_no_process(host: Machine) -> None:
    host.run("systemctl start victim.service")
    host.wait_property(SERVICE, "ActiveState", "inactive", 120)
    invocation = host.property("victim.service", "InvocationID")
    crash(host, "victim.service")
    wait(restarted(host, "victim.service", invocation), "victim.service is started again", machine=host)
    # It is asked by nobody here, which would wake it.
    host.wait_property(SERVICE, "ActiveState", "inactive", 120)
    # Who reported it is the last to go.
    wait(lambda: host.run("pgrep -u sentry", check=False).stdout == "", "no process is left", 60, machine=host)
    assert host.property(SERVICE, "ActiveState") == "inactive"
    units = "systemctl list-units --state=failed,activating --no-legend 'syntrop-triage@*'"
    wait(lambda: host.run(units).stdout == "", "no report is left", machine=host)
    (found,) = incidents(host, "victim.service")
    assert (found["status"], found["invocation_id"]) == ("recovered", invocation)
    assert (found["causes"][0]["fault_class"], found["action"]["tool"]) == ("crash", "unit_restart")


def test_none_of_many_at_once_is_lost(host: Machine) -> None:
    units = [f"victim@{number}.service" for number in range(STORM)]
    host.run(["systemctl", "start", *units], timeout=180)
    crash(host, *units)

    def told() -> bool:
        return {one["unit"] for one in incidents(host)} >= set(units)

    wait(told, "all of them are told of", 300, machine=host)
    assert "could not be told" not in host.journal()

    # Those that are being started again cancel a stop.
    def stopped() -> bool:
        return host.run(["systemctl", "stop", *units], check=False, timeout=180).returncode == 0

    wait(
        lambda: ask(host, "GetStatus")["open_incidents"] == 0 and stopped(), "they have stopped", 300, machine=host
    )


def test_a_report_that_fails_is_said_and_not_reported(host: Machine) -> None:
    elsewhere = "/run/systemd/system/syntrop-triage@.service.d/elsewhere.conf"
    host.write(elsewhere, "[Service]\nEnvironment=SYNTROP_RUN_ROOT=/nowhere\n")
    host.write(f"{UNITS}/untold.service", "[Service]\nExecStart=/usr/bin/false\n")
    host.run("systemctl daemon-reload; systemctl start untold.service", check=False)
    said = "The failure of untold.service could not be told to systemd-sentry"
    wait(lambda: said in host.journal(), "it is said", 60, machine=host)
    host.path(elsewhere).unlink()
    host.run("systemctl daemon-reload")
    assert "syntrop-triage@syntrop-triage@" not in host.journal()


def test_it_stays_and_hears_of_what_is_restarted(host: Machine) -> None:
    """And of everything after the manager was executed anew; with no more memory than it may have."""
    host.run(f"rm -r {UNITS}/service.d && mkdir -p {UNITS}/{SERVICE}.d")
    host.run(f"ln -s {OPTIONAL}/{SERVICE}.d/resident.conf {UNITS}/{SERVICE}.d/")
    host.run(f"systemctl add-wants multi-user.target {SERVICE}")
    host.run(f"systemctl daemon-reload && systemctl restart {SERVICE}")
    wait(lambda: ask(host, "GetStatus")["mode"] == "resident", "it is resident", machine=host)
    wait(lambda: ask(host, "GetStatus")["status"] == "ok", "it hears", machine=host)
    process = host.property(SERVICE, "MainPID")
    assert host.property(SERVICE, "NRestarts") == "0"

    host.run("systemctl daemon-reexec; systemctl start victim.service")
    wait(lambda: ask(host, "GetStatus")["status"] == "ok", "it hears again", machine=host)
    invocation = host.property("victim.service", "InvocationID")
    crash(host, "victim.service")
    wait(lambda: invocation in [one["invocation_id"] for one in incidents(host)], "it heard", machine=host)

    host.run("systemctl start flapping.service", check=False)
    wait(lambda: incidents(host, "flapping.service"), "it heard of what the manager restarts", machine=host)
    host.wait_property("flapping.service", "ActiveState", "failed", 60)

    assert host.property(SERVICE, "MainPID") == process
    # The journal is let go of some seconds after the last look at it.
    wait(lambda: resident_kib(host, process) <= RESIDENT_KIB, "it is small", 60, machine=host)


def resident_kib(machine: Machine, process: str) -> int:
    status = machine.path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])
