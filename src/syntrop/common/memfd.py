# SPDX-License-Identifier: Apache-2.0
"""Sealed memory files: bytes handed to another process that neither side can change or shrink any more.

A receiver must call `verify()` (or `map_readonly()`, which does) before it looks: an unsealed file could be
truncated under a mapping, which is a SIGBUS, or rewritten between the check and the use.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import NoReturn

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_SEAL_NAMES = (
    (fcntl.F_SEAL_SHRINK, "SHRINK"),
    (fcntl.F_SEAL_GROW, "GROW"),
    (fcntl.F_SEAL_WRITE, "WRITE"),
    (fcntl.F_SEAL_SEAL, "SEAL"),
)
_MFD_NOEXEC_SEAL = 0x0008  # linux/memfd.h, kernel 6.3; older ones answer EINVAL


class MemfdError(Exception):
    """What was given is no memory file that may be mapped."""


class NotMemfd(MemfdError):
    """The descriptor is of another kind: seals do not exist for it."""


class NotSealed(MemfdError):
    """Seals are missing; `missing` names them."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(f"memory file lacks the seals {', '.join(missing)}")
        self.missing = missing


class WrongSize(MemfdError):
    """The file is not of the size (bytes) that its sender told."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"memory file has {actual} bytes where {expected} were told")
        self.expected = expected
        self.actual = actual


class StillMapped(MemfdError):
    """F_SEAL_WRITE is refused while a writable shared mapping exists."""


def allocate(name: str, size: int = 0) -> int:
    """A new, unsealed memory file of `size` zero bytes, close-on-exec. The caller owns the descriptor."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        handle = os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        handle = os.memfd_create(name, flags)
    try:
        if size:
            os.truncate(handle, size)
    except BaseException:
        os.close(handle)
        raise
    return handle


def fill(handle: int, data: bytes | bytearray | memoryview) -> None:
    """Append all of `data` at the file's offset; write(2) takes at most 2 GiB at once."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(handle, view) :]


def seal(handle: int) -> None:
    """Add all four seals. Raises StillMapped, or NotMemfd."""
    try:
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StillMapped("memory file cannot be sealed while it is mapped writable") from error
        if error.errno == errno.EPERM and _seals(handle) & SEALS == SEALS:
            return  # sealed before: F_SEAL_SEAL forbids even to repeat it
        _refuse(error)


def create(name: str, data: bytes | bytearray | memoryview) -> int:
    """A sealed memory file that holds `data`. The caller owns the descriptor."""
    handle = allocate(name)
    try:
        fill(handle, data)
        seal(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def verify(handle: int, size: int | None = None) -> int:
    """Size in bytes of a file that is sealed for good. Raises NotMemfd, NotSealed or WrongSize."""
    present = _seals(handle)
    missing = tuple(name for bit, name in _SEAL_NAMES if not present & bit)
    if missing:
        raise NotSealed(missing)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise NotMemfd("descriptor is no regular file")
    if size is not None and status.st_size != size:
        raise WrongSize(size, status.st_size)
    return status.st_size


def map_readonly(handle: int, size: int | None = None) -> mmap.mmap:
    """Verify and map the whole file. The mapping outlives the descriptor; the caller closes both.

    An empty file cannot be mapped and raises WrongSize(1, 0).
    """
    import mmap

    length = verify(handle, size)
    if length == 0:
        raise WrongSize(1, 0)
    # MAP_PRIVATE shares the same pages; kernels before 6.7 refuse MAP_SHARED of a write-sealed file.
    return mmap.mmap(handle, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def _seals(handle: int) -> int:
    try:
        return fcntl.fcntl(handle, fcntl.F_GET_SEALS)
    except OSError as error:
        _refuse(error)


def _refuse(error: OSError) -> NoReturn:
    if error.errno == errno.EINVAL:
        raise NotMemfd("descriptor is no memory file") from error
    raise error
