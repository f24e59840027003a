# SPDX-License-Identifier: Apache-2.0
"""What the router itself costs: requests through routerd beside the same calls straight to a scripted engine.

The engine answers at once, so that nothing but the way is measured. Rounds visit every subject in turn, so that
whatever else the machine does meets all of them alike. Prints one table: medians and the 10th to 90th percentile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

INTEGRATION = Path(__file__).parents[2] / "integration"
TOKENS = 100


def helpers() -> Any:
    """The tests' own way to start routerd and the scripted engine."""
    spec = importlib.util.spec_from_file_location("routerd_tests", INTEGRATION / "test_routerd.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["routerd_tests"] = module
    spec.loader.exec_module(module)
    return module


class Wire:
    """A kept connection that sends one request and reads to the end of its reply."""

    def __init__(self, address: Any, request: bytes, end: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.connect(address)
        self.request, self.end = request, end

    def __call__(self) -> float:
        started = perf_counter()
        self.socket.sendall(self.request)
        tail = b""
        while not tail.endswith(self.end):
            piece = self.socket.recv(1 << 16)
            assert piece, "closed"
            tail = (tail + piece)[-64:]
        return perf_counter() - started


def http(method: str, path: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def subjects(tests: Any, router: Any) -> dict[str, Callable[[], float]]:
    tcp = ("127.0.0.1", router.port)
    engine = str(router.root / "syntrop" / "io.syntrop.Runtime1")
    one, many = tests.ask(["say", "x"]), tests.ask(*[["say", "x"]] * TOKENS)
    call = {"method": "io.syntrop.Runtime1.Generate", "more": True}

    def straight(request: dict[str, Any]) -> Wire:
        parameters = {"model": request["model"], "messages": request["messages"]}
        return Wire(engine, json.dumps({**call, "parameters": parameters}).encode() + b"\0", b"}}}\0")

    chat = "/v1/chat/completions"
    return {
        "GET /health": Wire(tcp, http("GET", "/health"), b"}"),
        "1 token, straight": straight(one),
        "1 token, whole": Wire(tcp, http("POST", chat, one), b"}}"),
        "1 token, streamed": Wire(tcp, http("POST", chat, {**one, "stream": True}), b"0\r\n\r\n"),
        f"{TOKENS} tokens, straight": straight(many),
        f"{TOKENS} tokens, streamed": Wire(tcp, http("POST", chat, {**many, "stream": True}), b"0\r\n\r\n"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, in microseconds")
    arguments = parser.parse_args()
    tests = helpers()
    router = tests.Router()
    try:
        router.start_double()
        measured = subjects(tests, router)
        times: dict[str, list[float]] = {name: [] for name in measured}
        for turn in range(arguments.rounds + 5):
            for name, subject in measured.items():
                taken = subject() * 1e6
                if turn >= 5:
                    times[name].append(taken)
        rss = tests.resident(router.process.pid) / 2**20
    finally:
        router.close()
    if arguments.json:
        print(json.dumps({"rss_mib": rss, "times_us": times}))
        return
    print(f"{'through routerd, one kept connection':40}{'median':>10}{'p10':>10}{'p90':>10}  µs")
    for name, taken in times.items():
        deciles = statistics.quantiles(taken, n=10)
        print(f"{name:40}{statistics.median(taken):10.0f}{deciles[0]:10.0f}{deciles[-1]:10.0f}")
    print(f"resident after {arguments.rounds} rounds: {rss:.1f} MiB")


if __name__ == "__main__":
    main()
