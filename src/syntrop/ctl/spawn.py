# SPDX-License-Identifier: Apache-2.0
"""Start a service's process: the part of systemd.exec(5) that needs no mount or network namespace.

`fork` and `exec` by hand, not `posix_spawn`: `LISTEN_PID` and `WATCHDOG_PID` must name the child, the death
signal must be asked for by the child itself, and limits, umask and account are set in between. The activator
has one thread, so what the child runs between the two is safe, and a death signal hangs on that thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from syntrop.ctl.units import ServiceUnit

LISTEN_FDS_START = 3
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
# systemd.exec(5), "Process exit codes": what the child says when it dies before its program runs.
EXIT_CHDIR, EXIT_NICE, EXIT_FDS, EXIT_EXEC, EXIT_LIMITS, EXIT_OOM_ADJUST = 200, 201, 202, 203, 205, 206
EXIT_GROUP, EXIT_USER, EXIT_NO_NEW_PRIVILEGES = 216, 217, 227
EXIT_NAMES = {
    200: "CHDIR", 201: "NICE", 202: "FDS", 203: "EXEC", 205: "LIMITS", 206: "OOM_ADJUST",
    216: "GROUP", 217: "USER", 227: "NO_NEW_PRIVILEGES",
}  # fmt: skip
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork(child: Callable[[], object]) -> int:
    """Fork; the child runs the function with default signal dispositions and never returns from here.

    Signals are blocked around the fork: one that arrived in the child before it reset its handlers would be
    written to the wakeup descriptor that it still shares with us.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        result = child()
        status = result if isinstance(result, int) else 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # the last boundary of a forked process: nothing may run on as if it were the parent
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def die_with(parent: int) -> None:
    """Have the kernel kill us with the parent, and leave now if it is gone already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class Account:
    """The user and groups a service runs as. Raises KeyError when one of them does not exist."""

    __slots__ = ("gid", "groups", "home", "name", "uid")

    def __init__(self, user: str, group: str, extra: Sequence[str]) -> None:
        import grp
        import pwd

        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        self.uid, self.name, self.home = entry.pw_uid, entry.pw_name, entry.pw_dir
        self.gid = grp.getgrnam(group).gr_gid if group else entry.pw_gid
        self.groups = [*os.getgrouplist(self.name, self.gid), *(grp.getgrnam(name).gr_gid for name in extra)]


class Program:
    """Everything one start of a service needs."""

    __slots__ = ("account", "arguments", "descriptors", "environment", "output", "unit")

    def __init__(
        self,
        unit: ServiceUnit,
        arguments: list[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        output: int,
        account: Account | None,
    ) -> None:
        self.unit, self.arguments, self.environment = unit, arguments, dict(environment)
        self.descriptors, self.output, self.account = list(descriptors), output, account

    def start(self) -> int:
        """Fork and execute; the child's pid. A failure in the child shows as one of the exit codes above."""
        parent = os.getpid()
        return fork(lambda: self._child(parent))

    def _child(self, parent: int) -> None:
        unit = self.unit
        os.setsid()  # a terminal's Ctrl-C is the activator's business
        self._step(EXIT_FDS, self._place_descriptors)
        if unit.oom_score is not None:
            self._step(EXIT_OOM_ADJUST, _write_oom_score, unit.oom_score, forgiven=unit.oom_score < 0)
        if unit.nice is not None:
            self._step(EXIT_NICE, os.setpriority, os.PRIO_PROCESS, 0, unit.nice, forgiven=unit.nice < 0)
        for name, (soft, hard) in unit.limits.items():
            self._step(EXIT_LIMITS, _set_limit, name, soft, hard)
        if self.account is not None:
            self._step(EXIT_GROUP, os.setgroups, self.account.groups)
            self._step(EXIT_GROUP, os.setresgid, *(self.account.gid,) * 3)
            self._step(EXIT_USER, os.setresuid, *(self.account.uid,) * 3)
        # After the change of account, which clears the death signal (prctl(2)).
        die_with(parent)
        if not unit.new_privileges:
            self._step(EXIT_NO_NEW_PRIVILEGES, prctl, PR_SET_NO_NEW_PRIVS, 1)
        os.umask(unit.umask)
        folder = unit.working_directory
        if folder.startswith("-"):
            self._step(EXIT_CHDIR, os.chdir, folder[1:], forgiven=True)
        else:
            home = self.account.home if self.account else os.path.expanduser("~")
            self._step(EXIT_CHDIR, os.chdir, home if folder == "~" else folder or "/")
        mine = str(os.getpid())
        if self.descriptors:
            self.environment["LISTEN_PID"] = mine
        if "WATCHDOG_USEC" in self.environment:
            self.environment["WATCHDOG_PID"] = mine
        self._step(EXIT_EXEC, os.execve, self.arguments[0], self.arguments, self.environment)

    def _step(self, code: int, action: Callable[..., object], *values: object, forgiven: bool = False) -> None:
        try:
            action(*values)
        except (OSError, ValueError) as error:
            if forgiven:
                return
            print(f"<3>{self.unit.name}: {EXIT_NAMES[code]}: {error}", file=sys.stderr, flush=True)
            os._exit(code)

    def _place_descriptors(self) -> None:
        """Standard input from nowhere, output to the log, then the sockets from 3 on, and nothing else."""
        import fcntl

        past = LISTEN_FDS_START + len(self.descriptors)
        # First out of the way of the places that are to be filled, then into them.
        moved = [fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, past) for handle in self.descriptors]
        output = fcntl.fcntl(self.output, fcntl.F_DUPFD_CLOEXEC, past)
        nowhere = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nowhere, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for place, handle in enumerate(moved, LISTEN_FDS_START):
            os.dup2(handle, place)
            os.set_blocking(place, not self.unit.non_blocking)
        os.closerange(past, os.sysconf("SC_OPEN_MAX"))


def _write_oom_score(score: int) -> None:
    with open(paths.proc("self", "oom_score_adj"), "w", encoding="ascii") as file:
        file.write(str(score))


def _set_limit(name: str, soft: int, hard: int) -> None:
    """Set a limit; without privilege, as near to it as the hard limit that we have allows."""
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        return  # RLIMIT_LOCKS has done nothing since Linux 2.4.25
    wanted = tuple(resource.RLIM_INFINITY if value < 0 else value for value in (soft, hard))
    try:
        resource.setrlimit(number, (wanted[0], wanted[1]))
    except (PermissionError, ValueError):
        ceiling = resource.getrlimit(number)[1]
        limit = ceiling if wanted[0] == resource.RLIM_INFINITY else min(wanted[0], ceiling)
        resource.setrlimit(number, (limit, ceiling))
