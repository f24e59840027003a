# SPDX-License-Identifier: Apache-2.0
"""What a command sees of the machine: nothing but the files that its tool declares, and no network interface.

bubblewrap makes such views, where it is installed and works. It does not start the commands, since Landlock and
the filter could not be laid under it: it is run once for each set of files, and what is kept are the namespaces
that it made. A command enters them (setns(2)) before the other layers, which costs it next to nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading

from syntrop.common import journal
from syntrop.toold.confinement import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO, ALWAYS, NEVER = "auto", "always", "never"
_PATIENCE = 5.0  # seconds that bubblewrap may take
_DEVICES = ("/dev/null",)


class View:
    """Descriptors of namespaces to enter, in this order. Close it."""

    __slots__ = ("namespaces",)

    def __init__(self, namespaces: Sequence[int] = ()) -> None:
        self.namespaces = tuple(namespaces)

    def copy(self) -> View:
        return View([os.dup(one) for one in self.namespaces])

    def close(self) -> None:
        for one in self.namespaces:
            os.close(one)
        self.namespaces = ()


class Views:
    """The views of a daemon, made when first wanted, and anew when one of their files was replaced."""

    __slots__ = ("_lock", "_made", "_mode", "_trouble")

    def __init__(self, mode: str = AUTO) -> None:
        """`mode`: `auto` where bubblewrap works, `always` or nothing runs, `never`."""
        self._mode = mode
        self._made: dict[tuple[tuple[str, int, int], ...], View] = {}
        self._trouble = ""
        self._lock = threading.Lock()

    def take(self, paths: Sequence[str]) -> View:
        """A view of these paths, the caller's own; without namespaces where there is none. Raises SandboxError."""
        if self._mode == NEVER:
            return View()
        with self._lock:
            if not self._trouble:
                try:
                    return self._of(_mounted(paths)).copy()
                except (OSError, ValueError, KeyError, SandboxError, subprocess.SubprocessError) as error:
                    # Asked once: what forbids it (RestrictSUIDSGID=, a kernel's settings) will go on to do so.
                    self._trouble = str(error)
                    journal.debug(f"Commands see the whole machine, as bubblewrap makes no view: {error}")
            if self._mode == ALWAYS:
                raise SandboxError(f"no view by bubblewrap: {self._trouble}")
        return View()

    def close(self) -> None:
        with self._lock:
            for view in self._made.values():
                view.close()
            self._made.clear()

    def _of(self, paths: Sequence[str]) -> View:
        key = tuple((path, *_identity(path)) for path in paths)
        if key not in self._made:
            stale = [one for one in self._made if [path for path, *_ in one] == list(paths)]
            for one in stale:
                self._made.pop(one).close()
            self._made[key] = _make(paths)
        return self._made[key]


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _mounted(paths: Sequence[str]) -> list[str]:
    """What to mount for all of these to be there: of a folder and what is below it, the folder."""
    # /proc/self is somebody else there than here.
    wanted = {"/proc" if path.startswith("/proc/") else path for path in paths} - set(_DEVICES)
    kept: list[str] = []
    for path in sorted(wanted):
        if os.path.exists(path) and not any(path.startswith(f"{one}/") for one in kept):
            kept.append(path)
    return kept


def _make(paths: Sequence[str]) -> View:
    """Raises OSError, ValueError, KeyError, SandboxError and SubprocessError: then there is none."""
    # A program that says when all is mounted, and stays until we hold its namespaces.
    from syntrop.toold.runner import find_program

    echo = find_program("cat")
    arguments = ["--unshare-user", "--unshare-net"]
    for path in paths:
        arguments += ["--ro-bind", path, path]
    for path in _DEVICES:
        arguments += ["--dev-bind", path, path]
    if not any(echo.startswith(f"{path}/") for path in paths):
        arguments += ["--ro-bind", echo, echo]
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        bubblewrap = subprocess.Popen(
            [find_program("bwrap"), *arguments, "--remount-ro", "/", "--info-fd", str(write), "--", echo],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(write,),
            env={},
        )
    finally:
        os.close(write)
    with open(read, "rb") as told, bubblewrap:
        assert bubblewrap.stdin is not None and bubblewrap.stdout is not None and bubblewrap.stderr is not None
        timer = threading.Timer(_PATIENCE, bubblewrap.kill)
        timer.start()
        try:
            try:
                bubblewrap.stdin.write(b"?")
                bubblewrap.stdin.flush()
            except BrokenPipeError:
                pass  # it says why on its other side
            if bubblewrap.stdout.read(1) != b"?":
                raise OSError(bubblewrap.stderr.read(400).decode(errors="replace").strip() or "no word from it")
            process = json.loads(told.read())["child-pid"]
            view = View()
            try:
                for kind in ("user", "mnt", "net"):
                    handle = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                    view.namespaces = (*view.namespaces, handle)
            except OSError:
                view.close()
                raise
            return view
        finally:
            timer.cancel()
            if not bubblewrap.stdin.closed:
                try:
                    bubblewrap.stdin.close()  # the end of its program, and of it
                except BrokenPipeError:
                    pass
