# SPDX-License-Identifier: Apache-2.0
"""A crowd that asks inferenced for gangs: every answer is all or nothing, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

INTERFACE = "io.syntrop.Inference1."
POLICIES = ("BestEffort", "StrictAffinity", "Pack", "Spread")


def message(method: str, **parameters: Any) -> bytes:
    return json.dumps({"method": INTERFACE + method, "parameters": parameters}).encode() + b"\0"


@dataclass
class Outcome:
    """What came of it."""

    granted: int = 0
    refused: int = 0
    longest: float = 0.0
    """Seconds that the slowest answer took."""
    most: Counter[str] = field(default_factory=Counter)
    """Bytes by plane that were held at once."""


class Asker:
    """One connection, which asks, holds, gives back, and asks again. Raises AssertionError for a wrong answer."""

    def __init__(self, crowd: Crowd, seed: int, requests: int) -> None:
        self.random = random.Random(seed)
        self.crowd = crowd
        self.left = requests
        self.data = b""
        self.asked: dict[str, Any] | None = None
        self.since = 0.0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(crowd.path)

    def ask(self) -> None:
        self.left -= 1
        kind = self.random.random()
        roles = [f"stage{at}" for at in range(4)] if kind < 0.5 else ["draft", "target", "x", "y"]
        slices = [
            {"role": roles[at], "memory_bytes": self.random.randint(1, self.crowd.largest >> 20) << 20}
            for at in range(self.random.randint(1, 4))
        ]
        if kind > 0.9:
            slices[0]["plane"] = self.random.choice(self.crowd.planes)
        self.asked = {
            "priority": self.random.choice(("Batch", "Interactive")),
            "policy": self.random.choice(POLICIES),
            "slices": slices,
            "wait_ms": self.random.choice((0, 1, 50, 5_000)),
        }
        self.since = monotonic()
        self.socket.sendall(message("AcquireCompositeLease", **self.asked))

    def answered(self) -> bool:
        """Read; whether it has nothing more to ask."""
        piece = self.socket.recv(1 << 16)
        assert piece, "hung up"
        self.data += piece
        while b"\0" in self.data:
            one, _, self.data = self.data.partition(b"\0")
            if self._take(json.loads(one)):
                return True
        return False

    def _take(self, reply: dict[str, Any]) -> bool:
        outcome = self.crowd.outcome
        if self.asked is not None:
            outcome.longest = max(outcome.longest, monotonic() - self.since)
            asked, self.asked = self.asked, None
            if "error" not in reply:
                outcome.granted += 1
                given = reply["parameters"]["slices"]
                wanted = [(one["role"], one["memory_bytes"]) for one in asked["slices"]]
                assert [(one["role"], one["allocated_memory"]) for one in given] == wanted, reply
                self.held = Counter[str]()
                for one in given:
                    self.held[one["plane_id"]] += one["allocated_memory"]
                self.crowd.holding += self.held
                for plane, size in self.crowd.holding.items():
                    outcome.most[plane] = max(outcome.most[plane], size)
                self.socket.sendall(message("ReleaseCompositeLease", lease_id=reply["parameters"]["lease_id"]))
                self.crowd.holding -= self.held  # the daemon may lend it to others before it answers us
                return False
            assert reply["error"] == INTERFACE + "ResourceExhaustion", reply
            outcome.refused += 1
        else:
            assert "error" not in reply, reply
        if not self.left:
            return True
        self.ask()
        return False


class Crowd:
    """`connections` at once, `requests` in all; sizes up to `largest` bytes a slice."""

    def __init__(self, path: str, planes: list[str], largest: int) -> None:
        self.path = path
        self.planes = planes
        self.largest = largest
        self.holding: Counter[str] = Counter()
        self.outcome = Outcome()

    def run(self, connections: int, requests: int, patience: float) -> Outcome:
        """Raises TimeoutError if anybody waits longer than `patience` seconds for the end."""
        until = monotonic() + patience
        with selectors.DefaultSelector() as selector:
            askers = [Asker(self, seed, requests // connections) for seed in range(connections)]
            for one in askers:
                selector.register(one.socket, selectors.EVENT_READ, one)
                one.ask()
            while selector.get_map():
                ready = selector.select(max(0.0, until - monotonic()))
                if not ready:
                    raise TimeoutError(f"{len(selector.get_map())} of {connections} are still waiting")
                for key, _ in ready:
                    if key.data.answered():
                        selector.unregister(key.data.socket)
                        key.data.socket.close()
        return self.outcome


def vanish(path: str, size: int, connections: int) -> None:
    """A process that asks for more than there is, on many connections, and is gone while it waits."""
    pid = os.fork()
    if not pid:
        try:
            slices = [{"role": "x", "memory_bytes": size} for _ in range(2)]
            request = message("AcquireCompositeLease", priority="Batch", slices=slices, wait_ms=60_000)
            kept = []
            for _ in range(connections):
                one = socket.socket(socket.AF_UNIX)
                one.connect(path)
                one.sendall(request)
                kept.append(one)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
