# SPDX-License-Identifier: Apache-2.0
"""Incidents as the verbs show them."""

from __future__ import annotations

from typing import Any

import pytest

from syntrop.common.varlink.errors import VarlinkError
from syntrop.ctl import commands, incidents, supervision
from syntrop.sentry import incident as record

INTERFACE = supervision.INTERFACE


def incident(status: str = "recovered", **more: Any) -> dict[str, Any]:
    return {
        "id": "i-1", "unit": "web.service", "invocation_id": None, "timestamp_us": 1_790_000_000_123_456,
        "status": status, "decided_by": "signature", "phases": [], "journal_excerpt": None, "action": None,
        "causes": [{"fault_class": "crash", "confidence": 0.92, "explanation": "it crashed", "evidence": ["x"]}],
        **more,
    }  # fmt: skip


def action(tool: str = "revert_dropin", rollback: str | None = None) -> dict[str, Any]:
    return {"tool": tool, "args": ["a.conf"], "reason": "a.conf brought it about", "rollback_id": rollback}


def test_the_statuses_are_those_of_the_interface() -> None:
    assert commands._STATUSES == record.STATES


def test_a_staged_action_says_how_it_is_approved() -> None:
    first, second, third = incidents.verdict(incident("staged", action=action("restore_file")))
    assert "staged" in first and "web.service: it crashed (crash, 0.92)" in first
    assert second == "restore_file a.conf: a.conf brought it about"
    assert "syntropctl approve i-1" in third and "syntropctl reject i-1" in third


def test_what_was_changed_says_how_it_is_taken_back() -> None:
    *_, last = incidents.verdict(incident(action=action(rollback="rb-1")))
    assert last == "to take that back: syntropctl rollback rb-1"
    assert len(list(incidents.verdict(incident("rolled_back", action=action(rollback="rb-1"))))) == 2


def test_what_nobody_does_anything_about_says_so() -> None:
    *_, last = incidents.verdict(incident("reported", action=action("none")))
    assert last == "nothing is to be done: a.conf brought it about"
    *_, last = incidents.verdict(incident("open", causes=[]))
    assert last == "nothing is to be done"


def test_an_incident_is_told_in_full() -> None:
    one = incident(journal_excerpt=["out of cheese"])
    lines = list(incidents.told({"incident": one, "timeline": ["    +0.000 s  web.service failed"]}))
    assert "    +0.000 s  web.service failed" in lines
    assert lines[-1] == "    out of cheese"


@pytest.mark.parametrize(
    ("state", "cooldown", "words"),
    [
        ("locked", None, "web.service: no actions until `syntropctl reset web.service`"),
        ("open", 30_000, "web.service: no actions for 30 s"),
        ("half_open", None, "web.service: one action is let through"),
        ("closed", None, "web.service: actions are let through"),
    ],
)
def test_breakers(state: str, cooldown: int | None, words: str) -> None:
    one = {"unit": "web.service", "state": state, "cooldown_ms": cooldown, "recent_failures": 0}
    assert incidents.breaker(one) == words


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("NoSuchUnit", {"unit": "a.service"}, "there is no unit a.service"),
        ("NoSuchIncident", {"id": "i-2"}, "there is no incident i-2; `syntropctl incidents` lists them"),
        (
            "NotStaged",
            {"id": "i-2", "status": "rolled_back"},
            "nothing waits for approval in i-2: it is rolled back",
        ),
        ("UnitProtected", {"unit": "a.service", "reason": "never"}, "a.service is protected: never"),
        (
            "CircuitOpen",
            {"unit": "a.service", "state": "open", "cooldown_ms": 5000},
            "no action on a.service for 5 s more: its breaker is open",
        ),
        (
            "CircuitOpen",
            {"unit": "a.service", "state": "locked", "cooldown_ms": None},
            "no action on a.service until `syntropctl reset a.service`: its breaker is locked",
        ),
        ("TooMany", {"retry_ms": 5001}, "too much at once; try again in 5 s"),
        ("PeerFailed", {"daemon": "toold", "reason": "gone"}, "toold did not do its part: gone"),
    ],
)
def test_errors_in_words(name: str, given: dict[str, Any], words: str) -> None:
    assert supervision.words(VarlinkError(f"{INTERFACE}.{name}", **given)) == words


def test_a_name_without_a_suffix_is_a_services() -> None:
    assert supervision.full_name("web") == "web.service"
    assert supervision.full_name("web@a.socket") == "web@a.socket"


@pytest.mark.parametrize(
    "words",
    ["explain web", "incidents --status staged --since 2h --limit 3 -f", "triage web -n --json", "approve i-1",
     "reject i-1 --reason no", "reset web", "maintenance web db* --for 2h --reason x", "maintenance web --end"],
)  # fmt: skip
def test_command_lines(words: str) -> None:
    assert commands.parsed(words.split()).verb == words.split()[0]
