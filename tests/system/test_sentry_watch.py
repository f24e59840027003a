# SPDX-License-Identifier: Apache-2.0
"""How systemd-sentry hears of failures under a real service manager: by OnFailure=, or by staying."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from machine import Machine
from suite import DAEMONS, set_idle
from supervision import SENTRY, SERVICE, UNITS, VICTIM, ask, configure, incidents, wait

OPTIONAL = "/usr/lib/syntrop/units/optional"
DROP_IN = "50-syntrop-triage.conf"
# The manager gives up on it however long a start takes.
FLAPPING = (
    "[Unit]\nStartLimitIntervalSec=1h\n[Service]\nExecStart=/usr/bin/false\nRestart=always\nRestartSec=100ms\n"
)
# A member of group syntrop who tells of what did not happen, by several connections at once; what is answered.
FLOOD = """
import collections, json, socket, sys, threading
answers = collections.Counter()
def tell(place):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(120)
        peer.connect(sys.argv[1])
        for number in range(16):
            unit = ("victim@a.service", "nonesuch.service", "systemd-journald.service")[number % 3]
            parameters = {"unit": unit, "result": f"signal {place} {number}"}
            request = {"method": "io.syntrop.Sentry1.ReportFailure", "parameters": parameters}
            peer.sendall(json.dumps(request).encode() + b"\\0")
            reply = b""
            while not reply.endswith(b"\\0"):
                part = peer.recv(65536)
                assert part, "hung up"
                reply += part
            answers[json.loads(reply[:-1]).get("error", "none")] += 1
callers = [threading.Thread(target=tell, args=(place,)) for place in range(8)]
for one in callers:
    one.start()
for one in callers:
    one.join()
print(json.dumps(answers))
"""
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


def test_a_supervisor_that_is_masked_is_said_to_be_missing(host: Machine) -> None:
    host.write(f"{UNITS}/unheard.service", "[Service]\nExecStart=/usr/bin/false\n")
    host.wait_property(SERVICE, "ActiveState", "inactive", 120)
    host.run("systemctl mask --now --runtime systemd-sentry.socket")
    try:
        host.run("systemctl daemon-reload; systemctl start unheard.service", check=False)
        said = "The failure of unheard.service could not be told to systemd-sentry"
        wait(lambda: said in host.journal(), "it is said", 60, machine=host)
    finally:
        host.run("systemctl unmask --runtime systemd-sentry.socket; systemctl start systemd-sentry.socket")


def test_a_unit_that_was_made_for_one_run_is_told_of_and_left_alone(host: Machine) -> None:
    """It is collected when it ends, and nothing is there that could be restarted."""
    host.run("systemd-run --collect --unit=once.service bash -c 'kill -SEGV $$'")
    (found,) = wait(lambda: incidents(host, "once.service"), "it is told of", machine=host)
    told = wait(
        lambda: [one for one in incidents(host, "once.service") if one["status"] != "open"],
        "its end",
        machine=host,
    )
    assert [(one["id"], one["status"]) for one in told] == [(found["id"], "reported")]
    assert (told[0]["causes"][0]["fault_class"], told[0]["action"]["tool"]) == ("crash", "none")
    assert "is gone" in told[0]["action"]["reason"]


def test_a_flood_of_false_reports_delays_no_crash_and_leaves_no_record(host: Machine) -> None:
    host.run("systemctl start victim.service 'victim@a.service'")
    host.run("useradd --no-create-home --groups syntrop meddler")
    ids = {one["id"] for one in incidents(host)}
    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(host.run_python, FLOOD, SENTRY, user="meddler", timeout=300)
        wait(lambda: host.property(SERVICE, "ActiveState") == "active", "the flood begins", machine=host)
        invocation = host.property("victim.service", "InvocationID")
        crash(host, "victim.service")
        wait(restarted(host, "victim.service", invocation), "victim.service is started again", machine=host)
        answers = json.loads(flood.result())
    assert set(answers) == {"io.syntrop.Sentry1.NotFailed", "io.syntrop.Sentry1.TooMany"}
    assert answers["io.syntrop.Sentry1.NotFailed"] <= 60
    wait(lambda: ask(host, "GetStatus")["open_incidents"] == 0, "all is over", machine=host)
    assert [one["unit"] for one in incidents(host) if one["id"] not in ids] == ["victim.service"]


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
