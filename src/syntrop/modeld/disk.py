# SPDX-License-Identifier: Apache-2.0
"""What the store does to the disk, in small steps whose order the callers choose. Everything here blocks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal

from syntrop.common import paths
from syntrop.modeld.faults import REFUSALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 4 << 20  # bytes read, hashed and written at a time
TEMPORARY = ".incoming-"  # how the name of a file begins that will get another
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_NO_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR)


class ShortSource(ValueError):
    """The source became shorter while it was read."""


def sync(folder: str) -> None:
    """Make the names in a folder safe."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(*folders: str) -> set[str]:
    """Make folders where they are missing; the new names are safe once the folders returned are synced."""
    unsafe = set()
    for folder in folders:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            unsafe.add(os.path.dirname(path))
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass  # another thread was faster, but may not have come to sync it
    return unsafe


def names(folder: str) -> list[str]:
    """What is in a folder; nothing where there is none."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def unlink(path: str) -> bool:
    """Whether there was such a file."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def create(folder: str) -> tuple[int, str | None]:
    """A new file in a folder, without a name where the file system can do that: a crash then leaves nothing."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600), None
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    path = os.path.join(folder, f"{TEMPORARY}{os.urandom(8).hex()}")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever finds it unlocked may remove it
    return handle, path


def link(handle: int, temporary: str | None, folder: str, name: str) -> None:
    """Give a synced file its name, which is safe only after `sync(folder)`. One that is there stays."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # linkat(2) with AT_SYMLINK_FOLLOW, the way to name an O_TMPFILE that needs no capability. Python
        # takes link(2), which does not follow, unless a folder's descriptor comes into it.
        os.link(temporary or paths.proc("self", "fd", str(handle)), name, dst_dir_fd=directory)
    except FileExistsError:
        pass  # whoever linked it may not have come to sync the folder: the caller does
    finally:
        os.close(directory)


def copy(
    source: int,
    target: int,
    size: int,
    wanted: Callable[[], bool],
    progress: Callable[[int], object] | None = None,
) -> str | None:
    """Copy `size` bytes; the SHA-256 of what was written in hexadecimal, or None when it is no longer wanted.

    The digest is of our copy, never of the source, which somebody may be writing to. Raises ShortSource.
    """
    import hashlib

    cloned = clone(source, target)
    if cloned and os.fstat(target).st_size != size:
        # It grew or shrank meanwhile: nothing of it may stay behind what is copied.
        os.ftruncate(target, 0)
        cloned = False
    if cloned:
        source = target
    digest = hashlib.sha256()
    buffer = bytearray(min(size, CHUNK))
    view = memoryview(buffer)
    at = 0
    while at < size:
        if not wanted():
            return None
        count = os.preadv(source, [view[: size - at]], at)
        if count == 0:
            raise ShortSource("the file became shorter while it was read")
        piece = view[:count]
        if not cloned:
            write(target, piece, at)
        digest.update(piece)
        at += count
        if progress is not None:
            progress(count)
    return digest.hexdigest()


def write(handle: int, data: memoryview, at: int) -> None:
    """All of `data` at a place."""
    written = 0
    while written < len(data):
        written += os.pwrite(handle, data[written:], at + written)


def clone(source: int, target: int) -> bool:
    """Share the blocks of the source copy-on-write, where the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def digest(handle: int, wanted: Callable[[], bool], progress: Callable[[int], object]) -> str | None:
    """The SHA-256 of a file in hexadecimal; None when it is no longer wanted."""
    import hashlib

    found = hashlib.sha256()
    buffer = bytearray(CHUNK)
    at = 0
    while wanted():
        count = os.preadv(handle, [buffer], at)
        if count == 0:
            return found.hexdigest()
        found.update(memoryview(buffer)[:count])
        at += count
        progress(count)
    return None


class Leases:
    """Files that nobody else has open or mapped, and that nobody can open before we let go of them.

    The kernel grants a write lease (fcntl(2)) to a file's sole user only; whoever opens the file meanwhile waits.
    """

    HELD_MAX = 5000  # descriptors: more than the files of one model

    def __init__(self) -> None:
        import resource

        # The others need some, too.
        self._max = min(self.HELD_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._held: dict[str, int] = {}
        self._full = False

    def take(self, *paths: str) -> bool:
        """Whether none of these is in use; they are held then. One that is not there is not in use.

        Where the file system has no leases, every file is taken to be in use; so is any once there are too many.
        Raises OSError.
        """
        taken: dict[str, int] = {}
        try:
            for path in paths:
                self._full = self._full or len(self._held) + len(taken) >= self._max
                if path in self._held:
                    continue  # of another model too
                if self._full or not _lease(path, taken):
                    return False
            self._held |= taken
            taken = {}
            return True
        finally:
            _close_all(taken)

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of all."""
        held, self._held = self._held, {}
        _close_all(held)


def _lease(path: str, taken: dict[str, int]) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False  # somebody else holds it
    try:
        # Whoever waits for us has the kernel send a signal, which by default ends the process. This one does not.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        os.close(handle)
        return False
    taken[path] = handle
    return True


def _close_all(handles: dict[str, int]) -> None:
    for handle in handles.values():
        os.close(handle)


def free_bytes(folder: str) -> int:
    """What the file system of a folder, or of the nearest one that is there, has left for us."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class Lock:
    """An exclusive lock between threads and processes. Its file counts how often it was taken and left.

    The count tells a reader in any process whether what it knows still holds. It is odd while somebody is at a
    change, and stays odd when that ends before its time, by an error or a kill: what is seen then may not be on
    the disk, and must not be built upon before it is. `prepare` is called before the change, and told whether that
    is so; `finish` after it, however it ended. The count itself is not synced: after a power failure nothing is
    seen that is not on the disk, and no process is left that knows anything.
    """

    def __init__(self, path: str, prepare: Callable[[bool], object], finish: Callable[[], object]) -> None:
        self._path = path
        self._prepare, self._finish = prepare, finish
        self._handle = -1

    def __enter__(self) -> None:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            self._prepare(self._count(odd=True))
        except BaseException:
            os.close(self._handle)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        # What the store refuses, it refuses between two changes; anything else may have come in the midst of one.
        broken_off = kind is not None and not issubclass(kind, REFUSALS)
        try:
            self._finish()
            # Also after a change: what was read in the midst of it is not kept beyond it.
            self._count(odd=broken_off)
        finally:
            os.close(self._handle)

    def _count(self, *, odd: bool) -> bool:
        """Count on; whether the number was odd."""
        number = int.from_bytes(os.pread(self._handle, 8, 0), "little")
        following = number + 1 if odd != bool(number % 2) else number + 2
        os.pwrite(self._handle, following.to_bytes(8, "little"), 0)
        return bool(number % 2)


def is_locked(path: str) -> bool:
    """Whether anybody holds a `Lock` of this path now, in whatever process."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def changes(path: str) -> int:
    """How often a `Lock` of this path was taken and left; 0 where it never was."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        return int.from_bytes(os.pread(handle, 8, 0), "little")
    finally:
        os.close(handle)
