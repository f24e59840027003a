# SPDX-License-Identifier: Apache-2.0
"""What the installed suite looks like from outside: endpoints, daemons, interfaces, exposure gates."""

from __future__ import annotations

from dataclasses import dataclass

from machine import Machine


@dataclass(frozen=True)
class Endpoint:
    path: str
    mode: str
    group: str
    socket: str
    user: str = "root"


@dataclass(frozen=True)
class Daemon:
    """`endpoint` speaks Varlink and `interface` is the one that the daemon is there for."""

    name: str
    user: str
    endpoint: str
    interface: str
    gate: float

    @property
    def service(self) -> str:
        return f"{self.name}.service"


RUN = "/run/syntrop"

ENDPOINTS = (
    Endpoint(f"{RUN}/router.sock", "666", "root", "routerd.socket"),
    Endpoint(f"{RUN}/io.syntrop.Router1", "666", "root", "routerd.socket"),
    Endpoint(f"{RUN}/io.syntrop.Inference1", "666", "root", "inferenced.socket"),
    Endpoint(f"{RUN}/sentry.sock", "660", "syntrop", "inferenced-enclave.socket"),
    Endpoint(f"{RUN}/gateway.sock", "660", "syntrop", "inferenced-enclave.socket"),
    Endpoint(f"{RUN}/fd.sock", "660", "syntrop", "inferenced-enclave.socket"),
    Endpoint(f"{RUN}/lookout.sock", "600", "inferenced", "inferenced-lookout.socket", "inferenced"),
    Endpoint(f"{RUN}/io.syntrop.Model1", "666", "root", "modeld.socket"),
    Endpoint(f"{RUN}/io.syntrop.Fetch1", "600", "syntrop-model", "modeld-pull.socket", "syntrop-model"),
    Endpoint(f"{RUN}/io.syntrop.Context1", "666", "root", "contextd.socket"),
    Endpoint(f"{RUN}/io.syntrop.Tool1", "666", "root", "toold.socket"),
    Endpoint(f"{RUN}/io.syntrop.Runtime1", "666", "root", "runtimed.socket"),
    Endpoint("/run/systemd-sentry/sentry.sock", "660", "syntrop", "systemd-sentry.socket"),
)

DAEMONS = (
    Daemon("routerd", "syntrop", f"{RUN}/io.syntrop.Router1", "io.syntrop.Router1", 1.2),
    Daemon("inferenced", "inferenced", f"{RUN}/io.syntrop.Inference1", "io.syntrop.Inference1", 1.2),
    Daemon("modeld", "syntrop-model", f"{RUN}/io.syntrop.Model1", "io.syntrop.Model1", 0.6),
    Daemon("contextd", "syntrop-context", f"{RUN}/io.syntrop.Context1", "io.syntrop.Context1", 0.8),
    Daemon("toold", "syntrop-tool", f"{RUN}/io.syntrop.Tool1", "io.syntrop.Tool1", 1.9),
    Daemon("runtimed", "syntrop-runtime", f"{RUN}/io.syntrop.Runtime1", "io.syntrop.Runtime1", 0.6),
    Daemon("systemd-sentry", "sentry", "/run/systemd-sentry/sentry.sock", "io.syntrop.Sentry1", 0.6),
)

TCP = ("http://127.0.0.1:32768", "http://[::1]:32768")
MODEL = "smollm2:135m"
MODEL_FILE = "/srv/models/SmolLM2-135M-Instruct.Q4_1.gguf"

IMPORT = f"syntropctl models import {MODEL_FILE} --name {MODEL}"

# One Varlink call without any library: the argument order is endpoint, method, parameters as JSON.
CALL = """
import json, socket, sys
endpoint, method, parameters = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(30)
    connection.connect(endpoint)
    connection.sendall(json.dumps({"method": method, "parameters": json.loads(parameters)}).encode() + b"\\0")
    reply = b""
    while not reply.endswith(b"\\0"):
        chunk = connection.recv(65536)
        if not chunk:
            sys.exit("hung up")
        reply += chunk
print(reply[:-1].decode())
"""


def set_idle(machine: Machine, daemon: str, seconds: float) -> None:
    """Give a daemon, or with `*` every daemon, its idle time from the next start on."""
    names = [one.name for one in DAEMONS] if daemon == "*" else [daemon]
    for name in names:
        text = f"[Service]\nEnvironment=SYNTROP_IDLE_EXIT_SEC={seconds}\n"
        machine.write(f"/run/systemd/system/{name}.service.d/idle.conf", text)
    machine.run("systemctl daemon-reload")
