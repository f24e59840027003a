# SPDX-License-Identifier: Apache-2.0
"""A message bus of a test's own, and a seat on it from which a double answers."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syntrop.common import dbus

BUS = "org.freedesktop.DBus"
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/></policy></busconfig>
"""


class Bus:
    """A dbus-daemon; `start()` again after `stop()` has the same address."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bus"
        self._config = folder / "bus.conf"
        self._config.write_text(_CONFIG.format(path=self.path))
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._daemon = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--print-address=1"],
            stdout=subprocess.PIPE,
        )
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline().startswith(b"unix:")

    def stop(self) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.kill()
            daemon.wait(60)
            assert daemon.stdout is not None
            daemon.stdout.close()


class Seat:
    """Whoever has this name on the bus. A thread answers calls by `answer`; what comes with them is in `fds`."""

    def __init__(self, path: Path, name: str) -> None:
        self.fds: list[int] = []
        self._lock = threading.Lock()
        self._serial = 0
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._socket.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        assert self._socket.recv(4096).startswith(b"OK")
        self._socket.sendall(b"NEGOTIATE_UNIX_FD\r\n")
        assert self._socket.recv(4096).startswith(b"AGREE_UNIX_FD")
        self._socket.sendall(b"BEGIN\r\n")
        for member, signature, values in (("Hello", "", []), ("RequestName", "su", [name, 0])):
            serial = self._next()
            self._socket.sendall(
                dbus.method_call(serial, BUS, "/org/freedesktop/DBus", BUS, member, signature, values)
            )
            while self._receive()[0].reply_serial != serial:
                pass
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def answer(self, message: dbus.Message) -> tuple[str, Sequence[Any]] | str | None:
        """A signature and values, the name of an error, or nothing."""
        raise NotImplementedError

    def signal(self, path: str, interface: str, member: str, signature: str, values: Sequence[Any]) -> None:
        fields = [(1, ("o", path)), (2, ("s", interface)), (3, ("s", member))]
        self._send(dbus.SIGNAL, fields, signature, values)

    def close(self) -> None:
        """Leave the bus."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._socket.close()

    def _serve(self) -> None:
        try:
            while True:
                message, whole = self._receive()
                if message.kind != dbus.METHOD_CALL:
                    continue
                answer = self.answer(message)
                sender = {code: value for code, (_, value) in dbus.Reader(whole, "<", 12).get("a(yv)")[0]}[7]
                fields: list[Any] = [(5, ("u", struct.unpack("<I", whole[8:12])[0])), (6, ("s", sender))]
                if isinstance(answer, str):
                    self._send(dbus.ERROR, [*fields, (4, ("s", answer))], "s", ["no"])
                elif answer is not None:
                    self._send(dbus.METHOD_RETURN, fields, *answer)
        except OSError:
            pass  # the bus is gone, or we are

    def _send(self, kind: int, fields: Sequence[Any], signature: str, values: Sequence[Any]) -> None:
        body = dbus.Writer()
        body.put(signature, values)
        fields = [*fields, *([(8, ("g", signature))] if signature else [])]
        with self._lock:
            head = dbus.Writer()
            head.put("yyyyuua(yv)", [ord("l"), kind, 1, 1, len(body.data), self._next(), fields])
            head.pad(8)
            self._socket.sendall(bytes(head.data + body.data))

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _receive(self) -> tuple[dbus.Message, bytes]:
        while (size := dbus.length(self._buffer)) is None or len(self._buffer) < size:
            data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(64))
            if not data:
                raise ConnectionResetError
            self._buffer += data
            for _, _, raw in ancillary:
                self.fds += struct.unpack(f"{len(raw) // 4}i", raw)
        whole, self._buffer = self._buffer[:size], self._buffer[size:]
        return dbus.Message(whole), whole
