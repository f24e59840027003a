# SPDX-License-Identifier: Apache-2.0
"""What tests of inferenced on a machine have in common: settings, holders, a client from outside."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from machine import Machine

INFERENCE1 = "io.syntrop.Inference1"
GIB = 1 << 30
AVAILABLE = 8 * GIB
PATIENCE = 60.0

# Nobody is refused because the machine that tests run on is under pressure, and who can hear has all the time:
# only those are frozen who cannot.
SETTINGS = """
[preemption]
yield_ms = {yield_ms}
freeze_ms = 30000
delegated = {delegated}
[planes]
host_reserve = 0
[tuning]
critical_memory = 100
critical_memory_full = 100
critical_io = 100
"""
UNHURRIED = 60_000

# Busy processes, beside whatever else wants to run. Argument: how many.
BUSY = """
import os, sys
os.nice(19)
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
while True:
    pass
"""

# A holder. Arguments: bytes, and what it does when it is asked for them: yield, shrink or nothing.
HOLDER = """
import json, socket, sys
size, habit = int(sys.argv[1]), sys.argv[2]

class Client:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect("/run/syntrop/io.syntrop.Inference1")
        self.replies = self.socket.makefile("rb")
    def send(self, method, **parameters):
        call = {"method": "io.syntrop.Inference1." + method, "parameters": parameters, "more": method == "Watch"}
        self.socket.sendall(json.dumps(call).encode() + b"\\0")
    def receive(self):
        text = b""
        while not text.endswith(b"\\0"):
            text += self.replies.read(1)
        reply = json.loads(text[:-1])
        if "error" in reply:
            sys.exit(str(reply))
        return reply["parameters"]
    def call(self, method, **parameters):
        self.send(method, **parameters)
        return self.receive()

client, watch = Client(), Client()
watch.send("Watch")
watch.receive()
lease = client.call("AcquireLease", priority="Batch", memory_bytes=size, plane="cpu0")["lease_id"]
while True:
    event = watch.receive()["event"]
    if event["kind"] == "yield_requested":
        if habit == "yield":
            client.call("Yield", lease_id=lease)
        elif habit == "shrink":
            client.call("ResizeLease", lease_id=lease, memory_bytes=event["memory_bytes"])
"""


class Refused(Exception):
    """An error reply: its name without the interface, and its parameters."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(str(reply))
        self.name = str(reply["error"]).removeprefix(INFERENCE1 + ".")
        self.parameters: dict[str, Any] = reply["parameters"]


class Client:
    """A connection from outside of the machine: root, and no process that the machine knows."""

    def __init__(self, machine: Machine, endpoint: str = INFERENCE1) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(machine.path(f"/run/syntrop/{endpoint}")))
        self._rest = b""

    def send(self, method: str, **parameters: Any) -> None:
        call = {"method": f"{INFERENCE1}.{method}", "parameters": parameters, "more": method == "Watch"}
        self._socket.sendall(json.dumps(call).encode() + b"\0")

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionResetError("hung up")
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        reply: dict[str, Any] = json.loads(text)
        if "error" in reply:
            raise Refused(reply)
        parameters: dict[str, Any] = reply["parameters"]
        return parameters

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.send(method, **parameters)
        return self.receive()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for(condition: Callable[[], object], what: str, host: Machine) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"{what}\n{host.journal('inferenced.service')}"
        time.sleep(0.02)


def configure(machine: Machine, *, yield_ms: int = UNHURRIED, delegated: tuple[str, ...] = ()) -> None:
    text = SETTINGS.format(yield_ms=yield_ms, delegated=json.dumps(list(delegated)))
    machine.write("/etc/syntrop/inferenced.toml", text)
    machine.run("systemctl stop inferenced.service && systemctl start inferenced.socket")


def prepare(machine: Machine) -> None:
    """Memory is always the same, whatever else runs on the machine that carries this one."""
    machine.run(
        f"sed -e 's/^MemTotal:.*/MemTotal: {2 * AVAILABLE >> 10} kB/'"
        f" -e 's/^MemAvailable:.*/MemAvailable: {AVAILABLE >> 10} kB/' /proc/meminfo >/run/meminfo"
        " && systemctl start dbus.socket"
    )
    machine.write("/opt/busy.py", BUSY)
    machine.write("/opt/holder.py", HOLDER)
    # Killed again and again, it comes back at once.
    drop_in = "[Service]\nRestartSec=50ms\nBindReadOnlyPaths=/run/meminfo:/proc/meminfo\n"
    machine.write("/run/systemd/system/inferenced.service.d/test.conf", drop_in)
    machine.run("systemctl daemon-reload")
    configure(machine)


class Units:
    def __init__(self, host: Machine) -> None:
        self.host = host
        self._names: list[str] = []

    def start(self, name: str, *command: str, options: tuple[str, ...] = ()) -> str:
        unit = name if "." in name else f"{name}.service"
        self._names.append(unit)
        self.host.run(["systemd-run", "--quiet", "--collect", f"--unit={unit}", *options, "--", *command])
        return unit

    def busy(self, name: str, count: int) -> str:
        unit = self.start(name, "python3", "/opt/busy.py", str(count))
        wait_for(lambda: len(self.pids(unit)) == count, f"{unit} has its processes", self.host)
        return unit

    def idle(self, name: str) -> str:
        return self.start(name, "sleep", "infinity")

    def pids(self, unit: str) -> list[str]:
        return self.read(unit, "cgroup.procs").split()

    def read(self, unit: str, file: str) -> str:
        """A file of a unit's control group; empty when it is gone."""
        try:
            return self.host.path(f"/sys/fs/cgroup/system.slice/{unit}/{file}").read_text()
        except OSError:
            return ""

    def stands(self, unit: str) -> bool:
        return "frozen 1" in self.read(unit, "cgroup.events")

    def stop(self) -> None:
        with Client(self.host) as client:  # a frozen unit cannot be stopped
            for lease in states(client):
                try:
                    client.call("ReleaseLease", lease_id=lease)
                except Refused as refused:
                    assert refused.name == "LeaseNotFound"  # it ended with its holder since it was listed
        # The next test's units have the same names: these must be unloaded, not only stopped. A thaw that is still
        # under way makes the manager refuse a stop, so it is asked again.
        wait_for(self._gone, "the units of this test are gone", self.host)
        with Client(self.host) as client:
            wait_for(
                lambda: client.call("ListLeases")["leases"] == [], "all leases ended with their units", self.host
            )
        # Nobody waits for anything any more either.
        self.host.run("systemctl is-failed -q inferenced.service && exit 1; systemctl is-active -q dbus.service")

    def _gone(self) -> bool:
        for scopes in (False, True):
            names = [name for name in self._names if name.endswith(".scope") is scopes]
            if names:
                self.host.run(["systemctl", "stop", *names], check=False)
        listed = ["systemctl", "list-units", "--all", "--plain", "--no-legend", *self._names]
        return not self._names or not self.host.run(listed).stdout.strip()


def batch(client: Client, unit: str, size: int, **more: Any) -> str:
    reply = client.call("AcquireLease", priority="Batch", memory_bytes=size, plane="cpu0", unit=unit, **more)
    return str(reply["lease_id"])


def interactive(client: Client, unit: str, size: int, **more: Any) -> str:
    more = {"priority": "Interactive", **more}
    reply = client.call("AcquireLease", memory_bytes=size, plane="cpu0", unit=unit, **more)
    return str(reply["lease_id"])


def states(client: Client) -> dict[str, str]:
    return {one["id"]: one["state"] for one in client.call("ListLeases")["leases"]}


def explain(client: Client, lease: str) -> dict[str, Any]:
    return client.call("ExplainLease", lease_id=lease)
