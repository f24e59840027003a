# SPDX-License-Identifier: Apache-2.0
"""`common/atomic.py`: the old content or the new one, and the new one once it has returned."""

from __future__ import annotations

import os
from collections.abc import Callable

from crashlab.explore import Scenario
from proofs import Proofs

from syntrop.common import atomic

OLD, NEW, MORE = b"old\n" * 40, b"new\n" * 2000, b"more"


def prepare(root: str) -> None:
    with open(os.path.join(root, "state"), "wb") as file:
        file.write(OLD)


def operate(root: str, acknowledge: Callable[[str], None]) -> None:
    path = os.path.join(root, "state")
    atomic.write(path, NEW, mode=0o640)
    acknowledge("new")
    atomic.write(path, MORE, mode=0o600)
    acknowledge("more")


def check(root: str, acked: tuple[str, ...]) -> None:
    path = os.path.join(root, "state")
    with open(path, "rb") as file:
        content = file.read()
    at_least = len(acked)
    assert content in (OLD, NEW, MORE)[at_least:], f"{content[:8]!r} after {acked}"
    if content != OLD:
        assert os.stat(path).st_mode & 0o777 == (0o640 if content == NEW else 0o600)


SCENARIO = Scenario("atomic write", prepare, operate, check)


class TestAtomic(Proofs):
    SCENARIOS = (SCENARIO,)
    SOURCES = ("src/syntrop/common/atomic.py",)
