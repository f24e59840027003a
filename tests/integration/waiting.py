# SPDX-License-Identifier: Apache-2.0
"""How tests wait for what comes in its own time."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds that anything awaited here may take on a busy machine


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again until the condition holds; fails the test after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        select.select([], [], [], 0.01)
