# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Tool1`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.server import Call


class Tool1:
    """Handler of the interface. Methods that are not here are not built yet.

    There are no tools so far, and so nothing that could be taken back.
    """

    async def ListTools(self, call: Call) -> dict[str, Any]:
        return {"tools": []}

    async def ListRollbacks(self, call: Call, since_seconds: int = 86400, limit: int = 50) -> dict[str, Any]:
        return {"records": []}
