# SPDX-License-Identifier: Apache-2.0
"""What the shared library costs: Varlink pings between two processes, and samples of accelerators.

Rounds visit every subject in turn, so that whatever else the machine does meets all of them alike. Prints one
table: medians and the 10th to 90th percentile, with the bar where one is promised. The accelerators are the
trees in `tests/data/trees`, so plain files: a driver's own work is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "src"))

from syntrop.common import drm, loop  # noqa: E402
from syntrop.common.varlink import client  # noqa: E402

TREES = HERE.parents[1] / "data" / "trees"
DAEMON = HERE.parents[1] / "integration" / "varlink_daemon.py"
SIZES = {"16 B": 16, "1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
BURST = 5
BARS = {"ping 1 MiB": 50_000.0, "sample": 20.0}  # microseconds


def bar_of(subject: str) -> float | None:
    return next((bar for prefix, bar in BARS.items() if subject.startswith(prefix)), None)


def started(path: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "PING_ONLY": "1"}
    process = subprocess.Popen([sys.executable, str(DAEMON), f"--listen={path}"], env=environment)
    for _ in range(1000):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return process
        sleep(0.01)
    process.kill()
    raise SystemExit("the daemon did not start")


async def measure(path: str, rounds: int, samplers: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Microseconds by subject. Each subject runs a few times in its turn: the first one finds cold caches."""
    peer = await client.connect(path)
    texts = {f"ping {name}": "x" * size for name, size in SIZES.items()}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, text in texts.items():
            for turn in range(BURST):
                begun = perf_counter()
                with await peer.call("org.example.ping.Ping", {"text": text}) as reply:
                    assert len(reply.parameters["text"]) == len(text)
                taken = (perf_counter() - begun) * 1e6
                times.setdefault(name if turn else f"first {name}", []).append(taken)
        for name, sample in samplers.items():
            for turn in range(BURST):
                begun = perf_counter()
                sample()
                taken = (perf_counter() - begun) * 1e6
                times.setdefault(name if turn else f"first {name}", []).append(taken)
    peer.close()
    return times


def devices() -> dict[str, drm.Device]:
    found: dict[str, Any] = {}
    for tree in ("amdgpu", "i915-lmem", "xe-tiles", "npu"):
        os.environ["SYNTROP_SYS_ROOT"] = str(TREES / tree)
        (found[f"sample {tree}"],) = drm.devices()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="every value instead of the table")
    options = parser.parse_args()
    rounds = options.rounds
    opened = devices()
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        path = os.path.join(folder, "sock")
        process = started(path)
        try:
            samplers = {name: device.sample for name, device in opened.items()}
            times = loop.run(measure(path, rounds, samplers))
        finally:
            process.terminate()
            process.wait()
    if options.json:
        print(json.dumps({name: {"times": taken, "bar": bar_of(name)} for name, taken in times.items()}))
        return 0
    print(f"{'shared library':30}{'median':>10}{'p10':>10}{'p90':>10}{'bar':>10}  µs, {rounds} rounds")
    missed = False
    for name, taken in times.items():
        deciles = statistics.quantiles(taken, n=10)
        median, bar = statistics.median(taken), bar_of(name)
        missed |= bar is not None and median > bar
        shown = "" if bar is None else f"{bar:.0f}"
        print(f"{name:30}{median:10.1f}{deciles[0]:10.1f}{deciles[-1]:10.1f}{shown:>10}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
