# SPDX-License-Identifier: Apache-2.0
"""A service manager's place on a private message bus: tells what a test says of its units, and signals changes."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

from syntrop.common import dbus
from syntrop.sentry import unitnames

NAME = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
_BUS = "org.freedesktop.DBus"
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/></policy></busconfig>
"""
SIGNATURES = {
    "ActiveState": "s", "SubState": "s", "LoadState": "s", "Id": "s", "InvocationID": "ay", "Job": "(uo)",
    "Result": "s", "ExecMainCode": "i", "ExecMainStatus": "i", "NRestarts": "u", "Requires": "as", "Names": "as",
    "StateChangeTimestamp": "t", "StateChangeTimestampMonotonic": "t", "MemoryMax": "t", "Type": "s",
}  # fmt: skip
_OF_SERVICES = ("Result", "ExecMainCode", "ExecMainStatus", "NRestarts", "MemoryMax", "Type")


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
            daemon.wait(30)
            assert daemon.stdout is not None
            daemon.stdout.close()


class ManagerDouble:
    """`units` has properties by unit; `jobs` the type of each job by its path; `asked` the methods called.

    What is in `silent` is not answered.
    """

    def __init__(self, bus: Bus) -> None:
        self.units: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, str] = {}
        self.system_state = "running"
        self.asked: list[str] = []
        self.silent: set[str] = set()
        self._lock = threading.Lock()
        self._serial = 0
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(bus.path))
        self._socket.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        assert self._socket.recv(4096).startswith(b"OK")
        self._socket.sendall(b"BEGIN\r\n")
        for member, signature, values in (("Hello", "", []), ("RequestName", "su", [NAME, 0])):
            serial = self._next()
            call = dbus.method_call(serial, _BUS, "/org/freedesktop/DBus", _BUS, member, signature, values)
            self._socket.sendall(call)
            while True:
                message, _ = self._receive()
                if message.reply_serial == serial:
                    break
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the bus, as a manager does that executes itself anew."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._socket.close()

    # --- what a test does --------------------------------------------------------------------------------------

    def change(self, unit: str, **properties: Any) -> None:
        """Set properties and tell of it, as the manager does: of the kind of unit first, then of all units."""
        self.units.setdefault(unit, {"Id": unit, "LoadState": "loaded"}).update(properties)
        for interface in ("Service", "Unit"):
            values = self._of(unit, interface)
            self.signal(
                unitnames.path(unit), f"{_BUS}.Properties", "PropertiesChanged", "sa{sv}as",
                [f"{NAME}.{interface}", values, ["Dropped"]],
            )  # fmt: skip

    def fail(self, unit: str, invocation: str, *, result: str = "signal", status: int = 11, **more: Any) -> None:
        self.change(
            unit, ActiveState="failed", SubState="failed", InvocationID=bytes.fromhex(invocation), Result=result,
            ExecMainCode=2, ExecMainStatus=status, **more,
        )  # fmt: skip

    def signal(self, path: str, interface: str, member: str, signature: str, values: list[Any]) -> None:
        fields = [(1, ("o", path)), (2, ("s", interface)), (3, ("s", member)), (8, ("g", signature))]
        self._send(dbus.SIGNAL, fields, signature, values)

    # --- the manager -------------------------------------------------------------------------------------------

    def _of(self, unit: str, interface: str) -> dict[str, tuple[str, Any]]:
        own = interface == "Service"
        return {
            name: (SIGNATURES[name], value)
            for name, value in self.units.get(unit, {"Id": unit, "LoadState": "not-found"}).items()
            if (name in _OF_SERVICES) is own
        }

    def _answer(self, message: dbus.Message) -> tuple[str, list[Any]] | str:
        """A signature and values, or the name of an error."""
        if message.member == "GetAll":
            return "a{sv}", [self._of(unitnames.unit(message.path), message.body[0].rpartition(".")[2])]
        if message.member == "Get":
            if message.body[1] == "SystemState":
                return "v", [("s", self.system_state)]
            kind = self.jobs.get(message.path)
            return f"{_BUS}.Error.UnknownObject" if kind is None else ("v", [("s", kind)])
        if message.member == "Subscribe":
            return f"{NAME}.AlreadySubscribed" if "Subscribe" in self.asked[:-1] else ("", [])
        if message.member in ("ListUnitsByNames", "ListUnitsFiltered"):
            named = message.member == "ListUnitsByNames"
            names = (
                message.body[0] if named else [n for n, p in self.units.items() if p["ActiveState"] == "failed"]
            )
            rows = [
                (n, "", "loaded", self.units.get(n, {}).get("ActiveState", "inactive"), "", "", "/x", 0, "", "/")
                for n in names
            ]
            return "a(ssssssouso)", [rows]
        return f"{_BUS}.Error.UnknownMethod"

    def _serve(self) -> None:
        try:
            while True:
                message, whole = self._receive()
                if message.kind != dbus.METHOD_CALL:
                    continue
                self.asked.append(message.member)
                if message.member in self.silent:
                    continue
                answer = self._answer(message)
                sender = {code: value for code, (_, value) in dbus.Reader(whole, "<", 12).get("a(yv)")[0]}[7]
                fields: list[Any] = [(5, ("u", struct.unpack("<I", whole[8:12])[0])), (6, ("s", sender))]
                if isinstance(answer, str):
                    self._send(dbus.ERROR, [*fields, (4, ("s", answer))], "s", ["no"])
                else:
                    self._send(dbus.METHOD_RETURN, fields, *answer)
        except OSError:
            pass

    def _send(self, kind: int, fields: list[Any], signature: str, values: list[Any]) -> None:
        body = dbus.Writer()
        body.put(signature, values)
        fields = [field for field in fields if field[0] != 8] + ([(8, ("g", signature))] if signature else [])
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
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError
            self._buffer += data
        whole, self._buffer = self._buffer[:size], self._buffer[size:]
        return dbus.Message(whole), whole
