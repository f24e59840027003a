# SPDX-License-Identifier: Apache-2.0
"""Two processes that clean up after each other, so that nothing survives whichever of them is killed.

`syntropctl up` forks once. The *keeper* is the process that the user sees: it passes signals on and waits. The
*activator* is its child and the parent of every service. Between them is a socket pair.

1. Both are child subreapers (prctl(2)), so whatever loses its parent below them becomes their child.
2. Services ask for SIGKILL on their parent's death; a child of a service may not, but rule 1 finds it.
3. The activator dies, of SIGKILL too: the keeper reaps it, kills what it inherited, removes the folder.
4. The keeper dies, of SIGKILL too: the activator reads the end of the socket pair, stops everything, kills what
   it inherited, removes the folder. (A pidfd would say the same, but needs a pid that may be gone by then.)
"""

from __future__ import annotations

import os
import signal
import socket
import time

from syntrop.common import paths
from syntrop.ctl import spawn
from syntrop.ctl.output import ERR, Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
DELIVERED = 0x80  # marks a signal that the terminal has sent to the whole foreground group already
SWEEP_SEC = 10.0  # a process that SIGKILL does not end in this time is stuck in the kernel


def keep(
    log: Log, activator: Callable[[socket.socket], int], let_go: Callable[[], None], clean: Callable[[], None]
) -> int:
    """Run the activator in a child, with its end of the socket pair; its exit status.

    `let_go` closes, in the keeper, what only the activator is to hold; `clean` takes the runtime folder away
    and is called by whichever process is the last.
    """
    spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()

    def child() -> int:
        spawn.prctl(spawn.PR_SET_CHILD_SUBREAPER, 1)
        ours.close()
        status = activator(theirs)
        if keeper_is_gone(theirs):
            sweep(log)
            clean()
        return status

    terminal = _Terminal()

    def pass_on(number: int, _frame: object) -> None:
        try:
            ours.send(bytes([terminal.reading(number)]), socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is going already

    pid = spawn.fork(child)
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    theirs.close()
    let_go()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        log.own(ERR, f"the activator was killed by {signal.Signals(-code).name}; taking the suite down")
    sweep(log)
    clean()
    return code if code >= 0 else 128 - code


def keeper_is_gone(channel: socket.socket) -> bool:
    channel.setblocking(False)
    try:
        while channel.recv(64):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class _Terminal:
    """Tells a Ctrl-C from a kill, and a hang-up of the terminal from a request to reload."""

    def __init__(self) -> None:
        self._had = self._has()

    def _has(self) -> bool:
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    def reading(self, number: int) -> int:
        """The byte to send for a signal."""
        if number == signal.SIGHUP and self._had and not self._has():
            return signal.SIGTERM
        if number in (signal.SIGINT, signal.SIGQUIT) and self._in_foreground():
            return number | DELIVERED
        return number

    def _in_foreground(self) -> bool:
        try:
            tty = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.tcgetpgrp(tty) == os.getpgrp()
        except OSError:
            return False
        finally:
            os.close(tty)


def sweep(log: Log) -> None:
    """Kill and reap every process that is left below us."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    deadline = time.monotonic() + SWEEP_SEC
    while True:
        for pid in children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            stuck = ", ".join(map(str, children()))
            log.own(ERR, f"not even SIGKILL ended these processes within {SWEEP_SEC:.0f} s: {stuck}")
            return
        # A child of a child becomes ours only when that one has died: look again after every death.
        signal.sigtimedwait({signal.SIGCHLD}, min(remaining, 0.1))


def children() -> Iterator[int]:
    """Pids of our direct children, adopted ones included. Only we reap them, so none can be another by now."""
    mine = str(os.getpid())
    try:
        with open(paths.proc(mine, "task", mine, "children"), encoding="ascii") as file:
            yield from map(int, file.read().split())
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        for name in filter(str.isdigit, os.listdir(paths.proc())):
            try:
                with open(paths.proc(name, "stat"), encoding="utf-8", errors="replace") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == mine:
                yield int(name)
