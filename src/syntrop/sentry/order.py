# SPDX-License-Identifier: Apache-2.0
"""What units are to each other, from their properties: who needs whom, and how important one is. Pure."""

from __future__ import annotations

from syntrop.sentry import storm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_NEEDS = ("Requires", "Requisite", "BindsTo")
_ACCELERATORS = ("/dev/dri", "/dev/nvidia", "/dev/kfd", "/dev/accel", "char-drm", "char-nvidia", "char-accel")


def needs(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """The units without which one cannot run."""
    return tuple(dict.fromkeys(str(other) for kind in _NEEDS for other in properties.get(kind, ())))


def importance(properties: Mapping[str, Any]) -> int:
    """How important a unit is, as storm.py weighs it."""
    needed = {str(one) for kind in ("RequiredBy", "BoundBy") for one in properties.get(kind, ())}
    return storm.importance(
        dependants=len([one for one in needed if not one.endswith(".target")]),
        socket=any(str(one).endswith(".socket") for one in properties.get("TriggeredBy", ())),
        wanted_by_boot=any(str(one).endswith(".target") for one in properties.get("WantedBy", ())),
        accelerator=any(str(one[0]).startswith(_ACCELERATORS) for one in properties.get("DeviceAllow", ()) if one),
    )
