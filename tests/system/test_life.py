# SPDX-License-Identifier: Apache-2.0
"""How daemons end: idle, raced against, killed; and that somebody always answers."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import pytest
from arbiter import wait_for
from machine import Machine
from suite import CALL, DAEMONS, IMPORT, MODEL, set_idle

CONTEXT = "/run/syntrop/io.syntrop.Context1"

# Bursts of connections, each burst sent a little earlier or later after the last reply than the daemon's idle
# time, so that many of them meet its exit. Arguments: endpoint, kind, bursts, connections a burst, idle seconds.
RACE = """
import socket, sys, time
endpoint, kind, bursts, width, idle = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
if kind == "http":
    call, end, good = b"GET /health HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n", b"}", b"HTTP/1.1 200"
else:
    call, end, good = b'{"method":"org.varlink.service.GetInfo"}\\0', b"\\0", b'{"parameters"'
answered = 0
for burst in range(bursts):
    connections = []
    for _ in range(width):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(endpoint)
        connection.sendall(call)
        connections.append(connection)
    for connection in connections:
        reply = b""
        while not reply.endswith(end):
            chunk = connection.recv(65536)
            assert chunk, f"hung up in burst {burst} after {reply!r}"
            reply += chunk
        assert reply.startswith(good), reply
        answered += 1
        connection.close()
    time.sleep(idle + (burst % 25 - 8) * 0.001)
print(answered)
"""

# Stream a long answer over a bare socket, say when it has begun, and tell how it ended: with the stream's own end,
# with an error event, or broken off without even the last chunk. Arguments: model, tokens.
STREAM = """
import json, socket, sys
# Greedy, this goes on for thousands of tokens. At the default temperature an answer may be over in ten.
ask = {"model": sys.argv[1], "messages": [{"role": "user", "content": "Write a long story about a dragon."}],
       "stream": True, "max_tokens": int(sys.argv[2]), "temperature": 0}
body = json.dumps(ask).encode()
head = "POST /v1/chat/completions HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-type: application/json\\r\\n"
head += f"connection: close\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(60)
connection.connect("/run/syntrop/router.sock")
connection.sendall(head.encode() + body)
seen, begun = b"", False
while True:
    try:
        data = connection.recv(65536)
    except ConnectionError:
        data = b""
    if not data:
        break
    seen += data
    assert seen.startswith(b"HTTP/1.1 200"[:len(seen)]), seen
    if not begun and seen.count(b'"content":') > 3:
        begun = True
        print("begun", flush=True)
whole = seen.endswith(b"0\\r\\n\\r\\n")
if b'data: {"error"' in seen:
    print("error event")
elif b"data: [DONE]" in seen and whole:
    print("done")
else:
    print("ended without a word" if whole else "broken off")
"""


@pytest.fixture(autouse=True)
def all_asleep(machine: Machine) -> Iterator[None]:
    """Every test begins and ends with no daemon running and nothing failed."""
    yield
    machine.run("systemctl stop " + " ".join(daemon.service for daemon in DAEMONS))
    machine.run("systemctl reset-failed")


def starts(machine: Machine, service: str) -> int:
    return len(re.findall(rf"Started {service}", machine.journal(service)))


def test_everybody_falls_asleep_and_the_slice_is_empty(machine: Machine) -> None:
    set_idle(machine, "*", 1.0)
    for daemon in DAEMONS:
        machine.run(["varlinkctl", "info", daemon.endpoint])
    for daemon in DAEMONS:
        machine.wait_property(daemon.service, "ActiveState", "inactive")
        assert machine.property(daemon.service, "Result") == "success"
    try:
        events = machine.path("/sys/fs/cgroup/syntrop.slice/cgroup.events").read_text()
    except FileNotFoundError:  # without anything in it, it is removed
        events = "populated 0"
    assert "populated 0" in events
    assert "/usr/lib/syntrop" not in machine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout


def test_ten_fast_exits_do_not_cost_the_socket(machine: Machine) -> None:
    set_idle(machine, "contextd", 0.01)
    before = starts(machine, "contextd.service")
    for _ in range(10):
        machine.run_python(CALL, CONTEXT, "org.varlink.service.GetInfo", "{}")
        machine.wait_property("contextd.service", "ActiveState", "inactive")
    assert starts(machine, "contextd.service") - before == 10
    assert machine.property("contextd.socket", "Result") == "success"


@pytest.mark.parametrize(
    ("daemon", "endpoint", "kind", "bursts"),
    [("contextd", CONTEXT, "varlink", 100), ("routerd", "/run/syntrop/router.sock", "http", 50)],
)
def test_connections_race_the_exit_and_all_are_answered(
    machine: Machine, daemon: str, endpoint: str, kind: str, bursts: int
) -> None:
    set_idle(machine, daemon, 0.02)
    before = starts(machine, f"{daemon}.service")
    answered = machine.run_python(RACE, endpoint, kind, str(bursts), "20", "0.02", timeout=300.0)
    assert int(answered) == 20 * bursts
    # The race was one: the daemon left and came back many times on the way.
    assert starts(machine, f"{daemon}.service") - before >= bursts // 3
    assert machine.property(f"{daemon}.socket", "Result") == "success"


def test_two_thousand_connections_at_once(machine: Machine) -> None:
    set_idle(machine, "contextd", 0.02)
    answered = machine.run_python(RACE, CONTEXT, "varlink", "2", "1000", "0.02", timeout=120.0)
    assert int(answered) == 2000


def test_awake_and_idle_is_quiet(machine: Machine) -> None:
    set_idle(machine, "*", 60.0)
    for daemon in DAEMONS:
        machine.run(["varlinkctl", "info", daemon.endpoint])
    pids = [machine.property(daemon.service, "MainPID") for daemon in DAEMONS]
    # Once what the call stirred up is over: the watchdog, every 15 s, and 0.1 a second.
    program = """
import sys, time
def switches(pid):
    with open(f"/proc/{pid}/status") as status:
        return sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
time.sleep(1)
for _ in range(4):  # a busy host takes longer than a second to come to rest
    before = [switches(pid) for pid in sys.argv[1:]]
    time.sleep(10)
    woken = [switches(pid) - was for pid, was in zip(sys.argv[1:], before)]
    if max(woken) <= 2:
        break
print(*woken)
"""
    woken = [int(count) for count in machine.run_python(program, *pids).split()]
    assert max(woken) <= 2, dict(zip([daemon.name for daemon in DAEMONS], woken, strict=True))


@pytest.mark.parametrize("victim", ["runtimed", "routerd"])
def test_a_daemon_killed_in_mid_stream(machine: Machine, victim: str) -> None:
    set_idle(machine, "*", 30.0)
    machine.run(IMPORT)
    with machine.start_python(STREAM, MODEL, "4000") as stream:
        assert stream.stdout is not None
        assert stream.stdout.readline() == "begun\n"
        machine.run(["systemctl", "kill", "-s", "KILL", f"{victim}.service"])
        ended = stream.communicate(timeout=60)[0].split("\n")
    assert ended[0] in ("error event", "broken off"), ended
    assert "done" not in ended
    again = machine.run_python(STREAM, MODEL, "8")
    assert again.split("\n")[-2] == "done"
    assert machine.property(f"{victim}.service", "NRestarts") == "1"


def test_a_daemon_that_cannot_start_is_tried_again_and_not_spun(machine: Machine) -> None:
    machine.write(
        "/run/systemd/system/toold.service.d/broken.conf", "[Service]\nExecStart=\nExecStart=/bin/false\n"
    )
    machine.run("systemctl daemon-reload")
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(machine.path("/run/syntrop/io.syntrop.Tool1")))
        tries = 0
        while tries < 4:
            assert time.monotonic() < begun + 60, "it is not tried again"
            tries = int(machine.property("toold.service", "NRestarts"))
            assert tries <= 1 + time.monotonic() - begun  # RestartSec=1s
    machine.run("rm /run/systemd/system/toold.service.d/broken.conf && systemctl daemon-reload")
    reply = machine.run_python(CALL, "/run/syntrop/io.syntrop.Tool1", "org.varlink.service.GetInfo", "{}")
    assert json.loads(reply)["parameters"]["product"] == "toold"


def test_reload_keeps_the_daemon(machine: Machine) -> None:
    machine.run(["varlinkctl", "info", CONTEXT])
    pid = machine.property("contextd.service", "MainPID")
    machine.run("systemctl reload contextd.service")
    machine.run(["varlinkctl", "info", CONTEXT])
    assert machine.property("contextd.service", "MainPID") == pid


def test_the_watchdog_ends_a_daemon_that_hangs(machine: Machine) -> None:
    machine.write("/run/systemd/system/contextd.service.d/watchdog.conf", "[Service]\nWatchdogSec=2s\n")
    machine.run("systemctl daemon-reload")
    machine.run(["varlinkctl", "info", CONTEXT])
    before = int(machine.property("contextd.service", "NRestarts"))
    machine.run("systemctl kill -s STOP contextd.service")
    wait_for(
        lambda: int(machine.property("contextd.service", "NRestarts")) > before, "it is started again", machine
    )
    assert "Watchdog timeout" in machine.journal("contextd.service")
    machine.run("rm /run/systemd/system/contextd.service.d/watchdog.conf && systemctl daemon-reload")
    machine.run(["varlinkctl", "info", CONTEXT])
