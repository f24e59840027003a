# SPDX-License-Identifier: Apache-2.0
"""Holders of leases are processes, told from others by number and start, and never taken for another."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from syntrop.common import loop, peer
from syntrop.inferenced import holders
from syntrop.inferenced.freezer import Manager
from syntrop.inferenced.lease import Holder, Lease, Slice
from syntrop.inferenced.tier import Tier
from syntrop.inferenced.watch import Watchers


@pytest.fixture
def echo() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        yield process
        process.kill()


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether it answers; a signal that was sent to it before would have ended it by then."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"x")
    return process.stdout.read(1) == b"x"


def test_a_thread_is_no_holder() -> None:
    """It has a folder in /proc and a number, and nobody would know when it ends."""
    number: list[int] = []
    known, done = threading.Event(), threading.Event()

    def work() -> None:
        number.append(threading.get_native_id())
        known.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert known.wait(60)
        one = holders.of_process(0, number[0])
        assert one.start is not None
        watcher = holders.Watcher(lambda _: None)
        with pytest.raises(holders.Gone):
            watcher.add(one)
    finally:
        done.set()
        thread.join()


def test_a_number_that_has_passed_on_gets_no_signal(echo: subprocess.Popen[bytes]) -> None:
    start = peer.start_time(echo.pid)
    assert start is not None
    watchers = Watchers(Manager())

    async def ask(start: int) -> None:
        holder = Holder(0, echo.pid, start)
        part = Slice("cpu0", "cpu0", 1)
        watchers.ask(Lease("l-1", Tier.BATCH, holder, (part,), 1, signal="SIGTERM"), 0, 250, "it is wanted")

    loop.run(ask(start - 1))
    assert lives(echo)
    loop.run(ask(start))
    assert echo.wait(60) == -15
