# SPDX-License-Identifier: Apache-2.0
"""Connections to the other daemons: opened side by side, kept, and bounded in time and number."""

from __future__ import annotations

from syntrop.common import loop, paths
from syntrop.common.varlink.client import Client, connect
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CONTEXTD, TOOLD, INFERENCED, RUNTIMED = "contextd", "toold", "inferenced", "runtimed"
MODELD = "modeld"  # runtimed's to ask; ours to wake, so that both start side by side
ENDPOINTS: Mapping[str, str] = {
    CONTEXTD: "io.syntrop.Context1",
    TOOLD: "io.syntrop.Tool1",
    INFERENCED: "sentry.sock",
    RUNTIMED: "io.syntrop.Runtime1",
    MODELD: "io.syntrop.Model1",
}
KEPT_MAX = 4  # connections of one daemon that are kept for later calls
CALLS_MAX = 16  # calls of one daemon at a time; further ones wait
KNOCK_TIMEOUT = 5.0  # seconds for a connection
LEASE_MS = 60_000  # after which a lease that was not given back ends
SINCE_SECONDS = 7 * 86400  # how far contextd looks back: what is old is judged by causes.py


class PeerError(Exception):
    """A daemon did not do its part: `daemon` and what went wrong; `error` is the Varlink error, if it was one;
    `late`: it did not answer in time."""

    def __init__(
        self,
        daemon: str,
        reason: str,
        error: str = "",
        parameters: dict[str, Any] | None = None,
        *,
        late: bool = False,
    ) -> None:
        super().__init__(f"{daemon}: {reason}")
        self.daemon, self.reason, self.error, self.parameters = daemon, reason, error, parameters or {}
        self.late = late


class _Pool:
    """The connections of one daemon. One call at a time goes over each, so calls side by side have their own."""

    __slots__ = ("_answered", "_idle", "_places", "_tasks", "address")

    def __init__(self, address: str) -> None:
        self.address = address
        self._idle: list[Client] = []
        self._places: loop.Queue[None] = loop.Queue(CALLS_MAX)
        self._tasks: set[loop.Task[None]] = set()
        self._answered = False  # over a connection that we still have: a socket that takes one may have nobody yet

    def knock(self) -> None:
        if not self._idle and not self._tasks:
            task = loop.spawn(self._open(), f"knock {self.address}", eager=True)
            if not task.done:
                self._tasks.add(task)
                task.when_done(lambda _done: self._tasks.discard(task))

    async def _open(self) -> None:
        try:
            self._keep(await connect(self.address, timeout=KNOCK_TIMEOUT))
        except OSError:
            pass  # whoever calls will be told

    def awake(self) -> bool:
        if self._answered and not len(self._places) and not any(client.alive() for client in self._idle):
            self._answered = False
        return self._answered

    async def call(self, method: str, parameters: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        with loop.deadline(timeout):
            await self._places.put(None)
            client: Client | None = None
            try:
                client = self._idle.pop() if self._idle else await connect(self.address, timeout=None)
                with await client.call(method, parameters, timeout=None) as reply:
                    self._answered = True
                    return reply.parameters
            finally:
                self._places.get_nowait()
                if client is not None:
                    self._keep(client)

    def _keep(self, client: Client) -> None:
        if client.closed or len(self._idle) >= KEPT_MAX:
            client.close()
        else:
            self._idle.append(client)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for client in self._idle:
            client.close()
        self._idle.clear()


class Peers:
    """The other daemons, by the names above."""

    def __init__(self, endpoints: Mapping[str, str] = ENDPOINTS) -> None:
        self._pools = {daemon: _Pool(paths.endpoint(name)) for daemon, name in endpoints.items()}

    def knock(self, *daemons: str) -> None:
        """Connect to these at once, so that their activation overlaps; whoever calls later finds them awake."""
        for daemon in daemons:
            self._pools[daemon].knock()

    def awake(self, daemon: str) -> bool:
        """Whether a daemon has answered over a connection that has not ended since."""
        return self._pools[daemon].awake()

    async def call(
        self, daemon: str, method: str, parameters: dict[str, Any] | None = None, *, timeout: float
    ) -> dict[str, Any]:
        """The parameters of the reply. Side by side calls have connections of their own. Raises PeerError."""
        try:
            return await self._pools[daemon].call(method, parameters, timeout)
        except VarlinkError as error:
            reason = str(error.parameters.get("reason") or error)
            raise PeerError(daemon, reason, error.error, error.parameters) from None
        except TimeoutError:
            raise PeerError(daemon, f"no answer within {timeout:g} s", late=True) from None
        except (OSError, ConnectionLost, InvalidReply) as error:
            raise PeerError(daemon, str(error)) from None

    async def context(self, unit: str, *, timeout: float) -> dict[str, Any]:
        """contextd's `UnitContext`. Raises PeerError."""
        parameters = {"unit": unit, "since_seconds": SINCE_SECONDS}
        reply = await self.call(CONTEXTD, "io.syntrop.Context1.GetUnitContext", parameters, timeout=timeout)
        context: dict[str, Any] = reply["context"]
        return context

    async def lease(self, memory_bytes: int, *, timeout: float) -> str:
        """A lease at EmergencyTriage; its identifier. It ends by itself after a minute. Raises PeerError."""
        parameters = {"priority": "EmergencyTriage", "memory_bytes": memory_bytes, "expire_ms": LEASE_MS}
        reply = await self.call(INFERENCED, "io.syntrop.Inference1.AcquireLease", parameters, timeout=timeout)
        return str(reply["lease_id"])

    async def release(self, lease_id: str) -> None:
        """Give a lease back. Never raises but Cancelled: one that is not given back expires."""
        try:
            await self.call(INFERENCED, "io.syntrop.Inference1.ReleaseLease", {"lease_id": lease_id}, timeout=5.0)
        except PeerError:
            pass

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
