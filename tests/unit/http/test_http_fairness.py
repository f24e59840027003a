# SPDX-License-Identifier: Apache-2.0
"""Clients that never make the server wait must not keep it from everybody else."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from syntrop.common import loop
from syntrop.common.http.errors import HttpError
from syntrop.common.http.server import Connection, Exchange

# Processes on an inherited descriptor: requests without a pause, a body that does not end after its refusal, and
# a reader of an endless reply. What is answered is read at once.
GREEDY = r"""
import socket, sys, threading
sock = socket.socket(fileno=int(sys.argv[1]))
sock.setblocking(True)
def read():
    while sock.recv(1 << 20): pass
if sys.argv[2] == "requests":
    threading.Thread(target=read, daemon=True).start()
    while True: sock.sendall(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
if sys.argv[2] == "body":
    sock.sendall(b"POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n")
    while True: sock.sendall(bytes(1 << 20))
sock.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
read()
"""


@pytest.mark.parametrize("how", ["requests", "body", "reads"])
def test_a_greedy_client_does_not_starve_the_loop(how: str) -> None:
    served = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal served
        served += 1
        if exchange.request.path == "/refused":
            raise HttpError(413, "too large")
        if exchange.request.path == "/endless":
            await exchange.start(200)
            while True:
                await exchange.send(b"x" * 100)
                served += 1
        await exchange.reply(200, (), b"here")

    async def main() -> None:
        theirs, ours = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-c", GREEDY, str(theirs.fileno()), how],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        task = loop.spawn(Connection(ours, handler).run())
        try:
            while not served:
                await loop.sleep(0.01)
            for _ in range(30):
                begun = time.thread_time()  # what is done for it, however long a busy machine takes to do it
                await loop.sleep(0.005)
                assert time.thread_time() - begun < 1.0
        finally:
            process.kill()
            process.wait()
        await loop.stop(task)

    with_deadline = main()

    async def bounded() -> None:
        with loop.deadline(60):
            await with_deadline

    loop.run(bounded())
