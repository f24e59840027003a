# SPDX-License-Identifier: Apache-2.0
"""The lease against an inferenced of the test's own, which has so much room and no more, and against none."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.common.activation import accept
from syntrop.common.varlink.errors import VarlinkError
from syntrop.common.varlink.server import Call, Identity, Server
from syntrop.runtimed import leases
from syntrop.runtimed.leases import INFERENCE, Leases, Refused
from syntrop.runtimed.model.kv import UNLIMITED, Budget, OverBudget
from syntrop.runtimed.ration import STEP

GIB = 1 << 30


class Inference:
    """One plane of host memory. `gate` holds answers back; `error` is what all get."""

    def __init__(self, room: int = GIB) -> None:
        self.room = room
        self.leases: dict[str, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.asked: int | None = None
        self.gate = loop.Event()
        self.gate.set()
        self.error: VarlinkError | None = None
        self.planes = ["cpu0"]
        self.connected = 0

    def left(self) -> None:
        self.connected -= 1

    async def ListPlanes(self, call: Call) -> dict[str, Any]:
        facts = {"total_memory": GIB, "is_triage_reserved": False, "name": "node"}
        return {
            "planes": [{"id": one, "kind": "cpu", "available_memory": self.room, **facts} for one in self.planes]
        }

    async def AcquireLease(self, call: Call, **given: Any) -> dict[str, Any]:
        assert (given["priority"], given["yield_signal"], given["plane"]) == ("Interactive", "SIGUSR1", "cpu0")
        return await self._set("AcquireLease", f"l-{len(self.calls)}", given["memory_bytes"])

    async def ResizeLease(self, call: Call, lease_id: str, memory_bytes: int) -> dict[str, Any]:
        if lease_id not in self.leases:
            raise VarlinkError(f"{INFERENCE}.LeaseNotFound", lease_id=lease_id)
        return await self._set("ResizeLease", lease_id, memory_bytes)

    async def _set(self, method: str, lease: str, size: int) -> dict[str, Any]:
        await self.gate.wait()
        self.calls.append((method, size))
        if self.error is not None:
            raise self.error
        more = size - self.leases.get(lease, 0)
        free = self.room - sum(self.leases.values())
        if more > free:
            raise VarlinkError(f"{INFERENCE}.ResourceExhaustion", plane="cpu0", requested=more, available=free)
        self.leases[lease] = size
        return {"lease_id": lease, "plane_id": "cpu0", "allocated_memory": size}

    async def ReleaseLease(self, call: Call, lease_id: str) -> dict[str, Any]:
        del self.leases[lease_id]
        return {}

    async def ExplainLease(self, call: Call, lease_id: str) -> dict[str, Any]:
        await self.gate.wait()
        return {"leases": [], "capacity": 0, "booked": 0, "frozen_for": [], "asked": self.asked}


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("SYNTROP_RUN_ROOT", folder)
        (Path(folder) / "syntrop").mkdir()
        yield Path(folder)


Body = Callable[[Leases, Budget, Inference], Coroutine[Any, Any, None]]


def run(root: Path, body: Body, *, limit: int = 4 * GIB, wait: float = 30.0, serve: bool = True) -> None:
    async def accepting(listener: socket.socket, server: Server, inference: Inference) -> None:
        while True:
            await loop.readable(listener.fileno())
            while (sock := accept(listener)) is not None:
                connection = server.connect(sock)
                assert connection is not None
                inference.connected += 1
                connection.when_closed(inference.left)
                loop.spawn(connection.run())

    async def main() -> None:
        inference, held, budget = Inference(), Leases(wait), Budget(limit)
        held.budget = budget
        with socket.socket(socket.AF_UNIX) as listener:
            if serve:
                listener.bind(str(root / "syntrop" / INFERENCE))
                listener.listen(16)
                listener.setblocking(False)
                server = Server(Identity("test", "inference", "0", "http://localhost"), {INFERENCE: inference})
                serving = loop.spawn(accepting(listener, server, inference))
            with loop.deadline(60):
                await body(held, budget, inference)
            if serve:
                await loop.stop(serving)

    loop.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await loop.sleep(0.001)


async def load(held: Leases, budget: Budget, size: int) -> None:
    await held.cover(size)
    budget.take_weights(size)
    assert budget.used <= budget.leased


def take(budget: Budget, size: int) -> None:
    with budget.lock:
        budget.take(size)


def test_loads_share_one_lease_and_what_goes_is_given_back(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        held.wake()
        held.ahead(STEP)
        await load(held, budget, STEP)
        assert list(inference.leases.values()) == [2 * STEP] and inference.calls == [("AcquireLease", 2 * STEP)]
        await load(held, budget, STEP // 2)
        assert len(inference.calls) == 1, "it was covered"
        await load(held, budget, STEP)
        assert inference.calls[1:] == [("ResizeLease", 4 * STEP)]
        budget.give_weights(2 * STEP)
        held.settle_soon()
        await until(lambda: held.size == 2 * STEP)
        assert budget.leased == 2 * STEP and list(inference.leases.values()) == [2 * STEP]
        budget.give_weights(budget.used)
        held.settle_soon()
        await until(lambda: not inference.leases and held.lease is None)
        assert budget.leased == UNLIMITED

    run(root, body)


def test_without_room_a_load_is_refused_by_number_and_less_ahead_is_enough(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        inference.room = 10_000_000
        with pytest.raises(Refused, match="10000001 bytes of cpu0 are wanted, inferenced has 10000000"):
            held_size = 10_000_001
            budget.ceiling = held_size  # so that nothing is asked for ahead
            await held.cover(held_size)
        assert held.lease is None and budget.limit == 4 * GIB
        budget.ceiling = 4 * GIB
        await load(held, budget, 9_000_000)
        assert list(inference.leases.values()) == [10_000_000]
        with pytest.raises(Refused, match="inferenced has 0"):
            await held.cover(2_000_000)
        await load(held, budget, 1_000_000)

    run(root, body)


def test_several_nodes_have_more_room_than_the_best(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        inference.planes = ["cpu0", "cpu1"]
        inference.room = 10
        await load(held, budget, 1000)
        assert held.lease is None and budget.leased == UNLIMITED

    run(root, body)


def test_caches_are_leased_before_they_need_it(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        await load(held, budget, STEP)
        for _ in range(40):
            await loop.thread(take, budget, STEP // 8)
            assert budget.used <= budget.leased
        assert len(inference.calls) <= 1 + 40 / 8 + 1
        with budget.lock:
            budget.used -= 5 * STEP
        await held.settle()
        assert list(inference.leases.values()) == [2 * STEP]

    run(root, body)


def test_where_caches_are_refused_the_budget_shrinks_for_a_while(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RETRY", 0.05)

    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        inference.room = 3 * STEP + 100
        await load(held, budget, STEP)
        await loop.thread(take, budget, 2 * STEP)
        assert held.size == 3 * STEP + 100, "as much as there was"
        with pytest.raises(OverBudget, match="100 of the 201326692 allowed are free"):
            await loop.thread(take, budget, 101)
        await until(lambda: budget.limit == budget.ceiling)
        inference.room = GIB
        await loop.thread(take, budget, 101)
        assert budget.used <= budget.leased <= held.size

    run(root, body)


def test_who_waits_for_a_lease_waits_for_the_answer(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        await load(held, budget, 2 * STEP - 10)
        inference.gate.clear()
        inference.leases[held.lease or ""] = held.size = budget.leased = 2 * STEP
        work = loop.thread(take, budget, 11)
        await loop.sleep(0.05)
        assert not work.done
        inference.gate.set()
        await work
        assert budget.used == 2 * STEP + 1 <= budget.leased

    run(root, body)


def test_an_answer_that_comes_late_counts_and_nobody_waits_for_it(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        inference.gate.clear()
        await held.cover(1000)
        budget.take_weights(1000)
        assert budget.leased == UNLIMITED and held.lease is None
        inference.gate.set()
        await until(lambda: held.lease)
        assert budget.leased == held.size == 2 * STEP

    run(root, body, wait=0.05)
    assert capfd.readouterr().err.count("working without one: no answer within 0.05 s") == 1


def test_nobody_there_is_noted_once(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        for _ in range(3):
            held.wake()
            held.ahead(1000)
            await held.cover(1000)
            budget.take_weights(1000)
            await loop.thread(take, budget, GIB)
        assert held.lease is None

    run(root, body, serve=False)
    assert capfd.readouterr().err.count("working without one") == 1


def test_what_is_no_word_on_memory_refuses_nothing(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        inference.error = VarlinkError(f"{INFERENCE}.PressureUnavailable", reason="no pressure here")
        await load(held, budget, 1000)
        assert held.lease is None
        inference.error = None
        await load(held, budget, 1000)
        assert held.lease is not None

    run(root, body)
    assert capfd.readouterr().err.count("working without one") == 1


def test_a_lease_that_was_ended_by_others_is_taken_anew(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        await load(held, budget, STEP)
        inference.leases.clear()
        await load(held, budget, 2 * STEP)
        assert list(inference.leases) == [held.lease] and held.size == 4 * STEP
        inference.leases.clear()
        budget.give_weights(2 * STEP)
        await held.settle()
        assert held.lease is None and budget.leased == UNLIMITED

    run(root, body)


def test_it_shrinks_to_what_is_asked_or_what_is_in_use(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RETRY", 600.0)

    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        assert await held.asked() is None
        await load(held, budget, STEP)
        assert await held.asked() is None
        inference.asked = STEP + 1000
        assert await held.asked() == STEP + 1000
        await held.shrink(STEP + 1000)
        assert list(inference.leases.values()) == [STEP + 1000]
        inference.room = STEP + 1000
        with pytest.raises(OverBudget, match="1000 of the 67109864 allowed are free"):
            await loop.thread(take, budget, 1001)
        assert budget.is_short
        await held.shrink(0)
        assert list(inference.leases.values()) == [STEP] == [held.size]
        budget.give_weights(STEP)
        await held.shrink(0)
        assert not inference.leases and held.lease is None

    run(root, body)


def test_who_was_woken_for_nothing_is_left_alone(root: Path) -> None:
    async def body(held: Leases, budget: Budget, inference: Inference) -> None:
        held.wake()
        held.rest()
        await until(lambda: held._early is None)
        held.wake()
        await held.cover(1000)
        held.rest()
        assert held._early is None and held.lease is not None
        await until(lambda: inference.connected == 0)

    run(root, body)
