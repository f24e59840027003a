# SPDX-License-Identifier: Apache-2.0
"""Pressure, from files that the test writes."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from syntrop.common import loop, psi
from syntrop.routerd.host import FRESH, Pressed


class Machine:
    def __init__(self, root: Path) -> None:
        self._folder = root / "pressure"
        self._folder.mkdir()
        self.now = 100.0
        for resource in ("cpu", "memory", "io"):
            self.set(resource, 0.0)

    def set(self, resource: str, some: float) -> None:
        line = f"avg10={some} avg60=0 avg300=0 total=0"
        (self._folder / resource).write_text(f"some {line}\nfull {line.replace(str(some), '0.0')}\n")

    def clock(self) -> float:
        return self.now


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    return Machine(tmp_path)


def test_readings_are_taken_now_and_then(machine: Machine) -> None:
    pressed = Pressed(25.0, clock=machine.clock)
    assert pressed.host().level == "normal"
    machine.set("memory", 41.0)
    machine.now += FRESH / 2
    assert pressed.host().memory_some == 0.0
    machine.now += FRESH
    host = pressed.host()
    assert (host.level, host.memory_some, host.shedding) == ("critical", 41.0, True)
    assert pressed.readings()["memory"].some.avg10 == 41.0


def test_work_comes_back_when_it_has_been_calm_for_a_while(machine: Machine) -> None:
    pressed = Pressed(20.0, clock=machine.clock)
    machine.set("memory", 21.0)
    assert pressed.host().shedding
    for some, calm in ((15.0, False), (11.0, False), (11.0, False), (11.0, True)):
        machine.set("memory", some)
        machine.now += 3.0
        assert pressed.host().shedding is not calm


def test_another_threshold(machine: Machine) -> None:
    pressed = Pressed(50.0, clock=machine.clock)
    machine.set("memory", 30.0)
    assert not pressed.host().shedding
    pressed.set_threshold(25.0)
    assert pressed.host().shedding


def test_a_machine_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path / "nothing"))

    async def main() -> None:
        pressed = Pressed(25.0)
        pressed.watch()
        assert not pressed.watched and pressed.host().level == "unknown" and not pressed.host().shedding
        pressed.close()

    loop.run(main())


def test_the_kernel_s_word_counts_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    triggers: list[tuple[str, int, int]] = []
    told: list[object] = []

    class Trigger:
        def __init__(self, resource: str, function: object, **given: int) -> None:
            triggers.append((resource, given["stall_usec"], given["window_usec"]))
            told.append(function)

        def close(self) -> None:
            triggers.append(("closed", 0, 0))

    monkeypatch.setattr(psi, "Trigger", Trigger)
    pressed = Pressed(25.0, clock=machine.clock)
    pressed.watch()
    pressed.watch()
    assert triggers == [("memory", 500_000, 2_000_000)] and pressed.watched
    machine.set("memory", 3.0)
    assert callable(told[0])
    told[0]()
    host = pressed.host()
    assert host.shedding and host.memory_some == 3.0
    pressed.close()
    assert triggers[-1][0] == "closed" and not pressed.watched


def test_the_kernel_s_own_trigger() -> None:
    """Registered at the real kernel, polled, and given back. Since Linux 6.4 everybody may; before, root."""

    def open_files() -> list[str]:
        folder = "/proc/self/fd"
        return [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if os.path.lexists(f"{folder}/{fd}")]

    async def main() -> None:
        pressed = Pressed(25.0)
        pressed.watch()
        assert pressed.watched or os.geteuid() != 0
        trigger = pressed._trigger
        if trigger is None:
            return
        assert trigger.path == "/proc/pressure/memory" and open_files().count(trigger.path) == 1
        assert (trigger.stall_usec, trigger.window_usec) == (500_000, 2_000_000)
        poller = select.poll()
        poller.register(trigger.fileno(), select.POLLPRI)
        assert not any(events & (select.POLLERR | select.POLLNVAL) for _, events in poller.poll(0))
        await loop.sleep(0)  # the loop has it too, and is not woken for nothing
        pressed.watch()
        assert pressed._trigger is trigger
        pressed.set_threshold(50.0)
        assert not pressed.watched and trigger.path not in open_files()
        pressed.watch()
        assert pressed._trigger is not None and pressed._trigger.stall_usec == 1_000_000
        pressed.close()
        assert trigger.path not in open_files()

    loop.run(main())
