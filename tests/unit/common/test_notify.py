# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntrop.common import notify


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(60)
        yield server


def test_messages(manager: socket.socket) -> None:
    assert notify.ready("serving\nMAINPID=1")
    assert manager.recv(999) == b"READY=1\nSTATUS=serving MAINPID=1"
    assert notify.ready()
    assert manager.recv(999) == b"READY=1"
    assert notify.status("3 calls")
    assert manager.recv(999) == b"STATUS=3 calls"
    assert notify.stopping()
    assert manager.recv(999) == b"STOPPING=1"
    assert notify.watchdog()
    assert manager.recv(999) == b"WATCHDOG=1"
    assert notify.extend_timeout(2.5)
    assert manager.recv(999) == b"EXTEND_TIMEOUT_USEC=2500000"


def test_reloading_carries_the_monotonic_clock(manager: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    assert notify.reloading()
    first, second = manager.recv(999).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_descriptors_are_stored_by_name(manager: socket.socket) -> None:
    reading, writing = os.pipe()
    try:
        assert notify.fdstore((reading, writing), "lease")
        data, ancillary, _, _ = manager.recvmsg(999, socket.CMSG_SPACE(8))
        assert data == b"FDSTORE=1\nFDNAME=lease"
        received = array.array("i", ancillary[0][2])
        assert len(received) == 2
        for handle in received:
            os.close(handle)
    finally:
        os.close(reading)
        os.close(writing)


def test_an_abstract_socket_works(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"syntrop-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name)
        assert notify.watchdog()
        assert server.recv(99) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "address", [None, "", "@", "/", "relative", "vsock:2:1234", "/nowhere/at/all", "/" + "x" * 200]
)
def test_without_a_manager_nothing_happens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if address is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert notify.ready() is False


def test_a_manager_that_does_not_read_never_blocks_the_watchdog(manager: socket.socket) -> None:
    started = time.monotonic()
    while notify.watchdog():
        assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("10000000", None, 5.0),
        ("3000000", str(os.getpid()), 1.5),
        ("3000000", "1", None),
        ("0", None, None),
        ("-5", None, None),
        ("soon", None, None),
        ("3000000", "me", None),
        (None, None, None),
    ],
)
def test_watchdog_interval_is_half_of_what_is_allowed(
    usec: str | None, pid: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert notify.watchdog_interval() == seconds
