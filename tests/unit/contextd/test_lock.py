# SPDX-License-Identifier: Apache-2.0
"""The lock of the store: one at a time, and a caller that waits goes before the background."""

from __future__ import annotations

import threading
import time

from syntrop.contextd.lock import Lock

TIMEOUT = 60


def test_one_at_a_time_however_many_come() -> None:
    lock = Lock()
    inside = total = 0

    def work(side: object) -> None:
        nonlocal inside, total
        for _ in range(500):
            with side:  # type: ignore[attr-defined]
                inside += 1
                assert inside == 1
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work, args=(side,)) for side in (lock.urgent, lock.patient) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    # A count that threads share without a lock loses steps, and kept the background out for good.
    assert total == 500 * len(threads)


def test_a_caller_that_waits_goes_before_the_background() -> None:
    lock = Lock()
    order: list[str] = []

    def caller() -> None:
        with lock.urgent:
            order.append("urgent")

    waiting = threading.Thread(target=caller)
    with lock.patient:
        waiting.start()
        deadline = time.monotonic() + TIMEOUT
        while not lock.gate.locked():
            assert time.monotonic() < deadline
    with lock.patient:  # the next step of the same work
        order.append("patient")
    waiting.join(TIMEOUT)
    assert order == ["urgent", "patient"]
