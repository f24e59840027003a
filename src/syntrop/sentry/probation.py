# SPDX-License-Identifier: Apache-2.0
"""Whether an action helped: a unit is active, by its own readiness, and stays so for a time."""

from __future__ import annotations

from time import monotonic

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from syntrop.sentry.parts import Manager

ACTIVE, COMING, DOWN = "active", "coming", "down"
_LOOK_AGAIN = 5.0  # seconds: signals tell of changes; this is for those that were lost


class Health:
    """How a unit is: ACTIVE, COMING or DOWN, and what distinguishes this run of it from another."""

    __slots__ = ("restarts", "run", "state", "why")

    def __init__(self, properties: Mapping[str, Any]) -> None:
        active = str(properties.get("ActiveState", ""))
        sub = str(properties.get("SubState", ""))
        result = str(properties.get("Result", ""))
        self.run = str(properties.get("InvocationID", ""))
        self.restarts = int(properties.get("NRestarts", 0) or 0)
        # A oneshot that has done its work well, and does not remain, is inactive. It ran, else it had no
        # invocation.
        done = active == "inactive" and properties.get("Type") == "oneshot" and result == "success"
        if active in ("active", "reloading", "refreshing") or done:
            self.state = ACTIVE
        elif active == "activating" and not sub.startswith("auto-restart"):
            self.state = COMING
        else:
            self.state = DOWN
        self.why = f"it is {active} ({sub})" + (f", {result}" if result not in ("", "success") else "")


async def healthy(
    manager: Manager,
    unit: str,
    *,
    seconds: float,
    patience: float,
    active: Callable[[], object] | None = None,
) -> str:
    """Empty when a unit became active within `patience` seconds and stayed healthy for `seconds`; else why not.

    Healthy is: active, by its own readiness (Type=notify and the like are `activating` before), in one and the
    same run, not restarted by the manager meanwhile. `active` is called at the first sight of it. Raises OSError
    and DBusError where the manager cannot be asked.
    """
    watch = await manager.watch(unit)
    try:
        began = monotonic()
        first: Health | None = None
        since = 0.0
        while True:
            now = Health(await manager.unit(unit))
            if now.state == DOWN:
                return now.why
            if first is None:
                if now.state == ACTIVE:
                    first, since = now, monotonic()
                    if active is not None:
                        active()
                elif monotonic() - began >= patience:
                    return f"it was not active within {patience:g} s"
            elif now.run != first.run or now.restarts > first.restarts:
                return "it was restarted meanwhile"
            end = since + seconds if first is not None else began + patience
            left = end - monotonic()
            if left <= 0 and first is not None:
                return ""
            try:
                with loop.deadline(min(max(left, 0.0), _LOOK_AGAIN)):
                    await watch.changed()
            except TimeoutError:
                pass
    finally:
        watch.close()
