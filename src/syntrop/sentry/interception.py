# SPDX-License-Identifier: Apache-2.0
"""From the manager's signals to failures. Pure.

The manager tells of a change twice: first what kind of unit it is (`Service`: how it ended), then what all units
have (`Unit`: its state), and clients may rely on that order. It coalesces what it has not yet told, so a state
that lasted no time may not be told at all; what counts is where a unit is, not by which way it came.

A unit fails when it is `failed`, and also when it ended badly and the manager is about to start it again, about
which OnFailure= is silent. Each is told once for an invocation, and once more where restarting was given up.
"""

from __future__ import annotations

from syntrop.sentry import unitnames
from syntrop.sentry.policy import Occasion
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STOPPING = ("stop", "restart", "try-restart")
# Results of a job by which a unit comes to nothing without failing itself.
_IN_VAIN = ("dependency", "assert")
_CODES = {1: "exited", 2: "killed", 3: "dumped"}  # wait(2): CLD_EXITED, CLD_KILLED, CLD_DUMPED


class End(Record):
    """How a unit ended: `Result`, and of its main process how and with what."""

    __slots__ = ("code", "result", "status")

    def __init__(self, result: str, code: int = 0, status: int = 0) -> None:
        self.result, self.code, self.status = result, _CODES.get(code, ""), status


class Failing(Record):
    """A unit failed. `occasion` is None where the manager has to be asked; `restarting` tells that the manager is
    about to start it again."""

    __slots__ = ("end", "invocation", "occasion", "restarting", "unit")

    def __init__(
        self, unit: str, invocation: str, end: End, *, occasion: Occasion | None = None, restarting: bool = False
    ) -> None:
        self.unit, self.invocation, self.end = unit, invocation, end
        self.occasion, self.restarting = occasion, restarting


class Interceptor:
    """What is known of units that are not well, and no more: memory is bounded by their number."""

    __slots__ = ("_ends", "_jobs", "_told")

    def __init__(self) -> None:
        self._ends: dict[str, End] = {}  # between the two signals of a change
        self._jobs: dict[str, tuple[str, str]] = {}  # of units that are being stopped: the job, and its type
        self._told: dict[str, tuple[str, bool]] = {}  # invocation, and whether it is over

    def ended(self, unit: str, end: End) -> None:
        """The first signal of a change."""
        if unitnames.kind(unit):
            self._ends[unit] = end

    def changed(
        self, unit: str, active: str, sub: str, invocation: str, job: str = ""
    ) -> tuple[Failing | None, str]:
        """The second one. `job` is the path of the unit's job, if it has one.

        Gives the failure, if it is a new one; and a job whose type should be asked for, if there is one.
        """
        end = self._ends.pop(unit, None)
        if not unitnames.kind(unit):
            return None, ""
        # A failed unit that is started anew is `failed` a moment longer, with the next invocation and no result.
        badly = end is not None and end.result not in ("", "success")
        restarting = "auto-restart" in sub and badly
        failing: Failing | None = None
        if end is not None and badly and (active == "failed" or restarting):
            told = (invocation, not restarting)
            before = self._told.get(unit)
            if before is None or before[0] != invocation or (told[1] and not before[1]):
                failing = Failing(unit, invocation, end, occasion=self._occasion(unit), restarting=restarting)
            self._told[unit] = told
        elif active != "failed" and "auto-restart" not in sub:
            self._told.pop(unit, None)
        if active != "deactivating":
            self._jobs.pop(unit, None)
            return failing, ""
        if job and self._jobs.get(unit, ("", ""))[0] != job:
            self._jobs[unit] = (job, "")
            return failing, job
        return failing, ""

    def typed(self, unit: str, job: str, kind: str) -> None:
        """The type of a job that was asked for."""
        if self._jobs.get(unit, ("", ""))[0] == job:
            self._jobs[unit] = (job, kind)

    def removed(self, unit: str, result: str) -> Failing | None:
        """A job ended."""
        if result not in _IN_VAIN or not unitnames.kind(unit) or unit in self._told:
            return None
        return Failing(unit, "", End(result))

    def missed(self, failed: Iterable[str]) -> list[str]:
        """Signals may have been missed, and these units are failed. Gives those that were not known."""
        now = [unit for unit in failed if unitnames.kind(unit)]
        new = [unit for unit in now if unit not in self._told]
        self._told = {unit: self._told.get(unit, ("", True)) for unit in now}
        self._ends.clear()
        self._jobs.clear()
        return new

    def known(self, unit: str, invocation: str) -> None:
        """The invocation of a unit that `missed` gave."""
        if unit in self._told:
            self._told[unit] = (invocation, True)

    def _occasion(self, unit: str) -> Occasion | None:
        kind = self._jobs.get(unit, ("", ""))[1]
        return Occasion(job=kind) if kind in STOPPING else None
