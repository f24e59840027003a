# SPDX-License-Identifier: Apache-2.0
"""Tiers of leases, weakest first, and which slices of the control group tree speak for which."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Tier(IntEnum):
    """Order of strength: who is stronger may take from who is weaker, never from an equal."""

    BATCH = 0
    INTERACTIVE = 1
    EMERGENCY = 2


NAMES = {"Batch": Tier.BATCH, "Interactive": Tier.INTERACTIVE, "EmergencyTriage": Tier.EMERGENCY}
"""As `priority` of the interface spells them."""
SPELLED = {tier: name for name, tier in NAMES.items()}


def of_group(path: str, slices: Mapping[str, Tier]) -> Tier | None:
    """The tier that a control group's slices speak for: the innermost slice that `slices` names.

    `path` is that of /proc/PID/cgroup. So `user.slice = Interactive` holds for everything below it, unless
    `user-1000.slice` is named too. None where no slice on the way is named.
    """
    for part in reversed(path.split("/")):
        found = slices.get(part)
        if found is not None:
            return found
    return None
