# SPDX-License-Identifier: Apache-2.0
"""Idle exit loses no call: thousands of them raced against it, under a parent that starts the daemon again."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from syntrop.common import loop
from syntrop.common.varlink import client

HERE = Path(__file__).parent
ENDPOINT = "io.example.transport"
IDLE_SEC = 0.05


class Activator:
    """The smallest possible one: a listening socket, and a child whenever it is readable and there is none."""

    def __init__(self, folder: str, **environment: str) -> None:
        os.mkdir(os.path.join(folder, "syntrop"))
        self.path = os.path.join(folder, "syntrop", ENDPOINT)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(self.path)
        self.socket.listen(4096)
        self.pid = 0
        self.started = 0
        self.statuses: Counter[int] = Counter()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1] / "src"),
            "SYNTROP_RUN_ROOT": folder,
            "PING_ONLY": "1",
            "LISTEN_FDS": "1",
            "LISTEN_FDNAMES": "transport.socket",
            **environment,
        }

    def start(self) -> None:
        # The shell knows its own number before it becomes the daemon.
        words = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", sys.executable, str(HERE / "varlink_daemon.py")]
        passed = [(os.POSIX_SPAWN_DUP2, self.socket.fileno(), 3)]
        self.pid = os.posix_spawn("/bin/sh", words, self._environment, file_actions=passed)
        self.started += 1

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await loop.readable(self.socket.fileno())
            self.start()
            await self.wait()

    async def wait(self) -> None:
        pidfd = os.pidfd_open(self.pid)
        try:
            await loop.readable(pidfd)
        finally:
            loop.forget(pidfd)
            os.close(pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        self.statuses[os.waitstatus_to_exitcode(status)] += 1

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.socket.close()


def raced(main: Callable[[Activator], Coroutine[Any, Any, None]], seconds: float) -> Activator:
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        activator = Activator(folder, SYNTROP_IDLE_EXIT_SEC=str(IDLE_SEC))
        # Descriptor 3 is the child's: the listener must not be it, or it would stay close-on-exec.
        assert activator.socket.fileno() != 3

        async def bounded() -> None:
            keeper = loop.spawn(activator.keep(), "activator")
            with loop.deadline(seconds):
                await main(activator)
            await loop.sleep(0)
            keeper.cancel()

        try:
            loop.run(bounded())
        finally:
            activator.close()
        return activator


async def one_call(path: str, text: str) -> int:
    """A caller that knows nothing of reconnecting: connect, say, hear. Gives who answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.connect(path)
        request = {"method": "org.example.ping.Ping", "parameters": {"text": text}}
        sock.sendall(json.dumps(request).encode() + b"\0")
        held = b""
        try:
            while not held.endswith(b"\0"):
                await loop.readable(sock.fileno())
                data = sock.recv(4096)
                assert data, f"call {text} was dropped"
                held += data
        finally:
            loop.forget(sock.fileno())
    reply = json.loads(held[:-1])
    assert reply["parameters"]["text"] == text, reply
    pid: int = reply["parameters"]["pid"]
    return pid


def test_two_thousand_connections_raced_against_the_exit_are_all_answered() -> None:
    bursts, size = 100, 20
    answered: Counter[int] = Counter()

    async def main(activator: Activator) -> None:
        chance = random.Random(7)
        for burst in range(bursts):
            calls = [one_call(activator.path, f"{burst}.{number}") for number in range(size // 2)]
            answered.update(await loop.gather(*calls))
            # The exit is due IDLE_SEC after the last answer; the next calls come around that moment.
            await loop.sleep(max(0.0, IDLE_SEC + chance.uniform(-0.006, 0.012)))
            for number in range(size // 2):
                answered[await one_call(activator.path, f"{burst}.{number}.single")] += 1

    activator = raced(main, 240)
    assert sum(answered.values()) == bursts * size
    assert set(activator.statuses) <= {0}, activator.statuses
    assert activator.started > 10, "the exits were not raced at all"
    print(f"{sum(answered.values())} calls, {activator.started} processes, answered by {len(answered)}")


def test_pooled_clients_of_ours_reconnect_unnoticed() -> None:
    clients, rounds = 10, 20
    answered: Counter[int] = Counter()

    async def pooled(path: str, seed: int) -> None:
        chance = random.Random(seed)
        peer = await client.connect(path)
        try:
            for number in range(rounds):
                text = f"{seed}.{number}"
                with await peer.call("org.example.ping.Ping", {"text": text}, timeout=30) as reply:
                    assert reply.parameters["text"] == text
                    answered[reply.parameters["pid"]] += 1
                if seed == 0 or chance.random() < 0.3:
                    await loop.sleep(max(0.0, IDLE_SEC + chance.uniform(-0.02, 0.02)))
        finally:
            peer.close()

    async def main(activator: Activator) -> None:
        for group in range(4):  # in groups, since many clients at random would never leave it idle
            await loop.gather(*[pooled(activator.path, seed) for seed in range(group * 10, group * 10 + clients)])
            await pooled(activator.path, 0)

    activator = raced(main, 240)
    assert sum(answered.values()) == 4 * (clients + 1) * rounds
    assert set(activator.statuses) <= {0}, activator.statuses
    assert len(answered) > 10, "no exit fell between two calls of one client"


def test_an_idle_connection_does_not_hold_the_daemon_and_is_closed_in_order() -> None:
    async def main(activator: Activator) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as pooled:
            pooled.setblocking(False)
            pooled.connect(activator.path)
            pooled.sendall(b'{"method":"org.varlink.service.GetInfo"}\0')
            held = b""
            while True:
                await loop.readable(pooled.fileno())
                data = pooled.recv(4096)
                if not data:
                    break
                held += data
            loop.forget(pooled.fileno())
            assert held.count(b"\0") == 1
        with loop.deadline(60):
            while activator.pid:
                await loop.sleep(0.01)

    assert raced(main, 120).statuses == {0: 1}


def test_a_call_in_flight_holds_the_daemon() -> None:
    """A request of which a part has arrived is a call in flight too."""

    async def main(activator: Activator) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.setblocking(False)
            slow.connect(activator.path)
            slow.sendall(b'{"method":"org.varlink.serv')
            await loop.sleep(1.0)
            slow.sendall(b'ice.GetInfo"}\0')
            await loop.readable(slow.fileno())
            assert b'"product":"transport"' in slow.recv(4096)
            loop.forget(slow.fileno())

    assert raced(main, 120).started == 1


def switches(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise AssertionError


def pinged(manager: socket.socket) -> int:
    """How many watchdog messages have come since the last look."""
    count = 0
    try:
        while message := manager.recv(4096):
            count += message.count(b"WATCHDOG=1")
    except BlockingIOError:
        pass
    return count


def test_alive_and_idle_it_wakes_for_the_watchdog_only() -> None:
    seconds, watchdog_sec = 6.0, 2.0
    with tempfile.TemporaryDirectory(prefix="syn-") as folder:
        notify = os.path.join(folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(notify)
            manager.settimeout(30)
            environment = {"NOTIFY_SOCKET": notify, "WATCHDOG_USEC": str(int(watchdog_sec * 1e6))}
            activator = Activator(folder, SYNTROP_IDLE_EXIT_SEC="30", **environment)
            try:
                activator.start()
                while b"READY=1" not in manager.recv(4096):
                    pass

                async def one() -> None:
                    assert await one_call(activator.path, "x") == activator.pid

                loop.run(one())
                manager.setblocking(False)
                seen = []
                for _ in range(3):  # what the kernel makes it wait for, such as paging, counts as well
                    pinged(manager)
                    before = switches(activator.pid)
                    time.sleep(seconds)
                    seen.append((switches(activator.pid) - before, pinged(manager)))
                    if seen[-1][0] <= seen[-1][1] + 0.1 * seconds + 1:
                        break
            finally:
                activator.close()
    woken, pings = seen[-1]
    assert pings in (5, 6, 7), "the watchdog is pinged at half its time"
    assert woken <= pings + 0.1 * seconds + 1, seen
