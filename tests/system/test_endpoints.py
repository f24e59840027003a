# SPDX-License-Identifier: Apache-2.0
"""Sockets as systemd really makes them: owners, modes, ports, and how they start and stop."""

from __future__ import annotations

import pytest
from machine import Machine
from suite import DAEMONS, ENDPOINTS, Endpoint

RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def test_the_target_starts_every_socket_and_no_daemon(machine: Machine) -> None:
    machine.run("systemctl start syntrop-sockets.target")
    for endpoint in ENDPOINTS:
        assert machine.property(endpoint.socket, "SubState") == "listening"
    for daemon in DAEMONS:
        assert machine.property(daemon.service, "ActiveState") == "inactive"
    assert machine.run("systemctl is-enabled syntrop-sockets.target").stdout.strip() == "enabled"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path.removeprefix("/run/"))
def test_modes_and_owners(machine: Machine, endpoint: Endpoint) -> None:
    seen = machine.run(["stat", "-c", "%F %a %U %G", endpoint.path]).stdout.strip()
    assert seen == f"socket {endpoint.mode} {endpoint.user} {endpoint.group}"


def test_no_other_socket_is_there(machine: Machine) -> None:
    found = machine.run("find /run/syntrop /run/systemd-sentry -type s").stdout.split()
    assert set(found) == {endpoint.path for endpoint in ENDPOINTS}


@pytest.mark.parametrize("folder", ["/run/syntrop", "/run/systemd-sentry", "/var/lib/syntrop"])
def test_folders_are_writable_by_root_alone(machine: Machine, folder: str) -> None:
    assert machine.run(["stat", "-c", "%a %U %G", folder]).stdout.strip() == "755 root root"


def test_tcp_is_on_loopback_alone(machine: Machine) -> None:
    lines = machine.run("ss -Hltn 'sport = :32768'").stdout.splitlines()
    assert sorted(line.split()[3] for line in lines) == ["127.0.0.1:32768", "[::1]:32768"]


def test_the_order_within_the_routers_socket(machine: Machine) -> None:
    listening = machine.run("systemctl show -p Listen routerd.socket").stdout.splitlines()
    assert [line.removeprefix("Listen=").removesuffix(" (Stream)") for line in listening] == [
        "127.0.0.1:32768",
        "[::1]:32768",
        "/run/syntrop/router.sock",
        "/run/syntrop/io.syntrop.Router1",
    ]


def test_nobody_is_handed_the_routers_port(machine: Machine) -> None:
    assert machine.run(["cat", RESERVED]).stdout.strip() == "32768"
    # Where the whole ephemeral range is the reserved port, there is none to be had.
    machine.run("echo 32768 32768 >/proc/sys/net/ipv4/ip_local_port_range")
    program = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname())"
    taken = machine.run(["python3", "-c", program], check=False)
    machine.run("echo 32768 60999 >/proc/sys/net/ipv4/ip_local_port_range")
    assert "Address already in use" in taken.stderr


def test_a_reservation_of_somebody_else_stays(machine: Machine) -> None:
    machine.write("/etc/sysctl.d/50-other.conf", "net.ipv4.ip_local_reserved_ports = 8080,9000-9100\n")
    # The restart reaches our unit as a job of its own; starting it waits for that.
    machine.run("systemctl restart systemd-sysctl.service && systemctl start syntrop-ports.service")
    assert machine.run(["cat", RESERVED]).stdout.strip() == "8080,9000-9100,32768"


def test_restarting_a_socket_takes_its_running_service_along(machine: Machine) -> None:
    for unit in ("contextd.socket", "inferenced.socket", "inferenced-enclave.socket"):
        machine.run("systemctl start contextd.service inferenced.service")
        machine.run(["systemctl", "restart", unit])
    for endpoint in ENDPOINTS:
        machine.wait_property(endpoint.socket, "ActiveState", "active")


def test_the_sockets_of_inferenced_stop_together(machine: Machine) -> None:
    # What is bound to a unit has a job of its own, which nobody waited for when `systemctl` returns.
    machine.run("systemctl stop inferenced-enclave.socket")
    machine.wait_property("inferenced.socket", "ActiveState", "inactive")
    machine.run("systemctl start inferenced.socket")
    machine.wait_property("inferenced-enclave.socket", "ActiveState", "active")


def test_a_host_without_ipv6_on_loopback_keeps_the_router(machine: Machine) -> None:
    machine.run("systemctl stop routerd.socket")
    machine.run("echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6")
    machine.run("systemctl start routerd.socket")
    machine.run("echo 0 >/proc/sys/net/ipv6/conf/lo/disable_ipv6")
    machine.run("systemctl restart routerd.socket")


def test_stopping_the_target_stops_daemons_before_their_sockets(machine: Machine) -> None:
    machine.run("systemctl start contextd.service")
    # The target is down before what is part of it, whose jobs nobody waited for when `systemctl` returns.
    machine.run("systemctl stop syntrop-sockets.target")
    machine.wait_property("contextd.service", "ActiveState", "inactive")
    for endpoint in ENDPOINTS:
        machine.wait_property(endpoint.socket, "ActiveState", "inactive")
    assert machine.run("find /run/syntrop /run/systemd-sentry -type s").stdout == ""
    machine.run("systemctl start syntrop-sockets.target")
    journal = machine.journal()
    assert "Socket service contextd.service already active" not in journal
