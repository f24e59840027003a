# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine: memory of a frozen holder is pushed out to swap, and only that much is lent.

One line of JSON, as `proof.py` tells.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
HELD, GRANTED, SHORT = 200 * MIB, 240 * MIB, 120 * MIB
GROUP = "/sys/fs/cgroup/system.slice/hoard.service"
HOARD = f"import os, signal; kept = bytearray(os.urandom({MIB})) * {HELD // MIB}; signal.pause()"
# Patience for a machine that is emulated.
SETTINGS = """
[preemption]
freeze_ms = 60000
push_out_ms = 60000
[tuning]
critical_memory = 100
critical_memory_full = 100
critical_io = 100
"""


class Arbiter:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(240)
        self._socket.connect("/run/syntrop/io.syntrop.Inference1")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        request = {"method": f"io.syntrop.Inference1.{method}", "parameters": parameters}
        self._socket.sendall(json.dumps(request).encode() + b"\0")
        reply = b""
        while not reply.endswith(b"\0"):
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionResetError(f"{method}: hung up")
            reply += chunk
        told: dict[str, Any] = json.loads(reply[:-1])
        if "error" in told:
            raise ValueError(f"{method}: {told}")
        answer: dict[str, Any] = told["parameters"]
        return answer

    def lease(self, priority: str, unit: str, size: int) -> str:
        reply = self.call("AcquireLease", priority=priority, unit=unit, memory_bytes=size, plane="cpu0")
        return str(reply["lease_id"])


def number(file: str) -> int:
    with open(f"{GROUP}/{file}", encoding="ascii") as text:
        return int(text.read())


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 120
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def main() -> None:
    run("fallocate", "-l", "512M", "/swap")
    os.chmod("/swap", 0o600)
    run("mkswap", "/swap")
    run("swapon", "/swap")
    os.makedirs("/etc/syntrop", exist_ok=True)
    with open("/etc/syntrop/inferenced.toml", "w", encoding="ascii") as file:
        file.write(SETTINGS)
    run("systemd-run", "--quiet", "--unit=hoard", "python3", "-c", HOARD)
    run("systemd-run", "--quiet", "--unit=urgent", "sleep", "infinity")
    wait_for(lambda: number("memory.current") >= HELD)
    arbiter = Arbiter()
    batch = arbiter.lease("Batch", "hoard.service", GRANTED)
    [available] = [one["available_memory"] for one in arbiter.call("GetTopology")["planes"] if one["id"] == "cpu0"]
    urgent = arbiter.lease("Interactive", "urgent.service", available + SHORT)
    told = arbiter.call("ExplainLease", lease_id=batch)
    [resident] = told["resident"]
    swapped = number("memory.swap.current")
    lent = told["leases"][0]["state"] == "Frozen" and told["booked"] <= told["capacity"]
    pushed = resident <= GRANTED - SHORT and swapped >= HELD - resident - 32 * MIB
    arbiter.call("ReleaseLease", lease_id=urgent)

    def goes_on() -> bool:
        [state] = [one["state"] for one in arbiter.call("ExplainLease", lease_id=batch)["leases"]]
        return bool(state == "Active")

    on = wait_for(goes_on)
    as_before = wait_for(lambda: run("systemctl", "show", "--value", "-p", "MemoryHigh", "hoard") == "infinity\n")
    holds = lent and pushed and on and as_before
    shown = [f"{resident >> 20} MiB kept", f"{swapped >> 20} MiB in swap", f"limit as before: {as_before}"]
    print(json.dumps({"proof": "pushed out", "with": shown, "without": HELD >> 20, "holds": holds}), flush=True)


try:
    main()
except BaseException:
    print(run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "inferenced", "-u", "hoard"), flush=True)
    raise
