# SPDX-License-Identifier: Apache-2.0
"""modeld-pull: the store's way to the network.

systemd starts one process a connection (`modeld-pull@.service`, Accept=yes) and passes that. Where a manager
passes the listening socket instead, as the embedded activator does, one process serves every connection.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from syntrop.common.service import Daemon

ENDPOINT = "io.syntrop.Fetch1"
NAME = "modeld-pull"


def main() -> None:
    from syntrop.modeld.pull.settings import TABLE

    connection = _passed_connection()
    if connection is not None:
        _serve_one(connection)
        return
    from syntrop.common import service

    service.run(NAME, TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.modeld.pull.service import Fetch1

    daemon.serve_varlink(ENDPOINT, {ENDPOINT: Fetch1(daemon.settings)}, unit="modeld-pull.socket", mode=0o600)


def _passed_connection() -> socket.socket | None:
    """The connection that we were started for, if that is what was passed to us."""
    import socket

    from syntrop.common import activation

    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    passed = socket.socket(fileno=activation.FIRST)
    if passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.detach()
        return None
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    os.set_inheritable(activation.FIRST, False)
    passed.setblocking(False)
    return passed


def _serve_one(passed: socket.socket) -> None:
    import sys

    from syntrop import __version__
    from syntrop.common import journal, loop
    from syntrop.common.service import URL, VENDOR
    from syntrop.common.settings import load
    from syntrop.common.varlink.server import Identity, Server
    from syntrop.modeld.pull.service import Fetch1
    from syntrop.modeld.pull.settings import TABLE

    settings = load(NAME, TABLE, sys.argv[1:])
    journal.identify(NAME)
    journal.set_level(settings.log_level)
    server = Server(Identity(VENDOR, NAME, __version__, f"{URL}/{NAME}"), {ENDPOINT: Fetch1(settings)})
    connection = server.connect(passed)
    if connection is not None:
        loop.run(connection.run())


if __name__ == "__main__":
    main()
