# SPDX-License-Identifier: Apache-2.0
"""How much memory to lease: whole steps and one ahead of need, so that a cache that grows asks seldom. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

STEP: Final = 64 << 20
"""Bytes by which a lease grows and shrinks."""
LOW: Final = STEP // 2
"""Bytes that are left of a lease when more is asked for."""
LEAST: Final = 1 << 20
"""Bytes that are worth asking for when caches cannot have a step."""


def wanted(need: int, ceiling: int) -> int:
    """Bytes to lease where `need` are in use: at most the ceiling, but never less than that; none for none."""
    if need <= 0:
        return 0
    return max(need, min((-(-need // STEP) + 1) * STEP, ceiling))


def instead(need: int, size: int, has: int, available: int) -> int | None:
    """What to ask for when `size` bytes were refused to a lease of `has`, which can have `available` more.

    As much as there is, or None where that does not meet the need.
    """
    best = min(size - 1, has + max(0, available))
    return best if best >= need else None


def host_plane(planes: Iterable[Mapping[str, Any]]) -> tuple[str | None, int]:
    """Of planes as inferenced lists them: the host memory with the most to be had, and how many such there are."""
    hosts = [one for one in planes if one["kind"] == "cpu" and not one.get("is_quarantined")]
    best = max(hosts, key=lambda one: one.get("available_memory") or 0, default=None)
    return None if best is None else best["id"], len(hosts)
