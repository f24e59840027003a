# SPDX-License-Identifier: Apache-2.0
"""From a failure to a running service: systemd-sentry's figures, on a real systemd in namespaces. Root.

`sentry.py [--rounds N] [--json]` prints the table of figures and that of the phases. The subjects take turns, a
few rounds each, so that what else the machine does falls on all of them. `rounds.py` is what runs inside.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "system")]

from machine import Machine  # noqa: E402
from roots import TREE, TRIXIE, Roots  # noqa: E402
from suite import IMPORT, MODEL_FILE  # noqa: E402
from table import Row, render  # noqa: E402

PYTHON = "/usr/lib/syntrop/bin/python3"
BATCH = 5
# By which millisecond each phase ended, as it was published (`restore` is the service running again).
PUBLISHED = {"intercept": 1.2, "slice": 8.4, "correlate": 14.1, "lease": 19.5, "diagnose": 142.0, "remedy": 168.2}
PUBLISHED_RESTORE = 185.0
RESIDENT_MIB = 28.0
SETTINGS = """
[watch]
mode = "{mode}"
[diagnose]
model = "{model}"
[policy]
actions_per_minute = 5000
actions_per_hour = 5000
[restore]
probation_sec = 0.2
"""
VICTIM = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/usr/bin/sleep infinity\n"
SPEAKER = """import os, signal, socket, sys, time
def stumble(*_):
    print("fatal: assertion failed: the queue is empty after a push (queue.c:212)")
    sys.exit(1)
signal.signal(signal.SIGUSR1, stumble)
print("reading /etc/speaker/extra.conf: No such file or directory, using defaults")
print("serving")
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
    manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
while True:
    time.sleep(60)
"""
ON_FAILURE = "50-syntrop-triage.conf"
Told = list[dict[str, Any]]


class Bench:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.told: dict[str, Told] = {}
        self.next = 0

    def configure(self, mode: str, model: str) -> None:
        machine = self.machine
        machine.write("/etc/syntrop/systemd-sentry.toml", SETTINGS.format(mode=mode, model=model))
        folder = "/etc/systemd/system/service.d"
        machine.run(f"rm -rf {folder}")
        if mode == "on_demand":
            machine.run(
                f"mkdir -p {folder} && ln -s /usr/lib/syntrop/units/optional/service.d/{ON_FAILURE} {folder}/"
            )
        machine.run("systemctl daemon-reload && systemctl stop systemd-sentry.service")

    def awake(self) -> None:
        """All of the suite runs, and what is slow the first time has been done."""
        self.machine.run("systemctl start systemd-sentry contextd toold inferenced runtimed modeld")
        self.rounds("warm", "crash", 3)
        self.rounds("warm", "typo", 3)
        self.rounds("warm", "words", 1)

    def rounds(self, name: str, subject: str, count: int, *how: str) -> None:
        """`how`: what rounds.py knows."""
        words = [str(self.next), str(count), *how]
        self.next += count
        script = (HERE / "rounds.py").read_text()
        printed = self.machine.run([PYTHON, "-I", "-c", script, subject, *words], timeout=900).stdout
        self.told.setdefault(name, []).extend(json.loads(printed))

    def resident(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", self._told_of_sentry("status"))
        assert found is not None
        return int(found[1]) / 1024

    def let_go(self) -> None:
        """The journal, which is mapped, is let go of some seconds after the last slice."""
        until = time.monotonic() + 60
        while ".journal" in self._told_of_sentry("maps"):
            if time.monotonic() > until:
                raise TimeoutError("the journal stays mapped")
            time.sleep(0.1)

    def _told_of_sentry(self, file: str) -> str:
        pid = self.machine.property("systemd-sentry.service", "MainPID")
        text: str = self.machine.path(f"/proc/{pid}/{file}").read_text()
        return text


def measure(rounds: int) -> dict[str, Told]:
    from syntrop.ctl import starter

    binds = [(str(starter.fetch()), MODEL_FILE, True), (str(TREE), "/src", True)]
    with Machine(Roots(TRIXIE).layers(), binds=binds, name="sentry-bench") as machine:
        bench = Bench(machine)
        machine.write("/etc/systemd/system/victim@.service", VICTIM)
        machine.write("/opt/speaker.py", SPEAKER)
        machine.write(
            "/etc/systemd/system/speaker@.service",
            "[Service]\nExecStart=/usr/bin/python3 -u /opt/speaker.py\nType=notify\n",
        )
        machine.write(
            "/etc/syntrop/toold.toml", "[rates]\nchanges_per_minute = 5000\nchanges_per_unit_per_minute = 5000\n"
        )
        machine.run(IMPORT)
        bench.configure("resident", "smollm2:135m")
        bench.awake()
        for _ in range(0, rounds, BATCH):
            bench.rounds("bare", "bare", BATCH)
            bench.rounds("awake", "crash", BATCH)
            bench.rounds("reload", "typo", BATCH)
            bench.rounds("model", "words", BATCH)
            bench.told.setdefault("busy", []).append({"mib": bench.resident()})
        bench.let_go()
        bench.told["resident"] = [{"mib": bench.resident()}]
        bench.configure("on_demand", "")
        for _ in range(0, rounds, BATCH):
            bench.rounds("asleep", "crash", BATCH, "asleep")
        bench.configure("on_demand", "smollm2:135m")
        for _ in range(0, rounds, BATCH):
            bench.rounds("cold", "words", BATCH, "asleep")
        bench.rounds("unread", "words", max(BATCH, rounds // 10), "asleep", "unread")
    return bench.told


def decided(told: Told) -> list[float]:
    """Milliseconds from the failure, of which a report tells later, to the decision."""
    found = []
    for one in told:
        start, duration, _ = one["phases"]["diagnose"]
        found.append(one["told"] + (start + duration) / 1e3)
    return found


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(told: dict[str, Told]) -> list[Row]:
    def values(name: str, key: str) -> list[float]:
        return [one[key] for one in told[name]]

    both = [one["restart"] + one["reload"] for one in told["bare"]]
    awake, waits = values("awake", "took"), values("bare", "wait")
    asked = [*told["model"], *told["cold"], *told["unread"]]
    by_model = 100.0 * sum(one["decided_by"] in ("model", "both") for one in asked) / len(asked)
    intercepted = [one["phases"]["intercept"][1] / 1e3 for one in told["awake"]]
    return [
        Row("a crash, suite awake → active", "ms", awake, values("bare", "restart"), ("<=", 120.0)),
        Row("the same, 99 of 100", "ms", [percentile(awake, 0.99)], bar=("<=", 200.0)),
        Row(
            "a typo in a drop-in, suite awake → reverted, reloaded, active; beside it a bare reload and restart",
            "ms",
            values("reload", "took"),
            both,
            ("<=", statistics.median(both) + 60.0),
        ),
        Row("a crash, suite asleep → active", "ms", values("asleep", "took"), bar=("<=", 400.0)),
        Row("suite awake → decided with the model", "ms", decided(told["model"]), bar=("<=", 110.0)),
        Row("suite asleep → decided, the model loaded first", "ms", decided(told["cold"]), bar=("<=", 700.0)),
        Row("the same, its fixed texts never read before", "ms", decided(told["unread"])),
        Row("of all these, decided by the model", "%", [by_model], bar=(">=", 100.0)),
        Row("failure → course begins (intercept)", "ms", intercepted, bar=("<=", 5.0)),
        Row(
            "longest wait of another caller of the manager, triage with a reload; beside it a bare reload",
            "ms",
            values("reload", "wait"),
            waits,
            ("<=", statistics.median(waits) + 5.0),
        ),
        Row("resident, between failures", "MiB", values("resident", "mib"), bar=("<=", RESIDENT_MIB)),
        Row("resident, right after one", "MiB", values("busy", "mib"), bar=("<=", RESIDENT_MIB)),
    ]


def phases(told: dict[str, Told]) -> str:
    """When each phase began and how long it took, medians in milliseconds from when the failure was told."""
    names = ("awake", "reload", "model", "asleep", "cold")
    lines = [f"| phase | {' | '.join(names)} | published, by |", "| --- |" + " --- |" * (len(names) + 1)]
    heard = [statistics.median(one["told"] for one in told[name]) for name in names]
    lines.append(f"| told, after the failure | {' | '.join(f'{one:.1f}' if one else '' for one in heard)} | |")
    for phase, published in PUBLISHED.items():
        cells = []
        for name in names:
            spans = [one["phases"][phase] for one in told[name] if phase in one["phases"]]
            done = [span for span in spans if span[2] in ("done", "late")]
            late = sum(span[2] == "late" for span in spans)
            if not done:
                cells.append("skipped" if spans else "")
                continue
            start = statistics.median(span[0] for span in done) / 1e3
            lasted = statistics.median(span[1] for span in done) / 1e3
            cells.append(f"{start:.1f} + {lasted:.1f}" + (f" ({late} late)" if late else ""))
        lines.append(f"| {phase} | {' | '.join(cells)} | {published} |")
    active = [
        f"{statistics.median(one['took'] for one in told[name]):.1f}" if "took" in told[name][0] else ""
        for name in names
    ]
    lines.append(f"| active again, after the failure | {' | '.join(active)} | {PUBLISHED_RESTORE} |")
    head = "Begin of each phase after the failure was told, and how long it took (medians, ms):"
    return "\n".join([head, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    told = measure(options.rounds)
    if options.json:
        print(json.dumps(told))
        return
    found = rows(told)
    load = os.getloadavg()[1]
    head = f"systemd-sentry, {options.rounds} rounds each, load {load:.1f} on {os.cpu_count()} processors"
    print(render([(head, found)]))
    print(phases(told))
    sys.exit(any(row.kept is False for row in found))


if __name__ == "__main__":
    main()
