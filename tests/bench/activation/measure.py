# SPDX-License-Identifier: Apache-2.0
"""Runs inside the machine: wakes each daemon and its echo twin in turn, and prints what it took as JSON.

Arguments: rounds, then the subjects as JSON: [[name, service, address, "varlink"|"http"], …]. One round visits
every subject once, so that whatever else the computer does meets all of them alike.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from time import perf_counter, sleep

GET_INFO = b'{"method":"org.varlink.service.GetInfo"}\0'
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def state(service: str) -> str:
    return subprocess.run(
        ["systemctl", "show", "--value", "-p", "ActiveState", service], capture_output=True, text=True, check=True
    ).stdout.strip()


def put_to_sleep(service: str) -> None:
    subprocess.run(["systemctl", "stop", service], check=True)
    assert state(service) == "inactive", service


def answered(connection: socket.socket, kind: str) -> bytes:
    reply = b""
    end = b"\0" if kind == "varlink" else b"\r\n\r\n"
    while end not in reply:
        chunk = connection.recv(65536)
        if not chunk:
            raise SystemExit(f"hung up after {reply!r}")
        reply += chunk
    if kind == "http" and not reply.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"unexpected answer: {reply!r}")
    if kind == "varlink" and b'"error"' in reply:
        raise SystemExit(f"unexpected answer: {reply!r}")
    return reply


def wake(address: str, kind: str) -> float:
    """Seconds from connect to the first reply of a sleeping daemon."""
    if kind == "http":
        host, _, port = address.rpartition(":")
        connection, target = socket.socket(socket.AF_INET), (host, int(port))
    else:
        connection, target = socket.socket(socket.AF_UNIX), address  # type: ignore[assignment]
    with connection:
        connection.settimeout(60)
        start = perf_counter()
        connection.connect(target)
        connection.sendall(HEALTH if kind == "http" else GET_INFO)
        answered(connection, kind)
        return perf_counter() - start


def memory(service: str) -> tuple[int, int]:
    """RSS and PSS of the service's process, in KiB."""
    pid = subprocess.run(
        ["systemctl", "show", "--value", "-p", "MainPID", service], capture_output=True, text=True, check=True
    ).stdout.strip()
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        fields = dict(line.split(":", 1) for line in rollup if ":" in line)
    return int(fields["Rss"].split()[0]), int(fields["Pss"].split()[0])


def bare() -> float:
    """Seconds that the interpreter alone takes."""
    start = perf_counter()
    pid = os.posix_spawn("/usr/bin/python3", ["python3", "-I", "-c", "pass"], {})
    os.waitpid(pid, 0)
    return perf_counter() - start


def main() -> None:
    rounds, subjects = int(sys.argv[1]), json.loads(sys.argv[2])
    times: dict[str, list[float]] = {name: [] for name, *_ in subjects}
    sizes: dict[str, list[tuple[int, int]]] = {name: [] for name, *_ in subjects}
    passes = []
    for _, service, *_ in subjects:
        put_to_sleep(service)
    for round_number in range(rounds + 1):
        passes.append(bare())
        for name, service, address, kind in subjects:
            cold = wake(address, kind)
            sleep(0.02)  # let the second half of its start, READY=1 and all, settle
            size = memory(service)
            put_to_sleep(service)
            if round_number:  # the first one fills the page cache
                times[name].append(cold)
                sizes[name].append(size)
    print(json.dumps({"pass": passes[1:], "times": times, "sizes": sizes}))


if __name__ == "__main__":
    main()
