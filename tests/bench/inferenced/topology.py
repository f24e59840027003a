# SPDX-License-Identifier: Apache-2.0
"""What it costs to know the machine: samples of devices, host memory, a whole topology, who uses what.

Rounds visit every subject in turn. Devices are those of `tests/data/machines`, so plain files: a driver's own work
is not in it. Prints one table, or with `--json` every value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[2] / "src"), str(HERE.parents[1])]

import machines  # noqa: E402
from syntrop.common import drm  # noqa: E402
from syntrop.inferenced import fdinfo, processor, topology  # noqa: E402

BURST = 5
DEVICE = 20.0  # microseconds that a sample of one device may take
CLIENT = (
    "drm-driver:\tamdgpu\ndrm-client-id:\t{}\ndrm-pdev:\t0000:06:00.0\ndrm-total-vram:\t4096 KiB\n"
    "drm-resident-vram:\t2048 KiB\ndrm-memory-vram:\t2048 KiB\ndrm-resident-gtt:\t0\n"
)
IMPORT = "import time; a = time.perf_counter(); import {}; print((time.perf_counter() - a) * 1e6)"


def settle(place: dict[str, str]) -> None:
    os.environ.update(place)


def busy(folder: Path, processes: int, files: int) -> dict[str, str]:
    """A /proc of processes with open files, of which one in ten processes has a client of a device."""
    for pid in range(1, processes + 1):
        (folder / str(pid) / "fd").mkdir(parents=True)
        (folder / str(pid) / "fdinfo").mkdir()
        for number in range(files):
            device = number == 0 and pid % 10 == 0
            (folder / str(pid) / "fd" / str(number)).symlink_to("/dev/dri/renderD128" if device else "socket:[1]")
            (folder / str(pid) / "fdinfo" / str(number)).write_text(CLIENT.format(pid) if device else "pos:\t0\n")
    return {"SYNTROP_PROC_ROOT": str(folder)}


def imported(module: str) -> float:
    """Microseconds of an import in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="every value instead of the table")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="syn-") as scratch:
        top = Path(scratch)
        places = {name: machines.unpack(name, top / name) for name in machines.NAMES}
        subjects: dict[str, Callable[[], object]] = {}
        opened: list[drm.Device] = []
        for name in ("amd-card", "npu-amd", "intel-arc", "npu-intel"):
            settle(places[name])
            for device in drm.devices():
                opened.append(device)
                subjects[f"sample {name} {device.name} ({device.driver})"] = device.sample
        for name in ("amd-card", "two-nodes", "npu-amd"):
            subjects[f"host memory, {name}"] = lambda name=name: (settle(places[name]), processor.memory())  # type: ignore[misc]
            subjects[f"topology, {name}"] = lambda name=name: (settle(places[name]), topology.read())  # type: ignore[misc]
        full = busy(top / "proc", 200, 25)
        subjects["fdinfo of 200 processes, 5,000 files"] = lambda: (settle(full), fdinfo.usage(fdinfo.look()))
        subjects["fdinfo of one process, 25 files"] = lambda: (settle(full), fdinfo.usage(fdinfo.look({10})))
        for _ in range(options.rounds):
            for name, subject in subjects.items():
                # The first of a burst finds cold caches, as it would in a daemon that slept.
                for turn in range(BURST):
                    begun = perf_counter()
                    subject()
                    taken = (perf_counter() - begun) * 1e6
                    times.setdefault(name if turn else f"first {name}", []).append(taken)
        for device in opened:
            device.close()
        for _ in range(max(options.rounds // 5, 5)):
            times.setdefault("import pyudev", []).append(imported("pyudev"))
            times.setdefault("import ctypes", []).append(imported("ctypes"))
    bars = {name: DEVICE if name.startswith("sample") else None for name in times}
    if options.json:
        print(json.dumps({name: {"times": taken, "bar": bars[name]} for name, taken in times.items()}))
        return 0
    print(f"{'knowing the machine':48}{'median':>10}{'p10':>10}{'p90':>10}{'bar':>8}  µs, {options.rounds} rounds")
    missed = False
    for name, taken in times.items():
        if name.startswith("first ") and not name.startswith("first sample"):
            continue
        deciles, median, bar = statistics.quantiles(taken, n=10), statistics.median(taken), bars[name]
        missed |= bar is not None and median > bar
        print(
            f"{name:48}{median:10.1f}{deciles[0]:10.1f}{deciles[-1]:10.1f}{'' if bar is None else f'{bar:.0f}':>8}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
