# SPDX-License-Identifier: Apache-2.0
"""What our engine does with a file: in a process of its own, and as the daemon serves it."""

from __future__ import annotations

import compileall
import importlib.util
import json
import mmap
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from time import perf_counter
from typing import Any

from figures import DECODE, PREFILL, STREAM_TOKENS, STREAMS

ROOT = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("engine.py")
sys.path.insert(0, str(ROOT / "src"))

PROMPT = "The capital of France is"
SHORT = 32  # tokens of the generation after which memory is looked at
MIB = 1 << 20

# As units/install.sh has it: the suite's modules last in the path, without site, and compiled beforehand.
LAUNCHER = "import sys; sys.path += {paths!r}; from syntrop.runtimed.__main__ import main; main()"


def compute(path: Path, threads: int, level: str, peak: float) -> dict[str, float]:
    """Tokens a second of one sequence, what loading took (ms), and the shares of this machine's limits.

    `peak` is multiplies a second of all threads together. The memory that is read for the limit is as large as the
    weights, so that a cache that holds them helps both.
    """
    command = [sys.executable, str(CHILD), "--child", str(path), str(threads), level, str(peak)]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return result


def compute_here(path: Path, threads: int, level: str, peak: float) -> dict[str, float]:
    from syntrop.common import gguf
    from syntrop.runtimed.model.llama import LlamaModel, ffi, lib

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        header = gguf.parse(data, arrays=False)
        started = perf_counter()
        model = LlamaModel.load(header, data, threads=threads, level=level)
        load = perf_counter() - started
    tensors = header.tensors
    read = {name for name in tensors if name != "token_embd.weight" or "output.weight" not in tensors}
    weights = sum(tensors[name].nbytes for name in read)
    matrices = (t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) > 1)
    multiplies = sum(tensor.elements for tensor in matrices)  # a token; the output's only after the last one

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
    lib.sy_test_read(threads, weights, buffer)
    return {
        "prefill": prefill,
        "decode": decode,
        "load": load * 1000,
        "bandwidth": buffer[0],
        "read_share": decode * weights / buffer[0],
        "peak": peak,
        "multiply_share": prefill * multiplies / peak,
    }


def _tests() -> Any:
    """The tests' own way to run daemons by hand and to talk to them."""
    spec = importlib.util.spec_from_file_location(
        "runtimed_tests", ROOT / "tests" / "integration" / "test_runtimed.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["runtimed_tests"] = module
    spec.loader.exec_module(module)
    return module


class Daemon:
    """A store that holds a model's file, before which runtimed is started anew for each look."""

    def __init__(self, path: Path) -> None:
        from syntrop.common import gguf
        from syntrop.runtimed import tokenizer, vocabulary

        compileall.compile_dir(ROOT / "src" / "syntrop", quiet=1)
        self._tests = _tests()
        self._suite = self._tests.Suite(idle=60)  # the store alone
        self._digest: str = self._suite.register(path, "bench:1")["digest"]
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            ends = tokenizer.load(gguf.parse(data, pack=vocabulary.pack).metadata).ends
        self._on = [{"token": token, "bias": -100.0} for token in sorted(ends)]  # go on whatever is likely

    def close(self) -> None:
        self._suite.stop()

    def look(self, threads: int, level: str) -> dict[str, float]:
        """first: ms from the start of the process to a short prompt's first token; resident: MiB (Rss) after some
        more; streams: tokens a second of all together. The caller waits at the socket, as under systemd."""
        method = f"{self._tests.RUNTIME}.Generate"
        path = self._suite.endpoint(self._tests.RUNTIME)
        with socket.socket(socket.AF_UNIX) as listener:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(64)
            with self._suite.runtime() as client:
                started = perf_counter()
                process = self._start(listener, threads, level)
                try:
                    how = {"model": self._digest, "logit_bias": self._on}
                    replies = client.stream(method, prompt=PROMPT, max_tokens=SHORT, **how)
                    next(replies)
                    first = perf_counter() - started
                    for _ in replies:
                        pass
                    resident: float = rss(process.pid)
                    streams = self._streams(method, how)
                finally:
                    process.terminate()
                    process.wait(self._tests.TIMEOUT)
        resident /= MIB
        return {"first": first * 1000, "resident": resident, "lean": resident, "streams": streams}

    def _start(self, listener: socket.socket, threads: int, level: str) -> subprocess.Popen[bytes]:
        options = ["--threads", str(threads), "--kernel-level", level, "--slots", str(STREAMS)]
        launcher = LAUNCHER.format(paths=[str(ROOT / "src"), sysconfig.get_path("purelib")])
        command = shlex.join([sys.executable, "-ISc", launcher, *options])
        root = self._suite.root
        environment = {
            **os.environ,
            "SYNTROP_RUN_ROOT": str(root / "run"),
            "SYNTROP_CONFIG_ROOT": str(root / "config"),
            "STATE_DIRECTORY": str(root / "state"),
            "SYNTROP_IDLE_EXIT_SEC": "0",
            "LISTEN_FDS": "1",
        }
        # The shell moves the socket to where the protocol wants it and becomes the daemon, which has its pid.
        shell = f"exec 3<&{listener.fileno()} {listener.fileno()}<&-; LISTEN_PID=$$ exec {command}"
        if listener.fileno() == 3:
            shell = f"LISTEN_PID=$$ exec {command}"
        return subprocess.Popen(
            ["bash", "-c", shell], env=environment, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL
        )

    def _streams(self, method: str, how: dict[str, Any]) -> float:
        clients = [self._suite.runtime() for _ in range(STREAMS)]
        started = perf_counter()
        for number, client in enumerate(clients):
            client.send(method, {"prompt": prompt(number), "max_tokens": STREAM_TOKENS, **how})
        tokens = sum(client.receive()["parameters"]["result"]["completion_tokens"] for client in clients)
        took = perf_counter() - started
        for client in clients:
            client.socket.close()
        assert tokens == STREAMS * STREAM_TOKENS, tokens
        return float(tokens / took)


def prompt(number: int) -> str:
    """Of about thirty tokens, another one for each stream."""
    subjects = ("a river", "a clock", "winter", "the sea", "bread", "a library", "iron", "a long road")
    who = "a traveller who has seen many countries"
    return f"{number + 1}. Write down what {who} would say about {subjects[number]}:"


def rss(pid: int) -> int:
    """Bytes: what is resident, mapped files too. (Pss would depend on who else has the model's file mapped.)"""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("Rss:")[1].split()[0]) * 1024
