# SPDX-License-Identifier: Apache-2.0
"""sd_notify(3): tell the service manager, systemd or the embedded activator, how this daemon is doing.

The protocol is one datagram, so it is spoken here: `pystemd.daemon` does the same and costs 37 ms of import.
Every function says whether the message was handed over; without a manager that listens all do nothing.
"""

from __future__ import annotations

import os
import socket
import struct
import time

# READY=1 and STOPPING=1 must not be lost: PID 1 does not read its socket during a daemon-reload (0.1 s here).
_PATIENCE_SEC = 5.0


def notify(message: str, fds: tuple[int, ...] = (), *, patience: float = 0.0) -> bool:
    """Send assignments (lines `NAME=value`) and descriptors; wait `patience` seconds for a full socket."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")) or len(address) < 2:
        return False  # unset, or a family (vsock:) that a local daemon has no use for
    if address[0] == "@":
        address = "\0" + address[1:]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(patience)
            sender.sendmsg([message.encode()], rights, socket.MSG_NOSIGNAL, address)
    except OSError:
        return False
    return True


def ready(status: str | None = None) -> bool:
    return notify(_with_status("READY=1", status), patience=_PATIENCE_SEC)


def status(text: str) -> bool:
    return notify(_with_status("", text))


def stopping(status: str | None = None) -> bool:
    return notify(_with_status("STOPPING=1", status), patience=_PATIENCE_SEC)


def reloading() -> bool:
    """Announce a reload; `ready()` ends it. The clock is what `Type=notify-reload` (systemd 253) asks for."""
    return notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", patience=_PATIENCE_SEC)


def watchdog() -> bool:
    return notify("WATCHDOG=1")


def extend_timeout(seconds: float) -> bool:
    """Ask for this much longer, from now, to finish starting, reloading or stopping."""
    return notify(f"EXTEND_TIMEOUT_USEC={max(0, round(seconds * 1_000_000))}", patience=_PATIENCE_SEC)


def fdstore(fds: tuple[int, ...], name: str) -> bool:
    """Leave copies of descriptors with the manager, which gives them to the next instance under this name."""
    return notify(f"FDSTORE=1\nFDNAME={name}", fds, patience=_PATIENCE_SEC)


def watchdog_interval() -> float | None:
    """Seconds between two `watchdog()`: half of what the manager allows. None: it does not watch us."""
    try:
        allowed = int(os.environ["WATCHDOG_USEC"])
        watched = int(os.environ.get("WATCHDOG_PID") or os.getpid())
    except (KeyError, ValueError):
        return None
    if allowed <= 0 or watched != os.getpid():
        return None
    return allowed / 2_000_000


def _with_status(message: str, text: str | None) -> str:
    if text is None:
        return message
    line = " ".join(text.split())  # a newline would start another assignment
    return f"{message}\nSTATUS={line}" if message else f"STATUS={line}"
