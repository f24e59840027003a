# SPDX-License-Identifier: Apache-2.0
"""A person's word: approved, rejected, asked for, or only looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles import UNIT, House, World, outcomes, play

from syntrop.common import loop
from syntrop.sentry import incident as i
from syntrop.sentry.incident import Incident


def staged(house: House) -> str:
    (one,) = house.incidents(status=i.STAGED)
    identifier: str = one["id"]
    return identifier


async def stage(house: House) -> None:
    house.world.fail(UNIT, Type="oneshot")
    house.supervisor.report(house.failed(UNIT))
    await house.settled()


def test_a_staged_action_waits_and_is_carried_out_when_approved(tmp_path: Path) -> None:
    async def first(house: House) -> None:
        await stage(house)
        assert house.world.done == []
        assert house.supervisor.status()["staged_incidents"] == 1

    async def second(house: House) -> None:
        house.supervisor.resume()
        id = staged(house)
        incident = await house.supervisor.approve(id)
        assert isinstance(incident, Incident)
        assert incident.status == i.RECOVERED
        with pytest.raises(KeyError):
            await house.supervisor.approve(id)

    world = World()
    play(tmp_path, first, world=world)
    house = play(tmp_path, second, world=world)
    assert house.world.done == ["unit_restart web.service"]


def test_a_staged_action_is_dropped_when_rejected_or_overtaken(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        await stage(house)
        first = staged(house)
        await stage(house)
        assert house.supervisor.incident(first).status == i.DISMISSED
        second = staged(house)
        assert house.supervisor.reject(second, "not now").status == i.REPORTED
        house.supervisor.reset(UNIT)  # three failures tripped it
        await stage(house)
        house.world.run(UNIT)
        third = await house.supervisor.approve(staged(house))
        assert isinstance(third, Incident)
        assert third.status == i.DISMISSED

    assert play(tmp_path, scene).world.done == []


def test_a_fault_of_ours_under_what_was_approved_is_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene(house: House) -> None:
        def faulty(_tool: str) -> None:
            raise ZeroDivisionError("a bug")

        await stage(house)
        house.hands.before = faulty
        with loop.deadline(30.0):
            incident = await house.supervisor.approve(staged(house))
        assert isinstance(incident, Incident)
        assert incident.status == i.REPORTED
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == []
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err
    assert os.listdir(tmp_path / "open") == []


def test_approval_waits_for_the_guards(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        await stage(house)
        house.kit.guards.lock(UNIT, house.clock.seconds())
        hold = await house.supervisor.approve(staged(house))
        assert not isinstance(hold, Incident)
        assert hold.wait is None
        assert house.world.done == []
        house.supervisor.reset(UNIT)
        assert isinstance(await house.supervisor.approve(staged(house)), Incident)

    play(tmp_path, scene)


def test_a_dry_run_changes_and_keeps_nothing(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT, cause="typo")
        spans: list[str] = []
        told = await house.supervisor.triage(UNIT, dry_run=True, listener=lambda span: spans.append(span.name))
        assert told.action is not None
        assert told.action.name == "revert_drop_in"
        assert spans == ["intercept", "slice", "correlate", "lease", "diagnose"] or sorted(spans) == sorted(
            ["intercept", "slice", "correlate", "lease", "diagnose"]
        )
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == []
    assert outcomes(house) == []


def test_who_asks_waits_for_the_end_or_joins_what_is_under_way(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        joined = await house.supervisor.triage(UNIT, dry_run=False)
        assert joined.status == i.RECOVERED
        well = await house.supervisor.triage(UNIT, dry_run=False)
        assert well.status == i.DISMISSED
        await house.settled()

    assert [status for _, status in outcomes(play(tmp_path, scene))] == [i.RECOVERED, i.DISMISSED]


def test_watchers_see_each_change(tmp_path: Path) -> None:
    seen: list[str] = []

    async def scene(house: House) -> None:
        house.kit.watchers.add(lambda incident: seen.append(incident.status))
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    play(tmp_path, scene)
    assert list(dict.fromkeys(seen)) == [i.OPEN, i.ACTING, i.RECOVERED]
