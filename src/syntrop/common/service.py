# SPDX-License-Identifier: Apache-2.0
"""The life of a socket-activated daemon: start, serve, exit when idle, stop in order, reload.

Idle exit loses nothing. When nothing has been in flight for `idle_exit_sec`, the listeners leave the loop and
are tried one last time; idle connections are ended in order, each answering what had already arrived; then the
process exits 0. Whatever connects meanwhile waits in the backlog of the listening sockets, which the service
manager holds too, and starts the next instance. A connection that has not yet carried a call keeps the daemon
for a short grace, since its caller may be about to send one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from time import monotonic

from syntrop import __version__
from syntrop.common import activation, journal, loop, notify, paths
from syntrop.common.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Protocol

    from syntrop.common.activation import Listener
    from syntrop.common.settings import Setting, Settings
    from syntrop.common.varlink.idl import Interface
    from syntrop.common.varlink.server import Server

    class Connection(Protocol):
        """What a daemon has to know of a connection to end it without losing a call."""

        @property
        def idle(self) -> bool: ...
        @property
        def served(self) -> int: ...
        def retire(self) -> None: ...
        async def run(self) -> None: ...

    Connect = Callable[[socket.socket], Connection | None]

VENDOR = "Syntropd Project"
URL = "https://github.com/syntropd"
FRESH_GRACE = 2.0  # seconds for which a connection without a first call keeps the daemon
RETIRE_GRACE = 0.25  # seconds for idle connections to end; one that takes longer was not idle
_ACCEPT_BATCH = 64


class Busy:
    """`with daemon.busy():` keeps the daemon from exiting idle; also usable as hold() and release()."""

    __slots__ = ("_daemon", "_held")

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._held = False

    def hold(self) -> Busy:
        if not self._held:
            self._held = True
            self._daemon._holds += 1
        return self

    def release(self) -> None:
        if self._held:
            self._held = False
            self._daemon._holds -= 1
            self._daemon.touch()

    __enter__ = hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Daemon:
    """One daemon: its settings, endpoints and connections."""

    def __init__(self, name: str, settings: Settings, passed: Sequence[Listener] | None = None) -> None:
        self.name = name
        self.settings = settings
        self._passed = None if passed is None else list(passed)
        self.started = monotonic()
        self.stopping = False
        self._endpoints: list[tuple[str, str, int, Connect, bool]] = []
        self._on_drain: list[Callable[[], None]] = []
        self._on_stop: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._on_reload: list[Callable[[], None]] = []
        self._holds = 0
        self._touched = self.started
        self._stirred = loop.Event()  # something happened that may have been the last to hold the daemon
        self._connections: dict[Connection, tuple[loop.Task[None], float]] = {}
        self._listeners: list[tuple[Listener, Connect, bool]] = []
        self._acceptors: list[loop.Task[None]] = []
        self._end = _End()

    # --- what a daemon's build() uses ----------------------------------------------------------------------

    def serve(
        self, endpoint: str, connect: Connect, *, unit: str = "", mode: int = 0o666, urgent: bool = False
    ) -> None:
        """Serve an endpoint; `connect` takes an accepted socket and gives a connection, or None to drop it.

        `mode` is for a Unix socket that is bound by hand: without a manager whose unit says so. Connections of an
        `urgent` endpoint come before those of others, however many of them are busy.
        """
        self._endpoints.append((endpoint, unit or f"{self.name}.socket", mode, connect, urgent))

    def serve_varlink(
        self,
        endpoint: str,
        handlers: Mapping[str | Interface, object],
        *,
        unit: str = "",
        mode: int = 0o666,
        urgent: bool = False,
    ) -> Server:
        """Serve Varlink interfaces on an endpoint."""
        from syntrop.common.varlink.server import Identity, Server

        server = Server(
            Identity(VENDOR, self.name, __version__, f"{URL}/{self.name}"),
            handlers,
            connections_max=self.settings.connections_max,
            connections_per_uid=self.settings.connections_max_per_uid,
            after_call=self.touch,
        )
        self.serve(endpoint, server.connect, unit=unit, mode=mode, urgent=urgent)
        return server

    def handed(self, endpoint: str, unit: str) -> socket.socket | None:
        """A netlink socket (`netlink:NUMBER`) that the manager made where we may make none, now the caller's own;
        None where none was passed. Raises ActivationError."""
        claimed = activation.claim(self._passed or (), endpoint, unit)
        if not claimed:
            return None
        assert self._passed is not None
        self._passed.remove(claimed[0])
        return claimed[0].socket

    def busy(self) -> Busy:
        """Something that must not be lost by exiting: a stream, a lease, an undo journal."""
        return Busy(self)

    def on_drain(self, function: Callable[[], None]) -> None:
        """Run when the daemon begins to stop, before its connections are waited for: to end calls that would not
        end by themselves. Calls that have arrived already may still begin after it."""
        self._on_drain.append(function)

    def on_stop(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run before the process exits, idle or stopped; last registered first."""
        self._on_stop.append(function)

    def on_reload(self, function: Callable[[], None]) -> None:
        """Run on SIGHUP. An error is logged and keeps what was there."""
        self._on_reload.append(function)

    def touch(self) -> None:
        """Note activity: the idle time starts again."""
        self._touched = monotonic()
        self._stirred.set()

    def connections(self) -> int:
        return len(self._connections)

    # --- life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until idle or told to stop. Raises ActivationError and OSError when it cannot start."""
        self._listeners = self._open(self._passed)
        loop.on_signal(signal.SIGTERM, self._end.stop)
        loop.on_signal(signal.SIGINT, self._end.stop)
        loop.on_signal(signal.SIGHUP, self.reload)
        self._listen()
        notify.ready(f"Serving {len(self._listeners)} sockets")
        self._watchdog(notify.watchdog_interval())
        idle = loop.spawn(self._exit_when_idle(), "idle exit")
        await self._end.reached.wait()
        self.stopping = True
        notify.stopping("Stopping" if self._end.asked else "Idle")
        await loop.stop(idle)
        self._ignore()
        for begin in self._on_drain:
            try:
                begin()
            except Exception as error:
                journal.exception("A step of stopping failed", error)
        await self._drain()
        for function in reversed(self._on_stop):
            try:
                await function()
            except Exception as error:
                journal.exception("A step of stopping failed", error)

    def _open(self, passed: Sequence[Listener] | None) -> list[tuple[Listener, Connect, bool]]:
        opened: list[tuple[Listener, Connect, bool]] = []
        given = _addresses(self.settings.listen, [endpoint for endpoint, *_ in self._endpoints])
        for endpoint, unit, mode, connect, urgent in self._endpoints:
            if passed is not None:
                claimed = activation.claim(passed, endpoint, unit)
                if not claimed:
                    journal.notice(f"No socket was passed for {endpoint}; it is not served")
            else:
                default = [] if endpoint == activation.TCP else [paths.endpoint(endpoint)]
                claimed = [activation.bind(address, mode) for address in given.get(endpoint, default)]
            opened += [(one, connect, urgent) for one in claimed]
        if passed is not None:
            known = {id(one) for one, *_ in opened}
            for one in passed:
                if id(one) not in known:
                    journal.warning(f"Closed a socket that no endpoint claims: {one.address} ({one.unit})")
                    one.socket.close()
        if not opened:
            raise activation.ActivationError("there is nothing to listen on")
        return opened

    def _listen(self) -> None:
        self._acceptors = [
            loop.spawn(self._accept(one, connect, urgent), f"accept {one.address}", urgent=urgent)
            for one, connect, urgent in self._listeners
        ]

    def _ignore(self) -> None:
        for acceptor in self._acceptors:
            acceptor.cancel()
        self._acceptors = []

    async def _accept(self, listener: Listener, connect: Connect, urgent: bool) -> None:
        while True:
            await loop.readable(listener.socket.fileno())
            for _ in range(_ACCEPT_BATCH):
                try:
                    if not self._accept_one(listener, connect, urgent):
                        break
                except OSError as error:
                    # Out of descriptors or memory: the connection stays in the backlog; do not spin on it.
                    journal.error(f"Cannot accept on {listener.address}: {error.strerror}")
                    await loop.sleep(0.1)
                    break

    def _accept_one(self, listener: Listener, connect: Connect, urgent: bool) -> bool:
        sock = activation.accept(listener.socket)
        if sock is None:
            return False
        self.touch()
        connection = connect(sock)
        if connection is not None:
            task = loop.spawn(self._attend(connection), "connection", urgent=urgent)
            self._connections[connection] = (task, monotonic())
        return True

    async def _attend(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception as error:
            journal.exception("A connection failed", error)
        finally:
            self._connections.pop(connection, None)
            self.touch()

    def _held(self) -> float | None:
        """Seconds for which the daemon is kept, 0 if by nothing; None: until something is told of by touch()."""
        if self._holds:
            return None
        now, grace = monotonic(), 0.0
        for connection, (_, since) in self._connections.items():
            if not connection.idle:
                return None
            if not connection.served:
                grace = max(grace, since + FRESH_GRACE - now)
        return grace

    async def _exit_when_idle(self) -> None:
        limit = self.settings.idle_exit_sec
        if limit <= 0:
            return
        while True:
            left = self._touched + limit - monotonic()
            if left > 0:
                await loop.sleep(left)
                continue
            held = self._held()
            if held is None or held > 0:
                # A long stream, a lease, or a new caller's grace. Whatever ends touches the clock, so nobody looks
                # again and again: a daemon that is held costs no wake-ups.
                self._stirred.clear()
                try:
                    with loop.deadline(held):
                        await self._stirred.wait()
                except TimeoutError:
                    pass
                continue
            self._ignore()
            if self._accept_last():
                self._listen()
                continue
            if not await self._retire(RETIRE_GRACE):
                # A last call had arrived and takes its time: we are not idle after all. Its connection ends with
                # it; who was ended meanwhile connects anew.
                self._listen()
                self.touch()
                continue
            self._end.idle()
            return

    def _accept_last(self) -> bool:
        accepted = False
        for listener, connect, urgent in self._listeners:
            try:
                accepted |= self._accept_one(listener, connect, urgent)
            except OSError as error:
                journal.error(f"Cannot accept on {listener.address}: {error.strerror}")
        return accepted

    async def _drain(self) -> None:
        """Let connections answer what has arrived, then end them: after a stop only so long, when idle all are."""
        patience = self.settings.stop_timeout_sec
        if not await self._retire(patience):
            count = len(self._connections)
            journal.warning(f"Cancelled {count} connections that did not end in {patience:g} s")
            for task, _ in list(self._connections.values()):
                await loop.stop(task)

    async def _retire(self, patience: float) -> bool:
        """End the connections in order; whether all had ended after `patience` seconds."""
        for connection in list(self._connections):
            connection.retire()
        try:
            with loop.deadline(patience):
                while self._connections:
                    task, _ = next(iter(self._connections.values()))
                    ended: loop.Future[None] = loop.Future()
                    task.when_done(lambda _done, ended=ended: ended.set_result(None))  # type: ignore[misc]
                    await ended
        except TimeoutError:
            return False
        return True

    def _watchdog(self, interval: float | None) -> None:
        # From the loop that does the work: a loop that hangs must not look alive.
        if interval is not None:
            notify.watchdog()
            loop.call_later(interval, self._watchdog, interval)

    def reload(self) -> None:
        notify.reloading()
        for function in self._on_reload:
            try:
                function()
            except Exception as error:
                journal.exception("Reload failed; the old configuration stays", error)
        notify.ready()


class _End:
    """Why and whether the daemon ends."""

    __slots__ = ("asked", "reached")

    def __init__(self) -> None:
        self.asked = False
        self.reached = loop.Event()

    def stop(self) -> None:
        self.asked = True
        self.reached.set()

    def idle(self) -> None:
        self.reached.set()


def _addresses(listen: Sequence[str], endpoints: Sequence[str]) -> dict[str, list[str]]:
    """`NAME=ADDRESS` and bare addresses by endpoint; a bare one is for `tcp`, or the only endpoint there is."""
    result: dict[str, list[str]] = {}
    for entry in listen:
        name, equals, address = entry.partition("=")
        if not equals:
            name, address = endpoints[0] if len(endpoints) == 1 else activation.TCP, entry
        if name not in endpoints:
            raise activation.ActivationError(f"no endpoint {name!r}; there are {', '.join(endpoints)}")
        result.setdefault(name, []).append(address)
    return result


async def _main(daemon: Daemon, build: Callable[[Daemon], None]) -> None:
    build(daemon)
    await daemon.run()


def run(
    name: str, table: Sequence[Setting], build: Callable[[Daemon], None], *, foreign: Sequence[str] = ()
) -> None:
    """The whole main of a daemon. Exits with 0 when idle or stopped, else with a status of sysexits.h.

    `foreign`: sections of the daemon's file that are no settings, and read by the daemon itself.
    """
    settings = load(name, table, sys.argv[1:], foreign=foreign)
    journal.identify(name)
    journal.set_level(settings.log_level)
    try:
        passed = activation.adopt()
        loop.run(_main(Daemon(name, settings, passed), build))
    except (activation.ActivationError, OSError) as error:
        journal.error(f"Cannot start: {error}")
        sys.exit(os.EX_OSERR if isinstance(error, OSError) else os.EX_CONFIG)
