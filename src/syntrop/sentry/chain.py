# SPDX-License-Identifier: Apache-2.0
"""The root of a failing chain, as far down as the manager has to be asked for it."""

from __future__ import annotations

from syntrop.common import dbus, loop
from syntrop.sentry import dependencies, order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from syntrop.sentry.parts import Manager

CHAIN_MAX = 64  # units that are asked about
TIMEOUT = 5.0  # seconds; then by what is known so far


async def root(manager: Manager, unit: str, properties: Mapping[str, Any], failed: Mapping[str, int]) -> str:
    """The unit that is to be treated for this one: itself, unless one that it needs fails, too. `failed` has the
    failing units with the times of their failures, this one among them."""
    needs = {unit: order.needs(properties)}
    waiting = list(needs[unit])
    if len(failed) == 1 or not waiting:
        return unit
    try:
        with loop.deadline(TIMEOUT):
            while waiting and len(needs) < CHAIN_MAX:
                other = waiting.pop()
                if other not in needs:
                    needs[other] = order.needs(await manager.unit(other))
                    waiting.extend(needs[other])
    except (OSError, dbus.DBusError):
        pass
    return dependencies.roots(failed, needs).get(unit, unit)
