# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Sentry1`."""

from __future__ import annotations

from syntrop import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.server import Call


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
