# SPDX-License-Identifier: Apache-2.0
"""The engine beside llama.cpp, same files and threads: one table for the three real models.

Every round starts fresh processes of each, in turn, so that whatever else the machine does meets both alike. Of
one sequence: a prompt of 512 tokens, 128 tokens one by one. Of the daemon, beside a store that has the model (its
file in the page cache): 8 streams together, start of the process to the first token, and what is resident after
a short text. The limits are measured in the same run: how fast as much memory as the weights take is read (every
weight is read once a token), and how many 8-bit multiplies the processor's best unit does (peak.c; ours does one
and a half to two for each weight and token, since its activations have 11 or 12 bits).

The peer's programs are named by variables; what is missing is said, and only ours is measured:
  LLAMA_BENCH, LLAMA_COMPLETION, LLAMA_SERVER   built natively
The models are the tests' own (tests/models.py), or files in $SYNTROP_TEST_MODELS.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import figures  # noqa: E402
import ours  # noqa: E402
import peer  # noqa: E402
from table import render  # noqa: E402


def model_path(name: str) -> Path:
    spec = importlib.util.spec_from_file_location("test_models", HERE.parents[1] / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_models"] = module
    spec.loader.exec_module(module)
    return Path(module.path(name))


class Peak:
    """Multiplies a second, by a program that is compiled here."""

    def __init__(self, folder: str) -> None:
        self._program = os.path.join(folder, "peak")
        subprocess.run(["cc", "-O2", "-pthread", "-o", self._program, str(HERE / "peak.c")], check=True)

    def __call__(self, threads: int) -> tuple[str, float]:
        output = subprocess.run(
            [self._program, str(threads)], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        unit, rate = output.split("\t")
        return unit, float(rate)


def measure(models: list[str], threads: list[int], rounds: int, level: str) -> dict[str, Any]:
    """Values by figures.key, the unit of the peak, and which programs of the peer are missing."""
    taken: dict[str, list[float]] = {}
    unit = ""
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        peak = Peak(folder)
        for name in models:
            path = model_path(name)
            daemon = ours.Daemon(path)
            try:
                for number in range(rounds):
                    for count in threads:
                        print(f"{name}, round {number + 1}, {count} threads", file=sys.stderr, flush=True)
                        unit, most = peak(count)
                        both = {
                            "ours": ours.compute(path, count, level, most) | daemon.look(count, level),
                            "peer": peer.look(path, count),
                        }
                        for who, values in both.items():
                            for what, value in values.items():
                                taken.setdefault(figures.key(name, count, who, what), []).append(value)
            finally:
                daemon.close()
    return {"taken": taken, "unit": unit, "missing": peer.missing()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=figures.MODELS, default=list(figures.MODELS))
    parser.add_argument("--level", default="auto", help="instruction-set level of ours")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, count, level, peak = arguments.child
        print(json.dumps(ours.compute_here(Path(path), int(count), level, float(peak))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    found = measure(arguments.models, arguments.threads, arguments.rounds, arguments.level)
    if arguments.json:
        print(json.dumps(found))
        return 0
    groups = [
        (
            figures.head(name, arguments.rounds),
            figures.rows(name, arguments.threads, found["taken"], found["unit"]),
        )
        for name in arguments.models
    ]
    print(render(groups), end="")
    if found["missing"]:
        print(f"\nNot measured beside it: {', '.join(found['missing'])} name no program of llama.cpp.")
    return int(any(row.kept is False for _, rows in groups for row in rows))


if __name__ == "__main__":
    sys.exit(main())
