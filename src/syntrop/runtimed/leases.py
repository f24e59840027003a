# SPDX-License-Identifier: Apache-2.0
"""Leases of inferenced for the memory of models: weights and the cache of one whole context, until the model goes.

A lease is asked for shortly after the model is in memory, beside its first work, since waking inferenced must not
put off a first token; where that daemon is away or gives none, that is noted once and the work goes on.
"""

from __future__ import annotations

from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INFERENCE = "io.syntrop.Inference1"
DELAY = 1.0  # seconds after a load


class Leases:
    """`timeout`: seconds that inferenced may take to answer."""

    def __init__(self, timeout: float = 5.0) -> None:
        self._timeout = timeout
        self._held: dict[str, str] = {}  # key of the caller's -> lease
        self._asking: dict[str, loop.Task[None]] = {}
        self._noted = False

    def held(self) -> dict[str, str]:
        return dict(self._held)

    def take(self, key: str, size: int) -> None:
        """Ask for so many bytes in a while, without waiting for the answer."""
        self._asking[key] = loop.spawn(self._take(key, size), f"lease for {key}")

    def give(self, key: str) -> None:
        """Give a lease back, or stop asking for it."""
        asking = self._asking.pop(key, None)
        if asking is not None:
            asking.cancel()
        lease = self._held.pop(key, None)
        if lease is not None:
            loop.spawn(self._give(lease), f"give back lease {lease}")

    async def _take(self, key: str, size: int) -> None:
        await loop.sleep(DELAY)
        try:
            # The signal makes Batch work stand still (service.py). The lease ends with this process.
            request = {"priority": "Interactive", "memory_bytes": size, "yield_signal": "SIGUSR1"}
            reply = await self._call("AcquireLease", request)
            self._held[key] = reply["lease_id"]
        except _FAULTS as error:
            if not self._noted:
                journal.notice(f"No lease for {size} bytes of memory, working without one: {error or 'no answer'}")
            self._noted = True
        finally:
            self._asking.pop(key, None)

    async def _give(self, lease: str) -> None:
        try:
            await self._call("ReleaseLease", {"lease_id": lease})
        except _FAULTS as error:
            journal.notice(f"Lease {lease} could not be given back: {error or 'no answer'}")

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        from syntrop.common.varlink.client import connect

        client = await connect(paths.endpoint(INFERENCE), timeout=self._timeout)
        try:
            with await client.call(f"{INFERENCE}.{method}", parameters, timeout=self._timeout) as reply:
                result: dict[str, Any] = reply.parameters
                return result
        finally:
            client.close()


_FAULTS = (VarlinkError, OSError, TimeoutError, ConnectionLost, InvalidReply)
