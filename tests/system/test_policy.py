# SPDX-License-Identifier: Apache-2.0
"""What the bus policy and the polkit rules really let the suite's accounts do to other units."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from machine import Machine
from suite import CALL

MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"


@pytest.fixture(scope="module")
def victim(machine: Machine) -> Iterator[str]:
    """A running unit that is not ours."""
    machine.run("systemctl start dbus.socket && systemd-run --unit=victim sleep infinity")
    yield "victim.service"


def ask(machine: Machine, user: str, method: str, signature: str, *arguments: str) -> str:
    """Standard error of a call to the manager: empty if it was let through."""
    call = [
        "busctl",
        "--system",
        "call",
        *MANAGER.split(),
        method,
        *([signature] if signature else []),
        *arguments,
    ]
    done = machine.run(call, user=user, check=False)
    assert bool(done.stderr) == (done.returncode != 0)
    return done.stderr


def test_inferenced_freezes_and_thaws(machine: Machine, victim: str) -> None:
    assert ask(machine, "inferenced", "FreezeUnit", "s", victim) == ""
    assert machine.property(victim, "FreezerState") == "frozen"
    assert ask(machine, "inferenced", "ThawUnit", "s", victim) == ""
    assert machine.property(victim, "FreezerState") == "running"


def test_inferenced_signals_and_limits(machine: Machine, victim: str) -> None:
    assert ask(machine, "inferenced", "KillUnit", "ssi", victim, "main", "28") == ""  # SIGWINCH
    limit = ("true", "1", "MemoryHigh", "t", "122880")
    assert ask(machine, "inferenced", "SetUnitProperties", "sba(sv)", victim, *limit) == ""
    assert machine.property(victim, "MemoryHigh") == "122880"
    assert ask(machine, "inferenced", "SetUnitProperties", "sba(sv)", victim, *limit[:4], str(2**64 - 1)) == ""
    assert machine.property(victim, "MemoryHigh") == "infinity"


def test_inferenced_may_ask_runtimed_to_yield_and_no_more(machine: Machine) -> None:
    machine.run("systemctl start runtimed.service")
    assert ask(machine, "inferenced", "KillUnit", "ssi", "runtimed.service", "main", "28") == ""
    limit = ("true", "1", "MemoryHigh", "t", "122880")
    for method, signature, arguments in (
        ("FreezeUnit", "s", ()),
        ("SetUnitProperties", "sba(sv)", limit),
    ):
        assert "Access denied" in ask(machine, "inferenced", method, signature, "runtimed.service", *arguments)


@pytest.mark.parametrize(
    "unit", ["dbus.service", "systemd-journald.service", "polkit.service", "system.slice", "init.scope",
             "syntrop.slice", "systemd-sentry.service", "inferenced.service"],
)  # fmt: skip
def test_what_a_host_needs_is_neither_signalled_nor_limited(machine: Machine, unit: str) -> None:
    assert "Access denied" in ask(machine, "inferenced", "KillUnit", "ssi", unit, "main", "15")
    limit = ("true", "1", "MemoryHigh", "t", "122880")
    assert "Access denied" in ask(machine, "inferenced", "SetUnitProperties", "sba(sv)", unit, *limit)


@pytest.mark.parametrize("user", ["nobody", "syntrop", "syntrop-tool", "sentry"])
def test_nobody_else_freezes(machine: Machine, victim: str, user: str) -> None:
    assert "Access denied" in ask(machine, user, "FreezeUnit", "s", victim)
    assert machine.property(victim, "FreezerState") == "running"


@pytest.mark.parametrize("unit", ["dbus.service", "systemd-journald.service", "polkit.service", "system.slice"])
def test_what_a_host_needs_is_never_frozen(machine: Machine, unit: str) -> None:
    assert "Access denied" in ask(machine, "inferenced", "FreezeUnit", "s", unit)


def test_toold_stops_restarts_and_resets(machine: Machine, victim: str) -> None:
    machine.write("/run/systemd/system/stays.service", "[Service]\nExecStart=/usr/bin/sleep infinity\n")
    assert ask(machine, "syntrop-tool", "Reload", "") == ""
    for method in ("StartUnit", "StopUnit", "StartUnit"):
        assert ask(machine, "syntrop-tool", method, "ss", "stays.service", "replace") == ""
    assert ask(machine, "syntrop-tool", "RestartUnit", "ss", victim, "replace") == ""
    assert ask(machine, "syntrop-tool", "ResetFailedUnit", "s", victim) == ""


@pytest.mark.parametrize(
    ("user", "method", "arguments"),
    [
        ("syntrop-tool", "StopUnit", ("modeld.socket", "replace")),
        ("syntrop-tool", "StartUnit", ("systemd-networkd.service", "replace")),
        ("syntrop-tool", "RestartUnit", ("systemd-journald.service", "replace")),
        ("syntrop-tool", "RestartUnit", ("systemd-sentry.service", "replace")),
        # To restart is to start.
        ("syntrop-tool", "RestartUnit", ("poweroff.target", "replace")),
        ("syntrop-tool", "ReloadOrRestartUnit", ("systemd-poweroff.service", "replace")),
        ("syntrop-tool", "RestartUnit", ("debug-shell.service", "replace")),
        ("inferenced", "StopUnit", ("victim.service", "replace")),
        ("inferenced", "StartUnit", ("victim.service", "replace")),
        ("inferenced", "RestartUnit", ("victim.service", "replace")),
        ("syntrop", "RestartUnit", ("victim.service", "replace")),
    ],
)
def test_other_verbs_and_units_are_refused(
    machine: Machine, victim: str, user: str, method: str, arguments: tuple[str, ...]
) -> None:
    refusal = ask(machine, user, method, "s" * len(arguments), *arguments)
    # An account that no rule of ours names is merely asked for a password, which it cannot give.
    assert refusal in ("Call failed: Access denied\n", "Call failed: Interactive authentication required.\n")


def call(machine: Machine, user: str, method: str, parameters: dict[str, object]) -> dict[str, object]:
    endpoint = f"/run/syntrop/{method.rpartition('.')[0]}"
    reply: dict[str, object] = json.loads(
        machine.run_python(CALL, endpoint, method, json.dumps(parameters), user=user)
    )
    return reply


def register(machine: Machine, user: str) -> str:
    """The error that a user gets for registering what is no model."""
    return str(call(machine, user, "io.syntrop.Model1.Register", {"id": "x:y", "path": "/etc/hostname"})["error"])


REFUSED = "org.varlink.service.PermissionDenied"


def test_strangers_are_refused_by_a_daemon(machine: Machine) -> None:
    assert register(machine, "nobody") == REFUSED


def test_members_of_the_group_are_operators(machine: Machine) -> None:
    machine.run("useradd --no-create-home --groups syntrop helper")
    # Let in; what it names is no model, and that is what it is told.
    assert register(machine, "helper").startswith("io.syntrop.Model1.")


def test_polkit_lends_an_action(machine: Machine) -> None:
    machine.run("useradd --no-create-home --user-group trusted")
    assert register(machine, "trusted") == REFUSED
    machine.write(
        "/etc/polkit-1/rules.d/10-trusted.rules",
        'polkit.addRule(function(action, subject) { if (action.id == "io.syntrop.model.register" &&'
        ' subject.user == "trusted") return polkit.Result.YES; });\n',
    )
    machine.run("systemctl restart polkit.service")
    assert register(machine, "trusted").startswith("io.syntrop.Model1.")
