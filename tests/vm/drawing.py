# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine, after `pushed.py`: somebody under user.slice opens a real render node (vgem),
and a Batch lease of that device stands aside until it is closed.

One line of JSON, as `proof.py` tells: milliseconds from the open to the standstill, and from the end to going on.
"""

from __future__ import annotations

import json
import subprocess
import time

from pushed import Arbiter, run, wait_for

MIB = 1 << 20
GROUP = "/sys/fs/cgroup/system.slice/farm.service"
SETTINGS = """
[planes]
plane_memory = ["gpu-vgem=1073741824"]
"""
# Opens the device when its input comes, and says when that was.
PAINTER = "import time; input(); held = open('/dev/dri/renderD128'); print(time.monotonic(), flush=True); input()"


def stands() -> bool:
    with open(f"{GROUP}/cgroup.events", encoding="ascii") as file:
        return "frozen 1" in file.read()


def main() -> None:
    with open("/etc/syntrop/inferenced.toml", "a", encoding="ascii") as file:
        file.write(SETTINGS)
    run("systemctl", "stop", "inferenced.service")
    run("systemctl", "start", "inferenced.socket")
    run("systemd-run", "--quiet", "--unit=farm", "sleep", "infinity")
    command = ["systemd-run", "--quiet", "--pipe", "--slice=user.slice", "python3", "-c", PAINTER]
    painter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert painter.stdin is not None and painter.stdout is not None
    arbiter = Arbiter()
    lease = arbiter.call("AcquireLease", priority="Batch", unit="farm.service", memory_bytes=MIB, plane="gpu-vgem")
    awake = wait_for(lambda: "running" in run("systemctl", "list-units", "inferenced-lookout@*"))
    before = stands()
    print(file=painter.stdin, flush=True)
    opened = float(painter.stdout.readline())
    stopped = wait_for(stands, 0.005)
    took = time.monotonic() - opened
    [state] = [one["state"] for one in arbiter.call("ListLeases")["leases"] if one["id"] == lease["lease_id"]]
    ended = time.monotonic()
    painter.stdin.close()
    on = wait_for(lambda: not stands(), 0.005)
    back = time.monotonic() - ended
    holds = awake and not before and stopped and on and state == "Frozen"
    told = [f"{1e3 * took:.0f} ms to the standstill", f"{1e3 * back:.0f} ms to going on", state]
    print(json.dumps({"proof": "drawing", "with": told, "without": before, "holds": holds}), flush=True)


try:
    main()
except BaseException:
    print(run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", "inferenced*"), flush=True)
    raise
