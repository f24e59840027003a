# SPDX-License-Identifier: Apache-2.0
"""That a unit failed, or that somebody asks about it: what begins a course. Pure."""

from __future__ import annotations

from syntrop.sentry.policy import Occasion
from syntrop.sentry.record import Record

SIGNAL, REPORT, TOLD, ASKED, RESUMED = "signal", "report", "told", "asked", "resumed"


class Trigger(Record):
    """A unit and its failed invocation (empty where it is not known).

    `failed_us` is the failure on the monotonic clock and `wall_us` by UTC, both microseconds, as well as the
    teller knows them. `source` tells who told: SIGNAL the manager by D-Bus, REPORT by `ReportFailure`, TOLD
    somebody else by it (reports.py), ASKED a person, RESUMED an incident of an earlier life of ours. `occasion` is
    what went on around it, None where that is to be asked of the manager. `restarting`: the manager is about to
    start it again by itself. `result`, `code` and `status` are what the teller knew of the end.
    """

    __slots__ = (
        "code", "failed_us", "invocation", "occasion", "restarting", "result", "source", "status", "unit",
        "wall_us",
    )  # fmt: skip

    def __init__(
        self,
        unit: str,
        *,
        failed_us: int,
        wall_us: int,
        invocation: str = "",
        source: str = REPORT,
        occasion: Occasion | None = None,
        restarting: bool = False,
        result: str = "",
        code: str = "",
        status: int = 0,
    ) -> None:
        self.unit, self.invocation, self.source, self.occasion = unit, invocation, source, occasion
        self.restarting = restarting
        self.failed_us, self.wall_us = failed_us, wall_us
        self.result, self.code, self.status = result, code, status
