# SPDX-License-Identifier: Apache-2.0
"""The manager asked and listened to over a real message bus, which comes and goes; the manager is a double."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from bus_double import Bus
from manager_double import NAME, PATH, ManagerDouble

from syntrop.common import dbus, loop
from syntrop.sentry.ears import Ears
from syntrop.sentry.link import PENDING_MAX
from syntrop.sentry.manager import Manager
from syntrop.sentry.policy import Occasion
from syntrop.sentry.trigger import SIGNAL, Trigger

WEB, DB = "web.service", "db.service"
ONE, TWO = "1" * 32, "2" * 32
JOB = f"{PATH}/job/7"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.start()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={bus.path}")
    yield bus
    bus.stop()


@pytest.fixture
def double(bus: Bus) -> Iterator[ManagerDouble]:
    double = ManagerDouble(bus)
    yield double
    double.close()


def run(use: Callable[[Manager], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        manager = Manager()
        try:
            with loop.deadline(60):
                await use(manager)
        finally:
            manager.close()

    loop.run(main())


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    with loop.deadline(seconds):
        while not condition():
            await loop.sleep(0.005)


class Listening:
    """Ears at work, and what they told."""

    def __init__(self, manager: Manager, *, since_us: int | None = None) -> None:
        self.heard: list[Trigger] = []
        self.ears = Ears(manager, since_us=since_us)
        self._task = loop.spawn(self.ears.run(self.heard.append))

    async def __aenter__(self) -> Listening:
        await until(lambda: self.ears.listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        await loop.stop(self._task)

    async def told(self, count: int) -> list[Trigger]:
        await until(lambda: len(self.heard) >= count)
        return self.heard


def test_properties_are_plain_and_both_kinds_are_one(double: ManagerDouble) -> None:
    double.units[WEB] = {
        "Id": WEB, "LoadState": "loaded", "ActiveState": "active", "InvocationID": bytes.fromhex(ONE),
        "Result": "success", "NRestarts": 3, "MemoryMax": 2**64 - 1, "Requires": [DB], "Job": (0, "/"),
    }  # fmt: skip

    async def use(manager: Manager) -> None:
        assert await manager.unit(WEB) == {
            "Id": WEB, "LoadState": "loaded", "ActiveState": "active", "InvocationID": ONE, "Result": "success",
            "NRestarts": 3, "MemoryMax": "infinity", "Requires": [DB], "Job": (0, "/"),
        }  # fmt: skip
        assert (await manager.unit("absent.service"))["LoadState"] == "not-found"
        asked = len(double.asked)
        assert (await manager.unit("../../etc"))["LoadState"] == "not-found"
        assert len(double.asked) == asked
        both = await manager.units([WEB, DB], frozenset(("ActiveState",)))
        assert both[WEB] == {"Id": WEB, "LoadState": "not-found", "ActiveState": "active"}
        assert await manager.states([WEB, DB]) == {WEB: "active", DB: "inactive"}
        assert await manager.states([]) == {}

    run(use)


def test_the_occasion(double: ManagerDouble) -> None:
    double.jobs[JOB] = "restart"

    async def use(manager: Manager) -> None:
        assert await manager.occasion(WEB, {"Job": (0, "/")}) == Occasion()
        assert await manager.occasion(WEB, {"Job": (7, JOB)}) == Occasion(job="restart")
        assert await manager.occasion(WEB, {"Job": (7, JOB), "SubState": "auto-restart"}) == Occasion()
        assert await manager.occasion(WEB, {"Job": (8, f"{PATH}/job/8")}) == Occasion()
        double.system_state = "stopping"
        assert await manager.occasion(WEB, {}) == Occasion(leaving=True)

    run(use)


def test_many_ask_at_once_and_one_that_is_not_answered_holds_nobody_up(double: ManagerDouble) -> None:
    double.change(WEB, ActiveState="active", Result="success")
    double.silent.add("ListUnitsFiltered")

    async def use(manager: Manager) -> None:
        waiting = loop.spawn(manager.failed())
        found = await loop.gather(*(manager.unit(WEB) for _ in range(50)))
        assert {one["ActiveState"] for one in found} == {"active"}
        assert not waiting.done
        await loop.stop(waiting)
        with pytest.raises(TimeoutError), loop.deadline(0.05):
            await manager.failed()
        assert (await manager.unit(WEB))["ActiveState"] == "active"

    run(use)


def test_more_questions_than_the_bus_lets_wait_are_asked_in_turn(double: ManagerDouble) -> None:
    units = [f"unit-{number}.service" for number in range(300)]
    for unit in units:
        double.units[unit] = {"Id": unit, "LoadState": "loaded", "ActiveState": "active", "Job": (0, "/")}

    async def use(manager: Manager) -> None:
        many = loop.spawn(manager.units(units))
        occasions = await loop.gather(*(manager.occasion(unit, double.units[unit]) for unit in units))
        assert occasions == [Occasion()] * len(units)
        assert {name: one["ActiveState"] for name, one in (await many).items()} == dict.fromkeys(units, "active")

    run(use)


def test_no_more_replies_are_due_at_once_than_the_bus_allows(double: ManagerDouble) -> None:
    double.silent.add("GetAll")

    async def use(manager: Manager) -> None:
        asking = [loop.spawn(manager.unit(f"unit-{number}.service")) for number in range(200)]
        await until(lambda: len(double.asked) >= PENDING_MAX)
        # An answer over another connection comes behind all that was sent by now.
        other = Manager()
        assert await other.failed() == []
        other.close()
        assert double.asked.count("GetAll") == PENDING_MAX
        assert not any(task.done for task in asking)
        for task in asking:
            await loop.stop(task)

    run(use)


def test_more_watches_than_the_bus_keeps_rules_for(double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        watches = [await manager.watch(f"unit-{number}.service") for number in range(600)]
        for watch in watches:
            watch.close()
        again = await manager.watch(WEB)
        double.change(WEB, ActiveState="active")
        await again.changed()
        again.close()

    run(use)


def test_a_bus_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/absent")

    async def use(manager: Manager) -> None:
        with pytest.raises(OSError):
            await manager.unit(WEB)

    run(use)


def test_a_manager_that_is_executed_anew_is_asked_again(bus: Bus) -> None:
    first = ManagerDouble(bus)
    first.silent.add("GetAll")

    async def use(manager: Manager) -> None:
        asking = loop.spawn(manager.unit(WEB))
        await until(lambda: "GetAll" in first.asked)
        first.close()
        second = ManagerDouble(bus)
        second.change(WEB, ActiveState="active")
        assert (await asking)["ActiveState"] == "active"
        second.close()

    run(use)


def test_a_refusal_is_not_asked_again(double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        with pytest.raises(dbus.DBusError, match="UnknownMethod"):
            await manager._call(PATH, f"{NAME}.Manager", "Nonsense")
        assert double.asked.count("Nonsense") == 1

    run(use)


def test_a_watch_misses_nothing_from_when_it_is_made(bus: Bus, double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        watch = await manager.watch(WEB)
        double.change(WEB, ActiveState="active")
        await watch.changed()
        double.change(DB, ActiveState="active")
        with pytest.raises(TimeoutError), loop.deadline(0.1):
            await watch.changed()
        bus.stop()
        await until(lambda: not manager.connected)
        bus.start()
        again = ManagerDouble(bus)
        await watch.changed()  # what happened meanwhile is not known
        await until(lambda: "Subscribe" in again.asked)
        again.change(WEB, ActiveState="failed")
        await watch.changed()
        watch.close()
        watch.close()
        again.close()

    run(use)


def test_a_failure_is_heard_with_what_is_known_of_it(double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        async with Listening(manager) as listening:
            double.change(WEB, ActiveState="active", SubState="running", Result="success")
            double.fail(WEB, ONE)
            double.fail(WEB, ONE)
            double.fail(DB, TWO, result="exit-code", status=3)
            web, db = await listening.told(2)
            assert (web.unit, web.invocation, web.source) == (WEB, ONE, SIGNAL)
            assert (web.result, web.code, web.status, web.occasion) == ("signal", "killed", 11, None)
            assert web.failed_us > 0 and web.wall_us > 0
            assert (db.unit, db.result, db.status) == (DB, "exit-code", 3)

    run(use)


def test_a_stop_by_hand_is_heard_as_one(double: ManagerDouble) -> None:
    double.jobs[JOB] = "stop"

    async def use(manager: Manager) -> None:
        async with Listening(manager) as listening:
            double.change(
                WEB, ActiveState="deactivating", SubState="stop-sigterm", InvocationID=bytes.fromhex(ONE),
                Job=(7, JOB), Result="success",
            )  # fmt: skip
            await until(lambda: "Get" in double.asked)
            await manager.unit(WEB)  # the answer to the question before has come by then
            double.fail(WEB, ONE, Job=(7, JOB))
            (stopped,) = await listening.told(1)
            assert stopped.occasion == Occasion(job="stop")

    run(use)


def test_a_dependency_that_failed_is_heard_by_the_job(double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        async with Listening(manager) as listening:
            for result in ("done", "dependency"):
                double.signal(PATH, f"{NAME}.Manager", "JobRemoved", "uoss", [7, JOB, WEB, result])
            (found,) = await listening.told(1)
            assert (found.unit, found.result) == (WEB, "dependency")

    run(use)


def test_what_failed_while_nobody_listened_is_told_afterwards(bus: Bus, double: ManagerDouble) -> None:
    double.fail("old.service", "3" * 32, StateChangeTimestamp=1_000)
    double.fail("late.service", "4" * 32, StateChangeTimestamp=3_000)

    async def use(manager: Manager) -> None:
        async with Listening(manager, since_us=2_000) as listening:
            assert [one.unit for one in await listening.told(1)] == ["late.service"]
            bus.stop()
            await until(lambda: not listening.ears.listening)
            bus.start()
            again = ManagerDouble(bus)
            again.units = {**double.units}
            again.units[WEB] = {
                "Id": WEB, "ActiveState": "failed", "InvocationID": bytes.fromhex(ONE), "Result": "signal",
                "ExecMainCode": 2, "ExecMainStatus": 9, "StateChangeTimestamp": 2**60,
            }  # fmt: skip
            found = (await listening.told(2))[1]
            assert (found.unit, found.invocation, found.status) == (WEB, ONE, 9)
            again.fail(DB, TWO)
            assert [one.unit for one in await listening.told(3)] == ["late.service", WEB, DB]
            again.close()

    run(use)


def test_a_manager_that_forgot_its_subscribers_is_subscribed_to_again(double: ManagerDouble) -> None:
    async def use(manager: Manager) -> None:
        async with Listening(manager):
            before = double.asked.count("Subscribe")
            for active in (True, False):
                double.signal(PATH, f"{NAME}.Manager", "Reloading", "b", [active])
            await until(lambda: double.asked.count("Subscribe") > before)

    run(use)


def test_a_storm_is_heard_whole(double: ManagerDouble) -> None:
    units = [f"unit-{number}.service" for number in range(300)]

    async def use(manager: Manager) -> None:
        async with Listening(manager) as listening:
            for number, unit in enumerate(units):
                double.fail(unit, f"{number:032x}")
            assert [one.unit for one in await listening.told(len(units))] == units

    run(use)
