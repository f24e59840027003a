# SPDX-License-Identifier: Apache-2.0
"""A daemon as its own process, its sockets passed as a service manager passes them, and a plain client."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import machines
from calm import CALM

SOURCE = str(Path(__file__).parents[3] / "src")
TIMEOUT = 60.0
NOT_RUN = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.get_closest_marker("reflink")]
    if mine and not _shares_blocks():
        config.stash[NOT_RUN] = [item.nodeid for item in mine]
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    names = config.stash.get(NOT_RUN, [])
    if names:
        terminalreporter.section("not run: these need a file system that shares blocks (root, loop device, btrfs)")
        for name in names:
            terminalreporter.line(name)


def _shares_blocks() -> bool:
    """Whether a btrfs can be made and mounted here, which is found out by doing it."""
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        image = os.path.join(folder, "image")
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        make = ["mkfs.btrfs", "-q", image]
        mount = ["unshare", "--mount", "mount", "-o", "loop", image, folder]
        try:
            return all(
                subprocess.run(one, capture_output=True, check=False).returncode == 0 for one in (make, mount)
            )
        except FileNotFoundError:
            return False


class Reply:
    """One reply with its descriptors, which the test owns."""

    def __init__(self, message: dict[str, Any], fds: list[int]) -> None:
        self.error: str | None = message.get("error")
        self.parameters: dict[str, Any] = message.get("parameters", {})
        self.fds = fds


class Client:
    """A Varlink client of a few lines, independent of ours."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(str(path))

    def call(self, method: str, fds: Sequence[int] = (), **parameters: Any) -> Reply:
        self.send(method, fds, **parameters)
        return self.receive()

    def send(self, method: str, fds: Sequence[int] = (), **parameters: Any) -> None:
        data = json.dumps({"method": method, "parameters": parameters}).encode() + b"\0"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.socket.sendmsg([data], rights)

    def receive(self) -> Reply:
        data = b""
        fds: list[int] = []
        while not data.endswith(b"\0"):
            piece, ancillary, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(64))
            if not piece:
                raise EOFError(data)
            data += piece
            for _, _, raw in ancillary:
                fds += struct.unpack(f"{len(raw) // 4}i", raw)
        return Reply(json.loads(data[:-1]), fds)

    def close(self) -> None:
        self.socket.close()


class Activated:
    """Listening sockets, and the process that serves them once it is started."""

    def __init__(
        self, module: str, root: Path, idle: float, preload: Path | None, environment: dict[str, str] | None = None
    ) -> None:
        self.preload = preload
        self.environment = environment or {}
        self.module = module
        self.root = root
        self.run = root / "run"
        self.state = root / "state"
        self.idle = idle
        self.process: subprocess.Popen[bytes] | None = None
        self.sockets: list[tuple[socket.socket, str]] = []

    def wait(self) -> int:
        """The exit status of a process that is to end by itself."""
        assert self.process is not None
        return self.process.wait(TIMEOUT)

    def listen(self, endpoint: str, unit: str) -> Path:
        path = self.run / (endpoint if "/" in endpoint else f"syntrop/{endpoint}")
        path.parent.mkdir(parents=True, exist_ok=True)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        sock.listen(128)
        self.sockets.append((sock, unit))
        return path

    def start(self) -> subprocess.Popen[bytes]:
        assert self.process is None or self.process.poll() is not None
        # High numbers, so that no move takes the place of one still to be moved.
        fds = [fcntl.fcntl(sock, fcntl.F_DUPFD, 100) for sock, _ in self.sockets]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.preload}:{SOURCE}" if self.preload else SOURCE,
            "LISTEN_FDS": str(len(fds)),
            "LISTEN_FDNAMES": ":".join(unit for _, unit in self.sockets),
            "SYNTROP_RUN_ROOT": str(self.run),
            "SYNTROP_CONFIG_ROOT": str(self.root / "etc"),
            "SYNTROP_IDLE_EXIT_SEC": str(self.idle),
            "STATE_DIRECTORY": str(self.state),
            **self.environment,
        }

        # A shell moves the descriptors to where they are looked for, and gives its own number on.
        moves = " ".join(f"{3 + index}<&{fd} {fd}<&-" for index, fd in enumerate(fds))
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f'LISTEN_PID=$$ exec "$@" {moves}', "-", sys.executable, "-P", "-m", self.module],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
        )
        for fd in fds:
            os.close(fd)
        return self.process

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        for sock, _ in self.sockets:
            sock.close()


# package, endpoints with the units that they come from, interface, name of the product
DAEMONS = {
    "modeld": ("syntrop.modeld", [("io.syntrop.Model1", "modeld.socket")], "io.syntrop.Model1"),
    "contextd": ("syntrop.contextd", [("io.syntrop.Context1", "contextd.socket")], "io.syntrop.Context1"),
    "toold": ("syntrop.toold", [("io.syntrop.Tool1", "toold.socket")], "io.syntrop.Tool1"),
    "systemd-sentry": (
        "syntrop.sentry",
        [("systemd-sentry/sentry.sock", "systemd-sentry.socket")],
        "io.syntrop.Sentry1",
    ),
    # Deliberately not in the order of their numbers: nobody may go by it.
    "inferenced": (
        "syntrop.inferenced",
        [
            ("fd.sock", "inferenced-enclave.socket"),
            ("io.syntrop.Inference1", "inferenced.socket"),
            ("gateway.sock", "inferenced-enclave.socket"),
            ("sentry.sock", "inferenced-enclave.socket"),
        ],
        "io.syntrop.Inference1",
    ),
}


class Launcher:
    """Starts daemons by name and stops them all."""

    daemons = DAEMONS

    def __init__(self, root: Path) -> None:
        self._root = root
        self._units: list[Activated] = []
        self._clients: list[Client] = []

    def __call__(
        self,
        name: str,
        idle: float = 30.0,
        preload: Path | None = None,
        environment: dict[str, str] | None = None,
        handed: Sequence[tuple[socket.socket, str]] = (),
        start: bool = True,
    ) -> Activated:
        """`handed`: more sockets that it is passed, with their units; the unit's own from now on. Without `start`,
        a call can be there before the daemon is, which cannot have left again by then."""
        module, endpoints, _ = DAEMONS[name]
        unit = Activated(module, self._root / name, idle, preload, environment)
        self._units.append(unit)
        for endpoint, socket_unit in endpoints:
            unit.listen(endpoint, socket_unit)
        unit.sockets += handed
        if start:
            unit.start()
        return unit

    def client(self, unit: Activated, endpoint: str) -> Client:
        path = unit.run / (endpoint if "/" in endpoint else f"syntrop/{endpoint}")
        client = Client(path)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for unit in self._units:
            unit.stop()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """`unit = launch("modeld")`, `launch.client(unit, endpoint)`."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture
def arbiter(launch: Launcher, tmp_path: Path) -> Activated:
    """inferenced on a machine with two GPUs, whose processes are ours."""
    place = machines.unpack("amd-pair", tmp_path / "machine")
    folder = tmp_path / "inferenced" / "etc"
    folder.mkdir(parents=True)
    (folder / "inferenced.toml").write_text(CALM)
    return launch("inferenced", idle=300.0, environment={"SYNTROP_SYS_ROOT": place["SYNTROP_SYS_ROOT"]})
