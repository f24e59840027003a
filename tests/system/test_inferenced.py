# SPDX-License-Identifier: Apache-2.0
"""inferenced under a real service manager: memory taken from units that run, by asking and by freezing; who never
is; and that nobody stands still and nothing is lent twice, whoever gives up, dies or is killed in between.

SYNTROP_KILLS: how often the daemon is killed at a random moment.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arbiter import (
    GIB,
    INFERENCE1,
    PATIENCE,
    Client,
    Refused,
    Units,
    batch,
    configure,
    explain,
    interactive,
    prepare,
    states,
    wait_for,
)
from machine import Machine

sys.path.append(str(Path(__file__).parents[1]))
import machines

KILLS = int(os.environ.get("SYNTROP_KILLS", "12"))


@pytest.fixture(scope="module")
def host(machine: Machine) -> Iterator[Machine]:
    """A machine whose memory is always the same, whatever else runs on the one that carries it."""
    prepare(machine)
    yield machine


@pytest.fixture
def units(host: Machine) -> Iterator[Units]:
    """Units of this test, gone with their leases when it ends."""
    found = Units(host)
    yield found
    found.stop()


# --- asking and freezing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("habit", "state"), [("yield", "Preempted"), ("shrink", "Active")])
def test_a_holder_that_watches_gives_way_and_runs_on(units: Units, habit: str, state: str) -> None:
    host = units.host
    holder = units.start("asked", "python3", "/opt/holder.py", str(6 * GIB), habit)
    busy = units.idle("urgent")
    with Client(host) as client:
        wait_for(lambda: states(client), "the holder has its lease", host)
        [held] = states(client)
        lease = interactive(client, busy, 4 * GIB)
        assert states(client) == {held: state, lease: "Active"}
        assert not units.stands(holder)
        told = explain(client, held)
        assert told["booked"] <= told["capacity"]
        if habit == "shrink":
            assert 4 * GIB <= told["leases"][0]["allocated_memory"] < 5 * GIB


def test_what_a_freeze_takes_is_ready_before_it_has_to_be(units: Units) -> None:
    """polkit, whom the manager asks, takes long to wake. Who cannot be frozen wakes nobody."""
    host = units.host
    configure(host)  # a new daemon, which knows nobody yet
    host.run("systemctl stop polkit.service")
    suite, deaf = units.idle("syntrop-test"), units.idle("deaf")
    with Client(host) as client:
        batch(client, suite, GIB)
        batch(client, suite, GIB)  # the first one has been looked at by now
        assert host.property("polkit.service", "ActiveState") == "inactive"
        batch(client, deaf, GIB)
        wait_for(lambda: host.property("polkit.service", "ActiveState") == "active", "polkit is awake", host)


def test_who_does_not_answer_is_frozen_and_only_what_it_never_used_is_lent(units: Units) -> None:
    host = units.host
    holder, urgent = units.busy("deaf", 64), units.idle("urgent")
    with Client(host) as client:
        held = batch(client, holder, 6 * GIB)
        lease = interactive(client, urgent, 5 * GIB)
        assert units.stands(holder)
        assert host.property(holder, "FreezerState") == "frozen"
        assert states(client) == {held: "Frozen", lease: "Active"}
        told = explain(client, held)
        [resident] = told["resident"]
        # What the kernel counts of 64 interpreters.
        assert 64 << 20 < resident < 2 * GIB
        assert told["booked"] == 5 * GIB + resident <= told["capacity"]
        assert told["frozen_for"] == [lease]
        with pytest.raises(Refused) as refused:
            interactive(client, urgent, 4 * GIB)
        assert refused.value.name == "ResourceExhaustion"
        assert 0 < refused.value.parameters["available"] < 4 * GIB
        assert {one["id"] for one in refused.value.parameters["holders"]} == {held, lease}
        client.call("ReleaseLease", lease_id=lease)
        wait_for(lambda: states(client)[held] == "Active", "the victim has its lease again", host)
        assert not units.stands(holder)


def test_who_stood_still_last_goes_on_first(units: Units) -> None:
    host = units.host
    holders = [units.idle(f"victim{number}") for number in range(3)]
    urgent = units.idle("urgent")
    with Client(host) as client, Client(host) as watching:
        leases = {batch(client, holder, 2 * GIB): holder for holder in holders}
        watching.send("Watch")
        watching.receive()
        lease = interactive(client, urgent, 7 * GIB)
        assert all(map(units.stands, holders))
        client.call("ReleaseLease", lease_id=lease)
        events: dict[str, list[str]] = {"frozen": [], "thawed": []}
        while len(events["thawed"]) < 3:
            event = watching.receive()["event"]
            events.setdefault(event["kind"], []).append(event["lease_id"])
        # Of equals the latest gives first, and gets back last.
        assert events["frozen"] == list(reversed(leases))
        assert events["thawed"] == list(leases)
        assert not any(map(units.stands, holders))


def test_a_gang_stands_still_and_goes_on_as_one(units: Units) -> None:
    host = units.host
    holder, urgent = units.busy("gang", 4), units.idle("urgent")
    with Client(host) as client:
        slices = [
            {"role": role, "memory_bytes": 2 * GIB, "plane": "cpu0"} for role in ("stage0", "stage1", "stage2")
        ]
        gang = client.call("AcquireCompositeLease", priority="Batch", slices=slices, unit=holder)["lease_id"]
        lease = interactive(client, urgent, 4 * GIB)
        told = explain(client, gang)
        assert {one["state"] for one in told["leases"]} == {"Frozen"}
        assert len(told["leases"]) == len(told["resident"]) == 3
        assert units.stands(holder)
        client.call("ReleaseLease", lease_id=lease)
        wait_for(lambda: states(client)[gang] == "Active", "the gang goes on", host)
        assert not units.stands(holder)


def test_a_signal_asks_through_the_manager(units: Units) -> None:
    """Of another user's unit: the manager sends it, under the policy that opens KillUnit."""
    trap = "trap 'touch /run/asked' USR1; while :; do sleep 0.1; done"
    holder, urgent = units.start("trapping", "bash", "-c", trap), units.idle("urgent")
    configure(units.host, yield_ms=200)
    with Client(units.host) as client:
        held = batch(client, holder, 6 * GIB, yield_signal="SIGUSR1")
        lease = interactive(client, urgent, 4 * GIB)
        assert states(client) == {held: "Frozen", lease: "Active"}
        client.call("ReleaseLease", lease_id=lease)
    wait_for(lambda: units.host.path("/run/asked").exists(), "the signal arrived", units.host)
    configure(units.host)


# --- who never is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unit",
    ["dbus.service", "systemd-journald.service", "contextd.service", "session-7.scope", "user@4711.service"],
)
def test_whom_nobody_freezes(units: Units, unit: str) -> None:
    host = units.host
    if unit == "contextd.service":
        host.run("varlinkctl info /run/syntrop/io.syntrop.Context1")
    if unit == "session-7.scope":
        units.start("login", "systemd-run", "--scope", f"--unit={unit}", "--", "sleep", "infinity")
    if unit == "user@4711.service":
        # A user's manager has what it runs in groups of its own, below its unit.
        host.write(
            "/run/systemd/system/user@.service",
            "[Service]\nDelegate=yes\nType=exec\nExecStart=/bin/bash -c 'cd /sys/fs/cgroup/system.slice/%n;"
            " mkdir app.slice init.scope; echo $$$$ >init.scope/cgroup.procs;"
            " sleep infinity & echo $! >app.slice/cgroup.procs; wait'\n",
        )
        host.run("systemctl daemon-reload && systemctl start user@4711.service")
    urgent = units.idle("urgent")
    with Client(host) as client:
        wait_for(lambda: held_by(client, unit), f"{unit} has a lease", host)
        [held] = states(client)
        with pytest.raises(Refused) as refused:
            interactive(client, urgent, 4 * GIB)
        assert refused.value.name == "ResourceExhaustion"
        assert [one["id"] for one in refused.value.parameters["holders"]] == [held]
        with pytest.raises(Refused) as refused:
            client.call("Freeze", lease_id=held)
        assert refused.value.name == "FreezeRefused"
        assert refused.value.parameters["unit"] == unit
        assert states(client) == {held: "Active"}
        client.call("ReleaseLease", lease_id=held)
    if unit.startswith("user@"):
        host.run("systemctl stop user@4711.service")


def held_by(client: Client, unit: str) -> bool:
    try:
        batch(client, unit, 6 * GIB)
    except Refused as refused:
        assert refused.name == "InvalidParameter"  # it has no processes yet
        return False
    return True


# In a unit that holds the memory, a child moves to a scope of its own and asks for it.
DESCENDANT = """
import subprocess, sys
child = '''
import json, socket
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect("/run/syntrop/io.syntrop.Inference1")
    call = {"method": "io.syntrop.Inference1.AcquireLease", "parameters":
            {"priority": "Interactive", "memory_bytes": 4 << 30, "plane": "cpu0"}}
    peer.sendall(json.dumps(call).encode() + bytes(1))
    print(peer.recv(65536)[:-1].decode())
'''
sys.stdin.readline()
done = subprocess.run(["systemd-run", "--quiet", "--scope", "--unit=descendant.scope", "python3", "-c", child],
                      capture_output=True, text=True)
print(done.stdout or done.stderr, flush=True)
"""


def test_who_asks_never_stops_who_waits_for_it(units: Units) -> None:
    host = units.host
    host.write("/opt/descendant.py", DESCENDANT)
    host.run("mkfifo -m 600 /run/go && touch /run/said")
    options = ("--property=StandardInput=file:/run/go", "--property=StandardOutput=append:/run/said")
    ancestor = units.start("ancestor", "python3", "/opt/descendant.py", options=("--no-block", *options))
    with Client(host) as client, open(host.path("/run/go"), "w") as go:
        wait_for(lambda: held_by(client, ancestor), "the ancestor has a lease", host)
        [held] = states(client)
        print("go", file=go, flush=True)
        wait_for(lambda: host.path("/run/said").read_text().endswith("\n"), "the descendant has its answer", host)
        reply = json.loads(host.path("/run/said").read_text())
        assert reply["error"] == f"{INFERENCE1}.ResourceExhaustion"
        assert [one["id"] for one in reply["parameters"]["holders"]] == [held]


def test_an_operator_stops_and_continues_a_holder(units: Units) -> None:
    host = units.host
    holder = units.idle("stopped")
    with Client(host) as client:
        held = batch(client, holder, GIB, expire_ms=50_000)
        client.call("Freeze", lease_id=held)
        assert units.stands(holder)
        first = explain(client, held)
        assert (first["frozen_for"], states(client)) == (["operator"], {held: "Frozen"})
        # Its time stands still with it.
        assert explain(client, held)["expire_ms"] == first["expire_ms"] <= 50_000
        client.call("Thaw", lease_id=held)
        assert not units.stands(holder)
        assert states(client) == {held: "Active"}
        client.call("Thaw", lease_id=held)  # it runs, which is what was asked for


# --- who gives up, ends or is killed ---------------------------------------------------------------------------


def test_who_hangs_up_while_holders_are_asked_leaves_them_alone(units: Units) -> None:
    host = units.host
    holder = units.start("slow", "python3", "/opt/holder.py", str(6 * GIB), "nothing")
    urgent = units.idle("urgent")
    with Client(host) as client:
        wait_for(lambda: states(client), "the holder has its lease", host)
        [held] = states(client)
        with Client(host) as impatient:
            impatient.send("AcquireLease", priority="Interactive", memory_bytes=4 * GIB, plane="cpu0", unit=urgent)
            wait_for(lambda: states(client) == {held: "Preempting"}, "the holder is asked", host)
        wait_for(lambda: states(client) == {held: "Active"}, "the holder is spared", host)
        assert not units.stands(holder)


def test_who_hangs_up_while_the_manager_freezes_leaves_nobody_frozen(units: Units) -> None:
    """The manager asks polkit, which sleeps: the freeze comes when nobody wants it any more."""
    host = units.host
    holder, urgent = units.idle("victim"), units.idle("urgent")
    log = host.path("/run/syntrop/inferenced/leases.log")
    host.run("systemctl start polkit.service")
    with Client(host) as client:
        held = batch(client, holder, 6 * GIB)
        past = len(log.read_text())
        host.run("systemctl kill -s STOP polkit.service")
        with Client(host) as impatient:
            impatient.send("AcquireLease", priority="Interactive", memory_bytes=4 * GIB, plane="cpu0", unit=urgent)
            wait_for(lambda: '["freeze",' in log.read_text()[past:], "the freeze is on record", host)
        wait_for(lambda: states(client) == {held: "Active"}, "the holder is spared", host)
        host.run("systemctl kill -s CONT polkit.service")
        wait_for(lambda: '["thaw",' in log.read_text()[past:], "the thaw is on record", host)
        assert not units.stands(holder)
        assert host.property(holder, "FreezerState") == "running"
        # And it can be had again.
        lease = interactive(client, urgent, 4 * GIB)
        assert states(client) == {held: "Frozen", lease: "Active"}


def test_a_lease_ends_with_its_holder_frozen_or_not(units: Units) -> None:
    host = units.host
    first, second = units.idle("stopping"), units.idle("dying")
    victim, urgent = units.idle("victim"), units.idle("urgent")
    with Client(host) as client:
        batch(client, first, GIB)
        main = int(host.property(second, "MainPID"))
        by_process = client.call("AcquireLease", priority="Batch", memory_bytes=GIB, plane="cpu0", pid=main)
        assert len(states(client)) == 2
        host.run(["systemctl", "stop", first])
        wait_for(lambda: list(states(client)) == [by_process["lease_id"]], "the unit's lease ended", host)
        host.run(["systemctl", "kill", "--signal=KILL", second])
        wait_for(lambda: states(client) == {}, "the process's lease ended", host)
        frozen = batch(client, victim, 6 * GIB)
        lease = interactive(client, urgent, 4 * GIB)
        host.run(["systemctl", "kill", "--signal=KILL", victim])
        wait_for(lambda: states(client) == {lease: "Active"}, "the frozen one's lease ended", host)
        assert "has ended" in explain(client, frozen)["reason"]
        host.run(["systemctl", "kill", "--signal=KILL", urgent])
        wait_for(lambda: states(client) == {}, "the last lease ended", host)
        wait_for(lambda: host.property(victim, "ActiveState") == "inactive", "the victim is gone", host)


def test_leases_outlive_a_restart_and_nobody_stays_frozen(units: Units) -> None:
    host = units.host
    victim, other, urgent = units.idle("victim"), units.idle("other"), units.idle("urgent")
    with Client(host) as client, Client(host) as watching, Client(host) as waiting:
        kept = batch(client, other, GIB)
        held = batch(client, victim, 5 * GIB)
        lease = interactive(client, urgent, 5 * GIB)
        assert states(client) == {kept: "Active", held: "Frozen", lease: "Active"}
        watching.send("Watch")
        watching.receive()
        waiting.send(
            "AcquireLease", priority="Batch", memory_bytes=5 * GIB, plane="cpu0", unit=other, wait_ms=3_600_000
        )
        before = host.property("inferenced.service", "MainPID")
        host.run("systemctl restart inferenced.service")
        assert host.property("inferenced.service", "MainPID") != before
        assert not units.stands(victim)
    with Client(host) as client:
        # What was lent of the victim's memory is still lent: the victim, which runs, has what is left of it.
        assert states(client) == {kept: "Active", held: "Active", lease: "Active"}
        told = explain(client, held)
        assert "lent" in told["reason"]
        left = told["leases"][0]["allocated_memory"]
        assert 0 < left < 3 * GIB
        assert told["booked"] == 6 * GIB + left <= told["capacity"]
        assert not units.stands(victim)
        with pytest.raises(Refused):
            client.call("ResizeLease", lease_id=held, memory_bytes=5 * GIB)
        client.call("ReleaseLease", lease_id=lease)
        client.call("ResizeLease", lease_id=held, memory_bytes=5 * GIB)


class Killer:
    """Kills the daemon at random moments while a client preempts, and looks at what is left without any client."""

    def __init__(self, units: Units, victims: list[str], urgent: str) -> None:
        self.units = units
        self.host = units.host
        self.victims = victims
        self.urgent = urgent
        self.frozen = 0

    def pid(self) -> int:
        """The daemon's process, as this side of the machine sees it; 0 while there is none."""
        procs = self.host.path("/sys/fs/cgroup/syntrop.slice/inferenced.service/cgroup.procs")
        try:
            pids = procs.read_text().split()
        except OSError:
            return 0
        for pid in map(int, pids):
            try:
                if b"/bin/inferenced\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:  # of what is done after the daemon's end, which may be over by now
                continue
        return 0

    def preempt(self, done: threading.Event) -> None:
        """Take and give back, until the daemon is killed."""
        try:
            with Client(self.host) as client:
                while not done.is_set():
                    lease = interactive(client, self.urgent, 7 * GIB)
                    client.call("ReleaseLease", lease_id=lease)
        except (ConnectionError, Refused):
            pass

    def once(self, rest: float) -> None:
        with Client(self.host) as client:
            held = {one["client_unit"]: one["id"] for one in client.call("ListLeases")["leases"]}
            for victim in self.victims:
                if victim not in held:
                    batch(client, victim, 3 * GIB)
                else:  # it may have less since the last time
                    client.call("ResizeLease", lease_id=held[victim], memory_bytes=3 * GIB)
        pid, done = self.pid(), threading.Event()
        assert pid, "the daemon answered and is not there"  # 0 is this test's own process group
        preempting = threading.Thread(target=self.preempt, args=(done,))
        preempting.start()
        time.sleep(rest)
        os.kill(pid, signal.SIGKILL)
        self.frozen += any(map(self.units.stands, self.victims))
        done.set()
        preempting.join(PATIENCE)
        # From here on nobody calls.
        wait_for(lambda: self.pid() not in (0, pid), "the daemon is back", self.host)
        wait_for(lambda: not any(map(self.units.stands, self.victims)), "nobody stands still", self.host)
        with Client(self.host) as client:
            leases = client.call("ListLeases")["leases"]
            assert not any(map(self.units.stands, self.victims))
            assert {one["state"] for one in leases} <= {"Active"}, leases
            if leases:
                told = explain(client, leases[0]["id"])
                assert told["booked"] == sum(one["allocated_memory"] for one in leases) <= told["capacity"]
            for one in leases:
                if one["client_unit"] == self.urgent:
                    client.call("ReleaseLease", lease_id=one["id"])


def test_killed_at_any_moment_it_leaves_nobody_frozen(units: Units) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    killer = Killer(units, [units.idle("victim0"), units.idle("victim1")], units.idle("urgent"))
    for count in range(KILLS):
        rest = moments.uniform(0.0, 0.15)
        try:
            killer.once(rest)
        except BaseException:
            print(f"kill {count} of seed {seed}, {rest * 1000:.1f} ms after the first request")
            raise
    print(f"{KILLS} kills, {killer.frozen} of them with somebody frozen")


@pytest.mark.parametrize(("watch", "said"), [("on", "our own group"), ("off", "it is read every")])
def test_pressure_where_the_kernel_grants_no_trigger(units: Units, watch: str, said: str) -> None:
    host = units.host
    holder = units.idle("holder")
    drop_in = "/run/systemd/system/inferenced.service.d/pressure.conf"
    host.write(drop_in, f"[Service]\nBindReadOnlyPaths=/proc/pressure\nMemoryPressureWatch={watch}\n")
    host.run("systemctl daemon-reload")
    configure(host)
    try:
        with Client(host) as client:
            batch(client, holder, GIB)
            pid = host.property("inferenced.service", "MainPID")
        wait_for(lambda: said in host.journal("inferenced.service"), f"the log says {said!r}", host)
        watched = host.run(f"readlink /proc/{pid}/fd/*", check=False).stdout
        assert ("inferenced.service/memory.pressure" in watched) is (watch == "on")
    finally:
        host.path(drop_in).unlink()
        host.run("systemctl daemon-reload")
        configure(host)


PAINTER = "import signal; held = open('/dev/dri/renderD128'); signal.pause()"  # somebody at the screen


@pytest.fixture
def drawing(units: Units) -> Iterator[Units]:
    """A machine with a GPU, of which the kernel's files tell, and a file in the place of its node."""
    host = units.host
    machines.unpack("amd-card", host.path("/run/card"))
    drop_in = "/run/systemd/system/inferenced.service.d/card.conf"
    host.write(drop_in, "[Service]\nEnvironment=SYNTROP_SYS_ROOT=/run/card/sys\n")
    host.run(
        "rm -rf /run/card/sys/fs && ln -s /sys/fs /run/card/sys/fs && mkdir -p /dev/dri"
        " && touch /dev/dri/renderD128 && systemctl daemon-reload"
    )
    configure(host)
    yield units
    host.run(f"rm -r /dev/dri {drop_in} && systemctl daemon-reload")
    configure(host)


def test_somebody_who_draws_has_weaker_leases_of_the_device_stand_aside(drawing: Units) -> None:
    """As the units are shipped: the arbiter itself cannot see what others have open."""
    host = drawing.host
    holder, other = drawing.idle("render-farm"), drawing.idle("elsewhere")
    with Client(host) as client:
        [plane] = [one["id"] for one in client.call("ListPlanes")["planes"] if one["kind"] == "gpu"]
        how = {"priority": "Interactive", "memory_bytes": 1 << 20}
        held = str(client.call("AcquireLease", plane=plane, unit=holder, **how)["lease_id"])
        kept = str(client.call("AcquireLease", plane="cpu0", unit=other, **how)["lease_id"])
        lookout = "systemctl list-units --plain --no-legend 'inferenced-lookout@*' | grep -c running"
        wait_for(lambda: host.run(lookout, check=False).stdout == "1\n", "the lookout is awake", host)
        drawing.start("painter", "python3", "-c", PAINTER, options=("--slice=user.slice", "--uid=nobody"))
        wait_for(lambda: states(client)[held] == "Frozen", "the weaker one stands still", host)
        assert drawing.stands(holder)
        assert states(client)[kept] == "Active"
        assert any("process" in cause for cause in explain(client, held)["frozen_for"])
        host.run("systemctl kill --signal=KILL painter.service")
        wait_for(lambda: states(client)[held] == "Active", "it goes on", host)
        client.call("ReleaseLease", lease_id=held)
    wait_for(lambda: host.run(lookout, check=False).stdout == "0\n", "the lookout is gone", host)


# --- other ways in ---------------------------------------------------------------------------------------------

# Makes a group of its own in the tree that its unit was given, with busy processes, and lets the arbiter stop it.
FARM = """
import grp, os
top = "/sys/fs/cgroup/system.slice/farm.service"
os.mkdir(top + "/daemon")
os.mkdir(top + "/job")
os.chown(top + "/job/cgroup.freeze", -1, grp.getgrnam("inferenced").gr_gid)
os.chmod(top + "/job/cgroup.freeze", 0o664)
pid = os.fork()
if not pid:
    os.nice(19)
while not pid:
    pass
for name, one in (("job", pid), ("daemon", os.getpid())):
    with open(f"{top}/{name}/cgroup.procs", "w") as file:
        file.write(str(one))
os.wait()
"""


def test_groups_of_a_delegated_tree_are_frozen_without_the_manager(units: Units) -> None:
    host = units.host
    host.write("/opt/farm.py", FARM)
    drop_in = "/run/systemd/system/inferenced.service.d/delegated.conf"
    farm = units.start("farm", "python3", "/opt/farm.py", options=("--property=Delegate=yes",))
    urgent = units.idle("urgent")
    host.write(drop_in, "[Service]\nReadWritePaths=/sys/fs/cgroup/system.slice/farm.service\n")
    host.run("systemctl daemon-reload")
    configure(host, delegated=("/system.slice/farm.service",))
    try:
        wait_for(lambda: units.read(farm, "job/cgroup.procs"), "the job runs", host)
        pid = int(host.run("cat /sys/fs/cgroup/system.slice/farm.service/job/cgroup.procs").stdout)
        with Client(host) as client:
            reply = client.call("AcquireLease", priority="Batch", memory_bytes=6 * GIB, plane="cpu0", pid=pid)
            lease = interactive(client, urgent, 4 * GIB)
            assert states(client) == {reply["lease_id"]: "Frozen", lease: "Active"}
            assert "frozen 1" in units.read(farm, "job/cgroup.events")
            assert host.property(farm, "FreezerState") == "running"
            client.call("ReleaseLease", lease_id=lease)
            wait_for(lambda: states(client)[reply["lease_id"]] == "Active", "the job goes on", host)
            assert "frozen 0" in units.read(farm, "job/cgroup.events")
    finally:
        host.path(drop_in).unlink()
        host.run("systemctl daemon-reload")
        configure(host)


def test_a_lease_from_the_command_line(units: Units) -> None:
    """`varlinkctl` is gone before the lease is used: it is somebody else's."""
    host = units.host
    holder = units.idle("worker")
    call = ["varlinkctl", "call", f"/run/syntrop/{INFERENCE1}", f"{INFERENCE1}.AcquireLease"]
    asked: dict[str, Any] = {"priority": "Batch", "memory_bytes": GIB}
    by_unit = json.loads(host.run([*call, json.dumps({**asked, "unit": holder})]).stdout)
    by_pid = json.loads(
        host.run([*call, json.dumps({**asked, "pid": int(host.property(holder, "MainPID"))})]).stdout
    )
    with Client(host) as client:
        assert states(client) == {by_unit["lease_id"]: "Active", by_pid["lease_id"]: "Active"}
        host.run(["systemctl", "kill", "--signal=KILL", holder])
        wait_for(lambda: states(client) == {}, "both end with their holder", host)


def test_the_supervisor_is_served_while_others_hammer(units: Units) -> None:
    host = units.host
    holder, urgent = units.idle("crowd"), units.idle("urgent")
    done = threading.Event()
    served: list[int] = []

    def hammer() -> None:
        count = 0
        with Client(host) as client:
            while not done.is_set():
                client.call("ReleaseLease", lease_id=batch(client, holder, 1 << 20))
                count += 1
        served.append(count)

    crowd = [threading.Thread(target=hammer) for _ in range(20)]
    for one in crowd:
        one.start()
    try:
        with Client(host, "sentry.sock") as supervisor, Client(host) as public:
            for _ in range(20):
                lease = interactive(supervisor, urgent, 4 * GIB, priority="EmergencyTriage")
                supervisor.call("ReleaseLease", lease_id=lease)
            with pytest.raises(Refused, match="PermissionDenied"):
                interactive(public, urgent, GIB, priority="EmergencyTriage")
    finally:
        done.set()
        for one in crowd:
            one.join(PATIENCE)
    assert len(served) == len(crowd)
    assert all(served)
