# SPDX-License-Identifier: Apache-2.0
"""Run an operation in a forked child under a plan: let it live, kill it at a call, or make a call fail."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from crashlab import ptrace
from crashlab.calls import Action, decode, traced
from crashlab.recorder import Recorder

Acknowledge = Callable[[str], None]
Operate = Callable[[str, Acknowledge], None]

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SOURCES = (os.path.join(TREE, "src") + "/", os.path.join(TREE, "tests", "crash") + "/")
BEFORE, TORN, AFTER = "before", "torn", "after"
PATIENCE = 120  # seconds after which an operation that hangs fails its test

_MARK = 700  # descriptor over which the child tells its tracer what happens above system calls


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the call of this index among those that change state."""

    at: int
    phase: str = BEFORE


@dataclass(frozen=True)
class Fault:
    """The call of this index (among those that the error can hit) fails; `lasting`: all later ones, too.

    `short`: a write is cut to its half instead, and whatever needs room fails after it, as on a full disk.
    """

    at: int
    number: int
    lasting: bool = False
    short: bool = False

    def hits(self, action: Action, seen: list[Action]) -> bool:
        if self.number in (errno.ENOSPC, errno.EDQUOT):
            return action.fills
        # Reading the same again fails the same way.
        return action.kind != "read" or all(str(action) != str(one) for one in seen)


@dataclass
class Outcome:
    """`ended`: done, failed (a typed error), crashed (any other), killed."""

    ended: str = "vanished"
    error: str = ""
    acks: tuple[str, ...] = ()
    actions: list[Action] = field(default_factory=list)
    hit: str = ""
    """The call at which the plan struck; empty if it never did."""


def run(
    operate: Operate,
    root: str,
    plan: Kill | Fault | None = None,
    *,
    errors: tuple[type[BaseException], ...] = (OSError,),
    recorder: Recorder | None = None,
) -> Outcome:
    """Run `operate(root, acknowledge)` in a child; what it does elsewhere than below `root` is its own affair."""
    reads = isinstance(plan, Fault) and plan.number == errno.EIO
    child = os.fork()
    if child == 0:
        _child(operate, root, errors, reads)
    return _Tracer(child, root, plan, recorder).run()


class _Tracer:
    def __init__(self, child: int, root: str, plan: Kill | Fault | None, recorder: Recorder | None) -> None:
        self._child = child
        self._root = root
        self._plan = plan
        self._recorder = recorder
        self._threads = {child}
        self._outcome = Outcome()
        self._sites: dict[int, tuple[tuple[str, int], ...]] = {}
        self._current: tuple[int, Action] | None = None
        self._waiting: deque[int] = deque()
        self._count = 0
        self._full = False

    def run(self) -> Outcome:
        def hang(*_: object) -> NoReturn:
            raise TimeoutError(f"no end after {PATIENCE} s; the last call was {self._outcome.actions[-1:]}")

        before = signal.signal(signal.SIGALRM, hang)
        signal.alarm(PATIENCE)
        try:
            pid, status = os.waitpid(self._child, ptrace.WALL)
            if not os.WIFSTOPPED(status):
                self._threads.discard(pid)
                raise RuntimeError("the child could not be traced")
            ptrace.follow(pid)
            ptrace.proceed(pid)
            while self._threads:
                self._stopped(*os.waitpid(-1, ptrace.WALL))
        except BaseException:
            self._kill()
            self._reap()
            raise
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        return self._outcome

    def _stopped(self, pid: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._threads.discard(pid)
            if self._current and self._current[0] == pid:
                self._current = None
                self._next()
            return
        new = pid not in self._threads
        self._threads.add(pid)
        signalled, event = os.WSTOPSIG(status), status >> 16
        if signalled == ptrace.SYSCALL_STOP:
            self._exit(pid)
        elif event == ptrace.EVENT_SECCOMP:
            # One call at a time, so that what it changed can be told from what others change.
            if self._current is None:
                self._entry(pid)
            else:
                self._waiting.append(pid)
        elif event or signalled == signal.SIGTRAP or (new and signalled == signal.SIGSTOP):
            ptrace.proceed(pid)
        else:
            ptrace.proceed(pid, signal=signalled)

    def _entry(self, pid: int) -> None:
        values = ptrace.registers(pid)
        if values.orig_rax == 1 and values.signed(0) == _MARK:
            self._marked(pid, ptrace.read(pid, values.argument(1), values.argument(2)).decode())
            ptrace.proceed(pid)
            self._next()
            return
        action = decode(pid, values, self._root)
        plan = self._plan
        if action is None or (action.kind == "read" and not isinstance(plan, Fault)):
            ptrace.proceed(pid)
            self._next()
            return
        self._outcome.actions.append(action)
        self._current = (pid, action)
        if isinstance(plan, Kill):
            now = self._count == plan.at
            self._count += 1
            if now and plan.phase != AFTER:
                self._outcome.hit = str(action)
                if plan.phase == BEFORE or action.length is None:
                    self._die()
                    return
                self._shorten(pid, values, action)
        elif isinstance(plan, Fault) and self._fails(pid, values, action, plan):
            self._current = None
            ptrace.proceed(pid)
            self._next()
            return
        ptrace.proceed(pid, to_exit=True)

    def _fails(self, pid: int, values: ptrace.Registers, action: Action, plan: Fault) -> bool:
        if not plan.hits(action, self._outcome.actions[:-1]):
            return False
        now = self._count == plan.at
        self._count += 1
        if now:
            self._outcome.hit = str(action)
            if plan.short and action.length is not None and values.argument(action.length) > 1:
                self._shorten(pid, values, action)
                self._full = True
                return False
            self._full = plan.lasting
        elif not self._full:
            return False
        values.orig_rax = 2**64 - 1  # no call at all
        values.rax = 2**64 - plan.number
        ptrace.set_registers(pid, values)
        return True

    def _shorten(self, pid: int, values: ptrace.Registers, action: Action) -> None:
        name = ptrace.Registers.ARGUMENTS[action.length or 0]
        setattr(values, name, max(1, getattr(values, name) // 2))
        ptrace.set_registers(pid, values)

    def _exit(self, pid: int) -> None:
        if self._current is None or self._current[0] != pid:
            ptrace.proceed(pid)
            return
        action = self._current[1]
        plan = self._plan
        site = self._sites.pop(pid, ()) if action.kind == "sync" else ()
        if self._recorder is not None:
            result = ptrace.registers(pid).result
            if result >= 0:
                self._recorder.done(action, result, site)
        if isinstance(plan, Kill) and plan.phase != BEFORE and self._count == plan.at + 1:
            self._outcome.hit = str(action)
            self._die()
            return
        self._current = None
        ptrace.proceed(pid)
        self._next()

    def _next(self) -> None:
        if self._waiting and self._current is None:
            self._entry(self._waiting.popleft())

    def _marked(self, pid: int, text: str) -> None:
        kind, text = text[0], text[1:]
        if kind == "A":
            self._outcome.acks = (*self._outcome.acks, text)
            if self._recorder is not None:
                self._recorder.ack(text)
        elif kind == "S":
            self._sites[pid] = tuple((file, line) for file, line in json.loads(text))
        else:
            self._outcome.ended = {"D": "done", "F": "failed", "C": "crashed"}[kind]
            self._outcome.error = text

    def _die(self) -> None:
        self._outcome.ended = "killed"
        self._kill()
        self._reap()

    def _kill(self) -> None:
        for pid in self._threads:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _reap(self) -> None:
        while self._threads:
            try:
                pid, status = os.waitpid(-1, ptrace.WALL)
            except ChildProcessError:
                self._threads.clear()
                return
            if os.WIFSTOPPED(status):
                if pid not in self._threads:  # born while we were killing
                    self._threads.add(pid)
                    os.kill(pid, signal.SIGKILL)
                ptrace.proceed(pid)
            else:
                self._threads.discard(pid)


def _child(operate: Operate, root: str, errors: tuple[type[BaseException], ...], reads: bool) -> NoReturn:
    try:
        os.dup2(os.open("/dev/null", os.O_WRONLY), _MARK)
        os.fsync, os.fdatasync = _sited(os.fsync), _sited(os.fdatasync)
        ptrace.trace_me()
        os.kill(os.getpid(), signal.SIGSTOP)
        ptrace.stop_at(traced(reads=reads))
        try:
            operate(root, lambda value: _mark("A", value))
            _mark("D")
        except errors as error:
            _mark("F", f"{type(error).__name__}: {error}")
    except BaseException:
        _mark("C", traceback.format_exc())
    finally:
        os._exit(0)


def _mark(kind: str, text: str = "") -> None:
    os.write(_MARK, (kind + text).encode())


def _sited(real: Callable[[int], None]) -> Callable[[int], None]:
    """A sync that first tells which lines of ours it was called through."""

    def sync(handle: int) -> None:
        site = []
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(SOURCES):
                site.append((os.path.relpath(name, TREE), frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        _mark("S", json.dumps(site))
        real(handle)

    return sync
