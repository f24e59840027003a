# SPDX-License-Identifier: Apache-2.0
"""The event loop and threads: those that it starts, and those that call it."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from syntrop.common import loop


def test_threads_are_bounded_and_errors_come_back() -> None:
    async def main() -> int:
        running = most = 0
        lock = threading.Lock()

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.002)
            with lock:
                running -= 1

        def broken() -> None:
            raise LookupError

        for future in [loop.thread(work) for _ in range(40)]:
            await future
        with pytest.raises(LookupError):
            await loop.thread(broken)
        return most

    assert 1 < loop.run(main()) <= 8


def test_a_thread_may_end_while_the_loop_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two ends of the pipe that wakes it. An error there would end a process that is about to exit."""
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    leave, close = threading.Event(), os.close
    threads: list[threading.Thread] = []

    def start(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        threads.append(threading.Thread(target=function, args=arguments))
        threads[-1].start()

    def closing(fd: int) -> None:
        close(fd)
        leave.set()
        threads[0].join(60)

    async def main() -> None:
        monkeypatch.setattr(_thread, "start_new_thread", start)
        loop.thread(leave.wait, 60)
        monkeypatch.setattr(os, "close", closing)

    loop.run(main())
    assert not threads[0].is_alive()
    assert not failed


def test_a_thread_that_cannot_start_is_an_error_and_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    start = _thread.start_new_thread

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        for _ in range(100):  # more often than there may be threads
            monkeypatch.setattr(_thread, "start_new_thread", refuse)
            with pytest.raises(MemoryError):
                await loop.thread(int)
            monkeypatch.setattr(_thread, "start_new_thread", start)
        assert await loop.thread(int, "7") == 7

    loop.run(main())


def test_a_thread_without_memory_for_a_frame_is_an_error_and_no_loss() -> None:
    """In a process of its own, whose memory ends where it stands."""
    script = """
import os, resource
from syntrop.common import loop

async def main():
    await loop.thread(int)
    while len(os.listdir("/proc/self/task")) > 1:  # its stack stays for the next one
        await loop.sleep(0.001)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    for more in (0, 4096, 16384, 65536):
        resource.setrlimit(resource.RLIMIT_AS, (size + more, -1))
        for _ in range(10):
            try:
                with loop.deadline(20):
                    assert await loop.thread(len, "seven") == 5
            except MemoryError:
                pass
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    assert await loop.thread(len, "seven") == 5

loop.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(loop.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=60, capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_threadsafe_wakes_a_sleeping_loop() -> None:
    async def main() -> float:
        event = loop.Event()
        thread = threading.Timer(0.02, lambda: loop.threadsafe(event.set))
        thread.start()
        started = time.monotonic()
        with loop.deadline(60):
            await event.wait()
        thread.join()
        return time.monotonic() - started

    assert loop.run(main()) < 2
    loop.threadsafe(print)  # after the end: nothing happens
