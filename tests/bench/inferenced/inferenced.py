# SPDX-License-Identifier: Apache-2.0
"""What the arbiter costs: leases through Varlink, ten thousand of them held, emergencies in a crowd, gangs; and as
root, preemption of a busy group under a real systemd (see preempting.py).

The load is made by processes of their own, which send bytes made beforehand and look no closer at what comes back
than they must. Prints one table, or with `--json` every value. Exits with 1 if a bar is missed. Where others load
the machine, SYNTROP_BENCH_FIFO=1 runs what is measured at real-time priority.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import mmap
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, process_time, sleep
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = str(HERE.parents[2] / "src")
sys.path[:0] = [SOURCE, str(HERE.parents[1])]

import gangs  # noqa: E402
import machines  # noqa: E402
from syntrop.inferenced import placement  # noqa: E402
from syntrop.inferenced.plane import Link, Plane, Topology  # noqa: E402

HURRIED = bool(os.environ.get("SYNTROP_BENCH_FIFO"))
PUBLIC, SENTRY = "io.syntrop.Inference1", "sentry.sock"
GIB = 1 << 30
# A machine that others load may be pressed hard: nobody is to be refused for that.
CALM = "[tuning]\ncritical_memory = 100.0\ncritical_memory_full = 100.0\ncritical_io = 100.0\n"
BATCH = gangs.message("AcquireLease", priority="Batch", memory_bytes=1 << 20)
SMALL = gangs.message("AcquireLease", priority="Batch", memory_bytes=1 << 12)
TOO_MUCH = gangs.message("AcquireLease", priority="Batch", memory_bytes=1 << 45)
EMERGENCY = gangs.message("AcquireLease", priority="EmergencyTriage", memory_bytes=1 << 20)
RELEASE = b'{"method":"io.syntrop.Inference1.ReleaseLease","parameters":{"lease_id":"%s"}}\0'
BURST, REST = 0.6, 0.6 if HURRIED else 0.0
"""Seconds. At real-time priority, which may take 95 % of a second, a crowd keeps the daemon busy in bursts."""
HAMMERS, EACH = 4, 50
"""Processes of a crowd, and connections of each."""

# what, unit, how it is summed up, bar
BARS: dict[str, tuple[str, str, float | None]] = {
    "acquire and release": ("ms", "median", 0.5),
    "pairs, pipelined by 4 processes": ("pairs/s", "rate", 3000.0),
    "resident after one call": ("MiB", "median", 32.0),
    "resident with 10,000 leases": ("MiB", "median", 40.0),
    "acquire with 10,000 leases held": ("ms", "median", 2.0),
    "acquire with 10,000 leases held, p99": ("ms", "p99", 2.0),
    "wake-ups in 20 s with leases held": ("switches", "median", 0.0),
    "emergency beside 200 that lease": ("ms", "p99", 5.0),
    "emergency beside 200 that are refused": ("ms", "p99", 5.0),
    "emergency beside 200 that lease: answers to these": ("a second", "rate", None),
    "emergency beside 200 that are refused: answers to these": ("a second", "rate", None),
    "gang of 4 on 4 planes": ("ms", "median", 2.0),
    "gang of 8 on 8 planes": ("ms", "median", 20.0),
    "gang of 8 on 8 planes, worst": ("ms", "worst", 200.0),
    "10,000 gangs over 1,000 connections": ("s", "median", None),
    "their slowest answer": ("s", "median", None),
    "cooperative": ("ms", "median", 20.0),
    "frozen": ("ms", "p99", 20.0),
    "frozen, thaw": ("ms", "median", 20.0),
    "frozen, thaw, p99": ("ms", "p99", 30.0),
    "delegated": ("ms", "median", 5.0),
    "delegated, thaw": ("ms", "median", 5.0),
}


def summed(values: list[float], how: str) -> float:
    if how == "p99":
        return sorted(values)[math.ceil(len(values) * 0.99) - 1]
    return max(values) if how == "worst" else statistics.median(values)


def kept(what: str, values: list[float]) -> bool | None:
    _, how, bar = BARS.get(what, ("", "median", None))
    if bar is None:
        return None
    return summed(values, how) >= bar if how == "rate" else summed(values, how) <= bar


class Daemon:
    """inferenced with roots of its own."""

    def __init__(self, folder: str, **environment: str) -> None:
        self.run = folder
        os.makedirs(os.path.join(folder, "syntrop"))
        Path(folder, "inferenced.toml").write_text(CALM)
        command = [sys.executable, "-P", "-m", "syntrop.inferenced"]
        self.process = subprocess.Popen(
            ["chrt", "-R", "-f", "10", *command] if HURRIED else command,
            env={
                **os.environ,
                "PYTHONPATH": SOURCE,
                "SYNTROP_RUN_ROOT": folder,
                "STATE_DIRECTORY": os.path.join(folder, "state"),
                "SYNTROP_CONFIG_ROOT": folder,
                "SYNTROP_IDLE_EXIT_SEC": "3600",
                **environment,
            },
        )

    def path(self, endpoint: str = PUBLIC) -> str:
        return os.path.join(self.run, "syntrop", endpoint)

    def connect(self, endpoint: str = PUBLIC) -> Wire:
        while True:
            try:
                return Wire(self.path(endpoint))
            except (FileNotFoundError, ConnectionRefusedError):
                if self.process.poll() is not None:
                    raise SystemExit("inferenced did not start") from None
                sleep(0.01)

    def status(self, field: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@contextmanager
def daemon(**environment: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        one = Daemon(folder, **environment)
        try:
            yield one
        finally:
            one.process.terminate()
            one.process.wait()


class Wire:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)

    def ask(self, data: bytes, replies: int = 1) -> list[bytes]:
        self.socket.sendall(data)
        got = b""
        while got.count(b"\0") < replies:
            piece = self.socket.recv(1 << 18)
            if not piece:
                raise SystemExit("inferenced hung up")
            got += piece
        return got.split(b"\0")[:-1]

    def acquire(self, data: bytes) -> tuple[float, bytes]:
        """Milliseconds, and the lease."""
        begun = perf_counter()
        [reply] = self.ask(data)
        return 1e3 * (perf_counter() - begun), lease_of(reply)

    def release(self, lease: bytes) -> float:
        begun = perf_counter()
        self.ask(RELEASE % lease)
        return 1e3 * (perf_counter() - begun)

    def call(self, method: str, **parameters: Any) -> Any:
        return json.loads(self.ask(gangs.message(method, **parameters))[0])["parameters"]


def lease_of(reply: bytes) -> bytes:
    at = reply.find(b'"lease_id":"')
    if at < 0:
        raise SystemExit(reply.decode())
    return reply[at + 12 : reply.index(b'"', at + 12)]


def pairs(one: Daemon, rounds: int, times: dict[str, list[float]]) -> None:
    wire = one.connect()
    wire.call("GetStatus")
    times["resident after one call"] = [one.status("VmRSS") / 1024]
    wire.acquire(BATCH)
    for _ in range(rounds):
        taken, lease = wire.acquire(BATCH)
        times.setdefault("acquire and release", []).append(taken + wire.release(lease))
    counts = [os.pipe() for _ in range(4)]
    children = []
    for _, write in counts:
        if not (child := os.fork()):
            try:
                os.write(write, str(pipelined(one.path(), 3.0)).encode())
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    times["pairs, pipelined by 4 processes"] = [sum(float(os.read(read, 64)) for read, _ in counts)]
    for ends in counts:
        for end in ends:
            os.close(end)


def pipelined(path: str, seconds: float, batch: int = 16) -> float:
    """Pairs a second of one process: a batch of requests, then the releases and the next requests together."""
    wire, count, begun = Wire(path), 0, perf_counter()
    replies = wire.ask(BATCH * batch, batch)
    while perf_counter() - begun < seconds:
        mixed = b"".join(RELEASE % lease_of(one) + BATCH for one in replies)
        replies = wire.ask(mixed, 2 * batch)[1::2]
        count += batch
    taken = perf_counter() - begun
    wire.ask(b"".join(RELEASE % lease_of(one) for one in replies), batch)
    return count / taken


def many(one: Daemon, rounds: int, times: dict[str, list[float]]) -> None:
    wire = one.connect()
    for _ in range(200):
        wire.ask(SMALL * 50, 50)
    for _ in range(10 * rounds):  # enough for the log to be compacted meanwhile
        taken, lease = wire.acquire(BATCH)
        wire.release(lease)
        times.setdefault("acquire with 10,000 leases held", []).append(taken)
    times["acquire with 10,000 leases held, p99"] = times["acquire with 10,000 leases held"]
    times["resident with 10,000 leases"] = [one.status("VmRSS") / 1024]
    sleep(2.0)  # what followed the last call is over
    before = one.status("voluntary_ctxt_switches") + one.status("nonvoluntary_ctxt_switches")
    sleep(20.0)
    after = one.status("voluntary_ctxt_switches") + one.status("nonvoluntary_ctxt_switches")
    times["wake-ups in 20 s with leases held"] = [float(after - before)]


def hammer(path: str, request: bytes, answers: memoryview, own: int) -> None:
    """Ask, give back what was had, and ask again, on every connection; `answers[own]` counts."""
    os.nice(5)
    with selectors.DefaultSelector() as selector:
        for _ in range(EACH):
            wire = Wire(path)
            selector.register(wire.socket, selectors.EVENT_READ)
            wire.socket.sendall(request)
        while True:
            if resting():
                sleep(0.01)
                continue
            for key, _ in selector.select(0.05):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                reply = sock.recv(1 << 16)
                if not reply:
                    return
                answers[own] += 1
                at = reply.find(b'"lease_id":"')
                sock.sendall(RELEASE % lease_of(reply) if at >= 0 and b"error" not in reply else request)


def resting() -> bool:
    return monotonic() % (BURST + REST) > BURST


def crowded(one: Daemon, rounds: int, request: bytes, what: str, times: dict[str, list[float]]) -> None:
    one.connect().ask(request)  # it serves: a crowd that finds nobody would be none
    answers = memoryview(mmap.mmap(-1, 8 * HAMMERS)).cast("q")
    children = []
    for own in range(HAMMERS):
        if not (child := os.fork()):
            try:
                hammer(one.path(), request, answers, own)
            finally:
                os._exit(1)
        children.append(child)
    try:
        while not all(answers):
            sleep(0.01)
        wire = one.connect(SENTRY)
        found = times.setdefault(what, [])
        before, begun = sum(answers), perf_counter()
        for _ in range(rounds):
            while REST and not 0.05 < monotonic() % (BURST + REST) < BURST - 0.05:
                sleep(0.01)
            taken, lease = wire.acquire(EMERGENCY)
            found += [taken, wire.release(lease)]
            sleep(0.01)
        rate = (sum(answers) - before) / (perf_counter() - begun)
        times.setdefault(f"{what}: answers to these", []).append(rate)
        if any(os.waitpid(child, os.WNOHANG)[0] for child in children):
            raise SystemExit("the crowd is not what it should be")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def problem(chance: random.Random, parts: int, planes: int) -> tuple[Any, ...]:
    """A gang and a machine for it: one processor in four planes, ways of all speeds."""
    found = [
        Plane(
            f"{kind}{at}",
            "",
            kind,
            16 * GIB,
            numa_node=at % 2,
            features=("amx-int8",) if kind == "cpu" and chance.random() < 0.5 else (),
        )
        for at in range(planes)
        for kind in (("cpu" if at < max(1, planes // 4) else "gpu"),)
    ]
    links = [
        Link(
            a.id,
            b.id,
            "pcie",
            chance.choice([4, 8, 16, 32, 64]) * 10**9,
            1000,
            chance.choice([10, 11, 12, 20, 22]),
        )
        for a, b in itertools.combinations(found, 2)
    ]
    kind = chance.randint(0, 2)
    roles = [chance.choice(["draft", "target", "stage1", "x"]) if kind == 0 else "x" for _ in range(parts)]
    if kind == 1:
        roles = [f"stage{at}" for at in range(parts)]
    wanted = [placement.Part(role, chance.randint(2, 14) * GIB) for role in roles]
    room = {one.id: chance.randint(4, 24) * GIB for one in found}
    return wanted, Topology(found, links), room, {one.id: chance.random() for one in found}


def placed(rounds: int, times: dict[str, list[float]]) -> None:
    """Processor time, with all policies in turn."""
    chance = random.Random(1)
    for _ in range(rounds):
        for size, what in ((4, "gang of 4 on 4 planes"), (8, "gang of 8 on 8 planes")):
            for policy in placement.POLICIES:
                wanted, topology, room, fullness = problem(chance, size, size)
                begun = process_time()
                try:
                    placement.place(wanted, topology, room, policy, fullness)
                except placement.NoPlacement:
                    pass
                times.setdefault(what, []).append(1e3 * (process_time() - begun))
    times["gang of 8 on 8 planes, worst"] = times["gang of 8 on 8 planes"]


def crowd_of_gangs(times: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        place = machines.unpack("amd-pair", Path(folder))
        with daemon(SYNTROP_SYS_ROOT=place["SYNTROP_SYS_ROOT"]) as one:
            wire = one.connect()
            planes = [plane["id"] for plane in wire.call("ListPlanes")["planes"]]
            begun = perf_counter()
            outcome = gangs.Crowd(one.path(), planes, 16 * GIB).run(1000, 10_000, 600.0)
            times["10,000 gangs over 1,000 connections"] = [perf_counter() - begun]
            times["their slowest answer"] = [outcome.longest]
            if outcome.granted + outcome.refused != 10_000 or wire.call("ListLeases")["leases"]:
                raise SystemExit(f"{outcome}, and something is left")


def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    placed(max(10, rounds // 10), times)
    if HURRIED:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(20))
    with daemon() as one:
        pairs(one, rounds, times)
        many(one, rounds, times)
    with daemon() as one:
        crowded(one, rounds, BATCH, "emergency beside 200 that lease", times)
        crowded(one, rounds, TOO_MUCH, "emergency beside 200 that are refused", times)
    if HURRIED:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    crowd_of_gangs(times)
    if os.geteuid() == 0:
        import preempting

        _, taken = preempting.measure(rounds)
        times.update(taken)
        times["frozen, thaw, p99"] = taken["frozen, thaw"]
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="every value instead of the table")
    options = parser.parse_args()
    times = measure(options.rounds)
    missed = any(kept(what, values) is False for what, values in times.items())
    if options.json:
        rows = {
            what: {"values": values, "unit": unit, "summed": how, "bar": bar}
            for what, values in times.items()
            for unit, how, bar in (BARS.get(what, ("ms", "median", None)),)
        }
        print(json.dumps(rows))
        return int(missed)
    print(f"{'inferenced':42}{'median':>10}{'p10':>10}{'p90':>10}{'p99':>10}{'bar':>18}  {options.rounds} rounds")
    for what, values in times.items():
        cuts = [summed(values, "median")] if len(values) < 3 else statistics.quantiles(values, n=10)
        shown = f"{statistics.median(values):10.2f}{cuts[0]:10.2f}{cuts[-1]:10.2f}{summed(values, 'p99'):10.2f}"
        word = "  MISSED" if kept(what, values) is False else ""
        print(f"{what:42}{shown}{bar_of(what) or '':>18}  {BARS.get(what, ('ms',))[0]}{word}")
    return int(missed)


def bar_of(what: str) -> str | None:
    _, how, bar = BARS.get(what, ("", "median", None))
    if bar is None:
        return None
    return f">= {bar:g}" if how == "rate" else f"{how} <= {bar:g}"


if __name__ == "__main__":
    sys.exit(main())
