# SPDX-License-Identifier: Apache-2.0
"""How much memory weights and caches may take where no setting says so."""

from __future__ import annotations

from syntrop.common import cgroup, paths

SHARE = 0.8  # of what is available when the first model is loaded
PREFIX_SHARE = 0.125  # of the budget, for what is kept of earlier work


def available() -> int | None:
    """Bytes that the system and the control groups above us would still give; None where neither tells."""
    found = [one for one in (_of_system(), *_of_groups()) if one is not None]
    return min(found) if found else None


def _of_system() -> int | None:
    try:
        with open(paths.proc("meminfo"), encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "MemAvailable":
                    return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _of_groups() -> list[int | None]:
    try:
        group = cgroup.of_pid(0)
        parts = [part for part in group.path.split("/") if part]
        return [_of_group(cgroup.Group("/" + "/".join(parts[:depth]))) for depth in range(1, len(parts) + 1)]
    except cgroup.CgroupError:
        return []


def _of_group(group: cgroup.Group) -> int | None:
    """What a group has left; its page cache counts as free, since the kernel takes that first."""
    try:
        limit = group.memory_max()
        if limit is None:
            return None
        return max(0, limit - group.memory_current() + group.memory_stat().get("inactive_file", 0))
    except cgroup.CgroupError:
        return None
