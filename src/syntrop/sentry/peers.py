# SPDX-License-Identifier: Apache-2.0
"""Connections to the other daemons: opened side by side, kept, and bounded in time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTEXTD, TOOLD, INFERENCED, RUNTIMED = "contextd", "toold", "inferenced", "runtimed"


class PeerError(Exception):
    """A daemon did not do its part: `daemon` and what went wrong; `error` is the Varlink error, if it was one."""

    def __init__(self, daemon: str, reason: str, error: str = "", parameters: dict[str, Any] | None = None) -> None:
        super().__init__(f"{daemon}: {reason}")
        self.daemon, self.reason, self.error, self.parameters = daemon, reason, error, parameters or {}


class Peers:
    """The other daemons, by the names above."""

    def knock(self, *daemons: str) -> None:
        """Connect to these at once, so that their activation overlaps; whoever calls later finds them awake."""
        raise NotImplementedError

    def awake(self, daemon: str) -> bool:
        """Whether there is a connection to a daemon that has not ended."""
        raise NotImplementedError

    async def call(
        self, daemon: str, method: str, parameters: dict[str, Any] | None = None, *, timeout: float
    ) -> dict[str, Any]:
        """The parameters of the reply. Side by side calls have connections of their own. Raises PeerError."""
        raise NotImplementedError

    async def context(self, unit: str, *, timeout: float) -> dict[str, Any]:
        """contextd's `UnitContext`. Raises PeerError."""
        raise NotImplementedError

    async def lease(self, memory_bytes: int, *, timeout: float) -> str:
        """A lease at EmergencyTriage; its identifier. Raises PeerError."""
        raise NotImplementedError

    async def release(self, lease_id: str) -> None:
        """Give a lease back. Never raises but Cancelled: a lease that is not given back expires."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
