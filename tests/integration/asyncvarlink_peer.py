# SPDX-License-Identifier: Apache-2.0
"""A foreign peer, on asyncvarlink: `client SOCKET` calls a service; `server SOCKET` is one till its input ends."""

# No `from __future__ import annotations`: asyncvarlink reads the annotations as objects.

import asyncio
import collections.abc
import os
import sys

from asyncvarlink import (
    FileDescriptor,
    VarlinkClientProtocol,
    VarlinkInterface,
    VarlinkInterfaceRegistry,
    connect_unix_varlink,
    create_unix_server,
    varlinkmethod,
)


def pipe_with(text: str) -> FileDescriptor:
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    return FileDescriptor(reading, should_close=True)


class Files(VarlinkInterface, name="org.example.files"):
    @varlinkmethod(return_parameter="text")
    def Read(self, *, fd: FileDescriptor) -> str:
        with os.fdopen(os.dup(fd.fileno())) as file:
            return file.read()

    @varlinkmethod(return_parameter="fd")
    def Open(self, *, text: str) -> FileDescriptor:
        return pipe_with(text)

    @varlinkmethod(return_parameter="number")
    def Count(self, *, upto: int) -> collections.abc.Iterator[int]:
        yield from range(upto + 1)


async def client(path: str) -> None:
    transport, protocol = await connect_unix_varlink(VarlinkClientProtocol, path)
    proxy = protocol.make_proxy(Files)
    with pipe_with("from the client") as ours:
        assert await proxy.Read(fd=ours) == {"text": "from the client"}
    with await proxy.Open(text="from the service") as reply:
        handle = os.dup(reply["fd"].fileno())
    assert os.read(handle, 99) == b"from the service"
    os.close(handle)
    numbers = [reply["number"] async for reply in proxy.Count(upto=3)]
    assert numbers == [0, 1, 2, 3]
    transport.close()
    print("ok")


async def server(path: str) -> None:
    registry = VarlinkInterfaceRegistry()
    registry.register_interface(Files())
    async with await create_unix_server(registry.protocol_factory, path):
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run({"client": client, "server": server}[sys.argv[1]](sys.argv[2]))
