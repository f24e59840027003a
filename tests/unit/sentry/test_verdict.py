# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.sentry import remedy, signatures, verdict
from syntrop.sentry.causes import SURE, Cause, join
from syntrop.sentry.evidence import Change, Evidence, Facts
from syntrop.sentry.verdict import Answer, combine
from syntrop.toold import catalog

SHARES = st.floats(0, 1)
CLASSES = st.sampled_from(signatures.FAULT_CLASSES)


@st.composite
def ranked(draw: st.DrawFn) -> list[Cause]:
    weights = draw(st.dictionaries(CLASSES, st.floats(0, SURE), min_size=1, max_size=6))
    found = [Cause(name, weight, name, ["x1"]) for name, weight in weights.items()]
    return sorted(found, key=lambda cause: cause.confidence, reverse=True)


ANSWERS = st.one_of(
    st.none(),
    st.builds(
        Answer,
        st.one_of(CLASSES, st.just("none"), st.text(max_size=5)),
        st.floats(allow_nan=True),
        st.floats(allow_nan=True),
    ),
    st.builds(Answer, CLASSES, st.floats(0.6, 1), st.floats(0.2, 1)),
)


@given(ranked(), ANSWERS)
def test_the_model_is_advisory(causes: list[Cause], model: Answer | None) -> None:
    first = causes[0]
    alone = combine(causes, None)
    ruled = combine(causes, model)
    # Nothing ends up below what the signatures gave it, nor far above.
    assert ruled.confidence >= ruled.cause.confidence
    assert ruled.confidence <= max(ruled.cause.confidence, join(ruled.cause.confidence, verdict.TRUST))
    assert ruled.causes[0] is ruled.cause
    assert set(ruled.causes) == set(causes)
    # What was settled stays settled.
    if first.confidence >= verdict.ACT_AT:
        assert ruled.cause is first
        assert ruled.disposition == alone.disposition == verdict.ACT
    # Late, absent, unsure, or with a word of its own: the deterministic verdict stands.
    labels = {cause.fault_class for cause in causes} - {signatures.UNKNOWN}
    if model is None or not model.sure or model.label not in labels:
        assert (ruled.cause, ruled.confidence, ruled.decided_by) == (first, first.confidence, verdict.SIGNATURE)
    # Nothing is done at once that would not be done without the model.
    assert ruled.disposition != verdict.ACT or ruled.cause.confidence >= verdict.ACT_AT
    # The model prefers only what the evidence leaves near.
    if ruled.decided_by == verdict.MODEL:
        assert first.confidence < verdict.ACT_AT
        assert first.confidence - ruled.cause.confidence <= verdict.REACH
    if ruled.decided_by == verdict.BOTH:
        assert ruled.cause is first


def test_two_that_agree_are_surer_and_a_close_call_is_settled() -> None:
    close = [Cause("configuration", 0.7, "", ["d1"]), Cause("crash", 0.62, "", ["x1"])]
    agreed = combine(close, Answer("configuration", 0.9, 0.8))
    assert (agreed.decided_by, agreed.cause.fault_class) == (verdict.BOTH, "configuration")
    assert 0.7 < agreed.confidence < verdict.ACT_AT
    settled = combine(close, Answer("crash", 0.9, 0.8))
    assert (settled.decided_by, settled.cause.fault_class) == (verdict.MODEL, "crash")
    far = [Cause("configuration", 0.85, "", ["d1"]), Cause("crash", 0.5, "", ["x1"])]
    assert combine(far, Answer("crash", 0.99, 0.98)).cause.fault_class == "configuration"


def test_no_answer_of_runtimed_is_taken_for_one_that_is_not() -> None:
    assert verdict.answer({"winner": "crash", "confidence": 0.8, "margin": 0.6}) == Answer("crash", 0.8, 0.6)
    assert verdict.answer({"winner": "crash"}) is None
    assert verdict.answer({"winner": "crash", "confidence": None, "margin": 1}) is None
    assert not Answer("crash", float("nan"), 1.0).sure
    assert not Answer("crash", 1.0, float("nan")).sure
    assert not Answer("crash", 7.0, 1.0).sure


@pytest.mark.parametrize(
    ("confidence", "what"),
    [
        (0.9, "act"),
        (0.8999, "stage"),
        (0.6, "stage"),
        (0.5999, "report"),
        (0.0, "report"),
        (float("nan"), "report"),
    ],
)
def test_thresholds(confidence: float, what: str) -> None:
    assert verdict.disposition(confidence) == what


@given(st.lists(SHARES, max_size=5))
def test_joining_only_raises_and_is_never_certain(weights: list[float]) -> None:
    joined = [join(*weights[:count]) for count in range(len(weights) + 1)]
    assert all(one <= two for one, two in pairwise(joined))
    assert all(one <= SURE for one in joined)


# Remedies are calls that toold takes.


@given(
    CLASSES,
    st.sampled_from(["", "drop_in", "template", "usr", "file", "removed"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["+x", "-MemoryMax=1G\n+MemoryMax=1M", "-MemoryHigh=x\n+MemoryHigh=1"]),
)
def test_every_remedy_is_one_that_toold_knows_and_that_can_be_undone(
    fault_class: str, what: str, copied: bool, restarted: bool, diff: str
) -> None:
    path = {
        "drop_in": "/etc/systemd/system/web@a.service.d/50-x.conf",
        "removed": "/etc/systemd/system/web@a.service.d/50-x.conf",
        "template": "/run/systemd/system/web@.service.d/50-x.conf",
        "usr": "/usr/lib/systemd/system/web@.service.d/50-x.conf",
        "file": "/etc/web/web.conf",
        "": "/etc/none",
    }[what]
    summary = f"{path} was removed" if what == "removed" else f"{path} changed"
    change = Change("d1", path=path, time_us=1, diff=diff, summary=summary)
    found = Evidence(
        "web@a.service",
        facts=Facts(active="failed", cache=copied, restarts=int(restarted)),
        changes=[change],
        copies={path: "web.conf.orig"} if copied else {},
    )
    cause = Cause(fault_class, 0.95, "", ["d1"], subject="db.service", change="d1" if what else "")
    action = remedy.choose(cause, found)
    assert action.name in remedy.ACTIONS
    assert action.reason
    for step in action.steps:
        call = catalog.parse(catalog.find(step.tool), step.args, step.unit or None)
        assert call.tool.changes
        assert call.tool.mode == catalog.REMEDIATION or action.maintenance
        if call.tool.writes and step.tool in ("revert_dropin", "restore_file", "clear_cache", "set_unit_property"):
            assert call.tool.undone != catalog.NOTHING
            assert action.writes
    assert action.undone
    assert bool(action.steps) == (action.name not in (remedy.NONE, remedy.WAIT_FOR_ROOT))
    if action.name == remedy.REVERT_DROP_IN:
        assert what in ("drop_in", "template")
    ruled = verdict.combine([cause], None)
    done = remedy.disposition(ruled, action, found)
    assert done != verdict.ACT or not action.maintenance
    assert (done == verdict.REPORT) == (not action.steps)


def test_what_cites_nothing_that_is_there_is_only_reported() -> None:
    found = Evidence("web.service")
    action = remedy.Action(remedy.RESTART, [remedy.Step("unit_restart", [], "web.service")], "x")
    for cited in ([], ["j9"]):
        ruled = combine([Cause("crash", 0.95, "", cited)], None)
        assert remedy.disposition(ruled, action, found) == verdict.REPORT
