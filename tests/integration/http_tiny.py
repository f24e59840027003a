# SPDX-License-Identifier: Apache-2.0
"""A tiny handler behind the HTTP server, as a process: prints its port, and ends when its input does."""

from __future__ import annotations

import socket
import sys

from syntrop.common import loop
from syntrop.common.http.server import Exchange, Server


async def handle(exchange: Exchange) -> None:
    if exchange.request.path == "/stream":
        await exchange.start(200, [("content-type", "text/plain")])
        for number in range(5):
            await exchange.send(b"piece %d\n" % number)
            await loop.sleep(0.005)
        await exchange.finish()
        return
    await exchange.reply(200, [("content-type", "text/plain")], await exchange.body() or b"hello")


async def accept(listener: socket.socket, tasks: set[loop.Task[None]]) -> None:
    server = Server(handle)
    while True:
        await loop.readable(listener.fileno())
        try:
            connection = server.connect(listener.accept()[0])
        except BlockingIOError:
            continue
        if connection is not None:
            task = loop.spawn(connection.run())
            tasks.add(task)
            task.when_done(tasks.discard)


async def main() -> None:
    tasks: set[loop.Task[None]] = set()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        accepting = loop.spawn(accept(listener, tasks))
        await loop.readable(sys.stdin.fileno())
        await loop.stop(accepting)
        for task in list(tasks):
            await loop.stop(task)
        loop.forget(listener.fileno())


if __name__ == "__main__":
    loop.run(main())
