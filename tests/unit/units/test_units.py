# SPDX-License-Identifier: Apache-2.0
"""What the unit files promise, read as text: endpoints, accounts, limits. `tests/system` asks systemd itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from syntrop.common import authority

UNITS = Path(__file__).resolve().parents[3] / "units"
DAEMONS = ("routerd", "inferenced", "modeld", "contextd", "toold", "runtimed", "systemd-sentry")
# What docs/security.md explains; every other daemon has none.
CAPABILITIES = {"contextd": "CAP_DAC_READ_SEARCH", "toold": "CAP_DAC_OVERRIDE CAP_CHOWN CAP_FOWNER"}
PSI_READERS = ("routerd", "inferenced", "contextd", "runtimed", "systemd-sentry")

ENDPOINTS = {
    "routerd.socket": (
        ["127.0.0.1:32768", "[::1]:32768", "/run/syntrop/router.sock", "/run/syntrop/io.syntrop.Router1"],
        "0666",
        None,
    ),
    "inferenced.socket": (["/run/syntrop/io.syntrop.Inference1"], "0666", None),
    "inferenced-enclave.socket": (
        ["/run/syntrop/sentry.sock", "/run/syntrop/gateway.sock", "/run/syntrop/fd.sock"],
        "0660",
        "syntrop",
    ),
    "inferenced-lookout.socket": (["/run/syntrop/lookout.sock"], "0600", None),
    "modeld.socket": (["/run/syntrop/io.syntrop.Model1"], "0666", None),
    "modeld-pull.socket": (["/run/syntrop/io.syntrop.Fetch1"], "0600", None),
    "contextd.socket": (["/run/syntrop/io.syntrop.Context1"], "0666", None),
    "toold.socket": (["/run/syntrop/io.syntrop.Tool1"], "0666", None),
    "runtimed.socket": (["/run/syntrop/io.syntrop.Runtime1"], "0666", None),
    "systemd-sentry.socket": (["/run/systemd-sentry/sentry.sock"], "0660", "syntrop"),
}


class Unit:
    """A unit file: every value of every directive, in order."""

    def __init__(self, name: str) -> None:
        self.values: dict[str, list[str]] = {}
        for line in (UNITS / name).read_text().splitlines():
            if "=" in line and not line.startswith(("#", ";", "[")):
                key, _, value = line.partition("=")
                self.values.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        return self.values.get(key, [])

    def one(self, key: str) -> str | None:
        values = self.all(key)
        assert len(values) <= 1, f"{key} is set twice"
        return values[0] if values else None


def sysusers() -> dict[str, list[list[str]]]:
    lines: dict[str, list[list[str]]] = {}
    for line in (UNITS / "sysusers.d/syntrop.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, *rest = line.split()
            lines.setdefault(kind, []).append(rest)
    return lines


def test_there_is_one_pair_per_daemon_and_nothing_else() -> None:
    assert {path.name for path in UNITS.glob("*.socket")} == {*ENDPOINTS, "toold-diag.socket"}
    services = {f"{name}.service" for name in DAEMONS}
    others = {
        "syntrop-ports.service",
        "modeld-pull@.service",
        "inferenced-lookout@.service",
        "syntrop-triage@.service",
    }
    assert {path.name for path in UNITS.glob("*.service")} == services | others


@pytest.mark.parametrize("name", ENDPOINTS)
def test_endpoints_modes_and_order(name: str) -> None:
    socket = Unit(name)
    assert (socket.all("ListenStream"), socket.one("SocketMode"), socket.one("SocketGroup")) == ENDPOINTS[name]
    # No name of its own: the manager then passes the unit's, by which activation tells sockets apart.
    assert socket.one("FileDescriptorName") is None


@pytest.mark.parametrize(
    "name", [name for name in ENDPOINTS if name not in ("modeld-pull.socket", "inferenced-lookout.socket")]
)
def test_sockets_survive_storms(name: str) -> None:
    socket = Unit(name)
    assert int(socket.one("Backlog") or 0) >= 2000
    assert int(socket.one("TriggerLimitBurst") or 0) >= 1000
    assert socket.one("Accept") is None
    assert socket.one("WantedBy") == "syntrop-sockets.target"


def test_every_download_has_a_process_that_has_the_network_and_not_the_store() -> None:
    socket, service, store = Unit("modeld-pull.socket"), Unit("modeld-pull@.service"), Unit("modeld.service")
    assert socket.one("Accept") == "yes"
    assert socket.one("SocketUser") == store.one("User")
    assert socket.one("WantedBy") == "syntrop-sockets.target"
    assert store.one("PrivateNetwork") == "yes"
    assert store.one("RestrictAddressFamilies") == "AF_UNIX"
    assert service.one("PrivateNetwork") is None
    assert service.one("DynamicUser") == "yes"
    assert service.one("StateDirectory") is None
    assert service.one("CapabilityBoundingSet") == ""


def test_who_sees_all_processes_answers_the_arbiter_alone_and_has_nothing_else() -> None:
    socket, service, arbiter = (
        Unit("inferenced-lookout.socket"),
        Unit("inferenced-lookout@.service"),
        Unit("inferenced.service"),
    )
    assert socket.one("Accept") == "yes"
    assert socket.one("SocketUser") == arbiter.one("User")
    assert socket.one("WantedBy") == "syntrop-sockets.target"
    assert arbiter.one("CapabilityBoundingSet") == ""
    two = "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
    assert service.one("CapabilityBoundingSet") == service.one("AmbientCapabilities") == two
    assert service.one("DynamicUser") == service.one("PrivateNetwork") == service.one("PrivateDevices") == "yes"
    assert service.one("RestrictAddressFamilies") == "AF_UNIX"
    assert service.one("ReadOnlyPaths") == "/proc"
    assert service.one("StateDirectory") is None


def test_the_two_sockets_of_inferenced_come_and_go_together() -> None:
    assert Unit("inferenced.socket").one("BindsTo") == "inferenced-enclave.socket"
    assert Unit("inferenced-enclave.socket").one("BindsTo") == "inferenced.socket"
    assert Unit("inferenced-enclave.socket").one("Service") == "inferenced.service"
    service = Unit("inferenced.service")
    assert service.one("Sockets") == service.one("Requires") == "inferenced.socket inferenced-enclave.socket"


def test_toold_asks_what_listens_over_a_socket_and_can_make_none() -> None:
    socket, service = Unit("toold-diag.socket"), Unit("toold.service")
    assert (socket.one("ListenNetlink"), socket.one("Service")) == ("inet-diag", "toold.service")
    assert socket.one("FlushPending") == "yes"  # or what a killed one left unread would start the next
    assert socket.one("WantedBy") == "syntrop-sockets.target"
    assert service.one("Sockets") == "toold.socket toold-diag.socket"
    assert service.one("Requires") == "toold.socket"  # where a kernel has no such socket, all else works
    assert (service.one("RestrictAddressFamilies"), service.one("PrivateNetwork")) == ("AF_UNIX", "yes")


@pytest.mark.parametrize("name", DAEMONS)
def test_services(name: str) -> None:
    service = Unit(f"{name}.service")
    assert service.one("Type") == "notify"
    assert service.one("ExecStart") == f"/usr/lib/syntrop/bin/{name}"
    assert service.one("Slice") == "syntrop.slice"
    assert service.one("StartLimitIntervalSec") == "0"
    assert service.one("Restart") == "on-failure"
    assert service.one("RestartSec") is not None
    assert service.one("WatchdogSec") is not None
    # 4,096 connections are promised, and a connection may bring a descriptor or stand for one upstream.
    assert int(service.one("LimitNOFILE") or 0) >= 2 * 4096
    # Stopping or restarting a socket stops its service first, since a socket cannot start while it runs.
    assert f"{name}.socket" in (service.one("Requires") or "")


@pytest.mark.parametrize("name", DAEMONS)
def test_sandboxes(name: str) -> None:
    service = Unit(f"{name}.service")
    for directive in ("RuntimeDirectory", "DynamicUser", "PrivateUsers"):
        assert service.one(directive) is None, directive
    assert service.one("Delegate") == ("memory pids cpu" if name == "toold" else None)
    assert service.one("CapabilityBoundingSet") == CAPABILITIES.get(name, "")
    assert service.one("AmbientCapabilities") == CAPABILITIES.get(name)
    assert service.one("MemoryDenyWriteExecute") == "yes"
    assert service.one("ProtectProc") == (None if name == "inferenced" else "invisible")
    if name in PSI_READERS:
        assert service.one("ProcSubset") is None
    families = "AF_UNIX AF_NETLINK" if name == "inferenced" else "AF_UNIX"
    assert service.one("RestrictAddressFamilies") == families
    # Namespaces of its own are for each command of toold's, and for nobody else.
    spaces = "user mnt pid net ipc uts" if name == "toold" else "yes"
    assert service.one("RestrictNamespaces") == spaces
    state = service.one("StateDirectory")
    assert state in (None, f"syntrop/{name.removeprefix('systemd-')}")


def test_accounts_are_those_of_the_authority_table() -> None:
    lines = sysusers()
    assert [line[0] for line in lines["u"]] == list(authority.USERS)
    assert [line[0] for line in lines["g"]] == [authority.GROUP]
    users = {Unit(f"{name}.service").one("User") for name in DAEMONS}
    assert users == set(authority.USERS)
    assert len(users) == len(DAEMONS)
    assert {group for _, group in lines["m"]} == {authority.GROUP}


def test_the_target_and_the_presets_switch_every_socket_on() -> None:
    target = Unit("syntrop-sockets.target")
    sockets = {*ENDPOINTS, "toold-diag.socket"}
    assert set((target.one("Also") or "").split()) == sockets
    presets = (UNITS / "system-preset/80-syntrop.preset").read_text()
    assert set(re.findall(r"^enable (\S+)$", presets, re.MULTILINE)) == {*sockets, "syntrop-sockets.target"}


def test_runtime_folders_belong_to_no_service() -> None:
    tmpfiles = (UNITS / "tmpfiles.d/syntrop.conf").read_text()
    for folder in ("/run/syntrop", "/run/systemd-sentry", "/var/lib/syntrop"):
        assert re.search(rf"^d {folder}\s+0755 root root -$", tmpfiles, re.MULTILINE), folder


def test_polkit_actions_are_those_of_the_authority_table() -> None:
    policy = ElementTree.parse(UNITS / "polkit/actions/io.syntrop.policy").getroot()
    actions = {action.get("id"): action for action in policy.iter("action")}
    assert set(actions) == {right.action for right in authority.RIGHTS if right.action}
    for action in actions.values():
        owner = action.find("annotate[@key='org.freedesktop.policykit.owner']")
        assert owner is not None and owner.text is not None
        assert owner.text.split() == [f"unix-user:{user}" for user in authority.USERS]


def test_the_bus_opens_two_methods_to_one_user() -> None:
    config = ElementTree.parse(UNITS / "dbus-1/system.d/io.syntrop.conf").getroot()
    policies = list(config.iter("policy"))
    assert [policy.attrib for policy in policies] == [{"user": "inferenced"}]
    assert [allow.get("send_member") for allow in policies[0]] == ["FreezeUnit", "ThawUnit"]


@pytest.mark.parametrize(
    ("present", "expected"),
    [("", "32768"), ("8080", "8080,32768"), ("8080,9000-9100", "8080,9000-9100,32768")],
)
def test_reserving_the_port_keeps_other_reservations(tmp_path: Path, present: str, expected: str) -> None:
    command = Unit("syntrop-ports.service").one("ExecStart")
    assert command is not None
    script = command.removeprefix("/bin/sh -euc '").removesuffix("'").replace("$$", "$")
    table = tmp_path / "reserved"
    table.write_text(present + "\n")
    script = script.replace("/proc/sys/net/ipv4/ip_local_reserved_ports", str(table))
    subprocess.run(["/bin/sh", "-euc", script], check=True)
    assert table.read_text().strip() == expected


def test_the_remote_drop_in_opens_only_what_remote_providers_need() -> None:
    drop_in = Unit("optional/routerd.service.d/remote.conf")
    assert set(drop_in.values) == {"PrivateNetwork", "RestrictAddressFamilies", "IPAddressAllow"}
    assert drop_in.one("RestrictAddressFamilies") == "AF_INET AF_INET6"


def test_the_report_of_a_failure_is_small_and_does_not_report_itself() -> None:
    service = Unit("syntrop-triage@.service")
    assert service.one("ExecStart") == "/usr/lib/syntrop/bin/syntrop-triage %i"
    assert service.one("Type") == "oneshot"
    assert service.one("User") in authority.USERS
    assert service.one("CapabilityBoundingSet") == ""
    assert (service.one("NoNewPrivileges"), service.one("IPAddressDeny")) == ("yes", "any")
    # A storm of failures must not meet a start limit, nor leave failed reports behind.
    assert (service.one("StartLimitIntervalSec"), service.one("CollectMode")) == ("0", "inactive-or-failed")
    told = Unit("optional/service.d/50-syntrop-triage.conf")
    assert told.values == {"OnFailure": ["syntrop-triage@%n.service"]}
    assert Unit("untriaged.conf").values == {}
    placed = "untriaged.conf /usr/lib/systemd/system/${f##*/}.d/50-syntrop-triage.conf"
    assert placed in (UNITS / "install.sh").read_text()


def test_the_resident_drop_in_keeps_the_supervisor_and_opens_nothing() -> None:
    drop_in = Unit("optional/systemd-sentry.service.d/resident.conf")
    assert set(drop_in.values) == {"Environment", "Restart", "OOMScoreAdjust"}
    assert drop_in.one("Environment") == "SYNTROP_SENTRY_MODE=resident"


def test_the_installer_is_sound_shell() -> None:
    subprocess.run(["/bin/sh", "-n", str(UNITS / "install.sh")], check=True)
