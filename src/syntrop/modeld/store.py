# SPDX-License-Identifier: Apache-2.0
"""The store of models: files addressed by their SHA-256, named by tags.

    blobs/sha256/<hex>    the files, read-only, never changed once they are there
    notes/<hex>.json      what a file says of itself; made again from it when missing
    tags/<name>/<tag>     symbolic links to blobs
    pins/<hex>            markers of models that are not pruned
    lock                  held (flock) while names come to stand or fall

A file comes in under no name (O_TMPFILE), is synced, and is linked into place, so that a crash leaves either
nothing or a whole model. A tag is set only after the blob that it names is safe. The functions block: they are
for worker threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from syntrop.common import atomic, paths
from syntrop.modeld import formats, naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_CHUNK = 4 << 20  # bytes read, hashed and written at a time
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_NO_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR)


class NoSuchModel(LookupError):
    """Nothing in the store has this identifier."""

    def __init__(self, identifier: str) -> None:
        super().__init__(identifier)
        self.identifier = identifier


class Unsuitable(ValueError):
    """The source cannot become a model; the text says why."""


class DigestMismatch(ValueError):
    """The content has another digest than the one asked for."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"{actual}, not {expected}")
        self.expected = expected
        self.actual = actual


class Stopped(Exception):
    """The asker no longer wants it."""


class Entry:
    """A model under one of its names; without name and tag where it has none."""

    __slots__ = ("digest", "format", "name", "pinned", "size", "tag")

    def __init__(
        self, digest: str, name: str | None, tag: str | None, size: int, pinned: bool, format: str
    ) -> None:
        self.digest = digest
        self.name = name
        self.tag = tag
        self.size = size
        self.pinned = pinned
        self.format = format

    @property
    def id(self) -> str:
        return naming.digest_id(self.digest) if self.name is None else f"{self.name}:{self.tag}"


class Store:
    """The store below one folder, which is made when something is first put there."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._blobs = os.path.join(root, "blobs", naming.ALGORITHM)
        self._notes = os.path.join(root, "notes")
        self._tags = os.path.join(root, "tags")
        self._pins = os.path.join(root, "pins")
        # Blobs do not change, so neither does what is known of them.
        self._known: dict[str, dict[str, Any]] = {}

    # --- looking -------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All models by identifier, one entry for each tag."""
        sizes = self._sizes()
        pins = set(_names(self._pins))
        found = []
        tagged = set()
        for name, tag, digest in self._tag_links():
            if digest in sizes:
                tagged.add(digest)
                found.append(self._entry(digest, name, tag, sizes[digest], digest in pins))
        unnamed = sizes.keys() - tagged
        found += [self._entry(digest, None, None, sizes[digest], digest in pins) for digest in unnamed]
        return sorted(found, key=lambda entry: entry.id)

    def find(self, identifier: naming.Identifier) -> Entry:
        """The model of an identifier. Raises NoSuchModel."""
        digest, size = self._locate(identifier)
        name: str | None = identifier.name
        tag = identifier.tag
        if identifier.digest is not None:
            name, tag = self._first_name(digest)
        elif tag is None:
            tag = self._bare(identifier.name)
        return self._entry(digest, name, tag, size, os.path.exists(os.path.join(self._pins, digest)))

    def metadata(self, digest: str) -> dict[str, Any]:
        """What the file says of itself."""
        metadata: dict[str, Any] = self._note(digest)["metadata"]
        return metadata

    def open(self, identifier: naming.Identifier) -> tuple[int, int, str]:
        """A descriptor for reading, which the caller owns, the size and the digest. Raises NoSuchModel."""
        digest, _ = self._locate(identifier)
        path = self._blob(digest)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NoSuchModel(str(identifier)) from None
        status = os.fstat(handle)
        try:
            # The time of last use, for prune(): set by hand, since noatime and relatime would not.
            os.utime(path, ns=(_now_ns(), status.st_mtime_ns), follow_symlinks=False)
        except OSError:
            pass  # pruned meanwhile, or a file system that is read-only: the descriptor is good all the same
        return handle, status.st_size, digest

    def stats(self) -> tuple[int, int, int]:
        """Bytes, files, pinned files."""
        sizes = self._sizes()
        return sum(sizes.values()), len(sizes), len(sizes.keys() & set(_names(self._pins)))

    # --- changing ------------------------------------------------------------------------------------------

    def register(
        self,
        source: int,
        name: str | None,
        tag: str | None,
        expected: str | None,
        wanted: Callable[[], bool],
    ) -> Entry:
        """Copy the regular file behind a descriptor into the store, and name it.

        `wanted` is asked after each piece; when it says no, Stopped is raised and nothing is left. Raises
        Unsuitable, DigestMismatch and OSError. The descriptor's own position is neither used nor moved.
        """
        size, kind = _examine(source)
        self._prepare()
        handle, temporary = self._create()
        try:
            digest = _copy(source, handle, size, wanted)
            if expected is not None and digest != expected:
                raise DigestMismatch(naming.digest_id(expected), naming.digest_id(digest))
            note = {"format": kind, "metadata": _describe(handle, size, kind)}
            os.fchmod(handle, 0o440)
            os.fsync(handle)
            with self._locked():
                self._link(handle, temporary, digest)
                atomic.write_json(self._note_path(digest), note)
                self._known[digest] = note
                if name is not None and tag is not None:
                    self._set_tag(name, tag, digest)
        finally:
            os.close(handle)
            if temporary is not None:
                os.unlink(temporary)
        entry_name, entry_tag = (name, tag) if name is not None else self._first_name(digest)
        pinned = os.path.exists(os.path.join(self._pins, digest))
        return self._entry(digest, entry_name, entry_tag, size, pinned)

    def tag(self, digest: str, name: str, tag: str) -> Entry:
        """Give a name to a model that is there. Raises NoSuchModel."""
        if not os.path.exists(self._blob(digest)):
            raise NoSuchModel(naming.digest_id(digest))
        self._prepare()
        with self._locked():
            entry = self.find(naming.Identifier(digest=digest))
            self._set_tag(name, tag, digest)
        return Entry(digest, name, tag, entry.size, entry.pinned, entry.format)

    def pin(self, identifier: naming.Identifier) -> None:
        """Keep a model from being pruned. Raises NoSuchModel."""
        self.find(identifier)
        self._prepare()
        with self._locked():
            handle = os.open(
                os.path.join(self._pins, self.find(identifier).digest),
                os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
            os.close(handle)
            _sync(self._pins)

    def unpin(self, identifier: naming.Identifier) -> None:
        """Raises NoSuchModel."""
        entry = self.find(identifier)
        if entry.pinned:
            with self._locked():
                _unlink(os.path.join(self._pins, entry.digest))
                _sync(self._pins)

    def prune(self, limit: int) -> tuple[int, list[str]]:
        """Remove the models that were used longest ago until `limit` bytes are left; pinned and open ones stay.

        Returns the bytes given back and the digests of what was removed.
        """
        if not os.path.isdir(self._blobs):
            return 0, []
        removed: list[str] = []
        reclaimed = 0
        with self._locked():
            sizes = self._sizes()
            left = sum(sizes.values())
            pins = set(_names(self._pins))
            by_use = sorted(sizes.keys() - pins, key=lambda d: os.stat(self._blob(d)).st_atime_ns)
            for digest in by_use:
                if left - reclaimed <= limit:
                    break
                if not _in_use(self._blob(digest)):
                    self._remove(digest)
                    removed.append(digest)
                    reclaimed += sizes[digest]
        return reclaimed, removed

    # --- inside --------------------------------------------------------------------------------------------

    def _blob(self, digest: str) -> str:
        return os.path.join(self._blobs, digest)

    def _note_path(self, digest: str) -> str:
        return os.path.join(self._notes, f"{digest}.json")

    def _sizes(self) -> dict[str, int]:
        try:
            with os.scandir(self._blobs) as found:
                return {
                    one.name: one.stat(follow_symlinks=False).st_size for one in found if naming.is_hex(one.name)
                }
        except FileNotFoundError:
            return {}

    def _locate(self, identifier: naming.Identifier) -> tuple[str, int]:
        """Digest and size of a model. Raises NoSuchModel."""
        digest = identifier.digest
        if digest is None:
            tag = identifier.tag if identifier.tag is not None else self._bare(identifier.name)
            digest = self._tagged(identifier.name, tag) if tag is not None else ""
        if digest:
            try:
                return digest, os.stat(self._blob(digest), follow_symlinks=False).st_size
            except FileNotFoundError:
                pass
        raise NoSuchModel(str(identifier))

    def _bare(self, name: str) -> str | None:
        """The tag that a bare name means."""
        return naming.choose_tag([t for t in _names(os.path.join(self._tags, name)) if naming.is_tag(t)])

    def _tag_links(self) -> Iterator[tuple[str, str, str]]:
        for name in sorted(_names(self._tags)):
            if naming.is_name(name):
                for tag in sorted(_names(os.path.join(self._tags, name))):
                    if digest := self._tagged(name, tag):
                        yield name, tag, digest

    def _tagged(self, name: str, tag: str) -> str:
        """The digest that a tag names, or nothing."""
        if not naming.is_tag(tag):
            return ""
        try:
            digest = os.path.basename(os.readlink(os.path.join(self._tags, name, tag)))
        except OSError:
            return ""
        return digest if naming.is_hex(digest) else ""

    def _first_name(self, digest: str) -> tuple[str | None, str | None]:
        for name, tag, named in self._tag_links():
            if named == digest:
                return name, tag
        return None, None

    def _entry(self, digest: str, name: str | None, tag: str | None, size: int, pinned: bool) -> Entry:
        return Entry(digest, name, tag, size, pinned, self._note(digest)["format"])

    def _note(self, digest: str) -> dict[str, Any]:
        note = self._known.get(digest)
        if note is None:
            note = self._known[digest] = self._read_note(digest) or self._make_note(digest)
        return note

    def _read_note(self, digest: str) -> dict[str, Any] | None:
        import json

        try:
            with open(self._note_path(digest), encoding="utf-8") as file:
                note = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        whole = isinstance(note, dict) and isinstance(note.get("metadata"), dict)
        return note if whole and isinstance(note.get("format"), str) else None

    def _make_note(self, digest: str) -> dict[str, Any]:
        """A crash came between a model and its note, or somebody removed it."""
        handle = os.open(self._blob(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(handle).st_size
            try:
                kind = formats.recognise(os.pread(handle, formats.HEAD, 0), size)
                note = {"format": kind, "metadata": _describe(handle, size, kind)}
            except (formats.UnknownFormat, Unsuitable) as error:
                return {"format": "unknown", "metadata": {"fault": str(error)}}
        finally:
            os.close(handle)
        os.makedirs(self._notes, 0o700, exist_ok=True)
        atomic.write_json(self._note_path(digest), note)
        return note

    def _prepare(self) -> None:
        """Make the folders, durably."""
        for folder in (self._blobs, self._notes, self._tags, self._pins):
            if not os.path.isdir(folder):
                os.makedirs(folder, 0o700, exist_ok=True)
                _sync(os.path.dirname(folder))
                _sync(self._root)

    def _create(self) -> tuple[int, str | None]:
        """A new file in the folder of blobs, without a name where the file system can do that."""
        try:
            return os.open(self._blobs, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600), None
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        path = os.path.join(self._blobs, f".incoming-{os.getpid()}-{os.urandom(8).hex()}")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path

    def _link(self, handle: int, temporary: str | None, digest: str) -> None:
        """Give a synced file its name. One that is there already has the same content, and stays."""
        folder = os.open(self._blobs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # linkat(2) with AT_SYMLINK_FOLLOW, the way to name an O_TMPFILE that needs no capability. Python
            # takes link(2), which does not follow, unless a folder's descriptor comes into it.
            try:
                os.link(temporary or paths.proc("self", "fd", str(handle)), digest, dst_dir_fd=folder)
            except FileExistsError:
                pass  # whoever linked it may not have come to sync the folder
            os.fsync(folder)
        finally:
            os.close(folder)

    def _set_tag(self, name: str, tag: str, digest: str) -> None:
        folder = os.path.join(self._tags, name)
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
            _sync(self._tags)
        # A dot starts no tag, so this name is nobody's.
        temporary = os.path.join(folder, f".{os.getpid()}-{os.urandom(8).hex()}")
        os.symlink(os.path.join("..", "..", "blobs", naming.ALGORITHM, digest), temporary)
        try:
            os.rename(temporary, os.path.join(folder, tag))
        except BaseException:
            os.unlink(temporary)
            raise
        _sync(folder)

    def _remove(self, digest: str) -> None:
        """Names first: no tag ever dangles."""
        for name, tag, named in list(self._tag_links()):
            if named == digest:
                folder = os.path.join(self._tags, name)
                _unlink(os.path.join(folder, tag))
                _sync(folder)
                if not os.listdir(folder):
                    os.rmdir(folder)
        self._known.pop(digest, None)
        _unlink(self._note_path(digest))
        _unlink(self._blob(digest))
        _sync(self._blobs)

    def _locked(self) -> _Lock:
        return _Lock(os.path.join(self._root, "lock"))


class _Lock:
    """An exclusive lock between threads and processes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def __exit__(self, *_error: object) -> None:
        os.close(self._handle)


def _examine(source: int) -> tuple[int, str]:
    """Size and format of a source. Raises Unsuitable."""
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode):
        raise Unsuitable("not a regular file")
    flags = fcntl.fcntl(source, fcntl.F_GETFL)
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
        raise Unsuitable("not open for reading")
    if status.st_size == 0:
        raise Unsuitable("an empty file")
    try:
        return status.st_size, formats.recognise(os.pread(source, formats.HEAD, 0), status.st_size)
    except formats.UnknownFormat as error:
        raise Unsuitable(str(error)) from None


def _copy(source: int, target: int, size: int, wanted: Callable[[], bool]) -> str:
    """Copy `size` bytes and return the SHA-256 of what was written, in hexadecimal.

    The digest is of our copy, never of the source, which somebody may be writing to.
    """
    import hashlib

    cloned = _clone(source, target) and os.fstat(target).st_size == size
    if cloned:
        source = target
    digest = hashlib.sha256()
    buffer = bytearray(min(size, _CHUNK))
    view = memoryview(buffer)
    at = 0
    while at < size:
        if not wanted():
            raise Stopped
        count = os.preadv(source, [view[: size - at]], at)
        if count == 0:
            raise Unsuitable("the file became shorter while it was read")
        piece = view[:count]
        digest.update(piece)
        written = 0 if not cloned else count
        while written < count:
            written += os.pwrite(target, piece[written:], at + written)
        at += count
    return digest.hexdigest()


def _clone(source: int, target: int) -> bool:
    """Share the blocks of the source copy-on-write, where the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def _describe(handle: int, size: int, kind: str) -> dict[str, Any]:
    import mmap

    # Of our own copy: a mapping of a file that somebody else could cut short would raise SIGBUS.
    with mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        try:
            return formats.describe(mapped, kind)
        except formats.UnknownFormat as error:
            raise Unsuitable(str(error)) from None


def _in_use(path: str) -> bool:
    """Whether anybody has the file open or mapped: the kernel grants a write lease to its sole user only.

    Where that cannot be found out, it is taken to be in use.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _now_ns() -> int:
    from time import time_ns

    return time_ns()
