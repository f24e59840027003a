# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Inference1`."""

from __future__ import annotations

from syntrop import __version__
from syntrop.inferenced import pressure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.server import Call

_INTERFACE = "io.syntrop.Inference1."


class Inference1:
    """Handler of the interface on all of its endpoints. Methods that are not here are not built yet.

    No planes are known so far, and so nothing is leased.
    """

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        from syntrop.common import psi

        try:
            level = pressure.level(*pressure.read())
        except psi.PsiError:
            level = pressure.UNKNOWN
        return {
            "status": "ok",
            "version": __version__,
            "daemon": "inferenced",
            "planes_count": 0,
            "leases_count": 0,
            "pressure": level,
        }

    async def GetPressure(self, call: Call) -> dict[str, Any]:
        from syntrop.common import psi

        try:
            cpu, memory, io = pressure.read()
        except psi.PsiError as error:
            from syntrop.common.varlink.errors import VarlinkError

            raise VarlinkError(_INTERFACE + "PressureUnavailable", reason=str(error)) from None
        return {
            "level": pressure.level(cpu, memory, io),
            "cpu_some": cpu.some.avg10,
            "memory_some": memory.some.avg10,
            "io_some": io.some.avg10,
        }

    async def ListLeases(self, call: Call) -> dict[str, Any]:
        return {"leases": []}

    async def ListCompositeLeases(self, call: Call) -> dict[str, Any]:
        return {"composite_leases": []}

    async def ListModels(self, call: Call) -> dict[str, Any]:
        return {"models": []}
