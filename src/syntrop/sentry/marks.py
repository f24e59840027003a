# SPDX-License-Identifier: Apache-2.0
"""Whether a file is still what a verdict was about. Between the two a person may have mended it: an action may
have waited for an approval, for the guards, or for our next start.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ABSENT = "absent"
_BYTES_MAX = 1 << 20  # of a file that is read; of larger ones size and time tell


def take(paths: Iterable[str]) -> dict[str, str]:
    """What tells these files as they are from any other state of them. Blocks for reads of small files."""
    return {path: _mark(path) for path in paths}


def changed(kept: Mapping[str, str]) -> str:
    """Why the files are not what they were when `take` gave this; empty where they are. Blocks as `take` does."""
    for path, mark in kept.items():
        if _mark(path) != mark:
            return f"{path} was changed since it was found to be the cause"
    return ""


def digest(mark: str) -> str:
    """SHA-256 of the content, where the mark has it; else empty."""
    return mark[-64:] if len(mark) > 64 else ""


def _mark(path: str) -> str:
    """By time and content, not by inode: what toold has put back is the same file as before."""
    try:
        told = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except (OSError, ValueError):
        return "unknown"
    kind = stat.S_IFMT(told.st_mode)
    mark = f"{kind:o} {told.st_size} {told.st_mtime_ns}"
    if kind != stat.S_IFREG or told.st_size > _BYTES_MAX:
        return mark
    from syntrop.common.digests import sha256

    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return f"{mark} {sha256(file.read(_BYTES_MAX)).hexdigest()}"
    except OSError:
        return mark  # it is not for us to read
