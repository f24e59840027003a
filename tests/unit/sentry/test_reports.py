# SPDX-License-Identifier: Apache-2.0
"""Reports by others than the manager: what is true of them, how many there may be, and who waits for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles import House, World
from test_supervisor import outcomes, play

from syntrop.common import loop
from syntrop.sentry import incident as i
from syntrop.sentry import reports as reporting
from syntrop.sentry import supervisor as supervising
from syntrop.sentry import trigger as t
from syntrop.sentry.incident import Incident
from syntrop.sentry.reports import Reports
from syntrop.sentry.trigger import Trigger

UNIT = "web.service"
STRANGER = 4242


async def tell(house: House, reports: Reports, unit: str, invocation: str = "") -> str:
    """A stranger's report, as `ReportFailure` treats it; what became of it."""
    if await reports.admit(STRANGER):
        return "too many"
    trigger = await reports.failure(unit, invocation)
    if trigger is None:
        return "not failed"
    if await reports.recorded(trigger):
        return "recorded"
    house.supervisor.report(trigger)
    return "taken"


def test_root_and_our_own_report_are_believed() -> None:
    assert reporting.believed(0)
    assert reporting.believed(os.geteuid())
    assert not reporting.believed(STRANGER)


def test_what_the_manager_knows_nothing_of_is_no_incident(tmp_path: Path) -> None:
    told: list[str] = []

    async def scene(house: House) -> None:
        reports = Reports(house.kit)
        house.world.fail(UNIT)
        house.world.run(UNIT)  # it is well again
        house.world.fail("other.service")
        reported = ((UNIT, ""), ("nonesuch.service", ""), ("other.service", "a" * 32))
        told.extend([await tell(house, reports, *one) for one in reported])
        assert house.manager.asked == ["states", "states", "states", "other.service"]
        assert house.kit.guards.state(UNIT, house.clock.seconds()) == "closed"
        assert house.supervisor.status()["open_incidents"] == 0

    house = play(tmp_path, scene)
    assert told == ["not failed"] * 3
    assert house.incidents() == []


def test_a_true_report_is_a_failure_in_the_managers_words(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT, ExecMainCode=2, ExecMainStatus=11)
        trigger = await Reports(house.kit).failure(UNIT, "")
        assert trigger is not None
        wanted = (t.TOLD, f"{1:032x}", "signal", "killed", 11)
        assert (trigger.source, trigger.invocation, trigger.result, trigger.code, trigger.status) == wanted
        house.supervisor.report(trigger)
        house.supervisor.report(house.failed(UNIT))  # the manager's own report comes, too
        await house.settled()

    assert outcomes(play(tmp_path, scene)) == [(UNIT, i.RECOVERED)]


def test_a_failure_on_record_is_not_taken_again_by_any_life_of_ours(tmp_path: Path) -> None:
    told: list[str] = []

    async def first(house: House) -> None:
        house.world.fail(UNIT, Type="oneshot", cause="weird")
        told.append(await tell(house, Reports(house.kit), UNIT))
        await house.settled()

    world = play(tmp_path, first).world

    async def again(house: House) -> None:
        house.supervisor.resume()
        reports = Reports(house.kit)
        told.extend([await tell(house, reports, UNIT) for _ in range(3)])
        await house.settled()
        assert house.kit.guards.wire(UNIT, house.clock.seconds())["recent_failures"] <= 1
        world.fail(UNIT, Type="oneshot", cause="weird")  # another failure is another matter
        told.append(await tell(house, reports, UNIT))
        await house.settled()

    assert len(play(tmp_path, again, world=world).incidents()) == 2
    assert told == ["taken", "recorded", "recorded", "recorded", "taken"]


def test_a_record_is_found_by_its_failure_and_not_by_a_mention(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        incident = Incident("in-1-a", UNIT, 1, invocation="a" * 32)
        incident.excerpt = [f"quotes {'b' * 32}"]
        incident.move(i.REPORTED, 2)
        house.kit.keep(incident)
        assert house.kit.audit.has(UNIT, "a" * 32)
        assert not house.kit.audit.has(UNIT, "b" * 32)
        assert not house.kit.audit.has("other.service", "a" * 32)

    play(tmp_path, scene)


def test_a_flood_is_bounded_and_a_crash_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of reports of what did not fail: few questions, no record, and the crash goes first."""
    monkeypatch.setattr(reporting, "HELD", 0.0)
    told: list[str] = []

    async def scene(house: House) -> None:
        reports = Reports(house.kit)
        world = house.world
        for number in range(30):
            world.fail(f"decoy{number}.service")
            world.run(f"decoy{number}.service")
        world.fail(UNIT)
        for number in range(500):
            told.append(await tell(house, reports, f"decoy{number % 30}.service"))
            if number == 250:
                house.supervisor.report(house.failed(UNIT))
        assert house.manager.asked.count("states") == reporting.PER_MINUTE
        assert await reports.admit(0) == 0.0
        assert await reports.admit(STRANGER + 1) == 0.0  # another's are his own
        await house.settled()

    house = play(tmp_path, scene)
    assert outcomes(house) == [(UNIT, i.RECOVERED)]
    assert told.count("not failed") == reporting.PER_MINUTE
    assert told.count("too many") == 500 - reporting.PER_MINUTE


def test_who_asks_too_much_is_kept_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "HELD", 0.2)

    async def scene(house: House) -> None:
        reports = Reports(house.kit, per_minute=1)
        assert await reports.admit(STRANGER) == 0.0
        before = house.clock.seconds()
        assert 0.0 < await reports.admit(STRANGER) <= 60.0
        assert house.clock.seconds() - before >= 0.2

    play(tmp_path, scene)


def test_what_others_report_comes_after_the_managers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """True, but stale failures: they wait for all that the manager tells, and never take all the places."""
    monkeypatch.setattr(supervising, "RANKED_FROM", 6)
    begun: list[str] = []
    widest = 0

    async def scene(house: House) -> None:
        slicer = house.kit.slicer
        stale = 0

        async def slow(manager: object, unit: str, key: bytes, *, invocation: str) -> object:
            nonlocal stale, widest
            begun.append(unit)
            others = unit.startswith("stale") and unit != "stale11.service"
            stale += others
            widest = max(widest, stale)
            await loop.sleep(0.02)
            stale -= others
            return await slicer(manager, unit, key, invocation=invocation)

        house.kit.slicer = slow  # type: ignore[assignment]
        names = [f"stale{number}.service" for number in range(12)]
        for name in names:
            house.world.fail(name, RequiredBy=["a.service", "b.service"])
            house.supervisor.report(told(house, name))
        for number in range(6):
            house.world.fail(f"web{number}.service")
            house.supervisor.report(house.failed(f"web{number}.service"))
        house.supervisor.report(house.failed(names[-1]))  # of this one the manager tells as well
        await house.settled()

    house = play(tmp_path, scene, world=World())
    assert len(outcomes(house)) == 18
    assert {status for _unit, status in outcomes(house)} == {i.RECOVERED}
    assert widest <= supervising.TOLD_MAX
    real = [number for number, unit in enumerate(begun) if unit.startswith("web") or unit == "stale11.service"]
    assert max(real) < 7 + supervising.TOLD_MAX  # two at most had been begun before


def told(house: House, unit: str) -> Trigger:
    return house.failed(unit, source=t.TOLD)
