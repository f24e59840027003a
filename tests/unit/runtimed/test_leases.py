# SPDX-License-Identifier: Apache-2.0
"""Leases against an inferenced of the test's own, and against none."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.common.activation import accept
from syntrop.common.varlink.errors import MethodNotImplemented
from syntrop.common.varlink.server import Call, Identity, Server
from syntrop.runtimed import leases
from syntrop.runtimed.leases import INFERENCE, Leases


class Inference:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.released: list[str] = []
        self.refuses = False

    async def AcquireLease(self, call: Call, **parameters: Any) -> dict[str, Any]:
        self.asked.append(parameters)
        if self.refuses:
            raise MethodNotImplemented(call.method)
        size = parameters["memory_bytes"]
        return {"lease_id": f"lease-{len(self.asked)}", "plane_id": "ram", "allocated_memory": size}

    async def ReleaseLease(self, call: Call, lease_id: str) -> dict[str, Any]:
        self.released.append(lease_id)
        return {}


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(leases, "DELAY", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("SYNTROP_RUN_ROOT", folder)
        (Path(folder) / "syntrop").mkdir()
        yield Path(folder)


def run(root: Path, body: Callable[[Leases, Inference], Coroutine[Any, Any, None]]) -> None:
    async def serve(listener: socket.socket, server: Server) -> None:
        while True:
            await loop.readable(listener.fileno())
            while (sock := accept(listener)) is not None:
                connection = server.connect(sock)
                assert connection is not None
                loop.spawn(connection.run())

    async def main() -> None:
        inference = Inference()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(root / "syntrop" / INFERENCE))
            listener.listen(16)
            listener.setblocking(False)
            server = Server(Identity("test", "inference", "0", "http://localhost"), {INFERENCE: inference})
            serving = loop.spawn(serve(listener, server))
            with loop.deadline(30):
                await body(Leases(), inference)
            await loop.stop(serving)

    loop.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await loop.sleep(0.001)


def test_a_lease_is_taken_and_given_back(root: Path) -> None:
    async def body(held: Leases, inference: Inference) -> None:
        held.take("a", 1000)
        held.take("b", 2000)
        await until(lambda: len(held.held()) == 2)
        assert {one["memory_bytes"] for one in inference.asked} == {1000, 2000}
        assert {one["priority"] for one in inference.asked} == {"Interactive"}
        lease = held.held()["a"]
        held.give("a")
        held.give("a")
        await until(lambda: inference.released)
        assert inference.released == [lease]
        assert list(held.held()) == ["b"]

    run(root, body)


def test_who_does_not_implement_it_is_noted_once(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(held: Leases, inference: Inference) -> None:
        inference.refuses = True
        for key in "ab":
            held.take(key, 1000)
            await until(lambda: not held._asking)
        assert len(inference.asked) == 2
        assert held.held() == {}

    run(root, body)
    assert capfd.readouterr().err.count("No lease for 1000 bytes of memory, working without one") == 1


def test_nobody_there_is_noted_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        held = Leases()
        held.take("a", 1000)
        await until(lambda: not held._asking)
        assert held.held() == {}

    loop.run(main())
    assert "working without one" in capfd.readouterr().err


def test_what_is_given_back_before_it_was_asked_for_is_not_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DELAY", 600.0)

    async def body(held: Leases, inference: Inference) -> None:
        held.take("a", 1000)
        held.give("a")
        await until(lambda: not held._asking)
        assert inference.asked == []

    run(root, body)
