# SPDX-License-Identifier: Apache-2.0
"""The supervisor's own end at any moment, and what its next life makes of what it left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from doubles import UNIT, Adviser, House, World, outcomes, play

from syntrop.common import loop
from syntrop.sentry import incident as i


def crash_at(folder: Path, moment: str, world: Path) -> None:
    """A process of ours that deals with a failure, and ends at a moment of it as SIGKILL ends it."""

    async def main() -> None:
        house = House(folder, World(world), adviser=Adviser("no model"))
        house.settings.probation_sec = 20.0

        def end(_what: str) -> None:
            os._exit(9)

        async def ends(*_: Any, **__: Any) -> Any:
            end("")

        where, _, tool = moment.partition(" ")
        if where == "slice":
            house.kit.slicer = ends
        elif where == "correlate":
            house.peers.context = ends  # type: ignore[method-assign]
        elif where == "lease":
            house.peers.up |= {"inferenced", "runtimed"}
            house.peers.lease = ends  # type: ignore[method-assign]
        elif where == "diagnose":
            house.manager.occasion = ends  # type: ignore[method-assign]
        elif where in ("before", "after"):
            setattr(house.hands, where, lambda what: end(what) if what == tool else None)
        house.supervisor.report(house.failed(UNIT))
        if where == "intercept":
            end("")
        if where == "restore":
            with loop.deadline(30.0):
                while not any(one.probation for one in house.kit.audit.open()):
                    await loop.sleep(0.002)
            end("")
        await house.settled()

    process = os.fork()
    if process == 0:
        try:
            loop.run(main())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9


@pytest.mark.parametrize("cured", [True, False])
@pytest.mark.parametrize(
    "moment",
    ["intercept", "slice", "correlate", "lease", "diagnose", "before revert_dropin", "after revert_dropin",
     "before unit_restart", "after unit_restart", "restore", "before rollback", "after rollback"],
)  # fmt: skip
def test_our_end_in_any_phase_is_resumed_or_taken_back(tmp_path: Path, moment: str, cured: bool) -> None:
    if moment.endswith("rollback") == cured or (moment == "restore" and not cured):
        cured = not cured  # what is cured is not taken back, and what is not has no probation
    kept = tmp_path / "world"
    world = World(kept)
    world.fail(UNIT, cause="typo", cured=cured)
    folder = tmp_path / "state"
    crash_at(folder, moment, kept)

    async def resumed(house: House) -> None:
        house.supervisor.resume()
        assert house.supervisor.status()["open_incidents"] == 1
        await house.settled()

    house = play(folder, resumed, world=World(kept))
    (told,) = house.incidents()
    unit, done = house.world.units[UNIT], house.world.done
    assert done.count("revert_dropin web.service") == 1
    if cured:
        assert told["status"] == i.RECOVERED
        assert (unit["ActiveState"], unit["cause"]) == ("active", "crash")
        assert told["action"]["rollback_id"] == "rb-0"
    else:
        assert told["status"] == i.ROLLED_BACK
        assert unit["cause"] == "typo"
    assert done.count("unit_restart web.service") <= (1 if cured else 2)
    assert not os.listdir(folder / "open")


def test_what_runs_again_by_our_next_start_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "world"
    world = World(kept)
    world.fail(UNIT, cause="typo")
    crash_at(tmp_path / "state", "before revert_dropin", kept)
    world.units[UNIT]["cause"] = "crash"
    world.run(UNIT)  # a person mended it

    async def resumed(house: House) -> None:
        house.supervisor.resume()
        await house.settled()

    house = play(tmp_path / "state", resumed, world=world)
    assert house.world.done == []
    assert outcomes(house) == [(UNIT, i.REPORTED)]
