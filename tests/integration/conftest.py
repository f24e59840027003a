# SPDX-License-Identifier: Apache-2.0
"""The suite under the embedded activator: each test its own runtime and state folders, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calm import CALM

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from waiting import PATIENCE, wait_for

SOURCE = str(Path(__file__).parents[2] / "src")
MODULES = {"systemd-sentry": "syntrop.sentry"}


class Suite:
    """A running `syntropctl up`. Folders are short, since a socket's path may have 107 bytes."""

    def __init__(
        self,
        *,
        units: Path | None = None,
        idle: float | None = 0.5,
        state: str | None = None,
        options: tuple[str, ...] = (),
        command: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.base = tempfile.mkdtemp(prefix="syn-")
        self.root = os.path.join(self.base, "run")
        self.state = state or os.path.join(self.base, "state")
        self.config = os.path.join(self.base, "config")
        os.makedirs(os.path.join(self.config, "inferenced.toml.d"))
        with open(os.path.join(self.config, "inferenced.toml.d", "10-calm.toml"), "w") as file:
            file.write(CALM)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SYNTROP_")},
            "PYTHONPATH": SOURCE,
            "RUNTIME_DIRECTORY": self.root,
            "SYNTROP_STATE_ROOT": self.state,
            "SYNTROP_CONFIG_ROOT": self.config,
            **(environment or {}),
        }
        arguments = [sys.executable, "-m", "syntrop.ctl", "up", "--port", "0", "--json", *options]
        arguments += ["--units", str(units)] if units else []
        arguments += ["--idle", str(idle)] if idle is not None else []
        arguments += ["--", *command] if command else []
        self._log = open(os.path.join(self.base, "log"), "w+b")  # closed in stop()
        self.process = subprocess.Popen(
            arguments, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log
        )
        assert self.process.stdout
        ready = self.process.stdout.readline()
        assert ready, f"the activator did not come up: {self.log()}"
        facts = json.loads(ready)
        self.url: str = facts["url"]
        self.port = int(self.url.rpartition(":")[2]) if self.url else 0
        self.activator: int = facts["activator"]
        """The child that is the services' parent; `process` is its keeper."""

    def endpoint(self, name: str) -> str:
        return os.path.join(self.root, "syntrop", name) if "/" not in name else os.path.join(self.root, name)

    def log(self) -> str:
        """What the activator and its services have said."""
        return Path(self.base, "log").read_text(errors="replace")

    def ctl(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """`syntropctl` of this suite, which ends with that status."""
        environment = {**self.environment, "SYNTROP_RUN_ROOT": self.root}
        command = [sys.executable, "-m", "syntrop.ctl", *words]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr + self.log()
        return done

    def processes(self) -> dict[int, str]:
        """Every live process that carries this suite's runtime root, or is the activator: pid to command."""
        found = {}
        mark = f"SYNTROP_RUN_ROOT={self.root}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environment = Path("/proc", name, "environ").read_bytes().split(b"\0")
                words = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words and (mark in environment or f"RUNTIME_DIRECTORY={self.root}".encode() in environment):
                found[int(name)] = words.strip()
        return found

    def pids(self, daemon: str) -> list[int]:
        """Processes of one daemon."""
        module = MODULES.get(daemon, f"syntrop.{daemon}")
        return sorted(
            pid
            for pid, command in self.processes().items()
            if any(word == module or os.path.basename(word) == daemon for word in command.split())
        )

    def awake(self) -> list[int]:
        """Processes of services, whatever they are."""
        return sorted(set(self.processes()) - {self.process.pid, self.activator})

    def wait_asleep(self, seconds: float = PATIENCE) -> None:
        wait_for(lambda: not self.awake(), f"everybody asleep, but {self.processes()}", seconds)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the suite and make sure that nothing is left of it; the activator's exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            status = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        self.assert_nothing_left()
        return status

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not self.processes(), "no process left")
        wait_for(lambda: not os.path.exists(self.root), "no runtime folder left")

    def discard(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self._log.close()
        assert self.process.stdout
        self.process.stdout.close()
        shutil.rmtree(self.base, ignore_errors=True)


@pytest.fixture
def launch() -> Iterator[Callable[..., Suite]]:
    """Start suites; all are stopped, and looked over for leftovers, after the test."""
    suites: list[Suite] = []

    def start(**options: object) -> Suite:
        suite = Suite(**options)  # type: ignore[arg-type]
        suites.append(suite)
        return suite

    yield start
    try:
        for suite in suites:
            suite.stop()
    finally:
        for suite in suites:
            print(suite.log())  # pytest shows it when the test has failed
            suite.discard()


@pytest.fixture
def suite(launch: Callable[..., Suite]) -> Suite:
    """The real units and daemons, an empty model store, and half a second of idle time."""
    return launch()


@pytest.fixture
def race() -> Callable[[int, float], Callable[[int, random.Random], None]]:
    """`together = race(threads, idle)`: `together(round, own)` waits for the other threads, and then until about
    the moment at which a daemon that is idle for so long leaves; by `own`, a bit earlier or later than the others.
    """

    def among(threads: int, idle: float) -> Callable[[int, random.Random], None]:
        barrier = threading.Barrier(threads, timeout=2 * PATIENCE)

        def together(number: int, own: random.Random) -> None:
            barrier.wait()
            # The race itself, not a wait for anything: idle time after the last answers, give or take.
            pause = idle * random.Random(number).uniform(0.8, 2.0) + own.uniform(0, idle / 5)
            select.select([], [], [], pause)

        return together

    return among


@pytest.fixture(scope="session")
def starter_model() -> str:
    """Path of the starter model: downloaded once, then taken from the user's cache."""
    sys.path.insert(0, SOURCE)
    from syntrop.ctl import starter

    return starter.fetch()


@pytest.fixture(scope="session")
def stocked_state(starter_model: str) -> Iterator[str]:
    """A state folder whose model store holds the starter model as `smollm2:135m`."""
    state = tempfile.mkdtemp(prefix="syn-state-")
    import_it = [sys.executable, "-m", "syntrop.ctl", "models", "import", starter_model, "--name", "smollm2:135m"]
    suite = Suite(state=state, command=tuple(import_it))
    try:
        assert suite.process.wait(120) == 0, suite.log()
        suite.assert_nothing_left()
        yield state
    finally:
        suite.discard()
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def stocked_suite(launch: Callable[..., Suite], stocked_state: str) -> Suite:
    """Like `suite`, with the starter model in its store (shared by the session: do not remove it)."""
    return launch(state=stocked_state)
