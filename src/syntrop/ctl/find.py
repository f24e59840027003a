# SPDX-License-Identifier: Apache-2.0
"""Find the suite that runs on this machine, and see without waking anything what of it is awake."""

from __future__ import annotations

import os

from syntrop.common import paths
from syntrop.ctl import holder

SO_ACCEPTCON = 0x10000  # __SO_ACCEPTCON in /proc/net/unix: a listening socket
ROUTER = "/syntrop/router.sock"


def settle() -> bool:
    """Let `paths.run()` point to the running suite; False when there is none.

    Tried in this order: `SYNTROP_RUN_ROOT`, `/run`, the user's runtime folder, and any listening router
    whose folder belongs to us or to root (an activator in a temporary folder).
    """
    if os.environ.get("SYNTROP_RUN_ROOT") or os.path.exists(paths.endpoint("router.sock")):
        return True
    roots = []
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        roots.append(os.path.join(xdg, "syntrop"))
    roots += [path.removesuffix(ROUTER) for path in sorted(listening()) if path.endswith(ROUTER)]
    for root in roots:
        try:
            owner = os.stat(root).st_uid
        except OSError:
            continue
        if owner in (0, os.geteuid()) and os.path.exists(root + ROUTER):
            os.environ["SYNTROP_RUN_ROOT"] = root
            return True
    return False


def listening() -> dict[str, int]:
    """Listening Unix sockets in the file system: path to inode."""
    found = {}
    with open(paths.proc("net", "unix"), encoding="utf-8", errors="surrogateescape") as file:
        next(file)
        for line in file:
            fields = line.split(None, 7)
            if len(fields) == 8 and int(fields[3], 16) & SO_ACCEPTCON and fields[7].startswith("/"):
                found[fields[7].rstrip("\n")] = int(fields[6])
    return found


def servants(inodes: set[int]) -> list[int]:
    """Processes that serve these sockets, as against the manager that holds them as well.

    A manager and its child both hold the socket; whoever has it from its parent is the servant.
    """
    pids = {pid for pids in holder.processes_of(inodes).values() for pid in pids}
    return sorted(pid for pid in pids if _parent(pid) in pids)


def _parent(pid: int) -> int:
    try:
        with open(paths.proc(str(pid), "stat"), encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def resident(pid: int) -> int:
    """Resident memory in bytes; 0 when the process is gone."""
    try:
        with open(paths.proc(str(pid), "statm"), encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
