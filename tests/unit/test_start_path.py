# SPDX-License-Identifier: Apache-2.0
"""What a daemon imports before its first reply: nothing that costs a cold start its budget.

The real process is started on real sockets, as the installed launcher starts it, with the interpreter's own
`-X importtime`: every module that is imported shows up in its output in the order it happens.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
FORBIDDEN = (
    "asyncio", "typing", "dataclasses", "logging", "argparse", "tomllib", "subprocess", "tempfile", "pathlib",
    "hashlib", "threading", "urllib", "ssl", "inspect", "varlink", "pystemd", "psutil", "pyudev", "numpy",
    "jinja2",
)  # fmt: skip
DAEMONS = {
    "routerd": "io.syntrop.Router1",
    "inferenced": "io.syntrop.Inference1",
    "modeld": "io.syntrop.Model1",
    "contextd": "io.syntrop.Context1",
    "toold": "io.syntrop.Tool1",
    "runtimed": "io.syntrop.Runtime1",
    "sentry": "sentry.sock",
}
LAUNCHER = "import sys; sys.path += {paths!r}; from syntrop.{daemon}.__main__ import main; main()"
IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \| +(\S+)$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def compiled_interfaces() -> None:
    """As installed: an interface that was edited since the last build would be parsed at start."""
    from syntrop.common.varlink.compile import compile_all

    compile_all(str(TREE / "src" / "syntrop" / "interfaces"))


def listeners(daemon: str, folder: str) -> tuple[list[socket.socket], list[str]]:
    """The daemon's sockets as its units list them, TCP on free ports, with their unit names."""
    unit = "systemd-sentry" if daemon == "sentry" else daemon
    names = [f"{unit}.socket"] + (["inferenced-enclave.socket"] if daemon == "inferenced" else [])
    bound, units = [], []
    for name in names:
        for address in re.findall(r"^ListenStream=(.*)$", (TREE / "units" / name).read_text(), re.MULTILINE):
            if address.startswith("/run/"):
                path = os.path.join(folder, address.removeprefix("/run/"))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                one = socket.socket(socket.AF_UNIX)
                one.bind(path)
            else:
                one = socket.socket(socket.AF_INET6 if "[" in address else socket.AF_INET)
                one.bind(("::1" if "[" in address else "127.0.0.1", 0))
            one.listen()
            bound.append(one)
            units.append(name)
    return bound, units


@contextmanager
def started(daemon: str) -> Iterator[tuple[str, Path]]:
    """A daemon's process; gives the runtime folder and the file that its imports are written to."""
    with tempfile.TemporaryDirectory(prefix="syn-") as base:
        folder = os.path.join(base, "run")
        bound, units = listeners(daemon, folder)
        log = Path(base, "log")
        environment = {
            "PATH": os.environ["PATH"],
            "SYNTROP_RUN_ROOT": folder,
            "SYNTROP_CONFIG_ROOT": base,
            "STATE_DIRECTORY": os.path.join(base, "state"),
            "LISTEN_FDS": str(len(bound)),
            "LISTEN_FDNAMES": ":".join(units),
        }
        os.mkdir(environment["STATE_DIRECTORY"])
        paths = [str(TREE / "src"), sysconfig.get_paths()["purelib"]]
        command = [sys.executable, "-IS", "-X", "importtime", "-c", LAUNCHER.format(paths=paths, daemon=daemon)]
        # The shell moves the sockets to where they belong and becomes the daemon: LISTEN_PID is its own.
        places = " ".join(f"{3 + index}<&{one.fileno() + 100}" for index, one in enumerate(bound))
        for one in bound:
            os.dup2(one.fileno(), one.fileno() + 100)
        handles = [one.fileno() + 100 for one in bound]
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                ["bash", "-c", f'LISTEN_PID=$$ exec "$@" {places}', "bash", *command],
                env=environment, pass_fds=handles, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip
        try:
            yield folder, log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            for one, handle in zip(bound, handles, strict=True):
                one.close()
                os.close(handle)


def exchange(path: str, request: bytes, end: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect(path)
        peer.sendall(request)
        reply = b""
        while end not in reply:
            part = peer.recv(65536)
            assert part, f"hung up after {reply!r}"
            reply += part
    return reply


def forbidden(log: Path) -> list[str]:
    imported = IMPORTED.findall(log.read_text())
    assert "syntrop.common.service" in imported, f"not a list of imports: {log.read_text()[-2000:]}"
    return [name for name in imported if name.split(".")[0] in FORBIDDEN]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_imports_before_the_first_varlink_reply(daemon: str):
    with started(daemon) as (folder, log):
        where = "systemd-sentry" if daemon == "sentry" else "syntrop"
        path = os.path.join(folder, where, DAEMONS[daemon])
        reply = exchange(path, b'{"method":"org.varlink.service.GetInfo"}\0', b"\0")
        found = forbidden(log)
    assert "interfaces" in json.loads(reply[:-1])["parameters"]
    assert not found


def test_imports_before_the_first_http_reply():
    with started("routerd") as (folder, log):
        path = os.path.join(folder, "syntrop", "router.sock")
        reply = exchange(path, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n\r\n")
        found = forbidden(log)
    assert reply.startswith(b"HTTP/1.1 ")
    # httptools itself imports typing; it is paid for by HTTP alone, in routerd's larger budget.
    assert set(found) <= {"typing"}
