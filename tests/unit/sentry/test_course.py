# SPDX-License-Identifier: Apache-2.0
"""The course of a triage: phases under a deadline, the incident's record, the agent's loop."""

from __future__ import annotations

import json
from typing import Any

import captured
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syntrop.common.varlink import idl
from syntrop.sentry import agent, causes, incident, phases, remedy, signatures, verdict
from syntrop.sentry.agent import Ask, End, Loop, Run
from syntrop.sentry.incident import ACTING, CLOSED, RECOVERED, Incident, IncidentError
from syntrop.sentry.phases import AWAKE, DONE, FAILED, LATE, PHASES, PhaseError, Phases
from syntrop.toold import catalog

# Phases.


def test_what_can_run_side_by_side_does() -> None:
    one = Phases(AWAKE, 0)
    assert one.ready() == [phases.INTERCEPT]
    one.begin(phases.INTERCEPT, 100)
    one.end(phases.INTERCEPT, 900)
    assert one.ready() == [phases.SLICE, phases.CORRELATE, phases.LEASE]
    for name in (phases.SLICE, phases.CORRELATE, phases.LEASE):
        one.begin(name, 1000)
    assert one.ready() == []
    one.end(phases.SLICE, 4000)
    one.end(phases.LEASE, 5000, FAILED, "no plane")
    assert one.late(20_000) == []
    assert one.late(26_000) == [phases.CORRELATE]
    span = one.end(phases.CORRELATE, 26_000, LATE)
    assert (span.start_us, span.duration_us, span.outcome) == (1000, 25_000, LATE)
    assert "no change is held responsible" in span.note
    assert one.ready() == [phases.DIAGNOSE]
    assert [span.name for span in one.spans] == list(PHASES[:4])


def test_an_action_is_carried_to_its_end_whatever_the_deadline() -> None:
    one = Phases(AWAKE, 0)
    for name in PHASES[:5]:
        one.begin(name, 200_000)  # the deadline is over: each is late at once, and the fallbacks are taken
        assert one.late(200_000) == [name]
        one.end(name, 200_000, LATE)
    limit = one.begin(phases.REMEDY, 200_000)
    assert limit > 10_000_000
    assert one.late(1_000_000) == []
    assert one.left(200_000) == 0


class Courses(RuleBasedStateMachine):
    """Phases begin and end in any order that is allowed: all end, each once, and never before what they need."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000
        self.course = Phases(AWAKE, 1000)
        self.ended: list[str] = []

    @rule(step=st.integers(0, 40_000))
    def wait(self, step: int) -> None:
        self.now += step

    @precondition(lambda self: self.course.ready())
    @rule(data=st.data(), skipped=st.booleans())
    def begin(self, data: st.DataObject, skipped: bool) -> None:
        name = data.draw(st.sampled_from(self.course.ready()))
        assert all(other in self.ended for other in phases.AFTER[name])
        if skipped:
            self.course.skip(name, self.now)
            self.ended.append(name)
            return
        limit = self.course.begin(name, self.now)
        assert limit >= self.now
        if name in PHASES[:5]:
            assert limit <= max(self.now, 1000 + AWAKE.deadline)
        with pytest.raises(PhaseError):
            self.course.begin(name, self.now)

    @precondition(lambda self: self.course.running())
    @rule(data=st.data(), outcome=st.sampled_from([DONE, LATE, FAILED]))
    def end(self, data: st.DataObject, outcome: str) -> None:
        name = data.draw(st.sampled_from(self.course.running()))
        span = self.course.end(name, self.now, outcome)
        assert bool(span.note) == (outcome != DONE)
        self.ended.append(name)
        with pytest.raises(PhaseError):
            self.course.end(name, self.now)

    @invariant()
    def nothing_is_lost(self) -> None:
        course = self.course
        assert [span.name for span in course.spans] == [name for name in PHASES if name in self.ended]
        assert course.over or course.ready() or course.running()
        assert all(span.start_us >= 0 and span.duration_us >= 0 for span in course.spans)


TestCourses = Courses.TestCase
TestCourses.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

# Incidents.


def decided(name: str = "fd_limit", **more: Any) -> Incident:
    found = captured.captured("257", name, **more)
    ruled = verdict.combine(causes.candidates(found, signatures.scan(found)), None)
    one = Incident("in-1", found.unit, found.failed_us or 0, invocation=found.invocation)
    one.decide(one.time_us + 900, ruled, found, remedy.choose(ruled.cause, found))
    one.spans = [phases.Span("intercept", 0, 900, DONE), phases.Span("lease", 900, 400, LATE, "why")]
    return one


def test_an_incident_is_what_the_interface_says() -> None:
    interface = idl.load("io.syntrop.Sentry1")
    for name in ("fd_limit", "plain_crash_segv", "manual_stop", "flapping"):
        reply = {"incident": decided(name).wire(), "timeline": []}
        assert interface.check(interface.methods["GetIncident"].output, reply)["incident"]["causes"]
    assert set(incident.STATES) == set(_enum(interface, "IncidentStatus"))
    assert set(_enum(interface, "PhaseOutcome")) == {DONE, LATE, FAILED, phases.SKIPPED}


def test_the_record_survives_the_disk_at_each_moment() -> None:
    one = decided("plain_crash_segv")
    seen = [one.resumption()]
    one.move(ACTING, one.time_us + 1000, "confidence 0.92")
    seen.append(one.resumption())
    assert one.action is not None
    for step in one.action.steps:
        one.carried_out(one.time_us + 2000, step, None)
    seen.append(one.resumption())
    again = Incident.load(json.loads(json.dumps(one.dump())))
    assert again.dump() == one.dump()
    assert again.wire() == one.wire()
    assert again.timeline() == one.timeline()
    assert again.resumption() == seen[-1]
    one.move(RECOVERED, one.time_us + 9000)
    seen.append(one.resumption())
    assert seen == [incident.LOOK_AGAIN, incident.GO_ON, incident.WATCH, incident.NOTHING]
    with pytest.raises(ValueError, match="form"):
        Incident.load({**one.dump(), "form": 99})


def test_what_was_half_done_goes_on_and_what_was_half_undone_is_undone() -> None:
    one = decided()
    one.action = remedy.Action(
        remedy.REVERT_DROP_IN, [remedy.Step("revert_dropin", ["x.conf"], "a.service"),
                                remedy.Step("unit_restart", [], "a.service")], "x",
    )  # fmt: skip
    one.move(ACTING, one.time_us)
    one.carried_out(one.time_us + 5, one.action.steps[0], "rb-1")
    assert one.resumption() == incident.GO_ON
    wire = one.wire()["action"]
    assert wire == {"tool": "revert_dropin", "args": ["x.conf"], "reason": "x", "rollback_id": "rb-1"}
    one.undoing = True
    again = Incident.load(json.loads(json.dumps(one.dump())))
    assert again.resumption() == incident.ROLL_BACK
    again.taken_back(one.time_us + 9, "rb-1")
    assert again.rollback_ids == []


def test_a_person_can_read_it() -> None:
    text = "\n".join(decided().timeline())
    assert "+0.000 s  cap-fd-limit.service failed" in text
    assert "it ran out of file descriptors (descriptor_limit, 0.85, by signature" in text
    assert "journal s=" in text
    assert "lease" in text


@given(st.lists(st.sampled_from(incident.STATES), max_size=8))
def test_what_is_closed_stays_so_and_nothing_is_acted_on_twice(moves: list[str]) -> None:
    one = Incident("in-1", "web.service", 0)
    acted = 0
    for status in moves:
        before = one.status
        try:
            one.move(status, 1)
        except IncidentError:
            assert one.status == before
            continue
        acted += status == ACTING
        assert before not in CLOSED or (before, status) == (incident.REPORTED, incident.DISMISSED)
    assert acted <= 1


def test_the_timeline_is_bounded() -> None:
    one = Incident("in-1", "web.service", 0)
    for number in range(2 * incident.HAPPENINGS_MAX):
        one.happened(number, "x")
    assert len(one.happenings) == incident.HAPPENINGS_MAX
    assert one.happenings[0].text == "web.service failed"


# The agent.


def test_the_vocabulary_only_looks() -> None:
    for move in agent.moves("web.service"):
        step = move.step
        assert catalog.parse(catalog.find(step.tool), step.args, step.unit or None).tool.mode == catalog.SAFE


def test_a_whole_loop() -> None:
    loop = Loop(agent.moves("web.service"), 0.0, ceiling=verdict.STAGE)
    assert isinstance(ask := loop.next(0.0), Ask)
    assert ask.kind == agent.PLAN
    loop.chose("unit_status", 1.0)
    assert isinstance(run := loop.next(1.0), Run)
    assert run.move.step.tool == "unit_status"
    loop.ran("failed", 1.5)
    loop.chose(agent.GO_ON, 2.0)
    ask = loop.next(2.0)
    assert isinstance(ask, Ask)
    assert "unit_status" not in ask.options
    loop.chose("space", 2.5)
    loop.ran("df: no such file", 3.0, failed=True, ceiling=verdict.ACT)
    loop.chose(agent.ENOUGH, 3.5)
    ask = loop.next(3.5)
    assert ask == Ask(agent.DECIDE, ("report", "stage", "act"))
    loop.chose("act", 4.0)
    assert loop.next(4.0) == End("act", "the model decided so")
    assert [turn["what"] for turn in loop.dump()] == [
        "plan", "unit_status gave", "reflect", "plan", "space failed", "reflect", "decide", "end",
    ]  # fmt: skip


def test_a_word_that_was_not_put_before_it_ends_the_loop_soberly() -> None:
    for word in ("rm -rf /", "act", "", "unit_restart"):
        loop = Loop(agent.moves("web.service"), 0.0, ceiling=verdict.ACT)
        loop.chose(word, 1.0)
        end = loop.next(1.0)
        assert isinstance(end, End)
        assert end.outcome == verdict.STAGE


@given(st.data(), st.sampled_from([verdict.REPORT, verdict.STAGE, verdict.ACT]))
def test_it_always_ends_within_its_bounds_and_repeats_nothing(data: st.DataObject, ceiling: str) -> None:
    loop, now, ran, asked = Loop(agent.moves("web.service"), 5.0, ceiling=ceiling), 5.0, [], 0
    while not isinstance(want := loop.next(now), End):
        now += data.draw(st.floats(0, 8))
        if isinstance(want, Run):
            ran.append(want.move.name)
            ceiling = data.draw(st.sampled_from([verdict.REPORT, verdict.STAGE, verdict.ACT]))
            if not isinstance(loop.next(now), End):
                loop.ran(data.draw(st.text(max_size=50)), now, failed=data.draw(st.booleans()), ceiling=ceiling)
                assert loop.ceiling == ceiling
        elif data.draw(st.integers(0, 9)) == 0:
            loop.silent(now, "the model is late")
        else:
            asked += 1
            loop.chose(data.draw(st.sampled_from([*want.options, *want.options, "act", "nonsense"])), now)
    assert want.outcome in (verdict.REPORT, verdict.STAGE, verdict.ACT)
    order = [verdict.REPORT, verdict.STAGE, verdict.ACT]
    assert order.index(want.outcome) <= order.index(loop.ceiling)
    assert len(ran) == len(set(ran)) <= agent.ITERATIONS_MAX
    assert asked <= 2 * agent.ITERATIONS_MAX + 2
    assert loop.next(now + 1000) is want
    assert loop.transcript[-1].what == "end"


def test_the_time_is_bounded() -> None:
    loop = Loop(agent.moves("web.service"), 0.0, ceiling=verdict.ACT)
    assert loop.left(29.0) == 1.0
    end = loop.next(30.0)
    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (verdict.STAGE, "the time was over")


def _enum(interface: Any, name: str) -> list[str]:
    kind, words = interface.types[name]
    assert kind == "enum"
    return [str(one) for one in words]
