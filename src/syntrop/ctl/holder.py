# SPDX-License-Identifier: Apache-2.0
"""Who holds a TCP port: /proc/net/tcp gives the socket's inode, /proc/PID/fd the process."""

from __future__ import annotations

import os

from syntrop.common import paths

LISTEN = "0A"


class Holder:
    """A socket on the port, and the process that has it, as far as we may see."""

    __slots__ = ("command", "listening", "pid", "uid")

    def __init__(self, uid: int, listening: bool, pid: int | None, command: str) -> None:
        self.uid, self.listening, self.pid, self.command = uid, listening, pid, command

    def __str__(self) -> str:
        how = "is listening on it" if self.listening else "uses it for a connection"
        if self.pid is not None:
            return f"process {self.pid} ({self.command}) {how}"
        return f"a process of user {self.uid} that we may not look into {how}"


def find(port: int) -> Holder | None:
    """The holder of a local TCP port, listeners before mere connections; None when nobody has it."""
    rows = sorted(_sockets(port), key=lambda row: not row[0])
    for listening, uid, inode in rows:
        pid = process_of(inode)
        return Holder(uid, listening, pid, command_of(pid) if pid is not None else "")
    return None


def _sockets(port: int) -> list[tuple[bool, int, int]]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            with open(paths.proc("net", table), encoding="ascii") as file:
                lines = file.readlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split()
            inode = int(fields[9])
            if inode and int(fields[1].rsplit(":", 1)[1], 16) == port:
                found.append((fields[3] == LISTEN, int(fields[7]), inode))
    return found


def process_of(inode: int) -> int | None:
    """The lowest pid that has this socket open, among the processes we may look into."""
    return next(iter(processes_of({inode}).get(inode, ())), None)


def processes_of(inodes: set[int]) -> dict[int, list[int]]:
    """Pids by socket inode, ascending."""
    names = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, list[int]] = {}
    for pid in sorted(int(name) for name in os.listdir(paths.proc()) if name.isdigit()):
        folder = paths.proc(str(pid), "fd")
        try:
            for entry in os.listdir(folder):
                inode = names.get(_link(os.path.join(folder, entry)))
                if inode is not None and pid not in found.setdefault(inode, []):
                    found[inode].append(pid)
        except OSError:
            continue  # gone meanwhile, or not ours to see
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """The command line of a process, cut to a line's length; its name when it has none."""
    try:
        with open(paths.proc(str(pid), "cmdline"), "rb") as file:
            words = file.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        if not words:
            with open(paths.proc(str(pid), "comm"), encoding="utf-8", errors="replace") as file:
                words = file.read().strip()
    except OSError:
        return "gone"
    words = " ".join(words.split())
    return words if len(words) <= 120 else words[:117] + "…"
