# SPDX-License-Identifier: Apache-2.0
"""Questions to polkit over a real message bus, which checks our marshalling; polkit itself is a double here."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from syntrop.common import dbus, loop, peer, polkit

_NAME = "org.freedesktop.PolicyKit1"
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/></policy></busconfig>
"""


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private message bus, which the environment names as the system bus."""
    path = tmp_path / "bus"
    config = tmp_path / "bus.conf"
    config.write_text(_CONFIG.format(path=path))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"], stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    assert daemon.stdout.readline().startswith(b"unix:")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={path}")
    yield path
    daemon.terminate()
    daemon.wait(60)
    daemon.stdout.close()


class Authority:
    """polkit's place on the bus: records what it is asked and answers as told."""

    def __init__(self, path: Path, answer: Callable[[], tuple[int, str, list[Any]] | None]) -> None:
        self.asked: list[list[Any]] = []
        self.pids: list[str] = []
        self._answer = answer
        self._serial = 0
        self._buffer = b""
        self._fds: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._socket.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        assert self._socket.recv(4096).startswith(b"OK")
        self._socket.sendall(b"NEGOTIATE_UNIX_FD\r\n")
        assert self._socket.recv(4096).startswith(b"AGREE_UNIX_FD")
        self._socket.sendall(b"BEGIN\r\n")
        own = "org.freedesktop.DBus"
        for member, signature, values in (("Hello", "", []), ("RequestName", "su", [_NAME, 0])):
            self._serial += 1
            call = dbus.method_call(self._serial, own, "/org/freedesktop/DBus", own, member, signature, values)
            self._socket.sendall(call)
            while self._receive()[0].reply_serial != self._serial:
                pass
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _receive(self) -> tuple[dbus.Message, bytes]:
        while (size := dbus.length(self._buffer)) is None or len(self._buffer) < size:
            data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(64))
            assert data
            self._buffer += data
            for _, _, raw in ancillary:
                self._fds += struct.unpack(f"{len(raw) // 4}i", raw)
        whole, self._buffer = self._buffer[:size], self._buffer[size:]
        return dbus.Message(whole), whole

    def _serve(self) -> None:
        while True:
            message, whole = self._receive()
            if message.kind == dbus.METHOD_CALL:
                break
        self.asked.append(message.body)
        for fd in self._fds:
            self.pids += [
                line.split()[1]
                for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
                if line.startswith("Pid:")
            ]
            os.close(fd)
        reply = self._answer()
        if reply is not None:
            kind, signature, values = reply
            reader = dbus.Reader(whole, "<", 12)
            sender = {code: value for code, (_, value) in reader.get("a(yv)")[0]}[7]
            serial = struct.unpack("<I", whole[8:12])[0]
            body = dbus.Writer()
            body.put(signature, values)
            fields = [(5, ("u", serial)), (6, ("s", sender)), (8, ("g", signature))]
            if kind == dbus.ERROR:
                fields.append((4, ("s", "org.freedesktop.PolicyKit1.Error.NotAuthorized")))
            head = dbus.Writer()
            head.put("yyyyuua(yv)", [ord("l"), kind, 1, 1, len(body.data), self._serial + 1, fields])
            head.pad(8)
            self._socket.sendall(bytes(head.data + body.data))

    def close(self) -> None:
        self._thread.join(60)
        self._socket.close()


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
    authority = Authority(bus, lambda: (dbus.METHOD_RETURN, "(bba{ss})", [(verdict, False, {"a": "b"})]))
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
    authority = Authority(bus, lambda: (dbus.METHOD_RETURN, "(bba{ss})", [(True, False, {})]))
    assert _ask(interactive=True)
    authority.close()
    assert authority.asked[0][3] == 1


def test_an_error_is_a_refusal(bus: Path) -> None:
    authority = Authority(bus, lambda: (dbus.ERROR, "s", ["no"]))
    assert not _ask()
    authority.close()


def test_an_answer_of_another_shape_is_a_refusal(bus: Path) -> None:
    authority = Authority(bus, lambda: (dbus.METHOD_RETURN, "b", [True]))
    assert not _ask()
    authority.close()


def test_no_polkit_is_a_refusal(bus: Path) -> None:
    assert not _ask()


def test_no_bus_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    assert not _ask()


def test_silence_is_a_refusal_and_holds_nothing_up(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polkit, "TIMEOUT", 0.3)
    authority = Authority(bus, lambda: None)
    started = monotonic()
    assert not _ask()
    assert 0.3 <= monotonic() - started < 5
    authority.close()


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
