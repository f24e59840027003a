# SPDX-License-Identifier: Apache-2.0
"""What is measured: routerd, LiteLLM's proxy where there is one, and the upstream that stands behind both."""

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
from pathlib import Path
from typing import Any

INTEGRATION = Path(__file__).parents[2] / "integration"
CHAT = "/v1/chat/completions"
FAR, LOCAL = "far", "bench:1"  # the model of the provider of kind openai, and the one of the local engine

_CONFIG = """
[[providers]]
id = "far"
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
[[providers.models]]
name = "far"
upstream = "bench:1"
"""
_LITELLM = """
model_list:
  - model_name: far
    litellm_params: {{model: "openai/bench:1", api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}  # on the loopback, as routerd is
"""


def prompt(tokens: int = 1, pause: int = 0, marker: str = "x") -> list[dict[str, str]]:
    """What `upstream/fast.py` understands; `pause` in microseconds before each token."""
    return [{"role": "user", "content": f"bench {tokens} {pause} {marker}"}]


def http(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def varlink(tokens: int = 1, pause: int = 0) -> bytes:
    parameters = {"model": LOCAL, "messages": prompt(tokens, pause)}
    call = {"method": "io.syntrop.Runtime1.Generate", "more": True, "parameters": parameters}
    return json.dumps(call).encode() + b"\0"


def interpreter() -> str:
    """The machine's own Python, by which the units run, where it can use this environment's packages."""
    system = "/usr/bin/python3"
    try:
        found = subprocess.run(
            [system, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return sys.executable
    return system if found == sysconfig.get_config_var("SOABI") else sys.executable


def tests() -> Any:
    """The tests' own way to start routerd."""
    spec = importlib.util.spec_from_file_location("routerd_tests", INTEGRATION / "test_routerd.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["routerd_tests"] = module
    spec.loader.exec_module(module)
    return module


class Place:
    """routerd with the upstream behind it, by either kind of provider."""

    def __init__(self, python: str) -> None:
        module = tests()
        module.LAUNCH = module.LAUNCH.replace("sys.executable", repr(python))
        packages = sysconfig.get_path("purelib")
        self.router = module.Router(environment={"PYTHONPATH": f"{module.SOURCE}:{packages}"}, start=False)
        self.root: Path = self.router.root
        script = INTEGRATION / "upstream" / "fast.py"
        self._upstream = subprocess.Popen(
            [sys.executable, str(script), str(self.root / "syntrop")], stdout=subprocess.PIPE, text=True
        )
        assert self._upstream.stdout is not None
        self.upstream_port = int(self._upstream.stdout.readline())
        self.router.config.write_text(_CONFIG.format(port=self.upstream_port))
        self.router.start()
        self.engine = str(self.root / "syntrop" / "io.syntrop.Runtime1")

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
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{self.upstream_port}/stats", timeout=10) as reply:
            told: dict[str, int] = json.load(reply)
        return told["answering"]

    def restart(self) -> None:
        """A fresh routerd."""
        self.router.process.terminate()
        self.router.process.wait(30)
        self.router.start()

    def close(self) -> None:
        self._upstream.terminate()
        self._upstream.wait(10)
        assert self._upstream.stdout is not None
        self._upstream.stdout.close()
        self.router.close()


class LiteLLM:
    """LiteLLM's proxy before the same upstream, as its `litellm` starts it."""

    def __init__(self, program: str, upstream: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = ("127.0.0.1", port)
        self._config = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self._config.write(_LITELLM.format(port=upstream))
        self._config.flush()
        self.process = subprocess.Popen(
            [program, "--config", self._config.name, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self.process.pid
        started = time.monotonic()
        while True:
            try:
                socket.create_connection(self.address).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() - started > 180:
                    self.close()
                    raise SystemExit(f"{program} does not start") from None
                time.sleep(0.2)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._config.close()


def cpu(pid: int) -> float:
    """Seconds that a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident(pid: int) -> float:
    """MiB, exactly: `statm` may be some pages behind."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no Rss")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
