# SPDX-License-Identifier: Apache-2.0
"""A failure that is being dealt with, and who waits for it."""

from __future__ import annotations

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from syntrop.common.service import Busy
    from syntrop.sentry.incident import Incident
    from syntrop.sentry.phases import Span
    from syntrop.sentry.trigger import Trigger

WAITING, KNOWING, DOING, WATCHING, DEFERRED = "waiting", "knowing", "doing", "watching", "deferred"


class Case:
    """One unit's. There is at most one of each unit; further failures of it are counted, no more."""

    __slots__ = ("awake", "incident", "kept", "later", "listeners", "over", "stage", "timer", "trigger")

    def __init__(self, trigger: Trigger, incident: Incident, *, awake: bool) -> None:
        self.trigger, self.incident, self.awake = trigger, incident, awake
        self.stage = WAITING
        self.over = loop.Event()
        self.listeners: list[Callable[[Span], object]] = []  # told of each phase that ended
        self.timer: loop.Timer | None = None  # until it is looked at again
        self.later: Trigger | None = None  # another failure of the unit, told meanwhile
        self.kept: Busy | None = None  # what keeps the daemon meanwhile

    def told(self, span: Span) -> None:
        for listener in tuple(self.listeners):
            listener(span)
