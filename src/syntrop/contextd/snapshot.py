# SPDX-License-Identifier: Apache-2.0
"""What one file is: kind, mode, owner, times, extended attributes, and its content by digest or as kept text."""

from __future__ import annotations

import os
import stat

from syntrop.common import redaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Kinds. Text and links are kept; what is binary, huge or secret is known by its keyed digest only.
TEXT, BINARY, HUGE, SECRET, LINK, FOLDER, OTHER = "text", "binary", "huge", "secret", "link", "folder", "other"

KEPT_MAX = 256 << 10  # bytes of a text that is kept
DIGESTED_MAX = 256 << 20  # bytes of a file that is read at all
_XATTR_MAX = 256
_TRIES = 3  # of reading a file that changes under us


class Snapshot:
    """One file at one time. `digest` is keyed (nobody can try contents against it); `content` names kept text."""

    __slots__ = (
        "content",
        "ctime_ns",
        "digest",
        "gid",
        "inode",
        "kind",
        "mode",
        "mtime_ns",
        "size",
        "uid",
        "xattrs",
    )

    def __init__(
        self,
        kind: str,
        digest: str,
        content: str | None,
        mode: int,
        uid: int,
        gid: int,
        size: int,
        mtime_ns: int,
        ctime_ns: int,
        inode: int,
        xattrs: dict[str, str],
    ) -> None:
        self.kind = kind
        self.digest = digest
        self.content = content
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size = size
        self.mtime_ns = mtime_ns
        self.ctime_ns = ctime_ns
        self.inode = inode
        self.xattrs = xattrs

    def values(self) -> tuple[Any, ...]:
        return (
            self.kind,
            self.digest,
            self.content,
            self.mode,
            self.uid,
            self.gid,
            self.size,
            self.mtime_ns,
            self.ctime_ns,
            self.inode,
            self.xattrs,
        )

    def untouched(self, status: os.stat_result) -> bool:
        """Whether a file's status says that nothing about it has changed: any change moves its change time."""
        if self.kind == FOLDER:
            # Its times move with whatever is done inside, which is not a change of it.
            mine = (self.inode, self.mode, self.uid, self.gid)
            return mine == (status.st_ino, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        return (
            self.ctime_ns == status.st_ctime_ns
            and self.inode == status.st_ino
            and self.mtime_ns == status.st_mtime_ns
            and self.size == status.st_size
            and self.mode == stat.S_IMODE(status.st_mode)
        )

    def state(self) -> str:
        """What counts as a change when it differs."""
        extra = ",".join(f"{name}={value}" for name, value in sorted(self.xattrs.items()))
        return f"{self.kind}:{self.digest}:{self.mode:o}:{self.uid}:{self.gid}:{extra}"

    @property
    def world_readable(self) -> bool:
        return bool(self.mode & 0o004) and self.kind != SECRET


def take(host_path: str, path: str, key: bytes) -> tuple[Snapshot, bytes | None] | None:
    """A file as it is, and its text as far as it is to be kept; None when there is none.

    `path` is the name that it goes by, which may tell that it holds a secret. Raises OSError when it cannot be
    read, PermissionError among them.
    """
    try:
        status = os.lstat(host_path)
        if stat.S_ISREG(status.st_mode):
            return _regular(host_path, path, key)
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(host_path))
            return _build(LINK, redaction.digest(key, target), status, host_path), target
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = FOLDER if stat.S_ISDIR(status.st_mode) else OTHER
    return _build(kind, "", status, host_path), None


def _regular(host_path: str, path: str, key: bytes) -> tuple[Snapshot, bytes | None]:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    handle = os.open(host_path, flags)
    try:
        for _ in range(_TRIES):
            status = os.fstat(handle)
            kind, digest, text = _content(handle, status.st_size, path, key)
            after = os.fstat(handle)
            if (after.st_ctime_ns, after.st_size) == (status.st_ctime_ns, status.st_size):
                break
        return _build(kind, digest, status, handle), text
    finally:
        os.close(handle)


def _content(handle: int, size: int, path: str, key: bytes) -> tuple[str, str, bytes | None]:
    if size > DIGESTED_MAX:
        return HUGE, f"{size} bytes", None
    if size > KEPT_MAX:
        hasher = redaction.hasher(key)
        at = 0
        # Who writes to it faster than we read does not keep us here.
        while at <= DIGESTED_MAX and (piece := os.pread(handle, 1 << 20, at)):
            hasher.update(piece)
            at += len(piece)
        return HUGE, hasher.hexdigest(), None
    pieces = []
    at = 0
    while at <= KEPT_MAX and (piece := os.pread(handle, KEPT_MAX + 1 - at, at)):
        pieces.append(piece)
        at += len(piece)
    data = b"".join(pieces)
    digest = redaction.digest(key, data)
    if redaction.secret_path(path) or redaction.secret_content(data):
        return SECRET, digest, None
    if b"\0" in data:
        return BINARY, digest, None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return TEXT, digest, redaction.redact(text, key).encode("utf-8")


def _build(kind: str, digest: str, status: os.stat_result, where: str | int) -> Snapshot:
    return Snapshot(
        kind,
        digest,
        None,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        _xattrs(where),
    )


def _xattrs(where: str | int) -> dict[str, str]:
    found = {}
    try:
        follow = isinstance(where, int)
        for name in os.listxattr(where, follow_symlinks=follow):
            value = os.getxattr(where, name, follow_symlinks=follow)[:_XATTR_MAX]
            found[name] = value.rstrip(b"\0").decode("ascii") if value.isascii() and value else value.hex()
    except OSError:
        pass  # not every file system has them, and they come and go
    return found
