# SPDX-License-Identifier: Apache-2.0
"""How many threads it pays to compute with: one for each core, since two hardware threads of a core share the
units that the kernels keep busy, and waiting for each other would only cost."""

from __future__ import annotations

import os

from syntrop.common import paths


def cores(allowed: set[int] | None = None) -> int:
    """Cores of which this process may use at least one hardware thread (`allowed`: their numbers)."""
    if allowed is None:
        allowed = os.sched_getaffinity(0)
    seen = set()
    for number in allowed:
        path = paths.sys("devices", "system", "cpu", f"cpu{number}", "topology", "thread_siblings_list")
        try:
            with open(path, encoding="ascii") as file:
                seen.add(file.read().strip())
        except OSError:
            seen.add(str(number))  # a kernel or a container that does not tell: each stands for itself
    return max(1, len(seen))
