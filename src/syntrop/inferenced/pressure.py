# SPDX-License-Identifier: Apache-2.0
"""How hard pressed the machine is, as a level. Pure but for the reader at the end."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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


def level(cpu: Pressure, memory: Pressure, io: Pressure) -> str:
    """The level of three readings."""
    full = memory.full.avg10 if memory.full is not None else 0.0
    if full > CRITICAL_MEMORY_FULL or memory.some.avg10 > CRITICAL_MEMORY or io.some.avg10 > CRITICAL_IO:
        return CRITICAL
    if memory.some.avg10 > ELEVATED_MEMORY or io.some.avg10 > ELEVATED_IO or cpu.some.avg10 > ELEVATED_CPU:
        return ELEVATED
    return NORMAL


def read() -> tuple[Pressure, Pressure, Pressure]:
    """cpu, memory and io as they are now. Raises psi.PsiError."""
    from syntrop.common import psi

    return psi.read("cpu"), psi.read("memory"), psi.read("io")
