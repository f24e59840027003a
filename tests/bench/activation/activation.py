# SPDX-License-Identifier: Apache-2.0
"""How long a sleeping daemon takes to its first answer, under a real systemd, and what it then holds in memory.

Each daemon is compared with a trivial socket echo in Python that runs under a copy of the daemon's own unit, so
that the sandbox costs both the same. Needs root (see tests/system/machine.py). Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "system"))

from machine import Machine  # noqa: E402
from roots import TREE, TRIXIE, Roots  # noqa: E402
from suite import DAEMONS, Daemon  # noqa: E402

RATIO_BARS = {"routerd": 1.9, "runtimed": 2.0}
CONTROL_BAR = 1.4
ROUTERD_RSS_BAR = 32.0  # MiB
BENCH = "/src/tests/bench/activation"
CHANGED = ("Type", "ExecStart", "ExecReload", "WatchdogSec", "Sockets", "Requires")


@dataclass(frozen=True)
class Result:
    """Milliseconds and MiB; `echo` is the daemon's own twin."""

    name: str
    times: list[float]
    echo: list[float]
    rss: float
    pss: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.times) / statistics.median(self.echo)

    @property
    def bar(self) -> float:
        return RATIO_BARS.get(self.name, CONTROL_BAR)

    @property
    def kept(self) -> bool:
        return self.ratio <= self.bar and (self.name != "routerd" or self.rss <= ROUTERD_RSS_BAR)


def twin(daemon: Daemon) -> tuple[str, str]:
    """Socket and service of the echo under the daemon's own directives."""
    lines = (TREE / "units" / daemon.service).read_text().splitlines()
    kept = [line for line in lines if not line.startswith(tuple(f"{key}=" for key in CHANGED))]
    place = kept.index("[Service]") + 1
    kept[place:place] = ["Type=exec", f"ExecStart=/usr/bin/python3 -I {BENCH}/echo.py"]
    socket = f"[Socket]\nListenStream=/run/echo-{daemon.name}.sock\nTriggerLimitBurst=2000\n"
    return socket, "\n".join(kept) + "\n"


def spread(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):6.1f} [{cuts[0]:.1f} to {cuts[-1]:.1f}]"


def measure(machine: Machine, rounds: int, only: set[str]) -> tuple[list[float], list[Result]]:
    subjects = []
    chosen = [daemon for daemon in DAEMONS if not only or daemon.name in only]
    for daemon in chosen:
        socket, service = twin(daemon)
        machine.write(f"/run/systemd/system/echo-{daemon.name}.socket", socket)
        machine.write(f"/run/systemd/system/echo-{daemon.name}.service", service)
        tcp = daemon.name == "routerd"
        address, kind = ("127.0.0.1:32768", "http") if tcp else (daemon.endpoint, "varlink")
        subjects.append((daemon.name, daemon.service, address, kind))
        echo = f"echo-{daemon.name}"
        subjects.append((echo, f"{echo}.service", f"/run/{echo}.sock", "varlink"))
    echoes = " ".join(f"echo-{daemon.name}.socket" for daemon in chosen)
    machine.run(f"systemctl daemon-reload && systemctl start syntrop-sockets.target {echoes}")
    argv = ["python3", "-I", f"{BENCH}/measure.py", str(rounds), json.dumps(subjects)]
    taken = json.loads(machine.run(argv, timeout=60 + 5.0 * rounds * len(subjects)).stdout)
    times = {name: [1000 * value for value in values] for name, values in taken["times"].items()}
    results = []
    for daemon in chosen:
        sizes = taken["sizes"][daemon.name]
        rss = statistics.median(size[0] for size in sizes) / 1024
        pss = statistics.median(size[1] for size in sizes) / 1024
        results.append(Result(daemon.name, times[daemon.name], times[f"echo-{daemon.name}"], rss, pss))
    return [1000 * value for value in taken["pass"]], results


def report(passes: list[float], results: list[Result], rounds: int, systemd: str) -> bool:
    print(f"Cold activation: connect to first reply (GetInfo; routerd: GET /health over TCP), {systemd}.")
    print(f"Median of {rounds} rounds [10 % to 90 %] in ms, all subjects in turn within a round; the echo runs")
    print("under a copy of the daemon's unit. Memory in MiB after one call.")
    print(f"python3 -I -c pass {spread(passes)}")
    print(f"{'daemon':15} {'cold':>24} {'echo':>24} {'ratio':>6} {'bar':>5} {'RSS':>6} {'PSS':>6}")
    good = True
    for one in results:
        good = good and one.kept
        print(
            f"{one.name:15} {spread(one.times):>24} {spread(one.echo):>24} {one.ratio:6.2f} {one.bar:5.1f}"
            f" {one.rss:6.1f} {one.pss:6.1f}{'' if one.kept else '  MISSED'}"
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("daemon", nargs="*", help="only these daemons")
    parser.add_argument("--json", action="store_true", help="every value instead of the table")
    options = parser.parse_args()
    with Machine(Roots(TRIXIE).layers(), binds=[(str(TREE), "/src", True)], name="syntrop-bench") as machine:
        passes, results = measure(machine, options.rounds, set(options.daemon))
        version = re.match(r"systemd \d+", machine.run("systemctl --version").stdout)
        assert version is not None
    if options.json:
        print(json.dumps({"systemd": version[0], "pass": passes, "daemons": [asdict(one) for one in results]}))
        return 0 if all(one.kept for one in results) else 1
    return 0 if report(passes, results, options.rounds, version[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
