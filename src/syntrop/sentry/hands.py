# SPDX-License-Identifier: Apache-2.0
"""What changes something, through toold: the steps of an action, and taking them back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.peers import Peers
    from syntrop.sentry.remedy import Step


class HandsError(Exception):
    """toold did not do it; `refused`: its policy forbids it, so nothing was begun."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class Hands:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def do(self, step: Step) -> str | None:
        """Carry out a step; the identifier to take it back by, if it changed a file. Raises HandsError."""
        raise NotImplementedError

    async def take_back(self, rollback_id: str) -> None:
        """Raises HandsError."""
        raise NotImplementedError
