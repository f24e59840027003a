# SPDX-License-Identifier: Apache-2.0
"""A machine with a real systemd as PID 1, in namespaces: up in under a second, native speed, no privileges lent.

    with Machine(layers=[…]) as machine:
        machine.run("systemctl start syntrop-sockets.target")

Root is needed (namespaces, mounts). The layers are never written: what the guest changes lives in memory.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

NSBOOT = Path(__file__).with_name("nsboot.py")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
POWEROFF = signal.SIGRTMIN + 4  # systemd(1): start poweroff.target
NOTIFY = "/run/host/notify"

Bind = tuple[str, str, bool]
"""Host path, guest path, read-only."""


class MachineError(Exception):
    """The machine did not come up, or a command that had to succeed did not; the text holds what it printed."""


def run_in_layers(
    layers: Sequence[Path],
    command: str,
    *,
    upper: Path | None = None,
    binds: Sequence[Bind] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run a shell command on an overlay of `layers`, with the host's network and without booting.

    What it changes is kept in `upper`, or forgotten. Raises MachineError unless it exits with 0.
    """
    folder = tempfile.mkdtemp(prefix="syntrop-layer.")
    spec = {
        "layers": [str(layer) for layer in layers],
        "upper": None if upper is None else str(upper),
        "binds": list(binds),
        "argv": ["/bin/bash", "-euc", command],
        "env": {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", **(env or {})},
    }
    try:
        done = subprocess.run(
            [sys.executable, str(NSBOOT), "chroot", folder, json.dumps(spec)],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    finally:
        shutil.rmtree(folder)
        if upper is not None:
            shutil.rmtree(f"{upper}.work", ignore_errors=True)  # absent if the mount already failed
    if done.returncode != 0:
        raise MachineError(f"{command!r} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


class Machine:
    """One booted guest. `layers` are read-only root folders, topmost first; `binds` are mounted over them."""

    def __init__(self, layers: Sequence[Path], *, binds: Sequence[Bind] = (), name: str = "syntrop") -> None:
        self.layers = [str(layer) for layer in layers]
        self.binds = list(binds)
        self.name = f"{name}-{os.getpid()}-{time.monotonic_ns() % 1_000_000}"
        self.pid = 0  # of the guest's PID 1, as the host sees it
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Machine:
        self.boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.poweroff()

    def boot(self, timeout: float = 120.0) -> None:
        """Start the guest and wait until its default target is reached (PID 1 says READY=1, as to nspawn)."""
        deadline = time.monotonic() + timeout
        self._folder = tempfile.mkdtemp(prefix="syntrop-machine.")
        self._log = open(f"{self._folder}/console", "w+b")
        notify_path = f"{self._folder}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(notify_path)
            spec = {
                "layers": self.layers,
                "upper": None,
                "binds": [*self.binds, (notify_path, NOTIFY, False)],
                "argv": ["/sbin/init", "--show-status=0", "--log-target=journal", "--unit=multi-user.target"],
                "env": {
                    "PATH": PATH,
                    "LANG": "C.UTF-8",
                    "TERM": "dumb",
                    "container": "syntrop-test",
                    "NOTIFY_SOCKET": NOTIFY,
                },
                "name": self.name,
            }
            self._process = subprocess.Popen(
                [sys.executable, str(NSBOOT), "boot", self._folder, json.dumps(spec)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
            assert self._process.stdout is not None
            first = self._process.stdout.readline()
            if not first:
                raise self._failure("the namespaces could not be set up")
            self.pid = int(first)
            while True:
                ready.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    message = ready.recv(4096)
                except TimeoutError:
                    raise self._failure(f"not ready after {timeout:.0f} s") from None
                if b"READY=1" in message.split(b"\n"):
                    return

    def _failure(self, why: str) -> MachineError:
        assert self._log is not None
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        if self.pid:
            text += self.run("systemctl list-jobs; journalctl -b --no-pager | tail -40", check=False).stdout
        self.poweroff()
        return MachineError(f"{why}\n{text}")

    def poweroff(self, timeout: float = 30.0) -> None:
        """Shut the guest down in order; kill it if it does not. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.poll() is None and self.pid:
                os.kill(self.pid, POWEROFF)
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            process.wait(10)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
            if self._log is not None:
                self._log.close()
            self.pid = 0
            shutil.rmtree(self._folder)

    def _enter(self, argv: Sequence[str], user: str | None) -> list[str]:
        # --root: from within a chroot, the guest's mount namespace alone would lead back to the host's own root.
        enter = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd", "--"]
        enter += ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8"]
        become = [] if user is None else ["runuser", "-u", user, "--"]
        return [*enter, "HOME=/root", *become, *argv]

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout: float = 120.0,
        user: str | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command (or an argv) in the guest, as root or as `user` with that user's groups.

        It sits outside the guest's own control groups; what looks at its group belongs in `systemd-run --pipe`.
        """
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        done = subprocess.run(
            self._enter(argv, user),
            check=False,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise MachineError(f"{shlex.join(argv)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def run_python(
        self,
        script: str,
        *args: str,
        python: str = "python3",
        user: str | None = None,
        timeout: float = 120.0,
        check: bool = True,
    ) -> str:
        """Run a Python program in the guest; its standard output."""
        return self.run([python, "-I", "-c", script, *args], user=user, timeout=timeout, check=check).stdout

    @contextmanager
    def start_python(self, script: str, *args: str, python: str = "python3") -> Iterator[subprocess.Popen[str]]:
        """A Python program running beside the test, its output in a pipe; gone when the block ends."""
        program = subprocess.Popen(
            self._enter([python, "-I", "-c", script, *args], None),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with program:
            try:
                yield program
            finally:
                program.kill()

    def path(self, inside: str) -> Path:
        """The guest's path as the host reaches it, to read and write files of its."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def write(self, inside: str, text: str) -> None:
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def property(self, unit: str, name: str) -> str:
        """One property of a unit, as `systemctl show` words it."""
        return self.run(["systemctl", "show", "--value", "-p", name, unit]).stdout.strip()

    def wait_property(self, unit: str, name: str, value: str, timeout: float = 60.0) -> None:
        """Wait until a unit's property has a value, looking again whenever the manager has had time to move."""
        deadline = time.monotonic() + timeout
        while (now := self.property(unit, name)) != value:
            if time.monotonic() > deadline:
                told = self.journal(unit)
                raise MachineError(f"{unit}: {name} is {now}, not {value}, after {timeout:.0f} s\n{told}")
            time.sleep(0.02)

    def journal(self, unit: str | None = None) -> str:
        """The journal of this boot, with all that was sent to it before this call."""
        self.run(["journalctl", "--sync"])
        only = [] if unit is None else ["-u", unit]
        return self.run(["journalctl", "-b", "--no-pager", "-o", "short-monotonic", *only], check=False).stdout
