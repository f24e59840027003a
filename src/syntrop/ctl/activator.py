# SPDX-License-Identifier: Apache-2.0
"""The embedded activator: systemd's socket activation for machines whose PID 1 is something else.

One thread over epoll that wakes only when something happens: a connection, a message of a service, a line of
output, a death, a deadline. It never accepts a connection: listening sockets belong to the services, and are
watched here only while their service sleeps, so that what a dying service leaves in the queue starts the next.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from syntrop.common import paths
from syntrop.ctl import keeper, spawn, units
from syntrop.ctl.folders import specifiers
from syntrop.ctl.listen import Binder, BindError, Listener
from syntrop.ctl.notify import NotifySocket
from syntrop.ctl.output import ERR, INFO, NOTICE, WARNING, Log, Output
from syntrop.ctl.supervised import ASLEEP, AWAKE, HELD, STARTING, Service
from syntrop.ctl.unitfile import UnitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from syntrop.ctl.folders import KeptFolders, RuntimeFolder
    from syntrop.ctl.units import Catalogue

DRAIN_SEC = 180.0  # how long daemons may take to become idle after the command has ended
COMMAND_SEC = 10.0  # how long the command may take to end after a signal
# Order within one wake-up: a message is read before the death of its sender, a death before new connections.
FIRST, SECOND, THIRD, LAST = range(4)


class Activator:
    """All services of a catalogue, with the sockets that start them."""

    def __init__(
        self,
        catalogue: Catalogue,
        binder: Binder,
        listeners: list[Listener],
        kept: KeptFolders,
        log: Log,
        environment: Mapping[str, str],
    ) -> None:
        self.catalogue, self.binder, self.kept, self.log = catalogue, binder, kept, log
        self.runtime: RuntimeFolder = binder.runtime
        self.environment = dict(environment)
        """Variables that every service gets, over those of its unit."""
        self.stopping = False
        self.draining = False
        self._listeners = listeners
        self._handlers: dict[int, tuple[int, Callable[[], None]]] = {}
        self._epoll = select.epoll()
        self.notify = NotifySocket(os.path.join(self.runtime.endpoints, "notify"))
        self.services = {
            name: Service(self, unit, self._listeners_of(name)) for name, unit in catalogue.services.items()
        }
        self._command = 0
        self._status = 0
        self._limit: float | None = None  # of the command, or of draining

    def _listeners_of(self, service: str) -> list[Listener]:
        """In the order of the descriptors: by socket unit, the service's own first, then as they are listed."""
        order = [unit.name for unit in self.catalogue.sockets_of(service)]
        mine = [listener for listener in self._listeners if listener.unit.name in order]
        return sorted(mine, key=lambda listener: order.index(listener.unit.name))  # stable

    # The poll set

    def watch(self, handle: int, rank: int, handler: Callable[[], None]) -> None:
        self._epoll.register(handle, select.EPOLLIN)
        self._handlers[handle] = rank, handler

    def unwatch(self, handle: int) -> None:
        if self._handlers.pop(handle, None):
            self._epoll.unregister(handle)

    def listen(self, service: Service, wanted: bool) -> None:
        """Watch a service's sockets, or leave them to it."""
        for listener in service.listeners:
            handle = listener.socket.fileno()
            if not wanted or self.stopping:
                self.unwatch(handle)
            elif handle not in self._handlers:
                self.watch(handle, LAST, lambda: self._connected(service))

    def _connected(self, service: Service) -> None:
        if service.state == ASLEEP and not self.stopping:
            service.wanted(time.monotonic())

    def output(self, name: str) -> int:
        """A pipe whose lines are logged under this name; the writing end is the caller's to close."""
        ours, theirs = os.pipe()
        output = Output(self.log, name, ours)

        def read() -> None:
            if not output.read():
                self.unwatch(ours)
                os.close(ours)

        self.watch(ours, SECOND, read)
        return theirs

    # Life

    def run(self, channel: socket.socket, command: list[str], ready: Callable[[], None]) -> int:
        """Serve until told to stop, or until the command has ended and every service sleeps.

        Returns the command's status (128 and the signal's number if one ended it), else 0.
        """
        ours, theirs = socket.socketpair()
        for end in (ours, theirs, channel):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        # The keeper passes on what the terminal sends to the whole group: here it would come twice.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, _noted)
        self.watch(ours.fileno(), THIRD, lambda: self._signalled(ours))
        self.watch(channel.fileno(), SECOND, lambda: self._ordered(channel))
        self.watch(self.notify.fileno(), FIRST, self._notified)
        for service in self.services.values():
            self.listen(service, True)
        ready()
        if command:
            self._command = self._start_command(command)
        while not self._finished():
            self._turn()
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        self.notify.close()
        self._epoll.close()
        return self._status

    def _finished(self) -> bool:
        if self._command or any(service.pid for service in self.services.values()):
            return False
        if self.stopping:
            return True
        if not self.draining:
            return False
        while self._turn(0.0):
            pass  # asleep is not enough: a connection may have come since the last look
        return all(service.state in (ASLEEP, HELD) for service in self.services.values())

    def _turn(self, patience: float | None = None) -> bool:
        """Wait for what happens next and handle it; whether anything did."""
        if patience is None:
            limits = [service.deadline for service in self.services.values()] + [self._limit]
            due = min((limit for limit in limits if limit is not None), default=None)
            # epoll counts in milliseconds: rounding down would spin through the last one
            patience = -1 if due is None else max(0.0, due - time.monotonic()) + 0.001
        ready = sorted(
            (self._handlers[handle] for handle, _ in self._epoll.poll(patience) if handle in self._handlers),
            key=lambda entry: entry[0],
        )
        for _, handler in ready:
            handler()
        now = time.monotonic()
        for service in list(self.services.values()):
            if service.deadline is not None and service.deadline <= now:
                service.due(now)
        if self._limit is not None and self._limit <= now:
            self._too_long()
        return bool(ready)

    # What happens

    def _notified(self) -> None:
        now = time.monotonic()
        for pid, message in self.notify.receive():
            if service := self._sender(pid):
                service.told(message, now)

    def _sender(self, pid: int) -> Service | None:
        for service in self.services.values():
            if not service.pid:
                continue
            if pid == service.pid:
                return service
            if service.unit.notify_access in ("all", "exec"):
                try:
                    if os.getsid(pid) == service.pid:
                        return service
                except ProcessLookupError:
                    return None
        return None

    def _signalled(self, wakeups: socket.socket) -> None:
        numbers = wakeups.recv(4096)
        if signal.SIGCHLD in numbers:
            self._reap()
        if signal.SIGTERM in numbers:
            self._stop(signal.SIGTERM, False)

    def _ordered(self, channel: socket.socket) -> None:
        """Signals that the keeper passes on; the end of the channel is the end of the keeper."""
        orders = channel.recv(64)
        if not orders:
            self.unwatch(channel.fileno())
            self.log.own(ERR, "our keeper was killed; taking the suite down")
            self._stop(signal.SIGTERM, False)
            self._hasten()
        for order in orders:
            number = order & ~keeper.DELIVERED
            if number == signal.SIGHUP:
                self._reload()
            else:
                self._stop(number, bool(order & keeper.DELIVERED))

    def _reap(self) -> None:
        self._notified()  # the last words of the dead, while their pids still name them
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            service = next((one for one in self.services.values() if one.pid == pid), None)
            if service:
                # While it is a zombie its process group cannot be another's: what it left in there goes now.
                try:
                    os.killpg(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if service:
                service.ended(code, time.monotonic())
            elif pid == self._command:
                self._command_ended(code)

    def kill_strays(self, invocation: str) -> None:
        """Kill children that a dead service left to us, told by the INVOCATION_ID in their environment."""
        mark = f"INVOCATION_ID={invocation}".encode()
        for pid in keeper.children():
            try:
                with open(paths.proc(str(pid), "environ"), "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(pid, signal.SIGKILL)
            except OSError:
                pass  # a zombie, or gone: there is nothing to kill

    # The command

    def _start_command(self, command: list[str]) -> int:
        parent = os.getpid()

        def child() -> None:
            spawn.die_with(parent)
            variables = {**os.environ, **self.environment}
            try:
                os.execvpe(command[0], command, variables)
            except OSError as error:
                self.log.own(ERR, f"{command[0]}: {error.strerror}")
                os._exit(127 if isinstance(error, FileNotFoundError) else 126)

        return spawn.fork(child)

    def _command_ended(self, code: int) -> None:
        self._command = 0
        self._status = code if code >= 0 else 128 - code
        self._limit = None
        if self.stopping:
            self._stop_services()
        else:
            self.draining = True
            self._limit = time.monotonic() + DRAIN_SEC

    def _too_long(self) -> None:
        self._limit = None
        if self._command:
            os.kill(self._command, signal.SIGKILL)
        elif self.draining:
            slow = ", ".join(name for name, service in self.services.items() if service.pid)
            self.log.own(WARNING, f"not idle after {DRAIN_SEC:.0f} s, stopped: {slow}")
            self._stop(signal.SIGTERM, True)

    # Orders

    def _stop(self, number: int, delivered: bool) -> None:
        if self.stopping:
            self._hasten()
            return
        self.stopping = True
        self.log.own(INFO, "stopping")
        if self._command:
            if not delivered:
                os.kill(self._command, number)
            self._limit = time.monotonic() + COMMAND_SEC
        else:
            self._stop_services()

    def _stop_services(self) -> None:
        now = time.monotonic()
        for service in self.services.values():
            self.listen(service, False)
            service.stop(now)

    def _hasten(self) -> None:
        """Asked twice: no more patience."""
        if self._command:
            os.kill(self._command, signal.SIGKILL)
        for service in self.services.values():
            service.kill(signal.SIGKILL)

    def _reload(self) -> None:
        """SIGHUP: read the units again, rebind what changed, and let running services reload as well."""
        try:
            catalogue = units.load(self.catalogue.folder, specifiers(self.runtime.root, self.kept))
        except (OSError, UnitError) as error:
            self.log.own(ERR, f"not reloaded: {error}")
            return
        before = {(one.unit.name, one.address): one for one in self._listeners}
        now: list[Listener] = []
        for unit in catalogue.sockets.values():
            for address in unit.addresses:
                kept = before.pop((unit.name, address), None)
                if kept and kept.unit.mode == unit.mode and kept.unit.group == unit.group:
                    kept.unit = unit
                    now.append(kept)
                    continue
                if kept:
                    self._drop(kept)
                try:
                    bound = self.binder.bind(unit, address)
                except BindError as error:
                    self.log.own(ERR, str(error))
                    continue
                now += [bound] if bound else []
        for listener in before.values():
            self._drop(listener)
        self.catalogue, self._listeners = catalogue, now
        self._configure()
        self.log.own(NOTICE, f"reloaded {len(catalogue.services)} services from {catalogue.folder}")

    def _drop(self, listener: Listener) -> None:
        self.unwatch(listener.socket.fileno())
        listener.close()

    def _configure(self) -> None:
        for name, unit in self.catalogue.services.items():
            if service := self.services.get(name):
                service.configure(unit, self._listeners_of(name))
                if service.state in (STARTING, AWAKE):
                    service.kill(signal.SIGHUP)
            else:
                service = self.services[name] = Service(self, unit, self._listeners_of(name))
            if service.state == ASLEEP:
                self.listen(service, True)
        for name in set(self.services) - set(self.catalogue.services):
            service = self.services[name]
            service.listeners = []
            service.stop(time.monotonic())


def _noted(_number: int, _frame: object) -> None:
    """The wakeup descriptor has it."""
