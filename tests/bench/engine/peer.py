# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp's own programs do with the same file, as near as they come to what ours is asked for.

LLAMA_BENCH        `llama-bench`: prefill and decode
LLAMA_COMPLETION   `llama-completion`: start to first token, resident memory
LLAMA_SERVER       `llama-server`: several streams together
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from figures import DECODE, PREFILL, PROGRAMS, STREAM_TOKENS, STREAMS
from ours import MIB, PROMPT, SHORT, prompt, rss

CONTEXT = 512  # tokens for each of several streams
LEAN = ("-c", "1024", "--no-warmup")  # keys and values are laid out at once, so a small context is kind to it
PATIENCE = 600.0  # seconds: its threads wait for each other, which on a busy machine is long


def missing() -> list[str]:
    """The variables that name no program."""
    return [name for name in PROGRAMS if not os.access(os.environ.get(name, ""), os.X_OK)]


def look(path: Path, threads: int) -> dict[str, float]:
    """As those of `ours`, by the same names; what there is no program for is left out."""
    found: dict[str, float] = {}
    ways: dict[str, Callable[[str, Path, int], dict[str, float]]] = {
        "LLAMA_BENCH": _bench,
        "LLAMA_COMPLETION": _completions,
        "LLAMA_SERVER": _server,
    }
    for name, way in ways.items():
        if name not in missing():
            found |= way(os.environ[name], path, threads)
    return found


def _bench(program: str, path: Path, threads: int) -> dict[str, float]:
    command = [program, "-m", str(path), "-t", str(threads), "-p", str(PREFILL), "-n", str(DECODE)]
    output = subprocess.run([*command, "-r", "1", "-o", "json"], check=True, capture_output=True).stdout
    rows: list[dict[str, Any]] = json.loads(output)
    return {"prefill" if row["n_prompt"] else "decode": float(row["avg_ts"]) for row in rows}


def _completions(program: str, path: Path, threads: int) -> dict[str, float]:
    """Its memory for as long a context as the model has, as ours and its own default; the first token, and memory
    once more, of the leanest way that still does what is measured here."""
    first, lean = _completion(program, path, threads, *LEAN)
    _, resident = _completion(program, path, threads)
    return {"first": first, "resident": resident, "lean": lean}


def _completion(program: str, path: Path, threads: int, *options: str) -> tuple[float, float]:
    """Milliseconds to the first token, which it writes at once as every other; MiB resident after some more."""
    command = [program, "-m", str(path), "-t", str(threads), "-p", PROMPT, "-n", "400", *options]
    command += ["-no-cnv", "--no-display-prompt", "--ignore-eos", "--temp", "0"]
    started = perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        first, text = 0.0, 0
        while text < SHORT:  # bytes: a late reader finds several tokens at once
            data = os.read(process.stdout.fileno(), 64)
            assert data, "ended early"
            text += len(data)
            first = first or perf_counter() - started
        resident = rss(process.pid)
    finally:
        process.kill()
        process.wait()
    return first * 1000, resident / MIB


def _server(program: str, path: Path, threads: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "-m", str(path), "-t", str(threads), "-np", str(STREAMS), "-c", str(STREAMS * CONTEXT)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, port)
        clients = [http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE) for _ in range(STREAMS)]
        for client in clients:
            client.connect()
        how = {"n_predict": STREAM_TOKENS, "ignore_eos": True, "temperature": 0.0, "cache_prompt": False}
        started = perf_counter()
        for number, client in enumerate(clients):
            body = json.dumps({"prompt": prompt(number), **how})
            client.request("POST", "/completion", body, {"Content-Type": "application/json"})
        replies = [json.loads(client.getresponse().read()) for client in clients]
        took = perf_counter() - started
        for client in clients:
            client.close()
    finally:
        process.kill()
        process.wait()
    tokens = sum(reply["tokens_predicted"] for reply in replies)
    assert tokens == STREAMS * STREAM_TOKENS, tokens
    return {"streams": tokens / took}


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = perf_counter() + PATIENCE
    while True:
        assert process.poll() is None, "the server ended"
        assert perf_counter() < deadline, "the server does not come up"
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            client.request("GET", "/health")
            if client.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            client.close()
        sleep(0.02)
