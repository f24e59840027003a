# SPDX-License-Identifier: Apache-2.0
"""Runs one command in the sandbox, under caps, and makes sure that nothing of it is left. Blocking: for a thread.

All of it happens in one thread, from fork to wait: the kernel kills the child when the *thread* that made it dies.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import tempfile
from time import monotonic

from syntrop.toold import confinement
from syntrop.toold.confinement import CHANGE, Limits, Rule, SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from syntrop.toold.view import View, Views

OUTPUT_MAX = 256 << 10  # bytes of each stream that are kept; a command that prints more is ended
MEMORY_MAX = 256 << 20  # bytes, by control group
CPU_PERCENT = 100
PIDS_MAX = 32
_GONE = 30.0  # seconds in which what was killed has to be gone
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin",
    "LANG": "C.UTF-8",
    "TZ": ":/etc/localtime",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
    "SYSTEMD_URLIFY": "0",
    "COLUMNS": "200",
}
_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Command:
    """A program and what it needs: seconds, what it reads, variables, whether a folder to write in.

    `mounts` is for one that is to show how this machine is mounted, and no view of it.
    """

    __slots__ = ("argv", "environment", "mounts", "processes", "reads", "scratch", "timeout")

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        reads: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        scratch: bool = False,
        processes: bool = False,
        mounts: bool = False,
    ) -> None:
        self.argv = list(argv)
        self.mounts = mounts
        self.timeout = timeout
        self.reads = tuple(reads)
        self.environment = {**ENVIRONMENT, **(environment or {})}
        self.scratch = scratch
        self.processes = processes


class Outcome:
    """What a command did. `exit_code` is 128 and the signal if one ended it; `viewed`: it had a view; `grouped`:
    it had a control group.
    """

    __slots__ = (
        "duration", "exit_code", "grouped", "namespaces", "stderr", "stdout", "timed_out", "truncated", "viewed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.exit_code = 0
        self.stdout = b""
        self.stderr = b""
        self.duration = 0.0
        self.timed_out = False
        self.truncated = False
        self.viewed = False
        self.grouped = False
        self.namespaces: tuple[str, ...] = ()

    def layers(self) -> list[str]:
        """Those of the layers that it had of which not every machine has all: see docs/toold.md."""
        more = [*(["view"] if self.viewed else []), *(["cgroup"] if self.grouped else [])]
        return [*self.namespaces, *more]


class Cancel:
    """Ends a run from another thread."""

    __slots__ = ("_read", "_write")

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def set(self) -> None:
        try:
            os.write(self._write, b"x")
        except (BlockingIOError, OSError):
            pass  # set already, or the run is over

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def find_program(name: str) -> str:
    """Path of a program of the system. Raises SandboxError."""
    for folder in _FOLDERS:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return os.path.realpath(path)
    raise SandboxError(f"{name} is not installed")


def run(
    command: Command,
    *,
    cancel: Cancel | None = None,
    groups: str | None = None,
    views: Views | None = None,
    layers: int = confinement.ALL_LAYERS,
    namespaces: str = confinement.ALWAYS,
) -> Outcome:
    """Run a command to its end, or to the end of its time. Raises SandboxError and OSError; then nothing is left.

    `groups` is the folder of a control group that is ours (`Delegate=`): the command gets one below it. `views`
    has a view for it, unless it makes files of its own or wants to see what is mounted. `namespaces` as for
    `confinement.start`.
    """
    with _Scratch(command.scratch) as scratch, _Group(groups) as group:
        argv = [
            find_program(command.argv[0]) if "/" not in command.argv[0] else command.argv[0],
            *command.argv[1:],
        ]
        rules = [Rule(path) for path in command.reads]
        if scratch:
            rules.append(Rule("/tmp", CHANGE, optional=False))
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        ends = [out_write, err_write]
        view: View | None = None
        try:
            started = monotonic()
            if views is not None and not (scratch or command.mounts):
                seen = [rule.path for rule in (*rules, *confinement.to_run(argv[0]))]
                view = views.take(seen)
            pid, entered = confinement.start(
                argv,
                environment=command.environment,
                rules=rules,
                limits=Limits(cpu=max(1, int(command.timeout + 0.999)), file_size=(1 << 20) if scratch else 0),
                out=out_write,
                err=err_write,
                files=bool(scratch),
                processes=command.processes,
                group=group.handle,
                scratch=scratch if scratch and not _own_tmp() else None,
                view=view.namespaces if view is not None else (),
                layers=layers,
                namespaces=namespaces,
            )
            for end in ends:
                os.close(end)
            ends = []
            outcome = _attend(pid, out_read, err_read, started + command.timeout, cancel, group)
        finally:
            for end in (*ends, out_read, err_read):
                os.close(end)
            viewed = view is not None and bool(view.namespaces)
            if view is not None:
                view.close()
        outcome.viewed, outcome.grouped = viewed, group.handle >= 0
        outcome.namespaces = entered
        outcome.duration = monotonic() - started
        return outcome


def _attend(pid: int, out: int, err: int, deadline: float, cancel: Cancel | None, group: _Group) -> Outcome:
    outcome = Outcome()
    streams = {out: bytearray(), err: bytearray()}
    ended = False
    try:
        poller = select.poll()
        for handle in streams:
            os.set_blocking(handle, False)
            poller.register(handle, select.POLLIN)
        if cancel is not None:
            poller.register(cancel.fileno(), select.POLLIN)
        open_streams = set(streams)
        while open_streams and not ended:
            left = deadline - monotonic()
            events = poller.poll(max(0.0, left) * 1000) if left > 0 else []
            if not events:
                outcome.timed_out = ended = True
            for handle, _ in events:
                if handle not in streams:
                    ended = True
                elif not _drain(handle, streams[handle]):
                    poller.unregister(handle)
                    open_streams.discard(handle)
                elif len(streams[handle]) > OUTPUT_MAX:
                    outcome.truncated = ended = True
        if not ended:
            # Both streams are closed; the process need not be gone.
            pidfd = os.pidfd_open(pid)
            try:
                exits = select.poll()
                exits.register(pidfd, select.POLLIN)
                if cancel is not None:
                    exits.register(cancel.fileno(), select.POLLIN)
                found = exits.poll(max(0.0, deadline - monotonic()) * 1000)
                outcome.timed_out = not found
            finally:
                os.close(pidfd)
    finally:
        _kill(pid, group)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    outcome.exit_code = code if code >= 0 else 128 - code
    outcome.stdout, outcome.stderr = bytes(streams[out][:OUTPUT_MAX]), bytes(streams[err][:OUTPUT_MAX])
    return outcome


def _drain(handle: int, into: bytearray) -> bool:
    """Read what is there; False at the end of the stream."""
    try:
        data = os.read(handle, 65536)
    except BlockingIOError:
        return True
    into += data
    return bool(data)


def _kill(pid: int, group: _Group) -> None:
    """The whole of it at once. Its session cannot be left (the filter has no setsid(2)), so that holds without a
    control group too; and the leader is not reaped yet, so that the number is still its own.
    """
    group.kill()
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _own_tmp() -> bool:
    """Whether our own /tmp is private already (`PrivateTmp=`): a command may have that one."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    return any(fields[4] == "/tmp" and "/systemd-private-" in fields[3] for fields in mounts)


class _Scratch:
    """A private folder that a command may write in as its /tmp, gone with it."""

    __slots__ = ("_folder",)

    def __init__(self, wanted: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="toold-") if wanted else None

    def __enter__(self) -> str | None:
        return self._folder.name if self._folder else None

    def __exit__(self, *_: object) -> None:
        if self._folder:
            self._folder.cleanup()


class _Group:
    """A control group of the command's own, where we have been given some."""

    __slots__ = ("_path", "handle")

    def __init__(self, parent: str | None) -> None:
        self.handle = -1
        self._path = ""
        if parent is None:
            return
        path = os.path.join(parent, f"run-{os.urandom(6).hex()}")
        os.mkdir(path)
        try:
            for name, value in (
                ("memory.max", str(MEMORY_MAX)),
                ("memory.swap.max", "0"),
                ("pids.max", str(PIDS_MAX)),
                ("cpu.max", f"{CPU_PERCENT * 1000} 100000"),
            ):
                _put(os.path.join(path, name), value)
            self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.rmdir(path)
            raise
        self._path = path

    def __enter__(self) -> _Group:
        return self

    def kill(self) -> None:
        if self._path:
            try:
                _put(os.path.join(self._path, "cgroup.kill"), "1")
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise

    def __exit__(self, *_error: object) -> None:
        if not self._path:
            return
        os.close(self.handle)
        # The members were killed and those that are ours reaped; what init has to reap is gone in a moment.
        watch = select.poll()
        deadline = monotonic() + _GONE
        while True:
            try:
                os.rmdir(self._path)
                return
            except OSError as error:
                if error.errno != errno.EBUSY or monotonic() > deadline:
                    raise
                watch.poll(5)


def _put(path: str, text: str) -> None:
    """Write a control file; one whose controller is not there is left out."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
