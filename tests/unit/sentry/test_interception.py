# SPDX-License-Identifier: Apache-2.0
"""From the manager's signals to failures: each told once, by whatever way the signals come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from syntrop.sentry import unitnames
from syntrop.sentry.interception import End, Failing, Interceptor
from syntrop.sentry.policy import Occasion

WEB = "web.service"
CRASH = End("signal", 2, 11)
JOB = "/org/freedesktop/systemd1/job/7"


def told(
    interceptor: Interceptor,
    active: str,
    sub: str,
    invocation: str = "a",
    *,
    end: End | None = None,
    job: str = "",
) -> Failing | None:
    """A change, as the manager tells it: how the unit ended, then where it is."""
    if end is not None:
        interceptor.ended(WEB, end)
    return interceptor.changed(WEB, active, sub, invocation, job)[0]


def test_a_crash_is_told_once() -> None:
    one = Interceptor()
    assert told(one, "active", "running", end=End("success")) is None
    found = told(one, "failed", "failed", end=CRASH)
    assert found == Failing(WEB, "a", CRASH)
    assert (found.end.code, found.end.status) == ("killed", 11)
    # The state is told again whenever anything of the unit changes.
    assert told(one, "failed", "failed", end=CRASH) is None
    assert told(one, "activating", "start", "b", end=End("success")) is None
    assert told(one, "failed", "failed", "b", end=CRASH) is not None


def test_the_start_of_a_failed_unit_is_no_failure() -> None:
    """For a moment it is still failed, under the next invocation and with the result of a fresh start."""
    one = Interceptor()
    assert told(one, "failed", "failed", end=CRASH) is not None
    assert told(one, "failed", "failed", "b", end=End("success"), job=JOB) is None
    assert told(one, "active", "running", "b", end=End("success")) is None


def test_flapping_is_told_at_each_turn_and_at_its_end() -> None:
    one = Interceptor()
    for invocation in "abc":
        found = told(one, "activating", "auto-restart", invocation, end=CRASH)
        assert found is not None and found.restarting
        assert told(one, "activating", "auto-restart", invocation, end=CRASH) is None
        assert told(one, "activating", "auto-restart-queued", invocation, end=CRASH, job=JOB) is None
        if invocation != "c":
            assert told(one, "active", "running", chr(ord(invocation) + 1), end=End("success")) is None
    given_up = told(one, "failed", "failed", "c", end=End("start-limit-hit", 2, 11))
    assert given_up is not None and not given_up.restarting and given_up.end.result == "start-limit-hit"


def test_a_restart_after_a_clean_end_is_no_failure() -> None:
    one = Interceptor()
    assert told(one, "activating", "auto-restart", end=End("success")) is None
    assert told(one, "activating", "auto-restart") is None


@pytest.mark.parametrize(
    ("kind", "occasion"),
    [("stop", Occasion(job="stop")), ("restart", Occasion(job="restart")), ("start", None), ("", None)],
)
def test_a_stop_that_somebody_asked_for_is_known(kind: str, occasion: Occasion | None) -> None:
    one = Interceptor()
    assert one.changed(WEB, "deactivating", "stop-sigterm", "a", JOB) == (None, JOB)
    assert one.changed(WEB, "deactivating", "stop-sigterm", "a", JOB) == (None, "")
    one.typed(WEB, "/another/job", "stop")
    one.typed(WEB, JOB, kind)
    found = told(one, "failed", "failed", end=End("exit-code", 1, 5), job=JOB)
    assert found is not None and found.occasion == occasion


def test_a_restart_that_fails_to_start_is_a_failure() -> None:
    one = Interceptor()
    one.changed(WEB, "deactivating", "stop-sigterm", "a", JOB)
    one.typed(WEB, JOB, "restart")
    assert told(one, "activating", "start-pre", "b", end=End("success"), job=JOB) is None
    found = told(one, "failed", "failed", "b", end=End("exit-code", 1, 1), job=JOB)
    assert found is not None and found.occasion is None


def test_a_unit_that_could_not_be_started_for_another_is_told_by_its_job() -> None:
    one = Interceptor()
    for result in ("done", "canceled", "failed", "timeout", "skipped"):
        assert one.removed(WEB, result) is None
    for result in ("dependency", "assert"):
        assert one.removed(WEB, result) == Failing(WEB, "", End(result))
    assert one.removed("multi-user.target", "dependency") is None
    told(one, "failed", "failed", end=CRASH)
    assert one.removed(WEB, "dependency") is None


def test_what_cannot_be_mended_is_passed_over() -> None:
    one = Interceptor()
    for unit in ("session-1.scope", "dev-sda.device", "x.target", "user.slice", "", "nonsense"):
        one.ended(unit, CRASH)
        assert one.changed(unit, "failed", "failed", "a") == (None, "")
    assert not one._ends


def test_what_was_missed_is_asked_for_once() -> None:
    one = Interceptor()
    told(one, "failed", "failed", end=CRASH)
    assert one.missed([WEB, "db.service", "x.scope"]) == ["db.service"]
    one.known("db.service", "d")
    one.ended("db.service", CRASH)
    assert one.changed("db.service", "failed", "failed", "d")[0] is None
    assert one.missed(["db.service"]) == []
    # It is well meanwhile: the next failure is a new one.
    assert told(one, "failed", "failed", "b", end=CRASH) is not None


class Manager(RuleBasedStateMachine):
    """Units that fail and are started, told of in any way that the manager may: every failure exactly once."""

    units = st.sampled_from(["a.service", "b.service", "c.socket"])

    def __init__(self) -> None:
        super().__init__()
        self.interceptor = Interceptor()
        self.number = 0
        self.state: dict[str, tuple[str, str, End]] = {}
        self.failures: list[tuple[str, str]] = []
        self.heard: list[tuple[str, str]] = []

    def say(self, unit: str) -> None:
        active, invocation, end = self.state[unit]
        self.interceptor.ended(unit, end)
        failing, _ = self.interceptor.changed(unit, active, active, invocation)
        if failing is not None:
            self.heard.append((unit, failing.invocation))

    @rule(unit=units)
    def start(self, unit: str) -> None:
        self.number += 1
        self.state[unit] = ("active", f"{self.number}", End("success"))
        self.say(unit)

    @rule(unit=units)
    def fail(self, unit: str) -> None:
        if self.state.get(unit, ("",))[0] == "active":
            self.state[unit] = ("failed", self.state[unit][1], CRASH)
            self.failures.append((unit, self.state[unit][1]))
            self.say(unit)

    @rule(unit=units)
    def chatter(self, unit: str) -> None:
        if unit in self.state:
            self.say(unit)

    @rule(unit=units)
    def reset(self, unit: str) -> None:
        if self.state.get(unit, ("",))[0] == "failed":
            self.state[unit] = ("inactive", self.state[unit][1], End("success"))
            self.say(unit)

    @rule()
    def lose_the_bus(self) -> None:
        failed = [unit for unit, (active, _, _) in self.state.items() if active == "failed"]
        assert self.interceptor.missed(failed) == []

    @invariant()
    def each_failure_is_heard_once(self) -> None:
        assert self.heard == self.failures

    @invariant()
    def no_more_is_kept_than_there_are_failed_units(self) -> None:
        failed = {unit for unit, (active, _, _) in self.state.items() if active == "failed"}
        assert set(self.interceptor._told) == failed
        assert not self.interceptor._ends and not self.interceptor._jobs


TestManager = Manager.TestCase


# Names.


@given(st.text("abcxyz019:-_.\\@é", min_size=1, max_size=40))
def test_a_path_is_a_name_again(name: str) -> None:
    path = unitnames.path(name)
    assert unitnames.unit(path) == name
    assert set(path.removeprefix(unitnames.UNITS)) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")


def test_paths_are_the_managers() -> None:
    assert unitnames.path("dbus.service") == "/org/freedesktop/systemd1/unit/dbus_2eservice"
    assert unitnames.path("9p@a-b.mount") == "/org/freedesktop/systemd1/unit/_39p_40a_2db_2emount"
    assert unitnames.unit("/org/freedesktop/systemd1/job/7") == ""
    assert unitnames.unit(unitnames.UNITS + "a_zz") == ""


@pytest.mark.parametrize("name", ["a.service", "a@b.service", r"dev-disk-by\x2duuid.swap", "x" * 247 + ".service"])
def test_names(name: str) -> None:
    assert unitnames.is_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "a", ".service", "a.", "a.conf", "a/b.service", "a@.service", "@a.service", "a b.service", "é.service",
     "x" * 248 + ".service", "a\n.service"],
)  # fmt: skip
def test_no_names(name: str) -> None:
    assert not unitnames.is_name(name)
