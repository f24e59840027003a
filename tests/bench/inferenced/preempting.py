# SPDX-License-Identifier: Apache-2.0
"""How long it takes to take memory from a busy group of 64 processes, under a real systemd in namespaces.

`frozen` and `delegated`: nobody of the group can hear, so it is given 0 ms and stands still at once: by the
manager's FreezeUnit, or in a tree that is delegated to inferenced. `cooperative`: one of its processes watches its
lease and yields. From the request to the lease, and from its release to the event that tells that the group runs.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from time import perf_counter, sleep

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "system"))

from arbiter import GIB, Client, Units, batch, configure, interactive, prepare, states, wait_for  # noqa: E402
from machine import Machine  # noqa: E402
from roots import TREE, TRIXIE, Roots  # noqa: E402

PROCESSES = 64
HELD, WANTED = 6 * GIB, 4 * GIB
APART = 0.05
"""Seconds between two preemptions: the manager is still busy with a thaw when the holder runs already."""
HURRIED = bool(os.environ.get("SYNTROP_BENCH_FIFO"))
"""Whether what is measured runs at real-time priority, for a machine that others load; and who is preempted before
those others: a group stands still when each of its processes has run once more, whatever keeps them from it."""

# A holder that yields at once, with busy children. It is no harder to schedule than what asks it.
YIELDING = """
import os, socket, subprocess, sys
for _ in range(63):
    subprocess.Popen([sys.executable, "/opt/busy.py", "1"])
sys.argv[1:] = ["%d", "yield"]
exec(compile(open("/opt/holder.py").read(), "holder", "exec"))
"""

# A service that has a tree of its own: the busy ones in `job`, itself in `daemon`.
FARM = """
import grp, os, subprocess, sys
top = "/sys/fs/cgroup/system.slice/farm.service"
for name in ("job", "daemon"):
    os.mkdir(f"{top}/{name}")
os.chown(f"{top}/job/cgroup.freeze", -1, grp.getgrnam("inferenced").gr_gid)
os.chmod(f"{top}/job/cgroup.freeze", 0o664)
with open(f"{top}/daemon/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
def move():
    with open(f"{top}/job/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
subprocess.Popen([sys.executable, "/opt/busy.py", "64"], preexec_fn=move).wait()
"""


def frozen(client: Client, watching: Client, held: str, urgent: str) -> tuple[float, float]:
    """Milliseconds from a request to its lease, and from the lease's end to the holder's going on."""
    begun = perf_counter()
    lease = interactive(client, urgent, WANTED)
    taken = perf_counter()
    state = states(client)[held]
    if state != "Frozen":
        raise SystemExit(f"the holder is {state}")
    released = perf_counter()
    client.call("ReleaseLease", lease_id=lease)
    while True:
        event = watching.receive()["event"]
        if event is not None and event["kind"] == "thawed" and event["lease_id"] == held:
            return 1e3 * (taken - begun), 1e3 * (perf_counter() - released)


def rounds_of(
    units: Units, group: str, held: str, urgent: str, rounds: int, times: dict[str, list[float]], what: str
) -> None:
    if HURRIED:
        hurry(units.host, units.read(group, "cgroup.procs").split())
    with Client(units.host) as client, Client(units.host) as watching:
        watching.send("Watch")
        watching.receive()
        for turn in range(rounds + 1):
            sleep(APART)
            request, thaw = frozen(client, watching, held, urgent)
            # The first one has the daemon load what it needs for it.
            times.setdefault(what if turn else f"{what}, first", []).append(request)
            if turn:
                times.setdefault(f"{what}, thaw", []).append(thaw)


def by_manager(units: Units, urgent: str, rounds: int, times: dict[str, list[float]]) -> None:
    holder = units.busy("deaf", PROCESSES)
    with Client(units.host) as client:
        held = batch(client, holder, HELD)
    rounds_of(units, holder, held, urgent, rounds, times, "frozen")
    units.stop()


def cooperative(units: Units, urgent: str, rounds: int, times: dict[str, list[float]]) -> None:
    host = units.host
    host.write("/opt/yielding.py", YIELDING % HELD)
    holder = units.start("hearing", "python3", "/opt/yielding.py")
    wait_for(lambda: len(units.pids(holder)) == PROCESSES, "the group has its processes", host)
    with Client(host) as client:
        wait_for(lambda: states(client), "the holder has its lease", host)
        [held] = states(client)
        if HURRIED:
            main = int(host.run(["systemctl", "show", "--value", "-p", "MainPID", holder]).stdout)
            hurry(host, units.pids(holder))
            host.run(f"chrt -f -p 10 {main}")
        for turn in range(rounds + 1):
            sleep(APART)
            begun = perf_counter()
            lease = interactive(client, urgent, WANTED)
            times.setdefault("cooperative" if turn else "cooperative, first", []).append(
                1e3 * (perf_counter() - begun)
            )
            client.call("ReleaseLease", lease_id=lease)
            client.call("ResizeLease", lease_id=held, memory_bytes=HELD)
    units.stop()


def delegated(units: Units, rounds: int, times: dict[str, list[float]]) -> None:
    host = units.host
    host.write("/opt/farm.py", FARM)
    farm = units.start("farm", "python3", "/opt/farm.py", options=("--property=Delegate=yes",))
    urgent = units.idle("urgent")
    drop_in = "/run/systemd/system/inferenced.service.d/delegated.conf"
    host.write(drop_in, "[Service]\nReadWritePaths=/sys/fs/cgroup/system.slice/farm.service\n")
    host.run("systemctl daemon-reload")
    configure(host, delegated=("/system.slice/farm.service",))
    wait_for(lambda: len(units.read(farm, "job/cgroup.procs").split()) == PROCESSES, "the job runs", host)
    pid = int(units.host.run("head -n 1 /sys/fs/cgroup/system.slice/farm.service/job/cgroup.procs").stdout)
    with Client(host) as client:
        reply = client.call("AcquireLease", priority="Batch", memory_bytes=HELD, plane="cpu0", pid=pid)
    rounds_of(units, f"{farm}/job", reply["lease_id"], urgent, rounds, times, "delegated")
    units.stop()


def hurry(host: Machine, preempted: list[str]) -> None:
    """What is measured comes before whatever else the host does, and who is preempted next."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    # With all of their threads, and those that they will start: polkit judges in one of its own each time.
    host.run(
        "chrt -R -f -p 10 1; for one in dbus polkit inferenced; do"
        " for pid in $(cat /sys/fs/cgroup/*.slice/$one.service/cgroup.procs); do chrt -a -f -p 10 $pid; done; done"
    )
    # A little only: more would keep the kernel's own threads from the processors, and the manager waits for them.
    # Processes of one session are weighed together (sched(7), autogroups).
    Path(f"/proc/{preempted[0]}/autogroup").write_text("-5")


def measure(rounds: int) -> tuple[str, dict[str, list[float]]]:
    """The version of systemd, and milliseconds by subject."""
    times: dict[str, list[float]] = {}
    with Machine(Roots(TRIXIE).layers(), binds=[(str(TREE), "/src", True)], name="syntrop-preempt") as host:
        version = re.match(r"systemd \d+", host.run("systemctl --version").stdout)
        prepare(host)
        units = Units(host)
        by_manager(units, units.idle("urgent"), rounds, times)
        cooperative(units, units.idle("urgent"), rounds, times)
        delegated(units, rounds, times)
    return version[0] if version else "systemd", times
