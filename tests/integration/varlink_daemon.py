# SPDX-License-Identifier: Apache-2.0
"""A daemon of the suite's own making for tests of the transport: `org.varlink.certification`, and a ping.

`python varlink_daemon.py --listen=PATH …` runs it; a socket passed by an activator works as for every daemon.
"""

from __future__ import annotations

import math
import os
from typing import Any

from syntrop.common import service
from syntrop.common.varlink import idl
from syntrop.common.varlink.errors import VarlinkError

PING = """interface org.example.ping
# The text again, and the process that answered.
method Ping(text: string) -> (text: string, pid: int)
"""

FILES = """interface org.example.files
# What can be read from a descriptor.
method Read(fd: int) -> (text: string)
# A descriptor from which the text can be read.
method Open(text: string) -> (fd: int)
# All numbers from 0 to one.
method Count(upto: int) -> (number: int)
"""

ENDPOINT = "io.example.transport"
FULL = {"bool": False, "int": 2, "float": math.pi, "string": "a lot of string"}
MAP = {"foo": "Foo", "bar": "Bar"}
MYTYPE: dict[str, Any] = {
    "object": {"method": "org.varlink.certification.Test09", "parameters": {"map": MAP}},
    "enum": "two",
    "struct": {"first": 1, "second": "2"},
    "array": ["one", "two", "three"],
    "dictionary": MAP,
    "stringset": {"one": {}, "two": {}, "three": {}},
    "interface": {
        "foo": [None, {"foo": "foo", "bar": "bar"}, None, {"one": "foo", "two": "bar"}],
        "anon": {"foo": True, "bar": False},
    },
}
REPLIES = [f"Reply number {number}" for number in range(1, 11)]


class Certification:
    """The service side of varlink's certification: every test takes what the one before gave."""

    def __init__(self) -> None:
        self._next: dict[str, str] = {}

    def _step(self, call: Any, client_id: str, got: dict[str, Any], wants: dict[str, Any], after: str) -> None:
        name = call.method.rpartition(".")[2]
        if client_id not in self._next:
            raise VarlinkError("org.varlink.certification.ClientIdError")
        if self._next[client_id] != name or got != wants or any(type(got[k]) is not type(wants[k]) for k in wants):
            raise VarlinkError(
                "org.varlink.certification.CertificationError",
                wants={"method": self._next[client_id], "parameters": wants},
                got={"method": name, "parameters": got},
            )
        self._next[client_id] = after

    async def Start(self, call: Any) -> dict[str, Any]:
        client_id = os.urandom(16).hex()
        self._next[client_id] = "Test01"
        return {"client_id": client_id}

    async def Test01(self, call: Any, client_id: str) -> dict[str, Any]:
        self._step(call, client_id, {}, {}, "Test02")
        return {"bool": True}

    async def Test02(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"bool": True}, "Test03")
        return {"int": 1}

    async def Test03(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"int": 1}, "Test04")
        return {"float": 1.0}

    async def Test04(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"float": 1.0}, "Test05")
        return {"string": "ping"}

    async def Test05(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"string": "ping"}, "Test06")
        return FULL

    async def Test06(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, FULL, "Test07")
        return {"struct": FULL}

    async def Test07(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"struct": FULL}, "Test08")
        return {"map": MAP}

    async def Test08(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"map": MAP}, "Test09")
        return {"set": {"one": {}, "two": {}, "three": {}}}

    async def Test09(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        self._step(call, client_id, got, {"set": {"one": {}, "two": {}, "three": {}}}, "Test10")
        return {"mytype": MYTYPE}

    async def Test10(self, call: Any, client_id: str, **got: Any) -> dict[str, Any]:
        call.require_more()
        self._step(call, client_id, got, {"mytype": MYTYPE}, "Test11")
        for text in REPLIES[:-1]:
            await call.send({"string": text})
        return {"string": REPLIES[-1]}

    async def Test11(self, call: Any, client_id: str, **got: Any) -> None:
        self._step(call, client_id, got, {"last_more_replies": REPLIES}, "End" if call.oneway else "never")

    async def End(self, call: Any, client_id: str) -> dict[str, Any]:
        self._step(call, client_id, {}, {}, "never")
        del self._next[client_id]
        return {"all_ok": True}


class Ping:
    async def Ping(self, call: Any, text: str) -> dict[str, Any]:
        return {"text": text, "pid": os.getpid()}


class Files:
    async def Read(self, call: Any, fd: int) -> dict[str, Any]:
        with os.fdopen(call.take_fd(fd)) as file:
            return {"text": file.read()}

    async def Open(self, call: Any, text: str) -> dict[str, Any]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.write(writing, text.encode())
        os.close(writing)
        return {"fd": call.give_fd(reading)}

    async def Count(self, call: Any, upto: int) -> dict[str, Any]:
        call.require_more()
        for number in range(upto):
            await call.send({"number": number})
        return {"number": upto}


def certification() -> idl.Interface:
    """The published definition, as the `varlink` package carries it."""
    from importlib.resources import files

    text = files("varlink.tests").joinpath("org.varlink.certification.varlink").read_text(encoding="utf-8")
    return idl.parse(text)


def build(daemon: service.Daemon) -> None:
    handlers: dict[Any, object] = {idl.parse(PING): Ping()}
    if not os.environ.get("PING_ONLY"):
        handlers[certification()] = Certification()
        handlers[idl.parse(FILES)] = Files()
    daemon.serve_varlink(ENDPOINT, handlers, unit="transport.socket")


if __name__ == "__main__":
    service.run("transport", (), build)
