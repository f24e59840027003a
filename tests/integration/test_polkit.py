# SPDX-License-Identifier: Apache-2.0
"""Questions to polkit over a real message bus, which checks our marshalling; polkit itself is a double here."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from bus_double import Bus, Seat

from syntrop.common import dbus, loop, peer, polkit


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private message bus, which the environment names as the system bus."""
    bus = Bus(tmp_path)
    bus.start()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={bus.path}")
    yield bus.path
    bus.stop()


class Authority(Seat):
    """polkit's place on the bus: records what it is asked and answers as told."""

    def __init__(self, path: Path, answer: tuple[str, list[Any]] | str | None) -> None:
        self.asked: list[list[Any]] = []
        self.pids: list[str] = []
        self._told = answer
        super().__init__(path, "org.freedesktop.PolicyKit1")

    def answer(self, message: dbus.Message) -> tuple[str, list[Any]] | str | None:
        self.asked.append(message.body)
        while self.fds:
            fd = self.fds.pop()
            self.pids += [
                line.split()[1]
                for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
                if line.startswith("Pid:")
            ]
            os.close(fd)
        return self._told


def _ask(*, interactive: bool = False) -> bool:
    left, right = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    who = peer.of(left)
    try:
        return loop.run(polkit.check(who, "io.syntrop.model.pin", {"model": "a:b"}, interactive=interactive))
    finally:
        who.close()
        assert len(os.listdir("/proc/self/fd")) == before
        left.close()
        right.close()


@pytest.mark.parametrize("verdict", [True, False])
def test_the_verdict_is_polkits(bus: Path, verdict: bool) -> None:
    authority = Authority(bus, ("(bba{ss})", [(verdict, False, {"a": "b"})]))
    assert _ask() is verdict
    authority.close()
    subject, action, details, flags, cancellation = authority.asked[0]
    kind, who = subject
    assert kind == "unix-process"
    assert who["pid"] == ("u", os.getpid())
    assert who["uid"] == ("i", os.getuid())
    assert who["start-time"] == ("t", peer.start_time(os.getpid()))
    assert who["pidfd"][0] == "h"
    assert authority.pids == [str(os.getpid())]
    assert (action, details, flags, cancellation) == ("io.syntrop.model.pin", {"model": "a:b"}, 0, "")


def test_the_user_is_asked_only_when_allowed(bus: Path) -> None:
    authority = Authority(bus, ("(bba{ss})", [(True, False, {})]))
    assert _ask(interactive=True)
    authority.close()
    assert authority.asked[0][3] == 1


def test_an_error_is_a_refusal(bus: Path) -> None:
    authority = Authority(bus, "org.freedesktop.PolicyKit1.Error.NotAuthorized")
    assert not _ask()
    authority.close()
    assert len(authority.asked) == 1


def test_an_answer_of_another_shape_is_a_refusal(bus: Path) -> None:
    authority = Authority(bus, ("b", [True]))
    assert not _ask()
    authority.close()
    assert len(authority.asked) == 1


def test_no_polkit_is_a_refusal(bus: Path) -> None:
    assert not _ask()


def test_no_bus_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    assert not _ask()


def test_silence_is_a_refusal_and_holds_nothing_up(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polkit, "TIMEOUT", 0.3)
    authority = Authority(bus, None)
    started = monotonic()
    assert not _ask()
    assert 0.3 <= monotonic() - started < 5
    authority.close()
    assert len(authority.asked) == 1


def test_a_bus_that_hangs_up_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert not _ask()
        thread.join(60)


def test_an_address_in_the_abstract_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "tcp:host=x;unix:abstract=/a/b,guid=1")
    assert dbus._address() == "\0/a/b"
