# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Sentry1`."""

from __future__ import annotations

from syntrop import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.server import Call

_INTERFACE = "io.syntrop.Sentry1."


class Sentry1:
    """Handler of the interface. Methods that are not here are not built yet.

    Nothing is watched so far, and so there are neither incidents nor breakers.
    """

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        return {
            "status": "ok",
            "version": __version__,
            "mode": "on_demand",
            "open_incidents": 0,
            "staged_incidents": 0,
            "breakers": [],
        }

    async def GetIncident(self, call: Call, id: str) -> dict[str, Any]:
        from syntrop.common.varlink.errors import VarlinkError

        raise VarlinkError(_INTERFACE + "NoSuchIncident", id=id)

    async def ListIncidents(
        self,
        call: Call,
        unit: str | None = None,
        status: str | None = None,
        since_seconds: int = 86400,
        limit: int = 50,
    ) -> dict[str, Any]:
        return {"incidents": []}
