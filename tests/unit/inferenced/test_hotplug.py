# SPDX-License-Identifier: Apache-2.0
"""Devices that come and go: announcements from a socket of ours, and with root the kernel's own."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from syntrop.common import loop
from syntrop.inferenced import hotplug


class One:
    def __init__(self, action: str, sys_name: str) -> None:
        self.action = action
        self.sys_name = sys_name


class Source:
    """Announcements over a socket pair, one a datagram; an empty one stands for a buffer that ran over."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)

    def fileno(self) -> int:
        return self._near.fileno()

    def poll(self, timeout: float) -> One | None:
        try:
            text = self._near.recv(256).decode()
        except BlockingIOError:
            return None
        if text == "lost":
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        return One(*text.split(" "))

    def announce(self, *texts: str) -> None:
        for text in texts:
            self._far.send(text.encode())

    def close(self) -> None:
        self._near.close()
        self._far.close()


@pytest.mark.parametrize(
    ("action", "name", "expected"),
    [
        ("add", "renderD128", True),
        ("remove", "renderD128", True),
        ("add", "accel0", True),
        ("unbind", "accel0", True),
        ("change", "renderD128", False),
        ("add", "card0", False),
        ("add", "card0-HDMI-A-1", False),
        ("add", None, False),
        (None, "renderD128", False),
    ],
)
def test_what_concerns_planes(action: str | None, name: str | None, expected: bool) -> None:
    assert hotplug.relevant(action, name) is expected


def test_one_call_for_all_that_was_announced_at_once() -> None:
    async def main() -> list[int]:
        calls: list[int] = []
        called = loop.Event()

        def changed() -> None:
            calls.append(1)
            called.set()

        source = Source()
        source.announce("add card0", "add renderD128", "add renderD129", "change card0")
        monitor = hotplug.Monitor(changed, source)
        with loop.deadline(30):
            await called.wait()
        source.announce("change card0", "change renderD128", "add card1")
        # These concern nobody; the next does, and by then they have been taken.
        called = loop.Event()
        source.announce("lost")
        with loop.deadline(30):
            await called.wait()
        monitor.close()
        source.announce("add renderD130")
        await loop.sleep(0)
        source.close()
        return calls

    assert loop.run(main()) == [1, 1]


def test_a_failing_callback_is_not_the_last(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> int:
        calls = 0
        called = loop.Event()

        def changed() -> None:
            nonlocal calls
            calls += 1
            called.set()
            raise ValueError("no")

        source = Source()
        monitor = hotplug.Monitor(changed, source)
        for _ in range(2):
            called = loop.Event()
            source.announce("remove accel0")
            with loop.deadline(30):
                await called.wait()
        monitor.close()
        source.close()
        return calls

    assert loop.run(main()) == 2
    assert "after a change of devices: ValueError: no" in capfd.readouterr().err


def test_a_storm_does_not_keep_the_loop() -> None:
    class Storm(Source):
        def poll(self, timeout: float) -> One | None:
            return One("change", "card0")

    async def main() -> None:
        source = Storm()
        source.announce("any")
        monitor = hotplug.Monitor(lambda: None, source)
        with loop.deadline(30):
            for _ in range(3):
                await loop.sleep(0)  # we get our turn all the same
        monitor.close()
        source.close()

    loop.run(main())


def test_pyudev_is_imported_by_listening_only() -> None:
    import subprocess

    code = "import sys; from syntrop.inferenced import hotplug; print('pyudev' in sys.modules)"
    source = Path(hotplug.__file__).parents[2]
    said = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said.stdout == "False\n"


@pytest.mark.root
def test_the_kernels_own_announcements() -> None:
    """/dev/null is announced anew (`synthetic uevents` of the kernel's sysfs-uevent); nothing else comes of it."""

    async def main() -> list[tuple[str, str]]:
        source = hotplug.listen(["mem"])
        with open("/sys/class/mem/null/uevent", "w") as file:
            file.write("change")
        found = []
        with loop.deadline(60):
            while ("change", "null") not in found:
                await loop.readable(source.fileno())
                while (one := source.poll(timeout=0)) is not None:
                    found.append((one.action, one.sys_name))
        loop.forget(source.fileno())
        return found

    assert ("change", "null") in loop.run(main())
