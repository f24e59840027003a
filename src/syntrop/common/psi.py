# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information: the kernel's account of time lost waiting for cpu, memory or io.

`parse()` is pure. `Trigger` has the kernel tell when stalls exceed a threshold, so nothing polls by a timer
(Documentation/accounting/psi.rst). Readers need `ProcSubset=all` in their unit: `pid` hides /proc/pressure.
"""

from __future__ import annotations

import binascii
import errno
import os
import select

from syntrop.common import loop, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RESOURCES = ("cpu", "memory", "io")
_MINIMUM_WINDOW_USEC = 500_000
_MAXIMUM_WINDOW_USEC = 10_000_000
_UNPRIVILEGED_STEP_USEC = 2_000_000  # psi.rst: without CAP_SYS_RESOURCE windows are multiples of 2 s


class PsiError(Exception):
    """Pressure cannot be read or watched."""


class PressureUnavailable(PsiError):
    """The kernel has no PSI (`psi=0`, CONFIG_PSI), or it is hidden from us."""


class MalformedPressure(PsiError):
    """The text is no pressure file."""


class TriggerUnavailable(PsiError):
    """The kernel refuses to watch this for us; fall back to reading at a slow pace, and say so."""


class Line:
    """One line: share of time stalled (percent) over 10, 60 and 300 s, and the total in microseconds."""

    __slots__ = ("avg10", "avg60", "avg300", "total")

    def __init__(self, avg10: float, avg60: float, avg300: float, total: int) -> None:
        self.avg10 = avg10
        self.avg60 = avg60
        self.avg300 = avg300
        self.total = total

    def __repr__(self) -> str:
        return f"Line(avg10={self.avg10}, avg60={self.avg60}, avg300={self.avg300}, total={self.total})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[float, float, float, int]:
        return self.avg10, self.avg60, self.avg300, self.total


class Pressure:
    """`some`: at least one task was stalled; `full`: all were. `full` is None for cpu before kernel 5.13."""

    __slots__ = ("full", "some")

    def __init__(self, some: Line, full: Line | None) -> None:
        self.some = some
        self.full = full

    def __repr__(self) -> str:
        return f"Pressure(some={self.some}, full={self.full})"


def parse(text: str) -> Pressure:
    """Read the text of a pressure file. Raises MalformedPressure. Unknown lines and keys are ignored."""
    lines: dict[str, Line] = {}
    for row in text.splitlines():
        words = row.split()
        if not words or words[0] not in ("some", "full"):
            continue
        pairs = dict(word.partition("=")[::2] for word in words[1:])
        try:
            averages = [float(pairs[key]) for key in ("avg10", "avg60", "avg300")]
            total = int(pairs["total"])
        except (KeyError, ValueError):
            raise MalformedPressure(f"pressure line {row[:80]!r} cannot be read") from None
        if not all(0.0 <= average <= 100.0 for average in averages) or total < 0:
            raise MalformedPressure(f"pressure line {row[:80]!r} is out of range")
        lines[words[0]] = Line(averages[0], averages[1], averages[2], total)
    if "some" not in lines:
        raise MalformedPressure("pressure file has no line `some`")
    return Pressure(lines["some"], lines.get("full"))


def path(resource: str, group: str | None = None) -> str:
    """The pressure file of the whole system, or of a control group given by its folder's path."""
    if resource not in RESOURCES:
        raise ValueError(f"no pressure resource {resource!r}")
    return os.path.join(group, f"{resource}.pressure") if group else paths.proc("pressure", resource)


def read(resource: str, group: str | None = None) -> Pressure:
    """Read one pressure file now. Raises PressureUnavailable or MalformedPressure."""
    name = path(resource, group)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse(os.read(handle, 4096).decode("ascii", "replace"))
        finally:
            os.close(handle)
    except OSError as error:  # EOPNOTSUPP on read where psi is compiled in and switched off
        raise PressureUnavailable(f"{name}: {error.strerror}") from error


def unprivileged_window(stall_usec: int, window_usec: int) -> tuple[int, int]:
    """The nearest window that the kernel grants to everybody, at the same share of stall."""
    step = _UNPRIVILEGED_STEP_USEC
    window = min(_MAXIMUM_WINDOW_USEC, max(step, -(-window_usec // step) * step))
    return max(1, stall_usec * window // window_usec), window


class Trigger:
    """Calls `function()` in the loop when stalls exceed `stall_usec` within any `window_usec`.

    While pressure lasts the kernel repeats the event at most once a window. Events are the only wake-ups.
    Without CAP_SYS_RESOURCE the window is widened to a multiple of 2 s; `window_usec` tells the one in force.
    Owns its descriptor: `close()` it, or use it in a `with` block.
    """

    __slots__ = ("_fd", "_function", "_lost", "path", "stall_usec", "window_usec")

    def __init__(
        self,
        resource: str,
        function: Callable[[], object],
        *,
        group: str | None = None,
        kind: str = "some",
        stall_usec: int = 300_000,
        window_usec: int = 2_000_000,
        lost: Callable[[], object] | None = None,
    ) -> None:
        """`lost()` is called once if the watched control group goes away. Raises TriggerUnavailable."""
        if kind not in ("some", "full"):
            raise ValueError(f"no pressure kind {kind!r}")
        if not _MINIMUM_WINDOW_USEC <= window_usec <= _MAXIMUM_WINDOW_USEC or not 0 < stall_usec <= window_usec:
            raise ValueError("a window has 0.5 to 10 s, and the stall lies within it")
        self._function = function
        self._lost = lost
        self.path = path(resource, group)
        self.stall_usec, self.window_usec = stall_usec, window_usec
        self._fd = -1
        try:
            self._fd = self._open(kind)
        except OSError as error:
            raise TriggerUnavailable(_reason(self.path, error)) from error
        try:
            loop.watch(self._fd, self._event)
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self, kind: str) -> int:
        try:
            return _armed(self.path, kind, self.stall_usec, self.window_usec)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            wider = unprivileged_window(self.stall_usec, self.window_usec)
            if wider == (self.stall_usec, self.window_usec):
                raise
            self.stall_usec, self.window_usec = wider
            return _armed(self.path, kind, *wider)

    def _event(self, events: int) -> None:
        if self._fd < 0:
            return  # closed in the same turn of the loop
        if events & select.EPOLLERR:
            # The group was removed, which is signalled for ever: leave before the loop spins.
            self.close()
            if self._lost is not None:
                self._lost()
            return
        self._function()

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Trigger:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class GivenTrigger(Trigger):
    """What the service manager has us watch: the memory pressure of our own control group, by its own threshold.

    systemd opens the file to us and names it in the environment (MEMORY_PRESSURE_WATCH, since 254). Of what its
    protocol, *Memory Pressure Handling*, allows to be named this takes the kernel's file, as systemd does.
    """

    __slots__ = ()

    def __init__(self, function: Callable[[], object], *, lost: Callable[[], object] | None = None) -> None:
        """Raises TriggerUnavailable."""
        self._function = function
        self._lost = lost
        self._fd = -1
        self.stall_usec = self.window_usec = 0
        self.path = os.environ.get("MEMORY_PRESSURE_WATCH", "")
        if not self.path.startswith("/") or self.path == "/dev/null":
            raise TriggerUnavailable("the service manager has us watch nothing")
        try:
            text = binascii.a2b_base64(os.environ.get("MEMORY_PRESSURE_WRITE", ""), strict_mode=True)
            self._fd = _told(self.path, text)
            loop.watch(self._fd, self._event)
        except (OSError, ValueError) as error:
            if self._fd >= 0:
                os.close(self._fd)
            why = _reason(self.path, error) if isinstance(error, OSError) else f"{self.path}: {error}"
            raise TriggerUnavailable(why) from error


def _armed(name: str, kind: str, stall_usec: int, window_usec: int) -> int:
    return _told(name, f"{kind} {stall_usec} {window_usec}\0".encode())


def _told(name: str, text: bytes) -> int:
    handle = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if text:
            os.write(handle, text)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _reason(name: str, error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES, errno.EROFS):
        why = "refused (kernels before 6.4 ask for CAP_SYS_RESOURCE; a sandbox may mount it read-only)"
    elif error.errno == errno.ENOENT:
        why = "the kernel has no pressure accounting here"
    elif error.errno == errno.EOPNOTSUPP:
        why = "pressure accounting is switched off (psi=0)"
    else:
        why = error.strerror or str(error)
    return f"{name}: no pressure trigger: {why}"
