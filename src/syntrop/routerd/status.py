# SPDX-License-Identifier: Apache-2.0
"""What the router says of itself. Pure but for the reader at the end."""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common.pressure import level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.psi import Pressure


class Counters:
    """Requests, but for those that only look at the daemon."""

    __slots__ = ("active", "started", "total")

    def __init__(self) -> None:
        self.started = monotonic()
        self.total = 0
        self.active = 0

    def __enter__(self) -> Counters:
        self.total += 1
        self.active += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.active -= 1

    def report(
        self, version: str, pressure: dict[str, Pressure], rss: int, providers: int, healthy: int
    ) -> dict[str, Any]:
        """The reply of `Router1.GetStatus`, which is also what `/health` shows. A machine that tells no pressure
        has the level `unknown`."""
        memory = pressure.get("memory")
        return {
            "status": "ok" if healthy else "degraded",
            "version": version,
            "uptime_seconds": int(monotonic() - self.started),
            "total_requests": self.total,
            "active_requests": self.active,
            "providers_count": providers,
            "healthy_providers_count": healthy,
            "psi_level": level(pressure),
            "psi_memory_some": memory.some.avg10 if memory else 0.0,
            "rss_bytes": rss,
            "rss_mb": round(rss / 2**20, 2),
        }


def read_rss() -> int:
    """Resident memory of this process in bytes."""
    from syntrop.common import paths

    with open(paths.proc("self", "statm"), "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
