# SPDX-License-Identifier: Apache-2.0
"""What keeps the supervisor from acting: policy, breakers, the budget, and the order of many at once."""

from __future__ import annotations

import os
from pathlib import Path

from doubles import UNIT, House, outcomes, play

from syntrop.common import loop
from syntrop.sentry import incident as i
from syntrop.sentry import trigger as t
from syntrop.sentry.policy import Occasion, Policy


def test_what_somebody_wanted_is_no_incident_and_protected_units_are_only_watched(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        for unit in ("stopped.service", "asked.service", "guarded.service", "starting.service"):
            house.world.fail(unit)
        house.manager.occasions["asked.service"] = Occasion(leaving=True)
        house.manager.occasions["starting.service"] = Occasion(job="start")
        wanted = house.failed("stopped.service", source=t.SIGNAL, occasion=Occasion(job="stop"))
        house.supervisor.report(wanted)
        for unit in ("asked.service", "guarded.service", "starting.service"):
            house.supervisor.report(house.failed(unit))
        await house.settled()
        assert "stopped.service" not in house.manager.asked

    house = play(tmp_path, scene, policy=Policy(deny=["guarded*"]))
    assert house.world.done == []
    assert dict(outcomes(house)) == {
        "stopped.service": i.DISMISSED,
        "asked.service": i.DISMISSED,
        "guarded.service": i.REPORTED,
        "starting.service": i.REPORTED,
    }


def test_the_breaker_holds_back_locks_and_is_reset(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        supervisor, guards = house.supervisor, house.kit.guards
        for _ in range(3):
            house.world.fail(UNIT)
            supervisor.report(house.failed(UNIT))
            await_done = house.daemon.holds
            assert await_done
            with loop.deadline(30.0):
                while supervisor.status()["open_incidents"] and not supervisor.status()["breakers"]:
                    await loop.sleep(0.005)
        (breaker,) = supervisor.status()["breakers"]
        assert (breaker["unit"], breaker["state"]) == (UNIT, "open")
        assert 0 < breaker["cooldown_ms"] <= 30_000
        with loop.deadline(30.0):
            while not any("waits: its breaker is open" in line for line in _timelines(house)):
                await loop.sleep(0.005)
        done = len(house.world.done)
        assert supervisor.reset(UNIT)["state"] == "closed"  # what waited goes on at once
        await house.settled()
        assert len(house.world.done) == done + 1
        guards.lock(UNIT, house.clock.seconds())
        house.world.fail(UNIT)
        supervisor.report(house.failed(UNIT))
        await house.settled()
        assert len(house.world.done) == done + 1

    house = play(tmp_path, scene)
    assert [status for _, status in outcomes(house)] == [i.RECOVERED, i.RECOVERED, i.RECOVERED, i.REPORTED]


def _timelines(house: House) -> list[str]:
    return [line for one in house.kit.audit.open() for line in one.timeline()]


def test_breakers_and_the_budget_survive_a_restart_of_ours(tmp_path: Path) -> None:
    async def first(house: House) -> None:
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()
        house.kit.guards.lock("other.service", house.clock.seconds())

    async def second(house: House) -> None:
        house.supervisor.resume()
        assert house.supervisor.status()["breakers"][0]["state"] == "locked"
        assert house.kit.guards.wire(UNIT, house.clock.seconds())["recent_failures"] == 1
        assert house.kit.guards.budget.left(house.clock.seconds()) == 2

    play(tmp_path, first, budget=((3, 60.0),))
    play(tmp_path, second, budget=((3, 60.0),))


def test_a_unit_that_its_manager_restarts_is_left_to_it_until_the_breaker_trips(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        for number in range(5):
            house.world.fail(UNIT, SubState="auto-restart", ActiveState="activating")
            house.supervisor.report(house.failed(UNIT, source=t.SIGNAL, restarting=True))
            await house.settled()
            assert len(house.incidents()) == (number >= 2)

    house = play(tmp_path, scene)
    assert outcomes(house) == [(UNIT, i.REPORTED)]
    assert house.world.done == []


def test_two_hundred_at_once_are_bounded_and_none_is_lost(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.settings.probation_sec = 0.01
        units = [f"unit{number}.service" for number in range(200)]
        for unit in units:
            house.world.fail(unit, RequiredBy=["x.service", "y.service"] if unit == "unit199.service" else [])
        for unit in units:
            house.supervisor.report(house.failed(unit))
        assert len(os.listdir(tmp_path / "open")) == 200
        assert house.supervisor.status()["open_incidents"] == 200
        await house.settled(120.0)

    house = play(tmp_path, scene)
    assert {status for _, status in outcomes(house)} == {i.RECOVERED}
    assert len(house.world.done) == 200
    assert house.world.done.index("unit_restart unit199.service") < 20


def test_what_the_budget_holds_back_is_looked_at_again(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.settings.probation_sec = 0.01
        for number in range(6):
            house.world.fail(f"unit{number}.service")
            house.supervisor.report(house.failed(f"unit{number}.service"))
        await house.settled(60.0)

    house = play(tmp_path, scene, budget=((2, 0.3),))
    assert len(house.world.done) == 6
    assert {status for _, status in outcomes(house)} == {i.RECOVERED}


def test_the_root_is_treated_not_its_victims(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail("db.service")
        house.world.fail("cache.service", requires=("db.service",))
        house.world.fail("web.service", requires=("cache.service", "basic.target"))
        for unit in ("web.service", "cache.service", "db.service"):
            house.supervisor.report(house.failed(unit))
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == ["unit_restart db.service"]
    assert dict(outcomes(house)) == {
        "db.service": i.RECOVERED,
        "cache.service": i.REPORTED,
        "web.service": i.REPORTED,
    }
    reason = house.incidents(unit="web.service")[0]["action"]["reason"]
    assert reason == "db.service is to be treated, not this one"
