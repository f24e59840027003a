# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Inference1`."""

from __future__ import annotations

from syntrop import __version__
from syntrop.common import pressure

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
        return {
            "status": "ok",
            "version": __version__,
            "daemon": "inferenced",
            "planes_count": 0,
            "leases_count": 0,
            "pressure": pressure.level(pressure.read()),
        }

    async def GetPressure(self, call: Call) -> dict[str, Any]:
        found = pressure.read()
        if len(found) < 3:
            from syntrop.common import psi
            from syntrop.common.varlink.errors import VarlinkError

            missing = ", ".join(name for name in psi.RESOURCES if name not in found)
            raise VarlinkError(_INTERFACE + "PressureUnavailable", reason=f"the kernel does not tell {missing}")
        return {
            "level": pressure.level(found),
            "cpu_some": found["cpu"].some.avg10,
            "memory_some": found["memory"].some.avg10,
            "io_some": found["io"].some.avg10,
        }
