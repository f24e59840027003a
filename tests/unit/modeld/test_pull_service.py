# SPDX-License-Identifier: Apache-2.0
"""What a download does when its caller leaves."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from syntrop.common import journal, loop
from syntrop.common.varlink.errors import VarlinkError
from syntrop.modeld.pull import service


class Caller:
    """A call that has a pipe, and may do everything."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def require_more(self) -> None:
        pass

    def take_fd(self, index: int) -> int:
        return self._fd


def test_a_caller_who_leaves_as_it_fails_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left to be told, so nothing is to be logged either."""
    logged: list[str] = []
    monkeypatch.setattr(journal, "exception", lambda message, *_, **__: logged.append(message))
    reader, writer = os.pipe()

    async def allowed(call: object) -> None:
        pass

    async def main() -> None:
        async def fails(control: object, function: object) -> None:
            handler.cancel()
            raise VarlinkError("io.syntrop.Fetch1.Unavailable", url="", reason="nobody waits for it")

        settings: Any = None  # of transports, of which there is none
        call: Any = Caller(writer)
        with monkeypatch.context() as patch:  # whose end lets go of the task
            patch.setattr(service, "_authorize", allowed)
            patch.setattr(service, "_run", fails)
            handler = loop.spawn(service.Fetch1(settings).Fetch(call, "http://127.0.0.1/", 0))
            with pytest.raises(loop.TaskCancelled):
                await handler

    loop.run(main())
    for fd in (reader, writer):
        os.close(fd)
    gc.collect()
    assert logged == []
