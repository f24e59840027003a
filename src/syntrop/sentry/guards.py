# SPDX-License-Identifier: Apache-2.0
"""What has to agree before anything is done: the policy, the unit's breaker, the machine's budget. Pure: times are
arguments; what is kept is written elsewhere.
"""

from __future__ import annotations

from syntrop.sentry import breaker as breakers
from syntrop.sentry.breaker import Breaker
from syntrop.sentry.budget import Budget
from syntrop.sentry.planned import Planned, Work
from syntrop.sentry.policy import Occasion, Policy, Ruling
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

UNITS_MAX = 1024  # breakers that are remembered; those that matter least are forgotten first
BUDGET = "budget"


class Hold(Record):
    """Why an action may not be taken now: the state of the breaker, or BUDGET; seconds until it may, None when
    only a reset helps."""

    __slots__ = ("kind", "wait")

    def __init__(self, kind: str, wait: float | None) -> None:
        self.kind, self.wait = kind, wait

    def __str__(self) -> str:
        if self.wait is None:
            return "its breaker is locked until an operator resets it"
        what = "the budget of actions is spent" if self.kind == BUDGET else f"its breaker is {self.kind}"
        return f"{what} for {self.wait:.0f} s"


class Guards:
    """The guards of all units. `changed` tells whether there is something new to keep."""

    __slots__ = ("_breakers", "_counted", "budget", "changed", "planned", "policy")

    def __init__(self, policy: Policy, budget: Budget) -> None:
        self.policy, self.budget = policy, budget
        self.planned = Planned()
        self._breakers: dict[str, Breaker] = {}
        self._counted: dict[str, str] = {}  # the failure of each unit that was counted last
        self.changed = False

    def rule(self, names: Sequence[str], occasion: Occasion, *, now: float, weekday: int, minute: int) -> Ruling:
        """What a failure of a unit with these names is: the policy's word, and that of who works on it."""
        planned = self.planned.reason(names, now)
        return self.policy.rule(names, occasion, planned=planned, weekday=weekday, minute=minute)

    def announce(self, patterns: Sequence[str], work: Work, now: float) -> None:
        """Work on units begins, or is over. Raises planned.Full."""
        self.planned.announce(patterns, work, now)
        self.changed = True

    def failed(self, unit: str, failure: str, now: float) -> bool:
        """A unit failed. One failure counts once, however many tell of it: `failure` tells it from others, where
        it is known. Whether it was counted."""
        if failure and self._counted.get(unit) == failure:
            return False
        self._counted[unit] = failure
        self._of(unit, now).failure(now)
        self.changed = True
        return True

    def hold(self, unit: str, now: float) -> Hold | None:
        """What keeps an action on a unit from being taken now, if anything does."""
        breaker = self._breakers.get(unit)
        if breaker is not None and not breaker.admits(now):
            state = breaker.state(now)
            wait = breaker.remaining(now)
            if state == breakers.HALF_OPEN:  # one action is under way, and its outcome is waited for
                wait = breakers.COOLDOWN
            return Hold(state, wait)
        wait = self.budget.wait(now)
        return Hold(BUDGET, wait) if wait > 0 else None

    def enter(self, unit: str, now: float) -> Hold | None:
        """Let an action through, or tell what keeps it. What becomes of it is told by `ended`."""
        found = self.hold(unit, now)
        if found is None:
            self._of(unit, now).enter(now)
            self.budget.take(now)
            self.changed = True
        return found

    def ended(self, unit: str, outcome: bool | None, now: float) -> None:
        """An action that was let through helped, did not, or (None) did not take place."""
        breaker = self._of(unit, now)
        self.changed = True
        if outcome:
            breaker.success(now)
        elif outcome is None:
            breaker.abandoned()
            self.budget.give_back()
        elif breaker.state(now) == breakers.HALF_OPEN:
            breaker.failure(now)  # the trial failed, whether or not the unit's own failure is told of
        else:
            breaker.abandoned()

    def lock(self, unit: str, now: float) -> None:
        self._of(unit, now).lock()
        self.changed = True

    def reset(self, unit: str, now: float) -> None:
        """An operator's word."""
        self._of(unit, now).reset()
        self._counted.pop(unit, None)
        self.changed = True

    def state(self, unit: str, now: float) -> str:
        breaker = self._breakers.get(unit)
        return breakers.CLOSED if breaker is None else breaker.state(now)

    def wire(self, unit: str, now: float) -> dict[str, Any]:
        """As `Breaker` of io.syntrop.Sentry1."""
        breaker = self._breakers.get(unit) or Breaker()
        left = breaker.remaining(now)
        state = breaker.state(now)
        return {
            "unit": unit,
            "state": state,
            "cooldown_ms": int(left * 1000) if left is not None and state == breakers.OPEN else None,
            "recent_failures": breaker.recent(now),
        }

    def tripped(self, now: float) -> list[dict[str, Any]]:
        """The breakers that are not closed, as `wire` gives them."""
        return [
            self.wire(unit, now)
            for unit, breaker in sorted(self._breakers.items())
            if breaker.state(now) != breakers.CLOSED
        ]

    def dump(self, now: float, wall_us: int) -> dict[str, Any]:
        """As JSON."""
        kept = {unit: one.dump(now) for unit, one in self._breakers.items() if not one.idle(now)}
        return {
            "time_us": wall_us,
            "breakers": kept,
            "budget": self.budget.dump(now),
            "planned": self.planned.dump(now),
        }

    def load(self, kept: dict[str, Any], now: float, wall_us: int) -> None:
        """What `dump` gave, older by what the clock tells. Raises KeyError, TypeError, ValueError where it is no
        such thing."""
        then = now - max(0.0, (wall_us - int(kept["time_us"])) / 1e6)
        loaded = {str(unit): Breaker.load(one, then) for unit, one in kept["breakers"].items()}
        self.planned.load(kept.get("planned", ()), then)
        self.budget.restore(kept["budget"], then)
        self._breakers.update(loaded)

    def _of(self, unit: str, now: float) -> Breaker:
        found = self._breakers.get(unit)
        if found is None:
            if len(self._breakers) >= UNITS_MAX:
                self._forget(now)
            found = self._breakers[unit] = Breaker()
        return found

    def _forget(self, now: float) -> None:
        idle = [unit for unit, one in self._breakers.items() if one.idle(now)]
        closed = (unit for unit, one in self._breakers.items() if one.state(now) == breakers.CLOSED)
        for unit in idle or [next(closed, next(iter(self._breakers)))]:
            del self._breakers[unit]
            self._counted.pop(unit, None)
