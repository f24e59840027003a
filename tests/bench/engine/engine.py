# SPDX-License-Identifier: Apache-2.0
"""Prefill of 512 and decode of 128 tokens of SmolLM2: our engine beside llama.cpp's own bench.

Every round starts a fresh process of each, in turn, so that whatever else the machine does meets both alike; each
warms up before it measures. Prints one table: medians, the 10th to 90th percentile, the ratio of the medians,
and which share of the measured memory bandwidth decoding uses (every weight is read once a token).

  LLAMA_BENCH   path of llama.cpp's `llama-bench`, built natively; without it only ours is measured
  BENCH_MODEL   the GGUF file; default: the tests' SmolLM2
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "src"))

PREFILL, DECODE = 512, 128
BARS = {"prefill": 1.0, "decode": 0.8}  # of the peer
READ_BYTES = 192 << 20  # past any last-level cache that is likely here


def model_path() -> Path:
    if given := os.environ.get("BENCH_MODEL"):
        return Path(given)
    spec = importlib.util.spec_from_file_location("test_models", ROOT / "tests" / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_models"] = module
    spec.loader.exec_module(module)
    return Path(module.path("smollm2"))


def measure_here(path: Path, threads: int, level: str) -> dict[str, float]:
    """Tokens a second in this process, and what loading cost, in milliseconds."""
    from syntrop.common import gguf
    from syntrop.runtimed.model.llama import LlamaModel, ffi, lib

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        header = gguf.parse(data, arrays=False)
        started = perf_counter()
        model = LlamaModel.load(header, data, threads=threads, level=level)
        load = perf_counter() - started
    weights = sum(tensor.nbytes for tensor in header.tensors.values())
    prompt = [(i * 7919) % (model.config.n_vocab - 1) for i in range(PREFILL)]
    sequence = model.sequence(PREFILL + 1)
    model.forward(sequence, prompt)
    sequence.truncate(0)
    started = perf_counter()
    model.forward(sequence, prompt)
    prefill = PREFILL / (perf_counter() - started)
    sequence.truncate(0)
    token = 1
    started = perf_counter()
    for _ in range(DECODE):
        row = model.forward(sequence, [token])
        token = (token * 31 + int(row[0] > 0)) % model.config.n_vocab  # the logits are looked at
    decode = DECODE / (perf_counter() - started)
    sequence.close()
    model.close()
    buffer = ffi.new("double *")
    lib.sy_test_read(threads, READ_BYTES, buffer)
    return {
        "prefill": prefill,
        "decode": decode,
        "load": load * 1000,
        "bandwidth": buffer[0],
        "share": decode * weights / buffer[0],
    }


def ours(path: Path, threads: int, level: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", str(path), str(threads), level]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def peer(bench: str, path: Path, threads: int) -> dict[str, float]:
    command = [bench, "-m", str(path), "-t", str(threads), "-p", str(PREFILL), "-n", str(DECODE)]
    output = subprocess.run([*command, "-r", "1", "-o", "json"], check=True, capture_output=True).stdout
    rows: list[dict[str, Any]] = json.loads(output)
    return {"prefill" if row["n_prompt"] else "decode": float(row["avg_ts"]) for row in rows}


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return f"{statistics.median(values):8.1f} ({low:.0f}-{high:.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--level", default="auto", help="instruction-set level of ours")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, threads, level = arguments.child
        print(json.dumps(measure_here(Path(path), int(threads), level)))
        return 0

    path, bench = model_path(), os.environ.get("LLAMA_BENCH")
    taken: dict[tuple[str, int, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for threads in arguments.threads:
            rounds = {"ours": ours(path, threads, arguments.level)}
            if bench:
                rounds["peer"] = peer(bench, path, threads)
            for who, figures in rounds.items():
                for what, value in figures.items():
                    taken.setdefault((who, threads, what), []).append(value)
    if arguments.json:
        print(json.dumps({f"{who}.{threads}.{what}": values for (who, threads, what), values in taken.items()}))
        return 0

    print(f"{path.name}, {arguments.rounds} rounds, median (10th-90th percentile), tokens a second")
    print(f"{'':24}{'ours':>20}{'llama.cpp':>20}{'ratio':>8}{'bar':>6}  memory")
    failed = False
    for threads in arguments.threads:
        for what, bar in BARS.items():
            mine = taken["ours", threads, what]
            line = f"{what} {PREFILL if what == 'prefill' else DECODE}, {threads} thread{'s' * (threads > 1)}"
            line = f"{line:24}{spread(mine):>20}"
            if bench:
                theirs = taken["peer", threads, what]
                ratio = statistics.median(mine) / statistics.median(theirs)
                failed |= ratio < bar
                line += f"{spread(theirs):>20}{ratio:7.2f}x{bar:5.1f}x"
            else:
                line += f"{'LLAMA_BENCH not set':>34}"
            if what == "decode":
                share = statistics.median(taken["ours", threads, "share"])
                bandwidth = statistics.median(taken["ours", threads, "bandwidth"])
                line += f"  {share:.0%} of {bandwidth / 1e9:.1f} GB/s"
            print(line)
        print(f"{f'load, {threads} threads, ms':24}{spread(taken['ours', threads, 'load']):>20}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
