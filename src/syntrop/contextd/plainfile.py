# SPDX-License-Identifier: Apache-2.0
"""Reading what others put there: a regular file or nothing. A FIFO would hold us up, a device act."""

from __future__ import annotations

import os
import stat


def read(path: str, most: int) -> bytes:
    """The first bytes of a regular file. Raises OSError, also for what is none."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        pieces = []
        at = 0
        while at < most and (piece := os.pread(handle, most - at, at)):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)
