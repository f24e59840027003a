# SPDX-License-Identifier: Apache-2.0
"""What is measured beside routerd: a call straight to the upstream, and LiteLLM's proxy before it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "upstream"))

from place import LOCAL, prompt

_LITELLM = """
model_list:
  - model_name: far
    litellm_params: {{model: "openai/bench:1", api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}  # on the loopback, as routerd is
"""


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
