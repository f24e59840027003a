# SPDX-License-Identifier: Apache-2.0
"""`gateway.sock`: OpenAI-compatible HTTP for local programs. What it needs comes with the first connection."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from syntrop.common.http.server import Connection, Server
    from syntrop.common.service import Daemon
    from syntrop.inferenced.lending import Lender


class Gateway:
    """The endpoint. `lender()` gives what calls the engine."""

    def __init__(self, daemon: Daemon, lender: Callable[[], Lender]) -> None:
        self._daemon = daemon
        self._lender = lender
        self._server: Server | None = None

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        if self._server is None:
            from syntrop.common.http.server import Server
            from syntrop.inferenced.serve_http import Http

            settings = self._daemon.settings
            self._server = Server(
                Http(self._lender()).handle,
                busy=self._daemon.busy,
                connections_max=settings.connections_max,
                connections_per_uid=settings.connections_max_per_uid,
            )
        return self._server.connect(sock)
