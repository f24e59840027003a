# SPDX-License-Identifier: Apache-2.0
"""Every daemon and interface through systemd's own client, `varlinkctl`."""

from __future__ import annotations

import json

import pytest
from machine import Machine
from suite import CALL, DAEMONS, Daemon

each_daemon = pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)


@each_daemon
def test_info(machine: Machine, daemon: Daemon) -> None:
    info = json.loads(machine.run(["varlinkctl", "info", "--json=short", daemon.endpoint]).stdout)
    assert info["product"] == daemon.name
    assert set(info["interfaces"]) >= {"org.varlink.service", daemon.interface}


@each_daemon
def test_introspect(machine: Machine, daemon: Daemon) -> None:
    for interface in (daemon.interface, "org.varlink.service"):
        text = machine.run(["varlinkctl", "introspect", daemon.endpoint, interface]).stdout
        assert f"interface {interface}" in text
        # varlinkctl parses what it prints, and checks it by its own rules on the way.
        assert "method " in text


@each_daemon
def test_the_introspected_interface_is_valid_for_systemd(machine: Machine, daemon: Daemon) -> None:
    text = machine.run(["varlinkctl", "introspect", daemon.endpoint, daemon.interface]).stdout
    checked = machine.run(["varlinkctl", "validate-idl", "/dev/stdin"], input=text, check=False)
    assert checked.returncode == 0, checked.stderr


@each_daemon
def test_call(machine: Machine, daemon: Daemon) -> None:
    call = ["varlinkctl", "call", "--json=short", daemon.endpoint, "org.varlink.service.GetInfo", "{}"]
    assert json.loads(machine.run(call).stdout)["product"] == daemon.name


@each_daemon
def test_errors_are_those_of_the_service_interface(machine: Machine, daemon: Daemon) -> None:
    unknown = machine.run(
        ["varlinkctl", "call", daemon.endpoint, f"{daemon.interface}.Nonsense", "{}"], check=False
    )
    assert unknown.returncode != 0
    assert "org.varlink.service.MethodNotFound" in unknown.stderr
    nowhere = machine.run(["varlinkctl", "call", daemon.endpoint, "org.example.No.Method", "{}"], check=False)
    assert "org.varlink.service.InterfaceNotFound" in nowhere.stderr


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("io.syntrop.Router1.GetStatus", "uptime_seconds"),
        ("io.syntrop.Model1.List", "models"),
        ("io.syntrop.Model1.GetStorageStats", "total_bytes"),
        ("io.syntrop.Runtime1.ListLoadedModels", "models"),
        ("io.syntrop.Context1.ListRecentDiffs", "diffs"),
        ("io.syntrop.Context1.ListEvents", "events"),
        ("io.syntrop.Tool1.ListTools", "tools"),
        ("io.syntrop.Tool1.ListRollbacks", "records"),
        ("io.syntrop.Inference1.GetStatus", "pressure"),
        ("io.syntrop.Inference1.GetPressure", "memory_some"),
        ("io.syntrop.Sentry1.GetStatus", "status"),
    ],
)
def test_methods_of_this_version_answer(machine: Machine, method: str, field: str) -> None:
    endpoint = {daemon.interface: daemon.endpoint for daemon in DAEMONS}[method.rpartition(".")[0]]
    reply = json.loads(machine.run(["varlinkctl", "call", "--json=short", endpoint, method, "{}"]).stdout)
    assert field in reply


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("io.syntrop.Runtime1.GenerateMusic", {"prompt": "a"}),
    ],
)
def test_methods_of_later_versions_say_so(machine: Machine, method: str, parameters: dict[str, object]) -> None:
    endpoint = {daemon.interface: daemon.endpoint for daemon in DAEMONS}[method.rpartition(".")[0]]
    reply = json.loads(machine.run_python(CALL, endpoint, method, json.dumps(parameters)))
    assert reply == {"error": "org.varlink.service.MethodNotImplemented", "parameters": {"method": method}}


@each_daemon
def test_it_runs_as_its_own_account_in_the_slice(machine: Machine, daemon: Daemon) -> None:
    machine.run(["varlinkctl", "info", daemon.endpoint])
    pid = machine.property(daemon.service, "MainPID")
    assert machine.run(["stat", "-c", "%U", f"/proc/{pid}"]).stdout.strip() == daemon.user
    assert machine.property(daemon.service, "ControlGroup") == f"/syntrop.slice/{daemon.service}"
    assert machine.property(daemon.service, "StatusText")


@each_daemon
def test_its_start_leaves_no_complaint(machine: Machine, daemon: Daemon) -> None:
    machine.run(["journalctl", "--sync"])
    text = machine.run(
        ["journalctl", "-b", "-p", "notice", "--no-pager", "-o", "cat", "-u", daemon.service]
    ).stdout
    assert text.strip() in ("", "-- No entries --")


def test_ordinary_users_reach_open_endpoints_only(machine: Machine) -> None:
    info = ["varlinkctl", "info", "/run/syntrop/io.syntrop.Model1"]
    assert machine.run(info, user="nobody", check=False).returncode == 0
    for closed in ("/run/syntrop/gateway.sock", "/run/syntrop/fd.sock", "/run/syntrop/sentry.sock"):
        refused = machine.run(["varlinkctl", "info", closed], user="nobody", check=False)
        assert "Permission denied" in refused.stderr
