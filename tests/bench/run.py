# SPDX-License-Identifier: Apache-2.0
"""All benches, one table: what `make bench` runs.

Each bench is a program of its own that interleaves its subjects and prints every value as JSON. What cannot be
measured here (no root, no peer) is named under the table. Exits with 1 when a bar is missed.

  LITELLM       path of LiteLLM's `litellm`, installed with its proxy: the router's peer
  LLAMA_BENCH, LLAMA_COMPLETION, LLAMA_SERVER   paths of llama.cpp's programs, built natively: the engine's peer
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE / "engine"), str(HERE / "sentry")]

import figures  # noqa: E402
import sentry  # noqa: E402
from table import Row, render  # noqa: E402

RATIOS = {"routerd": 1.9, "runtimed": 2.0}
CONTROL = 1.4
Group = tuple[str, list[Row]]
BELOW: list[str] = []  # what belongs under the table


def taken(bench: str, *arguments: str) -> Any:
    """What a bench prints with `--json`. Its exit status is about its own table, so it does not count here."""
    script = HERE / bench / f"{bench}.py"
    result = subprocess.run(
        [sys.executable, str(script), "--json", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if not result.stdout.strip():
        raise SystemExit(f"{bench} ended with status {result.returncode} and measured nothing")
    return json.loads(result.stdout.splitlines()[-1])


def activation(rounds: int) -> Group:
    found = taken("activation", "--rounds", str(rounds))
    rows = [Row("`python3 -I -c pass`", "ms", found["pass"])]
    for one in found["daemons"]:
        name = one["name"]
        rows.append(Row(f"{name}, cold", "ms", one["times"], one["echo"], ("x<=", RATIOS.get(name, CONTROL))))
    for one in found["daemons"]:
        bar = ("<=", 32.0) if one["name"] == "routerd" else None
        rows.append(Row(f"{one['name']}, resident after one call", "MiB", [one["rss"]], bar=bar))
    head = (
        f"Cold activation under {found['systemd']}: connect to first reply (GetInfo; routerd: GET /health over "
        f"TCP), {rounds} rounds; beside it a trivial Python echo under a copy of the daemon's own unit"
    )
    return head, rows


def chain(rounds: int) -> Group:
    found = taken("chain", "--rounds", str(rounds))
    rows = [
        Row("asleep → first streamed token", "ms", found["asleep"], bar=("<=", 1000.0)),
        Row(f"awake, {found['prompt_tokens']}-token prompt → first token", "ms", found["awake"], bar=("<=", 60.0)),
    ]
    head = (
        "The whole chain, HTTP to engine and back, SmolLM2-135M Q4_1, under `syntropctl up`; asleep: no daemon "
        "runs, the model file is in the page cache"
    )
    return head, rows


def engine(rounds: int) -> list[Group]:
    found = taken("engine", "--rounds", str(rounds))
    return [
        (figures.head(name, rounds), figures.rows(name, (1, 2), found["taken"], found["unit"]))
        for name in figures.MODELS
    ]


def host(rounds: int) -> Group:
    found = taken("host", "--rounds", str(rounds))
    rows = [Row(name, "µs", one["times"], bar=one["bar"] and ("<=", one["bar"])) for name, one in found.items()]
    head = f"The shared library, {rounds} rounds: Varlink pings of two processes, accelerators in fixture trees"
    return head, rows


def router(rounds: int) -> Group:
    found = taken("router", "--rounds", str(rounds))
    rows = []
    for one in found["rows"]:
        bar = one["bar"] and (one["bar"][0], one["bar"][1])
        rows.append(Row(one["what"], one["unit"], one["values"], one["peer"], bar))
    head = (
        f"routerd ({found['python']}) before an upstream that answers at once, {rounds} rounds; beside it "
        "LiteLLM's proxy. Added: over the straight call of the same round"
    )
    return head, rows


def inferenced(rounds: int) -> Group:
    found = taken("inferenced", "--rounds", str(rounds))
    rows = []
    for name, one in found.items():
        values, bar = one["values"], one["bar"]
        if one["summed"] == "p99":
            values = [sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]]
            name = name if name.endswith("p99") else f"{name}, p99"
        elif one["summed"] == "worst":
            values = [max(values)]
        how = ">=" if one["summed"] == "rate" else "<="
        rows.append(Row(name, one["unit"], values, bar=None if bar is None else (how, bar)))
    head = (
        f"inferenced, {rounds} rounds: leases through Varlink, emergencies beside a crowd of 200, gangs (time of "
        "the processor), and preemption of a busy group of 64 processes under a real systemd"
    )
    return head, rows


def topology(rounds: int) -> Group:
    script = HERE / "inferenced" / "topology.py"
    command = [sys.executable, str(script), "--json", "--rounds", str(rounds)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout)
    rows = [
        Row(name, "µs", one["times"], bar=None if one["bar"] is None else ("<=", one["bar"]))
        for name, one in found.items()
        if not name.startswith("first ") or name.startswith("first sample")
    ]
    return f"Knowing the machine, {rounds} rounds, devices of fixture trees", rows


def supervisor(rounds: int) -> Group:
    found = taken("sentry", "--rounds", str(rounds))
    head = f"systemd-sentry under a real systemd, {rounds} rounds: from a failure, by the manager's own timestamps"
    BELOW.append(sentry.phases(found))
    return head, sentry.rows(found)


BENCHES: dict[str, tuple[Callable[[int], Group | list[Group]], int]] = {
    "activation": (activation, 20),
    "chain": (chain, 15),
    "engine": (engine, 5),
    "router": (router, 1000),
    "host": (host, 200),
    "topology": (topology, 100),
    "inferenced": (inferenced, 300),
    "supervisor": (supervisor, 200),
}


def machine() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{len(models)} × {models[0] if models else platform.machine()}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load at start {load}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="*", help=f"only these: {', '.join(BENCHES)}")
    parser.add_argument("--rounds", type=int, help="instead of each bench's own number")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the table into FILE")
    options = parser.parse_args()
    if unknown := set(options.bench) - set(BENCHES):
        parser.error(f"no bench {', '.join(sorted(unknown))}")
    where = machine()
    groups, missing = [], []
    for name, (measure, rounds) in BENCHES.items():
        if options.bench and name not in options.bench:
            continue
        if name in ("activation", "supervisor") and os.geteuid() != 0:
            what = "cold activation" if name == "activation" else "the supervisor"
            missing.append(f"{what} needs root, for the namespaces that a real systemd is booted in")
            continue
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        found = measure(options.rounds or rounds)
        groups += found if isinstance(found, list) else [found]
    if not os.environ.get("LITELLM"):
        missing.append("LITELLM is not set: routerd has no peer here")
    if unset := [name for name in figures.PROGRAMS if not os.environ.get(name)]:
        missing.append(f"{', '.join(unset)} not set: the engine has no peer for what they do")
    if os.geteuid() != 0 and (not options.bench or "inferenced" in options.bench):
        missing.append("preemption needs root, for the namespaces that a real systemd is booted in")
    text = f"{where}.\n\n{render(groups)}"
    text += "".join(f"\n{one}\n" for one in BELOW)
    text += "".join(f"\nNot measured: {one}.\n" for one in missing)
    print(text)
    if options.write:
        before, marker, _ = options.write.read_text(encoding="utf-8").partition("<!-- make bench -->\n")
        if not marker:
            parser.error(f"{options.write} has no line <!-- make bench -->")
        options.write.write_text(before + marker + "\n" + text, encoding="utf-8")
    return int(any(row.kept is False for _, rows in groups for row in rows))


if __name__ == "__main__":
    sys.exit(main())
