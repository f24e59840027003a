# SPDX-License-Identifier: Apache-2.0
"""Requests raced against routerd's idle exit, under the embedded activator."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

REQUESTS, THREADS, IDLE = 2000, 20, 0.05
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_no_request_is_lost_to_an_exit(launch: Callable[..., Any], race: Callable[..., Any]) -> None:
    suite = launch(idle=IDLE)
    together = race(THREADS, IDLE)

    def worker(seed: int) -> int:
        choose = random.Random(seed)
        answered = 0
        for number in range(REQUESTS // THREADS):
            together(number, choose)
            family = choose.choice(("tcp", "unix"))
            if family == "tcp":
                client = socket.create_connection(("127.0.0.1", suite.port), timeout=60)
            else:
                client = socket.socket(socket.AF_UNIX)
                client.settimeout(60)
                client.connect(suite.endpoint("syntrop/router.sock"))
            with client:
                client.sendall(REQUEST)
                reply = b""
                while piece := client.recv(65536):
                    reply += piece
            answered += reply.startswith(b"HTTP/1.1 200 ") and reply.endswith(b"}")
        return answered

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(worker, range(THREADS))) == REQUESTS
    suite.wait_asleep()
    assert suite.log().count("routerd started") > 10, "the daemon went, and came back, many times"
