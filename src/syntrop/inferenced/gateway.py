# SPDX-License-Identifier: Apache-2.0
"""`gateway.sock`: HTTP for local programs. Generation under the caller's lease is not built yet, and says so."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from syntrop.common.http.server import Connection, Exchange, Server
    from syntrop.common.service import Daemon


class Gateway:
    """The endpoint. What it needs is imported when the first connection comes."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._server: Server | None = None

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        if self._server is None:
            from syntrop.common.http.server import Server

            settings = self._daemon.settings
            self._server = Server(
                self._handle,
                busy=self._daemon.busy,
                connections_max=settings.connections_max,
                connections_per_uid=settings.connections_max_per_uid,
            )
        return self._server.connect(sock)

    async def _handle(self, exchange: Exchange) -> None:
        from syntrop.common.http.errors import HttpError

        raise HttpError(
            501,
            "The gateway of this version answers nothing yet. Ask routerd, on port 32768 or at router.sock.",
            code="not_implemented",
            final=True,
        )
