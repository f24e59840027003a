# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine: what a control group takes from a tool's command, and who goes without it.

Every proof is a pair: held in a group of its own, and free without one, with the limits of processes
(`setrlimit(2)`) left out of both, since those are the other layer. One line of JSON for each.
"""

from __future__ import annotations

import glob
import json
import os
import resource
import sys
import time

sys.path[:0] = glob.glob("/usr/lib/syntrop/lib/python3.*/site-packages")

from syntrop.common import cgroup  # noqa: E402
from syntrop.inferenced import topology  # noqa: E402
from syntrop.toold import confinement, runner  # noqa: E402

PYTHON = os.path.realpath("/usr/bin/python3")
WITHOUT_LIMITS = confinement.ALL_LAYERS & ~confinement.LIMITS

MEMORY = f"""
kept = []
for _ in range({2 * runner.MEMORY_MAX >> 20}):
    kept.append(bytearray(1 << 20))
print(len(kept))
"""
PROCESSES = """
import os, select
count = 0
for count in range(100):
    try:
        if os.fork() == 0:
            os.close(1), os.close(2)
            select.select([], [], [], 60)
    except OSError:
        break
print(count)
"""
PROCESSOR = """
import os
os.fork()
while True:
    pass
"""


def run(program: str, groups: str | None, *, timeout: float) -> tuple[runner.Outcome, float]:
    """What came of it, and how many processors it had on the average."""
    argv = [PYTHON, "-I", "-S", "-c", program]
    command = runner.Command(argv, timeout=timeout, processes=True, reads=("/usr",))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    outcome = runner.run(command, groups=groups, layers=WITHOUT_LIMITS)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    return outcome, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took


def busy(folder: str) -> float:
    with open(f"{folder}/cpu.stat", encoding="utf-8") as file:
        return int(file.readline().split()[1]) / 1e6


def tell(name: str, held: object, free: object, *, holds: bool) -> None:
    print(json.dumps({"proof": name, "with": held, "without": free, "holds": holds}), flush=True)


def main() -> None:
    top = cgroup.of_pid(0)
    top.child("daemon").add(0)
    tools = top.child("tools")
    for group in (top, tools):
        group.enable("memory", "pids", "cpu")

    held, _ = run(MEMORY, tools.folder, timeout=60)
    free, _ = run(MEMORY, None, timeout=60)
    holds = held.exit_code == 128 + 9 and not held.timed_out and free.exit_code == 0
    tell("memory", held.exit_code, free.exit_code, holds=holds)

    held, _ = run(PROCESSES, tools.folder, timeout=60)
    free, _ = run(PROCESSES, None, timeout=60)
    counts = int(held.stdout or -1), int(free.stdout or -1)
    tell("processes", *counts, holds=0 < counts[0] < runner.PIDS_MAX and counts[1] == 99)

    # By the accounts of the groups: of processes that were killed nobody else keeps any.
    shares = []
    for groups, account in ((tools.folder, tools.folder), (None, top.folder)):
        before, began = busy(account), time.monotonic()
        run(PROCESSOR, groups, timeout=10)
        shares.append(round((busy(account) - before) / (time.monotonic() - began), 2))
    tell("processors", *shares, holds=shares[0] < 1.3 and shares[1] > 1.5)

    left = [entry.name for entry in os.scandir(tools.folder) if entry.is_dir()]
    tell("nothing is left", left, None, holds=not left)

    # A device without hardware, whose driver tells nothing of memory.
    plane = topology.read().planes.get("gpu-vgem")
    shown = plane and [plane.driver, plane.device, plane.total]
    tell("vgem", shown, None, holds=shown == ["vgem", "dri/renderD128", None])


main()
