# SPDX-License-Identifier: Apache-2.0
"""contextd on a real machine: a drop-in is edited, the unit crashes, and the timeline says which came of which."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from machine import Machine
from suite import CALL

CONTEXT = "/run/syntrop/io.syntrop.Context1"
UNIT = "/etc/systemd/system/victim.service"
DROP_IN = "/etc/systemd/system/victim.service.d/mode.conf"
# It ends when its line is on record as its own: journald looks up who spoke while the speaker lives.
WORK = (
    "echo working; until journalctl -q -o cat _SYSTEMD_INVOCATION_ID=$$INVOCATION_ID | grep -q working; "
    "do sleep 0.1; done; exit $CODE"
)


def call(machine: Machine, method: str, user: str | None = None, **parameters: Any) -> dict[str, Any]:
    told = machine.run_python(CALL, CONTEXT, f"io.syntrop.Context1.{method}", json.dumps(parameters), user=user)
    reply: dict[str, Any] = json.loads(told)
    assert "error" not in reply, reply
    return reply["parameters"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def crashed(machine: Machine) -> Machine:
    """A unit that ran well, and failed after its drop-in was edited while contextd slept."""
    machine.write(UNIT, f"[Service]\nExecStart=/bin/sh -c '{WORK}'\n")
    machine.write(DROP_IN, "[Service]\nEnvironment=CODE=0\n")
    machine.run("systemctl daemon-reload && systemctl start victim.service")
    call(machine, "ListRecentDiffs")
    machine.wait_property("victim.service", "ActiveState", "inactive", 60)  # it is through with its work
    machine.run("systemctl stop contextd.service")
    machine.write(DROP_IN, "[Service]\nEnvironment=CODE=3\n")
    machine.write("/etc/unrelated.conf", "x\n")
    machine.run("systemctl daemon-reload && systemctl start victim.service")
    machine.wait_property("victim.service", "ActiveState", "failed")
    machine.run("journalctl --sync")
    return machine


def test_the_timeline_begins_with_the_drop_in(crashed: Machine) -> None:
    context = call(crashed, "GetUnitContext", unit="victim.service")["context"]
    first = context["events"][0]
    assert first["summary"] == f"{DROP_IN} changed"
    assert first["reason"].startswith("drop-in of victim.service, ")
    assert first["reason"].endswith(" before it failed")
    diff = context["config_diffs"][0]["diff_content"]
    assert "-Environment=CODE=0\n+Environment=CODE=3\n" in diff
    assert f"{DROP_IN} changed" in context["summary"]
    assert context["failed_us"] > first["timestamp_us"]
    kinds = {event["source"] for event in context["events"]}
    assert {"file", "unit"} <= kinds
    assert all(event["reason"] for event in context["events"])
    messages = [entry["message"] for entry in context["entries"]]
    assert "working" in messages
    assert any("exit-code" in message for message in messages)
    boots = {entry["boot_id"] for entry in context["entries"]}
    assert boots == {context["boot_id"]}


def test_it_reads_what_only_root_may_and_keeps_no_secret(crashed: Machine) -> None:
    crashed.run("systemctl start syntrop-sockets.target")
    call(crashed, "ListRecentDiffs")
    crashed.run("chpasswd <<<'nobody:abcdefgh-very-secret'")
    deadline = time.monotonic() + 60
    while not (found := [d for d in call(crashed, "ListRecentDiffs")["diffs"] if d["file_path"] == "/etc/shadow"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "secret content" in found[0]["diff_content"] and "$" not in found[0]["diff_content"]
    told = {d["file_path"]: d["diff_content"] for d in call(crashed, "ListRecentDiffs", user="nobody")["diffs"]}
    assert told["/etc/shadow"] == "Only operators may see what is in this file."
    assert "CODE=3" in told[DROP_IN]
    assert call(crashed, "GetUnitContext", user="nobody", unit="victim")["context"].get("entries") is None


def test_what_happened_is_listed_and_recorded(crashed: Machine) -> None:
    recorded = call(crashed, "RecordEvent", source="operator", unit="victim.service", summary="looked at it")
    events = call(crashed, "ListEvents", unit="victim.service", limit=50)["events"]
    assert events[0]["id"] == recorded["event_id"]
    assert any(event["source"] == "unit" and "Failed with result" in event["summary"] for event in events)
    shown = crashed.run("syntropctl events --unit victim.service; syntropctl drift victim.service --diff").stdout
    assert "looked at it" in shown and "+Environment=CODE=3" in shown


def test_a_changed_file_is_followed(crashed: Machine) -> None:
    follow = """
import json, socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(60)
peer.connect(sys.argv[1])
peer.sendall(json.dumps({"method": "io.syntrop.Context1.Watch", "more": True}).encode() + b"\\0")
rest = b""
while True:
    *messages, rest = (rest + peer.recv(65536)).split(b"\\0")
    for message in messages:
        event = json.loads(message)["parameters"].get("event")
        print("ready" if event is None else event["summary"], flush=True)
"""
    with crashed.start_python(follow, CONTEXT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        crashed.write("/etc/syntrop-followed.conf", "x\n")
        while "/etc/syntrop-followed.conf" not in (line := program.stdout.readline()):
            assert line
        crashed.run("systemctl start victim.service")
        while "Failed with result" not in (line := program.stdout.readline()):
            assert line
