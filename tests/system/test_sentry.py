# SPDX-License-Identifier: Apache-2.0
"""systemd-sentry under a real service manager: failures put right, its own end in each phase, storms, a person's
word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from machine import Machine
from supervision import SENTRY, UNITS, VICTIM, ask, call, configure, incidents, wait

TOOLD = "/run/syntrop/io.syntrop.Tool1"
STATE = "/var/lib/syntrop/sentry"
STORM = 200
# One whose work fails: a job, about which a person is asked.
JOB = "[Service]\nType=oneshot\nExecStart=/usr/bin/test -e /run/job-may-succeed\n"
# It dies a moment after each start, which is past its readiness and within the probation.
FRAIL = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/bin/bash -c 'sleep 0.3; kill -SEGV $$$$'\n"
TYPO = "[Service]\nExecStart=\nExecStart=/usr/bin/sleeep infinity\n"


@pytest.fixture(scope="module")
def host(machine: Machine) -> Iterator[Machine]:
    """Resident, with units that were there before anybody watched."""
    configure(machine, probation=1.5, mode="resident")
    for name, text in (("victim@", VICTIM), ("job", JOB), ("frail", FRAIL), ("frailer", FRAIL)):
        machine.write(f"{UNITS}/{name}.service", text)
    machine.run("systemctl daemon-reload")
    # What is watched is known, so that what changes from now on is a change.
    call(machine, "/run/syntrop/io.syntrop.Context1", "io.syntrop.Context1.ListRecentDiffs")
    machine.run("systemctl start systemd-sentry.service")
    wait(lambda: ask(machine, "GetStatus")["status"] == "ok", "it hears")
    yield machine


def ended(machine: Machine, unit: str, number: int = 1) -> dict[str, Any]:
    """The unit's incident of this number, once it is over."""

    def over() -> Any:
        found = incidents(machine, unit)
        return (
            found[number - 1] if len(found) >= number and found[number - 1]["status"] not in _UNDER_WAY else None
        )

    try:
        over_by_now: dict[str, Any] = wait(over, f"incident {number} of {unit} ends")
    except AssertionError:
        raise AssertionError((incidents(machine, unit), machine.journal())) from None
    return over_by_now


_UNDER_WAY = ("open", "acting")


def crash(machine: Machine, unit: str, signal: str = "SEGV") -> None:
    machine.run(f"kill -{signal} $(systemctl show --value -p MainPID {unit})")


def break_by_drop_in(machine: Machine, unit: str, text: str = TYPO) -> str:
    path = f"{UNITS}/{unit}.d/typo.conf"
    machine.write(path, text)
    machine.run(f"systemctl daemon-reload; systemctl restart {unit}")
    return path


def test_a_crash_is_restarted(host: Machine) -> None:
    unit = "victim@crash.service"
    host.run(f"systemctl start {unit}")
    crash(host, unit)
    told = ended(host, unit)
    assert told["status"] == "recovered"
    assert told["causes"][0]["fault_class"] == "crash"
    assert host.property(unit, "ActiveState") == "active"
    text = ask(host, "GetIncident", id=told["id"])["timeline"]
    assert any("active again" in line for line in text)

    def said() -> bool:
        """It is written down first, and then said."""
        host.run(["journalctl", "--sync"])
        found = host.run(["journalctl", f"SENTRY_INCIDENT={told['id']}", "-o", "json"]).stdout.splitlines()
        return bool(found) and json.loads(found[-1])["SENTRY_STATUS"] == "recovered"

    wait(said, "the journal is told")
    explained = host.run(["journalctl", "-x", f"SENTRY_INCIDENT={told['id']}", "--no-pager"]).stdout
    assert "syntropctl explain" in explained


def test_a_typo_in_a_drop_in_is_reverted_and_can_be_taken_back(host: Machine) -> None:
    unit = "victim@typo.service"
    path = break_by_drop_in(host, unit)
    told = ended(host, unit)
    assert told["status"] == "recovered"
    assert told["causes"][0]["fault_class"] == "missing_program"
    assert not host.path(path).exists()
    assert host.property(unit, "ActiveState") == "active"
    assert host.property(unit, "NeedDaemonReload") == "no"
    back = call(host, TOOLD, "io.syntrop.Tool1.Rollback", rollback_id=told["action"]["rollback_id"])
    assert "error" not in back
    assert host.path(path).read_text() == TYPO
    host.path(path).unlink()
    host.run("systemctl daemon-reload")


def test_an_action_that_does_not_help_is_taken_back(host: Machine) -> None:
    unit = "frailer.service"
    path = break_by_drop_in(host, unit)
    told = ended(host, unit)
    assert told["status"] == "rolled_back"
    assert told["action"].get("rollback_id") is None
    assert host.path(path).read_text() == TYPO
    # It failed on probation as well, which is the same story.
    assert len(incidents(host, unit)) == 1
    host.path(path).unlink()
    host.run("systemctl daemon-reload")


def test_what_somebody_wanted_is_left_alone(host: Machine) -> None:
    unit = "victim@stopped.service"
    host.run(f"systemctl start {unit}; systemctl stop {unit}")
    stubborn = 'trap "exit 3" TERM; touch /run/stubborn; sleep 60 & wait'
    host.write(f"{UNITS}/stubborn.service", f"[Service]\nExecStart=/bin/bash -c '{stubborn}'\n")
    host.run("systemctl daemon-reload; systemctl start stubborn.service")
    wait(host.path("/run/stubborn").exists, "it would hear of its end")
    host.run("systemctl stop stubborn.service")
    assert ended(host, "stubborn.service")["status"] == "dismissed"
    assert incidents(host, unit) == []
    assert host.property("stubborn.service", "ActiveState") == "failed"
    assert host.property(unit, "ActiveState") == "inactive"


def test_a_unit_that_fails_again_and_again_is_locked_until_a_reset(host: Machine) -> None:
    unit = "frail.service"
    host.run(f"systemctl start {unit}")
    assert ended(host, unit)["status"] == "reported"  # a restart did not help
    for _ in range(2):
        host.run(f"systemctl restart {unit}")
        host.wait_property(unit, "ActiveState", "failed", 60)
    wait(
        lambda: [one["state"] for one in ask(host, "GetStatus")["breakers"] if one["unit"] == unit] == ["open"],
        "open",
    )
    reset = ask(host, "ResetCircuitBreaker", unit=unit)["breaker"]
    assert (reset["state"], reset["recent_failures"]) == ("closed", 0)


def test_a_staged_action_is_for_a_person(host: Machine) -> None:
    host.run("systemctl start job.service", check=False)
    staged = ended(host, "job.service")
    assert staged["status"] == "staged"
    rejected = ask(host, "RejectAction", id=staged["id"], reason="not now")["incident"]
    assert rejected["status"] == "reported"
    assert call(host, SENTRY, "io.syntrop.Sentry1.ApproveAction", id=staged["id"])["error"].endswith(".NotStaged")
    host.run("systemctl start job.service", check=False)
    again = ended(host, "job.service", 2)
    host.run("touch /run/job-may-succeed")
    approved = ask(host, "ApproveAction", id=again["id"])["incident"]
    assert approved["status"] == "recovered"
    assert host.property("job.service", "Result") == "success"


def stands(machine: Machine, unit: str) -> str | None:
    """How the unit's incident that is under way stands on record: a phase may be over before a program that asks
    has even started."""
    for path in machine.path(f"{STATE}/open").glob("in-*.json"):
        try:
            one = json.loads(path.read_text())
        except FileNotFoundError:  # over since it was listed
            continue
        if one["unit"] == unit:
            return str(one["status"])
    return None


def kill_sentry(machine: Machine) -> None:
    before = machine.property("systemd-sentry.service", "MainPID")
    machine.run(f"kill -9 {before}")
    wait(lambda: machine.property("systemd-sentry.service", "MainPID") not in ("0", before), "it is back")


@pytest.mark.parametrize(
    ("phase", "stopped", "status"),
    [("correlate", "contextd", "open"), ("remedy", "toold", "acting"), ("restore", "", "acting")],
)
def test_its_own_end_in_each_phase_is_resumed(host: Machine, phase: str, stopped: str, status: str) -> None:
    unit = f"victim@{phase}.service"
    host.run(f"systemctl start {unit}")
    if stopped:
        host.run(f"systemctl start {stopped}.service; systemctl kill -s STOP {stopped}.service")
    try:
        path = break_by_drop_in(host, unit)
        wait(lambda: stands(host, unit) == status, f"{unit} is {status}")
        if not stopped:
            host.wait_property(unit, "ActiveState", "active", 60)
        kill_sentry(host)
    finally:
        if stopped:
            host.run(f"systemctl kill -s CONT {stopped}.service")
    told = ended(host, unit)
    assert told["status"] == "recovered", told
    assert len(incidents(host, unit)) == 1
    assert not host.path(path).exists()
    changes = call(host, TOOLD, "io.syntrop.Tool1.ListRollbacks")["parameters"]["records"]
    assert [one["id"] for one in changes if one["target_unit"] == unit] == [told["action"]["rollback_id"]]
    assert host.property(unit, "ActiveState") == "active"


def test_what_waited_for_its_turn_when_it_ended_is_resumed(host: Machine) -> None:
    units = [f"victim@waits{number}.service" for number in range(6)]  # more than are looked into at a time
    host.run(f"systemctl start {' '.join(units)} contextd.service; systemctl kill -s STOP contextd.service")
    try:
        for unit in units:
            crash(host, unit)
        wait(lambda: all(incidents(host, unit) for unit in units), "they wait")
        kill_sentry(host)
    finally:
        host.run("systemctl kill -s CONT contextd.service")
    assert {ended(host, unit)["status"] for unit in units} == {"recovered"}
    assert not list(host.path("/var/lib/syntrop/sentry/open").glob("*"))


def test_two_hundred_at_once(host: Machine) -> None:
    units = " ".join(f"victim@storm{number}.service" for number in range(STORM))
    host.run(f"systemctl start {units}", timeout=180)
    before = len(list(host.path("/var/lib/syntrop/sentry").glob("*/in-*.json")))
    host.run(f"kill -SEGV $(systemctl show --value -p MainPID {units} | grep -v '^$')")

    def known() -> bool:
        return len(list(host.path("/var/lib/syntrop/sentry").glob("*/in-*.json"))) >= before + STORM

    wait(known, "each is an incident", 300.0)
    wait(lambda: ask(host, "GetStatus")["open_incidents"] == 0, "the end of the storm", 300.0)
    found = ask(host, "ListIncidents", limit=1000)["incidents"]
    storm = {one["unit"]: one["status"] for one in found if one["unit"].startswith("victim@storm")}
    others = [
        (one["status"], ask(host, "GetIncident", id=one["id"])["timeline"])
        for one in found
        if one["unit"] in storm and one["status"] != "recovered"
    ]
    assert len(storm) == STORM and not others, others
    active = host.run(["systemctl", "list-units", "--state=active", "--no-legend", "victim@storm*"]).stdout
    assert len(active.splitlines()) == STORM
    host.run(f"systemctl stop {units}", timeout=180)
