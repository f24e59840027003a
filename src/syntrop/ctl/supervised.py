# SPDX-License-Identifier: Apache-2.0
"""One service of the activator: its state, its process, its deadline.

| state | has | its deadline means | leaves to |
| --- | --- | --- | --- |
| asleep | sockets in the poll set | (none) | starting, when one is readable |
| starting | a process that has not said READY | `TimeoutStartSec=` | awake, stopping, asleep, held |
| awake | a process | the watchdog, if any | stopping, asleep, held |
| stopping | a process that was told to go | `TimeoutStopSec=`, then SIGKILL | asleep, held |
| clearing | a process of `ExecStopPost=`, on the way to each of the next | `TimeoutStopSec=` | asleep, held |
| held | nothing; connections wait in the kernel | the end of the back-off | starting, asleep |
"""

from __future__ import annotations

import os
import signal

from syntrop.ctl import notify, programs, spawn, unitfile
from syntrop.ctl.backoff import CAP, Backoff
from syntrop.ctl.output import ERR, INFO, NOTICE, WARNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from syntrop.ctl.activator import Activator
    from syntrop.ctl.listen import Listener
    from syntrop.ctl.units import ServiceUnit

ASLEEP, STARTING, AWAKE, STOPPING, HELD = "asleep", "starting", "awake", "stopping", "held"
CLEARING = "clearing"
CLEAN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)  # systemd.service(5)


class Service:
    """A service unit and what runs of it. Times are on the monotonic clock."""

    def __init__(self, home: Activator, unit: ServiceUnit, listeners: list[Listener]) -> None:
        self.home = home
        self.name = unit.name.removesuffix(".service")
        self.state = ASLEEP
        self.pid = 0
        self.deadline: float | None = None
        self.status = ""
        self._since = 0.0
        self._verdict = ""  # why we are taking it down, if that is a failure
        self._restart = False  # what `Restart=` says of the last failure
        self._watchdog = 0.0
        self._invocation = ""
        self._remaining: list[str] = []  # of `ExecStopPost=`
        self._end = (0, False, 0.0)  # of the main process: status, whether it came before READY, after how long
        self.configure(unit, listeners)

    def configure(self, unit: ServiceUnit, listeners: list[Listener]) -> None:
        """Take a unit (again, after a reload); what runs goes on as it was started."""
        self.unit, self.listeners = unit, listeners
        sockets = [listener.unit for listener in listeners]
        self.backoff = Backoff(
            unit.restart_delay,
            min(unit.max_delay, CAP),
            max((socket.trigger_interval for socket in sockets), default=2.0),
            max((socket.trigger_burst for socket in sockets), default=20),
        )

    # Starting

    def wanted(self, now: float) -> None:
        """A connection waits, or a restart is due."""
        held = self.backoff.hold(now)
        if held > 0:
            self.home.log.own(WARNING, f"{self.name} starts too often; the next start is in {held:.1f} s")
            self._hold(now + held)
            return
        self.home.listen(self, False)
        self.backoff.started(now)
        self._since, self._verdict, self.status = now, "", ""
        try:
            self.pid = self._launch()
        except (OSError, KeyError, unitfile.UnitError) as error:
            self._failed(now, f"cannot be started: {error}")
            return
        self.state = STARTING if self.unit.type.startswith("notify") else AWAKE
        self._set_deadline(now + self.unit.timeout_start if self.state == STARTING else None)
        if self.state == AWAKE:
            self._feed(now)
        self.home.log.own(INFO, f"{self.name} started (process {self.pid})")

    def _launch(self) -> int:
        unit, home = self.unit, self.home
        variables, account = self._variables()
        self._invocation = variables["INVOCATION_ID"] = os.urandom(16).hex()
        if self.listeners:
            variables["LISTEN_FDS"] = str(len(self.listeners))
            names = (listener.unit.descriptor_name for listener in self.listeners)
            variables["LISTEN_FDNAMES"] = ":".join(names)
        if unit.notify_access != "none":
            variables["NOTIFY_SOCKET"] = home.notify.path
        self._watchdog = unit.watchdog if unit.watchdog != float("inf") else 0.0
        if self._watchdog:
            variables["WATCHDOG_USEC"] = str(round(self._watchdog * 1e6))
        handles = [listener.socket.fileno() for listener in self.listeners]
        return self._execute(unit.command_line, variables, account, handles)

    def _variables(self) -> tuple[dict[str, str], spawn.Account | None]:
        """The environment of the unit's processes, and whom they run as."""
        variables = programs.environment(self.unit, os.environ)
        account = self._account()
        variables.update(self._folders(account))
        variables.update(self.home.environment)
        if account:
            variables.update(USER=account.name, LOGNAME=account.name, HOME=account.home)
        return variables, account

    def _execute(
        self, line: str, variables: dict[str, str], account: spawn.Account | None, handles: list[int]
    ) -> int:
        words, _ = unitfile.command(line, variables)
        arguments, more = programs.resolve(words)
        variables.update(more)
        theirs = self.home.output(self.name)
        try:
            return spawn.Program(self.unit, arguments, variables, handles, theirs, account).start()
        finally:
            os.close(theirs)

    def _account(self) -> spawn.Account | None:
        """`User=`, where we are root and the account exists; else we stay who we are (told at start)."""
        if not self.unit.user or os.geteuid() != 0:
            return None
        try:
            return spawn.Account(self.unit.user, self.unit.group, self.unit.groups)
        except KeyError:
            return None

    def _folders(self, account: spawn.Account | None) -> Mapping[str, str]:
        """Make the unit's folders; the variables that name them."""
        out = {}
        for kind, names in self.unit.folders.items():
            paths = []
            for name in names:
                path = os.path.join(self.home.kept.root(kind, self.home.runtime), name)
                self.home.runtime.make(path, self.unit.folder_modes[kind])
                if account:
                    os.chown(path, account.uid, account.gid)
                paths.append(path)
            if paths:
                out[_variable(kind)] = ":".join(paths)
        return out

    # Running

    def told(self, message: Mapping[str, str], now: float) -> None:
        """A message of sd_notify(3) from this service."""
        if "STATUS" in message:
            self.status = message["STATUS"]
        if message.get("READY") == "1" and self.state == STARTING:
            self.state = AWAKE
            self._feed(now)
        if message.get("STOPPING") == "1" and self.state in (STARTING, AWAKE):
            self.state = STOPPING
            self._set_deadline(now + self.unit.timeout_stop)
        if (usec := notify.microseconds(message.get("WATCHDOG_USEC", ""))) is not None:
            self._watchdog = usec
            self._feed(now)
        if message.get("WATCHDOG") == "1":
            self._feed(now)
        elif message.get("WATCHDOG") == "trigger" and self.state == AWAKE:
            self._take_down(now, "reported its own watchdog as missed")
        if (usec := notify.microseconds(message.get("EXTEND_TIMEOUT_USEC", ""))) is not None and (
            self.state in (STARTING, STOPPING) and self.deadline is not None
        ):
            self._set_deadline(max(self.deadline, now + usec))

    def _feed(self, now: float) -> None:
        if self.state == AWAKE:
            self._set_deadline(now + self._watchdog if self._watchdog else None)

    def due(self, now: float) -> None:
        """The deadline has passed."""
        self.deadline = None
        if self.state == HELD:
            self.state = ASLEEP
            # Nobody is brought back while we drain, unless somebody asks.
            if self.backoff.failures and self._restart and not self.home.draining:
                self.wanted(now)
            else:
                self.home.listen(self, True)
        elif self.state == STARTING:
            self._verdict = f"not ready within {self.unit.timeout_start:g} s"
            self.stop(now)
        elif self.state == AWAKE:
            self._take_down(now, f"missed its watchdog of {self._watchdog:g} s")
        elif self.state == STOPPING:
            self.home.log.own(WARNING, f"{self.name} did not stop in time and is killed")
            if self.unit.send_sigkill:
                self.kill(signal.SIGKILL)
        elif self.state == CLEARING:
            self.home.log.own(WARNING, f"ExecStopPost= of {self.name} takes too long and is killed")
            self.kill(signal.SIGKILL)

    def _take_down(self, now: float, verdict: str) -> None:
        """A watchdog failure: the unit's signal (which may leave a core), then SIGKILL."""
        self._verdict = verdict
        self.home.log.own(ERR, f"{self.name} {verdict}")
        self.state = STOPPING
        self._set_deadline(now + self.unit.timeout_abort)
        self.kill(_signal(self.unit.watchdog_signal))

    # Stopping

    def stop(self, now: float) -> None:
        """Tell the process to go."""
        if self.state in (STARTING, AWAKE):
            self.state = STOPPING
            self._set_deadline(now + self.unit.timeout_stop)
            self.kill(_signal(self.unit.kill_signal))
        elif self.state == HELD:
            self.state, self.deadline = ASLEEP, None

    def kill(self, number: int) -> None:
        """Signal the main process. We are its parent and reap it ourselves, so the pid cannot be another's."""
        if self.pid:
            os.kill(self.pid, number)

    def ended(self, status: int, now: float) -> None:
        """A process is gone. `status` as waitstatus_to_exitcode gives it: negative for a signal."""
        if self.state == CLEARING:
            if status:
                self.home.log.own(WARNING, f"ExecStopPost= of {self.name} {_how(status)}")
        else:
            self._end = status, self.state == STARTING, now - self._since
            self._remaining = list(self.unit.stop_post)
        self.pid = 0
        self.home.kill_strays(self._invocation)
        while self._remaining:
            if self._clear(self._remaining.pop(0), now):
                return
        self._ended(*self._end, now)

    def _clear(self, line: str, now: float) -> bool:
        """Run a command of `ExecStopPost=`; whether it could be started."""
        try:
            variables, account = self._variables()
            variables["INVOCATION_ID"] = self._invocation
            self.pid = self._execute(line, variables, account, [])
        except (OSError, KeyError, unitfile.UnitError) as error:
            self.home.log.own(WARNING, f"ExecStopPost= of {self.name} cannot be started: {error}")
            return False
        self.state = CLEARING
        self._set_deadline(now + self.unit.timeout_stop)
        return True

    def _ended(self, status: int, early: bool, lived: float, now: float) -> None:
        self._clear_up()
        how = _how(status)
        clean = _in(status, self.unit.success) or status == 0 or -status in CLEAN_SIGNALS
        abnormal = bool(self._verdict) or status < 0
        self._restart = not _in(status, self.unit.prevent_restart) and (
            self.unit.restart == "on-failure" or (self.unit.restart == "on-abnormal" and abnormal)
        )
        if self.home.stopping:
            self.state, self.deadline = ASLEEP, None
        elif self._verdict:
            self._failed(now, f"{self._verdict}, {how} after {lived:.1f} s", lived)
        elif not clean:
            self._failed(now, f"{how} after {lived:.1f} s", lived)
        elif early:
            self._failed(now, f"{how} after {lived:.1f} s without having been ready", lived)
        else:
            self.backoff.ended_well()
            self.state, self.deadline = ASLEEP, None
            self.home.log.own(INFO, f"{self.name} {how} after {lived:.1f} s")
            self.home.listen(self, True)

    def _clear_up(self) -> None:
        """What the process left behind: its runtime folders."""
        if not self.unit.preserve_runtime and self.unit.folders["RuntimeDirectory"]:
            import shutil

            for name in self.unit.folders["RuntimeDirectory"]:
                shutil.rmtree(os.path.join(self.home.runtime.root, name), ignore_errors=True)

    def _failed(self, now: float, how: str, lived: float = 0.0) -> None:
        delay = max(self.backoff.failed(lived), self.backoff.hold(now))
        times = f", {self.backoff.failures} times in a row" if self.backoff.failures > 1 else ""
        hint = f"; it said: {self.status}" if self.status else ""
        self.home.log.own(
            NOTICE if self.backoff.failures == 1 else ERR,
            f"{self.name} failed: {how}{times}{hint}; held for {delay:.1f} s, its connections wait",
        )
        self._hold(now + delay)

    def _hold(self, until: float) -> None:
        self.home.listen(self, False)
        self.state = HELD
        self._set_deadline(until)

    def _set_deadline(self, when: float | None) -> None:
        self.deadline = None if when is None or when == float("inf") else when


def _variable(kind: str) -> str:
    from syntrop.ctl.folders import KINDS

    return KINDS[kind]


def _signal(name: str) -> int:
    if name.isdigit():
        return int(name)
    return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])


def _in(status: int, listed: frozenset[str]) -> bool:
    if status >= 0:
        return str(status) in listed
    name = signal.Signals(-status).name
    return name in listed or name.removeprefix("SIG") in listed


def _how(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status in spawn.EXIT_NAMES:
        return f"could not be executed ({spawn.EXIT_NAMES[status]})"
    return f"exited with status {status}" if status else "finished"
