# SPDX-License-Identifier: Apache-2.0
"""routerd with the upstream behind it that costs next to nothing (`fast.py`), by either kind of provider."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

CHAT = "/v1/chat/completions"
FAR, LOCAL = "far", "bench:1"  # the model of the provider of kind openai, and the one of the local engine
PHASES = 7  # in which `hang_up` leaves

_CONFIG = """
[[providers]]
id = "far"
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
[[providers.models]]
name = "far"
upstream = "bench:1"
"""


def prompt(tokens: int = 1, pause: int = 0, marker: str = "x") -> list[dict[str, str]]:
    """A chat that `fast.py` understands; `pause` in microseconds before each token."""
    return [{"role": "user", "content": f"bench {tokens} {pause} {marker}"}]


def http(body: dict[str, Any], path: str = CHAT, **headers: str) -> bytes:
    data = json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _tests() -> Any:
    """The tests' own way to start routerd."""
    path = Path(__file__).parents[1] / "test_routerd.py"
    spec = importlib.util.spec_from_file_location("routerd_tests", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["routerd_tests"] = module
    spec.loader.exec_module(module)
    return module


class Place:
    """Both processes, and the sockets. `python`: what runs routerd."""

    def __init__(self, *options: str, python: str = sys.executable) -> None:
        module = _tests()
        module.LAUNCH = module.LAUNCH.replace("sys.executable", repr(python))
        packages = sysconfig.get_path("purelib")
        environment = {"PYTHONPATH": f"{module.SOURCE}:{packages}"}
        self.router = module.Router(*options, environment=environment, start=False)
        self.root: Path = self.router.root
        self._upstream = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fast.py")), str(self.root / "syntrop")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._upstream.stdout is not None
        self.upstream_port = int(self._upstream.stdout.readline())
        self.router.config.write_text(_CONFIG.format(port=self.upstream_port))
        self.router.start()
        self.engine = str(self.root / "syntrop" / "io.syntrop.Runtime1")
        self.unix = str(self.root / "syntrop" / "router.sock")

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.router.port

    @property
    def upstream(self) -> tuple[str, int]:
        return "127.0.0.1", self.upstream_port

    @property
    def pid(self) -> int:
        return int(self.router.process.pid)

    def get(self, path: str) -> Any:
        status, _, value = self.router.request("GET", path)
        assert status == 200, (path, status)
        return value

    def answering(self) -> int:
        """Answers that the upstream has not ended."""
        with urlopen(f"http://127.0.0.1:{self.upstream_port}/stats", timeout=30) as reply:
            told: dict[str, int] = json.load(reply)
        return told["answering"]

    @property
    def at_rest(self) -> bool:
        return self.get("/health")["active_requests"] == 0 and self.answering() == 0

    def restart(self) -> None:
        """A fresh routerd."""
        self.router.process.terminate()
        self.router.process.wait(30)
        self.router.start()

    def close(self) -> None:
        self._upstream.terminate()
        self._upstream.wait(60)
        assert self._upstream.stdout is not None
        self._upstream.stdout.close()
        self.router.close()


def connected(address: Any) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.settimeout(60)
    sock.connect(address)
    if not isinstance(address, str):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def requests(port: int, model: str, count: int, clients: int = 8) -> None:
    """So many requests over HTTP/1.1 on kept connections, by h2load."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        body.write(json.dumps({"model": model, "messages": prompt()}))
        body.flush()
        command = ["h2load", "--h1", "-t1", f"-c{clients}", f"-n{count}", "-d", body.name,
                   "-H", "content-type: application/json", f"http://127.0.0.1:{port}{CHAT}"]  # fmt: skip
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f"{count} succeeded, 0 failed" in told and f"{count} 2xx" in told, told


def hang_up(address: tuple[str, int], turn: int) -> None:
    """Leave in the head, in the body, before the answer, at its beginning, in its middle, behind it, or with a
    second request on the way; in turn, and by either kind of provider."""
    phase, model = turn % PHASES, (LOCAL, FAR)[turn // PHASES % 2]
    slow = http({"model": model, "messages": prompt(1000, 1_000), "stream": True})
    whole = http({"model": model, "messages": prompt()})
    with connected(address) as sock:
        if phase == 0:
            sock.sendall(whole[:20])
        elif phase == 1:
            sock.sendall(whole[:-10])
        elif phase == 2:
            sock.sendall(http({"model": model, "messages": prompt(10, 60_000_000), "stream": turn % 2 == 0}))
            time.sleep(0.002)
        elif phase in (3, 4):
            sock.sendall(slow)
            data = b""
            while data.count(b"data: ") < (2 if phase == 3 else 5):
                piece = sock.recv(1 << 16)
                assert piece, data
                data += piece
        elif phase == 5:
            sock.sendall(whole)
            sock.recv(1 << 16)
        else:
            sock.sendall(slow + whole)
            sock.recv(1 << 16)


def settled(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def resident(pid: int) -> float:
    """MiB, exactly: `statm` may be some pages behind."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no Rss")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
