# SPDX-License-Identifier: Apache-2.0
"""Which models go when room is needed. Pure: sizes and times in, digests out."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


class Promise:
    """Room for what is on its way: `whole` bytes, of which `left` are not on the disk yet."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: int, left: int) -> None:
        self.whole = whole
        self.left = left

    def came(self, count: int) -> None:
        self.left = max(0, self.left - count)

    def grow(self, count: int) -> None:
        self.whole += count
        self.left += count


def missing(request: int, *, stored: int, quota: int, free: int, floor: int) -> int:
    """Bytes that must go before `request` bytes may come; negative for what is left over. A quota of 0 is none."""
    lacking = request + floor - free
    return max(lacking, stored + request - quota) if quota else lacking


def choose(
    excess: int,
    candidates: Iterable[str],
    parts: Mapping[str, Collection[str]],
    sizes: Mapping[str, int],
    busy: Callable[[str], bool],
) -> tuple[list[str], int]:
    """The models to remove, and the bytes that this gives back, which may be fewer than `excess`.

    `candidates` come in the order in which they should go; `parts` tells for every model of the store, candidate
    or not, which files it consists of. A file that another model needs is kept, and gives nothing back.
    """
    users: dict[str, int] = {}
    for files in parts.values():
        for file in files:
            users[file] = users.get(file, 0) + 1
    gone: list[str] = []
    reclaimed = 0
    for model in candidates:
        if reclaimed >= excess:
            break
        if busy(model):
            continue
        gone.append(model)
        for file in parts[model]:
            users[file] -= 1
            if not users[file]:
                reclaimed += sizes.get(file, 0)
    return gone, reclaimed
