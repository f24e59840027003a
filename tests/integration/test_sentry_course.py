# SPDX-License-Identifier: Apache-2.0
"""A failure put right by the real daemons under the activator, with a double of PID 1 on a bus of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bus_double import Bus
from manager_double import NAME, PATH, ManagerDouble
from waiting import wait_for

from syntrop.common import dbus
from syntrop.sentry import unitnames

SENTRY1 = "io.syntrop.Sentry1."
UNIT = "web-that-fails.service"
SETTINGS = '[diagnose]\npatience_sec = 60.0\n[restore]\nprobation_sec = 0.2\n[watch]\nmode = "on_demand"\n'


class Host(ManagerDouble):
    """A manager that restarts units when it is asked to; those in `hopeless` fail again."""

    def __init__(self, bus: Bus) -> None:
        self.restarted: list[str] = []
        self.hopeless: set[str] = set()
        super().__init__(bus)

    def tell(self, message: dbus.Message) -> tuple[str, Sequence[Any]] | str:
        if message.member == "LoadUnit":
            return "o", [unitnames.path(message.body[0])]
        if message.member == "RestartUnit":
            unit = message.body[0]
            self.restarted.append(unit)
            job = f"{PATH}/job/{len(self.restarted)}"
            self.start(unit)
            result = "failed" if unit in self.hopeless else "done"
            self.signal(PATH, f"{NAME}.Manager", "JobRemoved", "uoss", [1, job, unit, result])
            return "o", [job]
        return super().tell(message)

    def start(self, unit: str) -> None:
        if unit in self.hopeless:
            self.fail(unit, f"{len(self.restarted):032x}")
        else:
            self.change(
                unit, ActiveState="active", SubState="running", Result="success", ExecMainCode=0, ExecMainStatus=0,
                InvocationID=bytes.fromhex(f"{len(self.restarted):032x}"),
            )  # fmt: skip


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    bus = Bus(tmp_path)
    bus.start()
    host = Host(bus)
    host.change(UNIT, ActiveState="active", SubState="running", Names=[UNIT], Type="simple", Job=(0, "/"))
    yield host
    host.close()
    bus.stop()


@pytest.fixture
def house(launch: Callable[..., Any], tmp_path: Path, host: Host) -> Any:
    suite = launch(idle=1.0)
    bus = Path(suite.root, "dbus/system_bus_socket")
    bus.parent.mkdir()
    bus.symlink_to(tmp_path / "bus")
    Path(suite.config, "systemd-sentry.toml").write_text(SETTINGS)
    return suite


def call(suite: Any, method: str, more: bool = False, **parameters: Any) -> list[dict[str, Any]]:
    """The parameters of each reply."""
    request = {"method": SENTRY1 + method, "parameters": parameters, **({"more": True} if more else {})}
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(120)
        peer.connect(suite.endpoint("systemd-sentry/sentry.sock"))
        peer.sendall(json.dumps(request).encode() + b"\0")
        data = b""
        replies: list[dict[str, Any]] = []
        while True:
            while b"\0" not in data:
                part = peer.recv(65536)
                assert part, suite.log()
                data += part
            head, _, data = data.partition(b"\0")
            reply = json.loads(head)
            assert "error" not in reply, (reply, suite.log())
            replies.append(reply.get("parameters", {}))
            if not reply.get("continues"):
                return replies


def incidents(suite: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(suite, "ListIncidents")[0]["incidents"]
    return found


def test_only_what_is_needed_is_woken_and_all_leave(house: Any, host: Host) -> None:
    host.fail(UNIT, "a" * 32)
    call(house, "ReportFailure", unit=UNIT, invocation_id="a" * 32, result="signal")
    wait_for(
        lambda: [one["status"] not in ("open", "acting") for one in incidents(house)] == [True], "its end", 60
    )
    assert [one["status"] for one in incidents(house)] == ["recovered"], house.log()
    assert host.restarted == [UNIT]
    # Not by who is awake: on a busy machine one may have left before another comes.
    woken = set(re.findall(r"(\S+) started", house.log()))
    assert {"contextd", "toold"} <= woken and not {"runtimed", "inferenced"} & woken, house.log()
    (told,) = incidents(house)
    assert {span["name"]: span["outcome"] for span in told["phases"]}["lease"] == "skipped"
    house.wait_asleep()
    assert incidents(house) == [told]  # from the disk
    call(house, "ReportFailure", unit=UNIT, invocation_id="a" * 32, result="signal")
    wait_for(
        lambda: {one["status"] for one in incidents(house)} <= {"recovered", "dismissed"}, "an old story", 120
    )
    assert host.restarted == [UNIT]


def test_phases_are_told_as_they_end_and_a_restart_that_does_not_help_is_escalated(house: Any, host: Host) -> None:
    host.hopeless.add(UNIT)
    host.fail(UNIT, "b" * 32)
    replies = call(house, "TriageUnit", more=True, unit=UNIT)
    assert [one["phase"]["name"] for one in replies[:-1]][-1] == "remedy"
    last = replies[-1]["incident"]
    assert last["status"] == "reported"
    timeline = call(house, "GetIncident", id=last["id"])[0]["timeline"]
    assert any("it did not help" in line for line in timeline)


def test_a_staged_action_outlives_an_idle_exit(house: Any, host: Host) -> None:
    host.fail(UNIT, "c" * 32, Type="oneshot")
    (reply,) = call(house, "TriageUnit", unit=UNIT)
    assert reply["incident"]["status"] == "staged"
    house.wait_asleep()
    status = call(house, "GetStatus")[0]
    assert (status["staged_incidents"], status["open_incidents"]) == (1, 1)
    (approved,) = call(house, "ApproveAction", id=reply["incident"]["id"])
    assert approved["incident"]["status"] == "recovered"
    assert host.restarted == [UNIT]


def test_a_unit_is_known_by_its_own_name(house: Any, host: Host) -> None:
    host.fail(UNIT, "d" * 32)
    host.fail("nick.service", "d" * 32, Id=UNIT, Names=[UNIT, "nick.service"])
    (reply,) = call(house, "TriageUnit", unit="nick.service")
    assert reply["incident"]["unit"] == UNIT


def test_settings_are_read_anew_on_sighup(house: Any, host: Host) -> None:
    file = Path(house.config, "systemd-sentry.toml")
    with socket.socket(socket.AF_UNIX) as watcher:
        # Somebody watches, so that it is one and the same process all the time.
        watcher.settimeout(120)
        watcher.connect(house.endpoint("systemd-sentry/sentry.sock"))
        request = {"method": f"{SENTRY1}WatchIncidents", "parameters": {}, "more": True}
        watcher.sendall(json.dumps(request).encode() + b"\0")
        assert watcher.recv(65536), house.log()
        (before,) = house.pids("systemd-sentry")

        # Of another model a line tells, by which it is known that the signal has come.
        other = SETTINGS.replace("[diagnose]", '[diagnose]\nmodel = ""')

        def taken_over(text: str, times: int) -> None:
            file.write_text(text)
            os.kill(before, signal.SIGHUP)
            said = "when systemd-sentry is restarted"
            wait_for(lambda: house.log().count(said) == times, "it is taken over", 60)

        taken_over(f'{other}[policy]\nunits_deny = ["{UNIT}"]\n', 1)
        host.fail(UNIT, "e" * 32)
        (told,) = call(house, "TriageUnit", unit=UNIT)
        assert told["incident"]["status"] == "reported"
        assert told["incident"]["action"]["reason"] == f"{UNIT} is denied by the settings"

        file.write_text(f"{SETTINGS}[policy]\nunits_deny = 7\n")  # nonsense: what was there stays
        os.kill(before, signal.SIGHUP)
        wait_for(lambda: "Reload failed" in house.log(), "it is said", 60)
        (told,) = call(house, "TriageUnit", unit=UNIT)
        assert told["incident"]["status"] == "reported"

        taken_over(other, 2)
        (told,) = call(house, "TriageUnit", unit=UNIT)
        assert told["incident"]["status"] == "recovered"
        assert house.pids("systemd-sentry") == [before]
