# SPDX-License-Identifier: Apache-2.0
"""What holds a daemon: that it costs no wake-ups, and does not hold up a stop."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from calm import CALM

INFERENCE1, CONTEXT1 = "io.syntrop.Inference1", "io.syntrop.Context1"
SECONDS = 2.0
_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.M)


def switches(pid: int) -> int:
    """Times that the process went to sleep, in all of its threads."""
    while True:
        try:
            texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended since it was listed
            continue
        return sum(int(count) for text in texts for count in _SLEPT.findall(text))


def configure(root: Path, daemon: str, text: str) -> None:
    folder = root / daemon / "etc"
    folder.mkdir(parents=True)
    (folder / f"{daemon}.toml").write_text(text)


def test_leases_held_cost_no_wakeups(launch: Any, tmp_path: Path) -> None:
    """The idle time is far shorter than the window, so that whoever looked again and again would show."""
    configure(tmp_path, "inferenced", CALM)  # a busy machine refuses no lease
    unit = launch("inferenced", idle=0.3, start=False)
    client = launch.client(unit, INFERENCE1)
    for number in range(20):
        client.send(f"{INFERENCE1}.AcquireLease", priority="Batch", memory_bytes=1 << 20, pid=os.getpid())
        if number == 0:
            unit.start()
        reply = client.receive()
        assert reply.error is None, reply.parameters
    seen = []
    time.sleep(0.6)  # the idle time, once
    for _ in range(9):  # what the kernel makes it wait for, such as paging, counts as well
        before = switches(unit.process.pid)
        time.sleep(SECONDS)
        seen.append(switches(unit.process.pid) - before)
        if seen[-1] <= 1:
            break
    assert seen[-1] <= 1, seen
    assert len(client.call(f"{INFERENCE1}.ListLeases").parameters["leases"]) == 20


@pytest.mark.parametrize(("daemon", "interface"), [("inferenced", INFERENCE1), ("contextd", CONTEXT1)])
def test_who_watches_does_not_hold_up_a_stop(launch: Any, tmp_path: Path, daemon: str, interface: str) -> None:
    """Calls in flight have ten minutes here, and a watch would have them all."""
    configure(tmp_path, daemon, "stop_timeout_sec = 600.0\n")
    unit = launch(daemon, environment={"SYNTROP_HOST_ROOT": str(tmp_path)})
    clients = [launch.client(unit, interface) for _ in range(3)]
    for client in clients:
        client.socket.sendall(json.dumps({"method": f"{interface}.Watch", "more": True}).encode() + b"\0")
        assert client.receive().error is None
    unit.process.send_signal(signal.SIGTERM)
    assert unit.wait() == 0
    for client in clients:
        told = b""
        while piece := client.socket.recv(4096):
            told += piece
        last = json.loads(told.split(b"\0")[-2])
        assert not last.get("continues") and "error" not in last and last["parameters"].get("event") is None
