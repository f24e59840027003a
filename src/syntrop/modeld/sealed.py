# SPDX-License-Identifier: Apache-2.0
"""Parts of models in sealed memory, one copy for all who ask for the same part.

The memory of a part lives for as long as anybody holds it: those that we keep, the ones asked for last, and those
that askers keep. The functions that copy block.
"""

from __future__ import annotations

import os

from syntrop.common import memfd
from syntrop.modeld.faults import Unsuitable

Part = tuple[str, int, int]
"""Digest of the file, first byte, number of bytes."""


class Cache:
    """Memory files by part, at most `limit` bytes of them, the ones used longest ago going first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[Part, int] = {}
        self._bytes = 0

    def get(self, part: Part) -> int | None:
        """A descriptor of the part, which the caller owns; None when we do not have it."""
        handle = self._kept.pop(part, None)
        if handle is None:
            return None
        self._kept[part] = handle
        return _duplicate(handle)

    def put(self, part: Part, handle: int) -> None:
        """Keep a part; the descriptor stays the caller's."""
        if part in self._kept or part[2] > self.limit:
            return
        while self._bytes + part[2] > self.limit:
            oldest = next(iter(self._kept))
            os.close(self._kept.pop(oldest))
            self._bytes -= oldest[2]
        self._kept[part] = _duplicate(handle)
        self._bytes += part[2]

    def clear(self) -> None:
        for handle in self._kept.values():
            os.close(handle)
        self._kept.clear()
        self._bytes = 0


def cut(source: int, offset: int, length: int) -> int:
    """A sealed memory file of a part of a file, whose descriptor is closed. Raises Unsuitable and OSError."""
    try:
        target = memfd.allocate("syntrop-part")
    except BaseException:
        os.close(source)
        raise
    try:
        done = 0
        while done < length:
            # Within the kernel: the bytes never pass through here.
            count = os.sendfile(target, source, offset + done, min(length - done, 1 << 30))
            if count == 0:
                raise Unsuitable("the file is shorter than it should be")
            done += count
        memfd.seal(target)
    except BaseException:
        os.close(target)
        raise
    finally:
        os.close(source)
    return target


def _duplicate(handle: int) -> int:
    import fcntl

    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
