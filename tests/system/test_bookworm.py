# SPDX-License-Identifier: Apache-2.0
"""Smoke test of the oldest release: systemd 252, Python 3.11. All else runs on trixie."""

from __future__ import annotations

import json

import pytest
from arbiter import GIB, Client, Units, batch, interactive, prepare, states, wait_for
from machine import Machine
from suite import CALL, DAEMONS, ENDPOINTS, IMPORT, MODEL, TCP, Daemon, set_idle


def test_the_release(bookworm: Machine) -> None:
    assert "systemd 252" in bookworm.run("systemctl --version").stdout
    assert "Python 3.11" in bookworm.run("/usr/lib/syntrop/bin/python3 --version").stdout
    assert bookworm.run("systemctl --failed --no-legend").stdout == ""


def test_modes(bookworm: Machine) -> None:
    for endpoint in ENDPOINTS:
        seen = bookworm.run(["stat", "-c", "%a %U %G", endpoint.path]).stdout.strip()
        assert seen == f"{endpoint.mode} {endpoint.user} {endpoint.group}"
    assert bookworm.run("cat /proc/sys/net/ipv4/ip_local_reserved_ports").stdout.strip() == "32768"


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda daemon: daemon.name)
def test_activation(bookworm: Machine, daemon: Daemon) -> None:
    reply = json.loads(bookworm.run_python(CALL, daemon.endpoint, "org.varlink.service.GetInfo", "{}"))
    assert daemon.interface in reply["parameters"]["interfaces"]


def test_the_manager_knows_every_directive(bookworm: Machine) -> None:
    assert "Unknown key" not in bookworm.journal()


def test_a_command_of_toold_has_namespaces_of_its_own(bookworm: Machine) -> None:
    reply = json.loads(bookworm.run(["syntropctl", "run", "disk_usage", "--json"]).stdout)
    assert reply["result"]["sandbox"] == ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"]


def test_this_manager_makes_the_socket_that_tells_what_listens(bookworm: Machine) -> None:
    assert bookworm.property("toold-diag.socket", "ActiveState") == "active"
    reply = json.loads(bookworm.run(["syntropctl", "run", "net_listeners", "tcp", "--json"]).stdout)
    assert reply["result"].get("sandbox") is None
    [line] = [line for line in reply["result"]["stdout"].splitlines() if "127.0.0.1:32768" in line]
    assert line.split()[-1] in ("cgroup:/system.slice/routerd.socket", "cgroup:/init.scope")


def test_one_answer(bookworm: Machine) -> None:
    bookworm.run(IMPORT)
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    command = ["curl", "-sS", "--fail-with-body", "-H", "content-type: application/json"]
    reply = json.loads(bookworm.run([*command, "-d", json.dumps(ask), f"{TCP[0]}/v1/chat/completions"]).stdout)
    assert reply["choices"][0]["message"]["content"]


def test_everybody_falls_asleep(bookworm: Machine) -> None:
    set_idle(bookworm, "*", 1.0)
    bookworm.run("systemctl restart " + " ".join(daemon.service for daemon in DAEMONS))
    for daemon in DAEMONS:
        bookworm.wait_property(daemon.service, "ActiveState", "inactive")
        assert bookworm.property(daemon.service, "Result") == "success"


def test_inferenced_may_freeze_and_nothing_else(bookworm: Machine) -> None:
    manager = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
    bookworm.run("systemd-run --unit=victim sleep infinity")
    bookworm.run(f"busctl --system call {manager} FreezeUnit s victim.service", user="inferenced")
    assert bookworm.property("victim.service", "FreezerState") == "frozen"
    bookworm.run(f"busctl --system call {manager} ThawUnit s victim.service", user="inferenced")
    stop = f"busctl --system call {manager} StopUnit ss victim.service replace"
    assert bookworm.run(stop, user="inferenced", check=False).returncode != 0
    assert bookworm.property("victim.service", "ActiveState") == "active"


def test_this_manager_freezes_for_leases_too_and_a_kill_leaves_nobody_frozen(bookworm: Machine) -> None:
    prepare(bookworm)
    units = Units(bookworm)
    holder, urgent = units.idle("holder"), units.idle("urgent")
    with Client(bookworm) as client:
        held = batch(client, holder, 6 * GIB)
        lease = interactive(client, urgent, 4 * GIB)
        assert states(client) == {held: "Frozen", lease: "Active"}
        assert units.stands(holder)
        client.call("ReleaseLease", lease_id=lease)
        wait_for(lambda: states(client) == {held: "Active"}, "the holder goes on", bookworm)
        assert not units.stands(holder)
        interactive(client, urgent, 4 * GIB)
        assert units.stands(holder)
    bookworm.run("systemctl kill --signal=KILL inferenced.service")
    wait_for(lambda: not units.stands(holder), "nobody stands still, and nobody called", bookworm)
    units.stop()
