# SPDX-License-Identifier: Apache-2.0
"""From an HTTP request to the first streamed token of SmolLM2, through the whole chain under `syntropctl up`.

Asleep: no daemon runs when the request is sent; every round waits until all have gone. Awake: the model is loaded
and the prompt has about 20 tokens, another text each time. The model file is in the page cache in both.
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
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

BIN = Path(sys.executable).parent
CTL = [str(BIN / "syntropctl")]
MODEL = "smollm2:135m"
WORDS = ("What", "is", "a", "an", "how", "why", "light", "sound", "rain", "iron", "time", "sleep", "fire", "wood")


def ask(path: str, words: tuple[str, ...]) -> tuple[float, int]:
    """Milliseconds to the first text, and the tokens of the prompt."""
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " ".join(words)}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 2,
        "temperature": 0,
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    first = 0.0
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        begun = perf_counter()
        client.connect(path)
        client.sendall(head.encode() + data)
        received = b""
        while b"data: [DONE]" not in received:
            piece = client.recv(65536)
            if not piece:
                raise SystemExit(f"the stream broke off: {received.decode(errors='replace')}")
            received += piece
            if not first and b'"content":"' in received.replace(b'"content":""', b""):
                first = 1000 * (perf_counter() - begun)
    events = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
    usage: dict[str, Any] = next(event["usage"] for event in reversed(events) if event.get("usage"))
    return first, usage["prompt_tokens"]


def asleep() -> bool:
    shown = subprocess.run([*CTL, "status", "--json"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return "awake" not in shown


def measure(kind: str, rounds: int) -> tuple[list[float], int]:
    """What runs under the suite."""
    path = os.path.join(os.environ["SYNTROP_RUN_ROOT"], "syntrop", "router.sock")
    times: list[float] = []
    tokens = 0
    if kind == "awake":
        ask(path, WORDS[:3])
    for turn in range(rounds):
        if kind == "asleep":
            end = monotonic() + 60
            while not asleep():
                if monotonic() > end:
                    raise SystemExit("the suite did not fall asleep")
                sleep(0.1)
        words = tuple(WORDS[(turn + i) % len(WORDS)] for i in range(4))
        taken, tokens = ask(path, words)
        times.append(taken)
    return times, tokens


def under_suite(kind: str, rounds: int, state: str) -> tuple[list[float], int]:
    idle = "0.3" if kind == "asleep" else "30"
    child = [sys.executable, __file__, "--child", kind, "--rounds", str(rounds)]
    result = subprocess.run(
        [*CTL, "up", "--quiet", "--port", "0", "--idle", idle, "--", *child],
        env={**os.environ, "SYNTROP_STATE_ROOT": state},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    times, tokens = json.loads(result.stdout.splitlines()[-1])
    return times, tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="every value, in ms")
    parser.add_argument("--child", choices=("asleep", "awake"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.rounds)))
        return 0
    with tempfile.TemporaryDirectory(prefix="syn-") as state:
        environment = {**os.environ, "SYNTROP_STATE_ROOT": state}
        store = [*CTL, "models", "fetch-starter", "--import"]
        up = [*CTL, "up", "--quiet", "--port", "0", "--idle", "0.3", "--"]
        subprocess.run([*up, *store], env=environment, stdout=sys.stderr, check=True)
        cold, _ = under_suite("asleep", options.rounds, state)
        warm, tokens = under_suite("awake", 3 * options.rounds, state)
    if options.json:
        print(json.dumps({"asleep": cold, "awake": warm, "prompt_tokens": tokens}))
        return 0
    for name, times in (("asleep", cold), (f"awake, {tokens} tokens", warm)):
        cuts = statistics.quantiles(times, n=10)
        shown = f"{statistics.median(times):8.1f} ms ({cuts[0]:.1f} to {cuts[-1]:.1f})"
        print(f"{name:20} {shown}, {len(times)} rounds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
