# SPDX-License-Identifier: Apache-2.0
"""The life of a daemon: what keeps it, and what an idle exit may not cut."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import activation, loop, notify
from syntrop.common.service import Daemon
from syntrop.common.settings import resolve
from syntrop.common.varlink.client import connect
from syntrop.common.varlink.server import Call

MODEL1 = "io.syntrop.Model1"


class Slow:
    """`List` takes as long as it is told; `Inspect` answers at once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    async def List(self, call: Call) -> dict[str, Any]:
        self.calls += 1
        await loop.sleep(self.seconds)
        return {"models": []}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    monkeypatch.setattr(notify, "notify", lambda *_args, **_options: True)
    return str(tmp_path / "syntrop" / MODEL1)


def run(path: str, idle: float, body: Callable[[Slow, Daemon], Awaitable[None]]) -> float:
    """Serve while `body` runs; seconds from its end to the daemon's."""
    handler = Slow()
    listener = activation.bind(path)

    async def main() -> float:
        daemon = Daemon("modeld", resolve("modeld", (), [f"--idle-exit-sec={idle}"]), [listener])
        daemon.serve_varlink(MODEL1, {MODEL1: handler})
        serving = loop.spawn(daemon.run())
        with loop.deadline(30):
            await body(handler, daemon)
            ended = time.monotonic()
            await serving
        return time.monotonic() - ended

    try:
        return loop.run(main())
    finally:
        listener.socket.close()


def test_a_call_that_arrives_with_the_exit_is_answered_however_long_it_takes(path: str) -> None:
    """The last moment: the daemon has decided to go, and the message is in the socket. It may take minutes."""

    async def body(handler: Slow, daemon: Daemon) -> None:
        handler.seconds = 1.0  # several times the grace that idle connections have to end
        client = await connect(path)
        await client.call(f"{MODEL1}.List")
        retire = daemon._retire

        async def late(patience: float) -> bool:
            daemon._retire = retire  # type: ignore[method-assign]
            client._wire.socket.send(b'{"method":"io.syntrop.Model1.List"}\0')
            return await retire(patience)

        daemon._retire = late  # type: ignore[method-assign]
        reply = await client._receive(f"{MODEL1}.List")
        assert reply.parameters == {"models": []} and handler.calls == 2
        # While that call ran, the daemon served others again.
        other = await connect(path)
        await other.call("org.varlink.service.GetInfo")
        other.close()

    run(path, 0.1, body)


def test_calls_on_a_kept_connection_are_activity(path: str) -> None:
    async def body(handler: Slow, daemon: Daemon) -> None:
        client = await connect(path)
        for _ in range(8):
            await client.call(f"{MODEL1}.List")
            await loop.sleep(0.3)
            assert not client._wire.read(), "nobody ended the connection"
        client.close()

    assert run(path, 2.0, body) < 10


def test_a_hold_keeps_the_daemon(path: str) -> None:
    async def body(handler: Slow, daemon: Daemon) -> None:
        with daemon.busy():
            await loop.sleep(0.5)
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(path)
            assert not daemon.stopping

    assert run(path, 0.05, body) < 10
