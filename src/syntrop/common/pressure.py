# SPDX-License-Identifier: Apache-2.0
"""How hard pressed the machine is, as a level. Pure but for the reader at the end."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from syntrop.common.psi import Pressure

NORMAL: Final = "normal"
ELEVATED: Final = "elevated"
CRITICAL: Final = "critical"
UNKNOWN: Final = "unknown"

# Percent of the last ten seconds that were lost waiting.
CRITICAL_MEMORY_FULL: Final = 10.0
CRITICAL_MEMORY: Final = 40.0
CRITICAL_IO: Final = 50.0
ELEVATED_MEMORY: Final = 15.0
ELEVATED_IO: Final = 20.0
ELEVATED_CPU: Final = 60.0


def level(pressure: Mapping[str, Pressure]) -> str:
    """The level of the readings of cpu, memory and io; unknown when one of them is missing."""
    if len(pressure) < 3:
        return UNKNOWN
    cpu, memory, io = pressure["cpu"], pressure["memory"], pressure["io"]
    full = memory.full.avg10 if memory.full is not None else 0.0
    if full > CRITICAL_MEMORY_FULL or memory.some.avg10 > CRITICAL_MEMORY or io.some.avg10 > CRITICAL_IO:
        return CRITICAL
    if memory.some.avg10 > ELEVATED_MEMORY or io.some.avg10 > ELEVATED_IO or cpu.some.avg10 > ELEVATED_CPU:
        return ELEVATED
    return NORMAL


def read() -> dict[str, Pressure]:
    """Pressure by resource, as it is now; what the machine does not tell is left out."""
    from syntrop.common import psi

    found = {}
    for resource in psi.RESOURCES:
        try:
            found[resource] = psi.read(resource)
        except psi.PsiError:
            continue
    return found
