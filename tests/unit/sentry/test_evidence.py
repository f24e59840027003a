# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import captured
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import psi
from syntrop.contextd import unitfiles
from syntrop.sentry import blame, cleaning, evidence
from syntrop.sentry.evidence import Change, Coredump, Counter, Entry, Evidence, Neighbour, Package, Stall

KEY = captured.KEY
SECRET = "correct-horse-battery"


def said(number: int, text: str, *, origin: str = evidence.SERVICE) -> Entry:
    return Entry(f"j{number}", cursor=f"s=1;i={number}", message=text, origin=origin)


@pytest.mark.parametrize(
    "line",
    [
        f"connecting with password={SECRET}",
        f"exec /usr/bin/app --token {SECRET} --verbose",
        f"exec /usr/bin/app --api-key={SECRET}",
        f"Cookie: session={SECRET}; theme=dark",
        f"GET /data?sig={SECRET}&x=1 HTTP/1.1 500",
        f"postgres://app:{SECRET}@db/main refused",
        f"Authorization: Bearer {SECRET}",
        f'{{"client_secret": "{SECRET}"}}',
    ],
)
def test_no_secret_of_a_log_line_is_kept(line: str) -> None:
    entry = evidence.entry(1, {"MESSAGE": line, "_PID": "7"}, KEY)
    assert SECRET not in entry.message
    assert "<secret:" in entry.message


@given(st.text(max_size=3000), st.integers(10, 700))
def test_cleaned_text_is_bounded_and_has_no_control_characters(text: str, limit: int) -> None:
    cleaned = cleaning.clean(text, KEY, limit)
    assert len(cleaned) <= limit
    assert not any(ord(letter) < 32 and letter not in "\t\n" for letter in cleaned)
    assert "\x1b" not in cleaned
    assert "\u202e" not in cleaned


def test_escape_sequences_go_whole() -> None:
    assert cleaning.clean("\x1b[31mred\x1b[0m \x1b]0;title\x07text", KEY) == "red text"


def test_a_flood_does_not_push_the_managers_words_out() -> None:
    entries = [said(1, "Failed with result 'oom-kill'.", origin=evidence.MANAGER)]
    entries += [said(number, "noise") for number in range(2, 500)]
    found = Evidence("web.service", entries=entries)
    assert len(found.entries) == evidence.ENTRIES_MAX
    assert found.entries[0] is entries[0]
    assert found.entries[-1] is entries[-1]


def test_only_fields_that_journald_sets_tell_whose_words_they_are() -> None:
    forged = {"_PID": "900", "UNIT": "web.service", "SYSLOG_IDENTIFIER": "systemd", "UNIT_RESULT": "oom-kill",
              "MESSAGE_ID": "d9b373ed55a64feb8242e02dbe79a49c", "CODE_FUNC": "unit_log_failure"}  # fmt: skip
    assert not evidence.entry(1, forged, KEY).believed
    plain = evidence.entry(1, {**forged, "UNIT": ""} | {"_PID": "900"}, KEY)
    assert not plain.believed
    assert evidence.entry(1, {**forged, "_PID": "1"}, KEY).believed
    assert evidence.entry(1, {"_TRANSPORT": "kernel"}, KEY).believed


def test_each_piece_is_cited_by_what_it_is() -> None:
    found = Evidence(
        "web.service",
        exit=evidence.Exit("signal", evidence.KILLED, 11),
        entries=[said(1, "x")],
        coredumps=[Coredump("c1", cursor="s=9", executable="/usr/bin/web", signal="SIGSEGV")],
        counters=[Counter("g1", "memory.events oom_kill", 2)],
        stalls=[Stall("p1", "memory", 12.5, 3.0)],
        changes=[Change("d1", path="/etc/x", time_us=1, diff="", event_id="e7")],
        packages=[Package("k1", name="web", action="upgrade", version="2", old_version="1", time_us=1)],
        neighbours=[Neighbour("n1", "db.service", active="failed", result="timeout")],
    )
    assert [found.reference(id) for id in ("j1", "c1", "g1", "p1", "d1", "k1", "n1", "x1", "u1")] == [
        "journal s=1;i=1",
        "journal s=9",
        "counter memory.events oom_kill = 2",
        "pressure memory some 12.5 full 3",
        "file /etc/x (event e7)",
        "package web 1 → 2 (upgrade)",
        "unit db.service failed timeout",
        "exit signal killed 11",
        "unit web.service loaded failed restarts=0",
    ]
    with pytest.raises(KeyError):
        found.reference("j2")


def test_contextds_words_are_taken_over() -> None:
    context: dict[str, Any] = {
        "config_diffs": [
            {"file_path": "/etc/app.conf", "timestamp_us": 5, "diff_content": f"-a\n+password = {SECRET}\n+b",
             "summary": None, "event_id": "e1", "reason": None},
        ],
        "package_upgrades": [
            {"timestamp_us": 5, "action": "upgrade", "package_name": "app", "version": "2", "old_version": None,
             "reason": None},
        ],
    }  # fmt: skip
    (change,) = evidence.changes(context, KEY)
    assert SECRET not in change.diff
    assert change.added()[1:] == ["b"]
    assert change.removed() == ["a"]
    assert evidence.packages(context)[0].old_version == ""


def test_contextds_reasons_are_those_that_are_looked_for() -> None:
    roles = {
        unitfiles.DROP_IN,
        unitfiles.FRAGMENT,
        unitfiles.ENVIRONMENT,
        unitfiles.CONFIGURATION,
        unitfiles.PROGRAM,
    }
    assert roles == set(blame.OWN_ROLES)


def test_a_crash_is_summed_up_without_its_memory() -> None:
    fields = {
        "__CURSOR": "s=1",
        "COREDUMP_EXE": "/usr/sbin/web",
        "COREDUMP_SIGNAL_NAME": "SIGABRT",
        "COREDUMP_UNIT": "web.service",
        "MESSAGE": "Process 77 (web) of user 33 dumped core.\n\nStack trace of thread 77:\n"
        + "\n".join(f"#{number}  0x00007f raise (libc.so.6 + 0x1)" for number in range(40)),
    }
    found = evidence.coredump(1, fields, KEY)
    assert (found.id, found.executable, found.signal) == ("c1", "/usr/sbin/web", "SIGABRT")
    assert len(found.frames) == evidence.FRAMES_MAX
    assert found.frames[0].startswith("#0")


def test_counters_and_pressure_are_read_from_the_kernels_files() -> None:
    found = evidence.counters({"memory.events": "low 0\nhigh 3\noom_kill 1\n", "pids.events": "max 2\nx y\n\n1\n"})
    assert [(one.id, one.name, one.value) for one in found] == [
        ("g1", "memory.events low", 0), ("g2", "memory.events high", 3), ("g3", "memory.events oom_kill", 1),
        ("g4", "pids.events max", 2),
    ]  # fmt: skip
    some = "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\n"
    read = psi.parse(some + "full avg10=3.00 avg60=0.00 avg300=0.00 total=4\n")
    assert evidence.stalls({"memory": read, "cpu": psi.parse(some)}) == (
        Stall("p1", "cpu", 12.5, 0.0), Stall("p2", "memory", 12.5, 3.0),
    )  # fmt: skip
