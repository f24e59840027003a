# SPDX-License-Identifier: Apache-2.0
"""Whether an action helped: a unit is active, by its own readiness, and stays so for a time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.parts import Manager


async def healthy(manager: Manager, unit: str, *, seconds: float, patience: float) -> str:
    """Empty when the unit became active within `patience` seconds and stayed healthy for `seconds`; else why not."""
    raise NotImplementedError
