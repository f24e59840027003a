# SPDX-License-Identifier: Apache-2.0
"""The one thing that takes CAP_SYS_PTRACE: to see which processes have a device open, whoever they belong to.

A process of its own (`inferenced-lookout@.service`), so that the arbiter, which everybody may call, goes without.
It answers the arbiter alone, and nothing but this, for as long as that stays connected. A request is a line with
numbers of processes, or an empty one for all; the answer a line of JSON (`encode()`).
"""

from __future__ import annotations

import json
import os
import socket

from syntrop.inferenced import fdinfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

REQUEST_MAX: Final = 1 << 16
FILES_MAX: Final = 8192
"""Open devices that are told of; more are as good as not seen."""
REST: Final = 1.0
"""Seconds without a connection after which a process that was given the listening socket ends."""
_FIRST: Final = 3  # sd_listen_fds(3)


def encode(look: fdinfo.Look) -> bytes:
    """`[refused, cut, [[node, pid, start, name, driver, slot, client, own, host], …]]`, the last five or null."""
    rows: list[list[Any]] = []
    for file in look.files[:FILES_MAX]:
        told = file.stats
        stats = [None] * 5 if told is None else [told.driver, told.slot, told.client, told.own, told.host]
        rows.append([file.node, file.pid, file.start, file.name, *stats])
    return json.dumps([look.refused, look.cut or len(look.files) > FILES_MAX, rows]).encode() + b"\n"


def decode(line: bytes) -> fdinfo.Look:
    """Raises ValueError."""
    try:
        refused, cut, rows = json.loads(line)
        files = [
            fdinfo.File(str(node), int(pid), int(start), str(name), _stats(*stats))
            for node, pid, start, name, *stats in rows
        ]
        return fdinfo.Look(files, int(refused), bool(cut))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no answer of the lookout: {error}") from None


def _stats(driver: Any, slot: Any, client: Any, own: Any, host: Any) -> fdinfo.Stats | None:
    if driver is None:
        return None
    numbers = [None if one is None else int(one) for one in (client, own, host)]
    return fdinfo.Stats(str(driver), None if slot is None else str(slot), *numbers)


def serve(connection: socket.socket) -> None:
    """Answer until the other side hangs up, or says what is no request."""
    with connection, connection.makefile("rb") as lines:
        while line := lines.readline(REQUEST_MAX):
            try:
                pids = [int(word) for word in line.split()]
            except ValueError:
                return
            connection.sendall(encode(fdinfo.look(pids or None)))


def main() -> None:
    """Serve the connection that systemd accepted for us; or, under a manager that passes the listening socket, one
    connection after the other."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        raise SystemExit("inferenced-lookout is started by its socket")
    passed = socket.socket(fileno=_FIRST)
    os.set_inheritable(_FIRST, False)
    try:
        if not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            passed.setblocking(True)
            serve(passed)
            return
        passed.settimeout(REST)
        while True:
            connection, _ = passed.accept()
            connection.setblocking(True)
            serve(connection)
    except TimeoutError:
        pass  # nobody comes any more
    except (BrokenPipeError, ConnectionResetError):
        pass


if __name__ == "__main__":
    main()
