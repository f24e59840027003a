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

FAILURES_MAX = 3  # in a row: then the provider counts as unhealthy, until it answers again


class Counters:
    """Requests, and how the local engine did."""

    __slots__ = ("active", "failures", "started", "total")

    def __init__(self) -> None:
        self.started = monotonic()
        self.total = 0
        self.active = 0
        self.failures = 0  # of the engine, in a row

    def __enter__(self) -> Counters:
        self.total += 1
        self.active += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.active -= 1

    @property
    def healthy(self) -> bool:
        return self.failures < FAILURES_MAX

    def report(self, version: str, pressure: dict[str, Pressure], rss: int) -> dict[str, Any]:
        """The reply of `Router1.GetStatus`, which is also what `/health` shows. The local engine is the one
        provider so far. A machine that tells no pressure has the level `unknown`."""
        memory = pressure.get("memory")
        return {
            "status": "ok" if self.healthy else "degraded",
            "version": version,
            "uptime_seconds": int(monotonic() - self.started),
            "total_requests": self.total,
            "active_requests": self.active,
            "providers_count": 1,
            "healthy_providers_count": int(self.healthy),
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
