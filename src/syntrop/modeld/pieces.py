# SPDX-License-Identifier: Apache-2.0
"""Files on their way into the store: what they are, and what they say of themselves. Everything here blocks."""

from __future__ import annotations

import fcntl
import os
import stat

from syntrop.common import modelfiles
from syntrop.modeld import disk, folder, formats
from syntrop.modeld.faults import Unsuitable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any


class Piece:
    """A file that is about to be stored: its descriptor, its name so far if any, its digest and size.

    `path` is its place in a model of several files, and empty for the only file of a model.
    """

    __slots__ = ("digest", "handle", "path", "size", "temporary")

    def __init__(self, path: str, handle: int, temporary: str | None, digest: str, size: int) -> None:
        self.path = path
        self.handle = handle
        self.temporary = temporary
        self.digest = digest
        self.size = size

    def at(self, path: str) -> Piece:
        """The same file at another place of a model."""
        return Piece(path, self.handle, self.temporary, self.digest, self.size)


def examine(source: int) -> tuple[int, str]:
    """Size and format of a source. Raises Unsuitable."""
    size = size_of(source)
    try:
        return size, formats.recognise(os.pread(source, formats.HEAD, 0), size)
    except formats.UnknownFormat as error:
        raise Unsuitable(str(error)) from None


def size_of(source: int, path: str = "") -> int:
    """Size of a file that can be read. Raises Unsuitable."""
    status = os.fstat(source)
    prefix = f"{path}: " if path else ""
    if not stat.S_ISREG(status.st_mode):
        raise Unsuitable(prefix + "not a regular file")
    flags = fcntl.fcntl(source, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
        raise Unsuitable(prefix + "not open for reading")
    if status.st_size == 0 and (not path or modelfiles.is_weights(path)):
        raise Unsuitable(prefix + "an empty file")
    return status.st_size


def describe(pieces: Sequence[Piece], kind: str) -> dict[str, Any]:
    """Metadata of files of ours. Raises Unsuitable."""
    import mmap

    # Of our own copies: a mapping of a file that somebody else could cut short would raise SIGBUS.
    opened: dict[str, mmap.mmap | bytes] = {}
    try:
        for piece in pieces:
            opened[piece.path] = (
                mmap.mmap(piece.handle, piece.size, mmap.MAP_SHARED, mmap.PROT_READ) if piece.size else b""
            )
        if len(pieces) == 1 and (kind == formats.GGUF or not pieces[0].path):
            return formats.describe(next(iter(opened.values())), kind)
        return folder.describe(kind, opened)
    except (formats.UnknownFormat, folder.Incomplete) as error:
        raise Unsuitable(str(error)) from None
    finally:
        for data in opened.values():
            if isinstance(data, mmap.mmap):
                data.close()


def dispose(pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        os.close(piece.handle)
        if piece.temporary is not None:
            disk.unlink(piece.temporary)


def sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
