# SPDX-License-Identifier: Apache-2.0
"""Images of files: everything that putting one back takes, absence included. Plain functions, synced writes.

A path is walked from the root by descriptors, and no symbolic link on the way is followed: what is checked is what
is changed, whoever renames folders meanwhile. (openat2(2) could do it in one call, but units with
`RestrictSUIDSGID=` have none.) A new file is made beside the old one under a name that the caller knows, synced,
and renamed over it; then the folder is synced.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ABSENT, FILE, LINK, FOLDER = "absent", "file", "link", "folder"
INLINE_MAX = 64 << 10  # bytes of content that are kept in the record itself
_PARTS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 3


class ImageError(Exception):
    """A file cannot be captured, or not be put back as it was."""


class Unrestorable(ImageError):
    """Something about the file could not be put back, so it is not to be changed in the first place."""


class Changing(ImageError):
    """The file is being written to while it is read."""


class Mismatch(ImageError):
    """What is there is not what the image says."""


class Image:
    """A file, link or folder at one moment, or its absence. A folder's image does not hold what is in it."""

    __slots__ = (
        "atime_ns",
        "blob",
        "content",
        "digest",
        "gid",
        "kind",
        "mode",
        "mtime_ns",
        "size",
        "target",
        "uid",
        "xattrs",
    )

    def __init__(self, kind: str = ABSENT) -> None:
        self.kind = kind
        self.mode = self.uid = self.gid = self.size = 0
        self.atime_ns = self.mtime_ns = 0
        self.xattrs: dict[str, bytes] = {}
        self.target = ""
        self.digest = ""
        self.content: bytes | None = None
        self.blob: str | None = None
        """Path of a file with the content, where that is not in memory."""

    def to_json(self) -> dict[str, Any]:
        """As a record keeps it. Content that is in a blob is named by it."""
        if self.kind == ABSENT:
            return {"kind": ABSENT}
        out: dict[str, Any] = {
            "kind": self.kind,
            "mode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
            "atime_ns": self.atime_ns,
            "mtime_ns": self.mtime_ns,
            "xattrs": {name: base64.b64encode(value).decode() for name, value in self.xattrs.items()},
        }
        if self.kind == LINK:
            out["target"] = os.fsencode(self.target).hex()
        if self.kind == FILE:
            out |= {"size": self.size, "digest": self.digest}
            if self.blob is not None:
                out["blob"] = os.path.basename(self.blob)
            else:
                out["content"] = base64.b64encode(self.content or b"").decode()
        return out

    @classmethod
    def from_json(cls, value: dict[str, Any], blobs: str) -> Image:
        """Raises KeyError, ValueError, TypeError for what `to_json` did not write."""
        image = cls(value["kind"])
        if image.kind == ABSENT:
            return image
        if image.kind not in (FILE, LINK, FOLDER):
            raise ValueError(f"an image of a {image.kind}")
        image.mode, image.uid, image.gid = value["mode"], value["uid"], value["gid"]
        image.atime_ns, image.mtime_ns = value["atime_ns"], value["mtime_ns"]
        image.xattrs = {name: base64.b64decode(text) for name, text in value["xattrs"].items()}
        if image.kind == LINK:
            image.target = os.fsdecode(bytes.fromhex(value["target"]))
        if image.kind == FILE:
            image.size, image.digest = value["size"], value["digest"]
            if "blob" in value:
                image.blob = os.path.join(blobs, os.path.basename(value["blob"]))
            else:
                image.content = base64.b64decode(value["content"])
        return image

    def same(self, other: Image) -> bool:
        """Whether two images are of the same state; when it was last read does not count."""
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        if self.kind == ABSENT:
            return (ABSENT,)
        times = () if self.kind == FOLDER else (self.mtime_ns,)  # a folder's changes with what is in it
        return (self.kind, self.mode, self.uid, self.gid, self.xattrs, self.target, self.digest, *times)

    def data(self) -> bytes:
        """The content of a file, from its blob where it is there. Raises Mismatch for a blob that is damaged."""
        if self.content is not None:
            return self.content
        if self.blob is None:
            return b""
        try:
            with open(self.blob, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            raise Mismatch(f"the kept content of a file is gone: {self.blob}") from None
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise Mismatch(f"the kept content of a file is damaged: {self.blob}")
        return content


def of_content(content: bytes, like: Image) -> Image:
    """The image of a file with other content and, but for its times, the attributes of another."""
    import time

    image = Image(FILE)
    image.mode, image.uid, image.gid = like.mode, like.uid, like.gid
    image.xattrs = dict(like.xattrs)
    image.atime_ns = image.mtime_ns = time.time_ns()
    image.content, image.size = content, len(content)
    image.digest = hashlib.sha256(content).hexdigest()
    return image


class Place:
    """A name in a folder that is held open. Use as a context."""

    __slots__ = ("folder", "name", "path")

    def __init__(self, path: str) -> None:
        """Raises ImageError for a link, or something else that is no folder, on the way; FileNotFoundError."""
        parts = path.split("/")
        if not path.startswith("/") or any(part in ("", ".", "..") for part in parts[1:]):
            raise ImageError(f"{path!r} is no absolute path in its plain form")
        self.path, self.name = path, parts[-1]
        handle = os.open("/", _PARTS)
        try:
            for part in parts[1:-1]:
                try:
                    deeper = os.open(part, _PARTS, dir_fd=handle)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise ImageError(f"{path}: {part} is a link, or no folder") from None
                    raise
                os.close(handle)
                handle = deeper
            # O_PATH descriptors cannot be synced.
            self.folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)


def capture(path: str, *, bytes_max: int = 1 << 30) -> Image:
    """The image of what is at a path. A folder that is missing on the way counts as absence.

    Raises Unrestorable for what could not be put back, Changing, ImageError, OSError.
    """
    try:
        with Place(path) as place:
            return _capture(place, bytes_max)
    except FileNotFoundError:
        return Image()


def _capture(place: Place, bytes_max: int) -> Image:
    for _ in range(_TRIES):
        try:
            status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        except FileNotFoundError:
            return Image()
        if stat.S_ISLNK(status.st_mode):
            image = Image(LINK)
            image.target = os.readlink(place.name, dir_fd=place.folder)
            _take_status(image, status)
            image.xattrs = _xattrs(f"/proc/self/fd/{place.folder}/{place.name}")
            return image
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise Unrestorable(f"{place.path} is neither file, link nor folder")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            handle = os.open(place.name, flags, dir_fd=place.folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                continue  # changed under us: look again
            raise
        try:
            opened = _capture_open(place, handle, bytes_max)
        finally:
            os.close(handle)
        if opened is not None:
            return opened
    raise Changing(f"{place.path} is being written to")


def _capture_open(place: Place, handle: int, bytes_max: int) -> Image | None:
    before = os.fstat(handle)
    image = Image(FOLDER if stat.S_ISDIR(before.st_mode) else FILE)
    _take_status(image, before)
    if image.kind == FILE:
        if before.st_size > bytes_max:
            raise Unrestorable(f"{place.path} has {before.st_size} bytes; {bytes_max} may still be kept")
        if before.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise Unrestorable(f"{place.path} runs with its owner's rights (set-id)")
        chunks, left = [], before.st_size + 1  # one that grows meanwhile is looked at again, not followed
        while chunk := os.read(handle, min(left, 1 << 20)):
            chunks.append(chunk)
            left -= len(chunk)
        image.content = b"".join(chunks)
        image.size = len(image.content)
        image.digest = hashlib.sha256(image.content).hexdigest()
    image.xattrs = _xattrs(handle)
    unsettable = [name for name in image.xattrs if not _settable(name)]
    if unsettable:
        raise Unrestorable(f"{place.path} has {', '.join(unsettable)}, which could not be put back")
    after = os.fstat(handle)
    steady = (before.st_mtime_ns, before.st_ctime_ns, before.st_size) == (
        after.st_mtime_ns,
        after.st_ctime_ns,
        after.st_size,
    )
    return image if steady and (image.kind == FOLDER or image.size == after.st_size) else None


def _take_status(image: Image, status: os.stat_result) -> None:
    image.mode = stat.S_IMODE(status.st_mode)
    image.uid, image.gid = status.st_uid, status.st_gid
    image.atime_ns, image.mtime_ns = status.st_atime_ns, status.st_mtime_ns


def _xattrs(where: int | str) -> dict[str, bytes]:
    follow = isinstance(where, int)  # by descriptor there is nothing to follow, and Python wants it so
    try:
        names = sorted(os.listxattr(where, follow_symlinks=follow))
        return {name: os.getxattr(where, name, follow_symlinks=follow) for name in names}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENODATA):
            return {}
        raise


def _settable(name: str) -> bool:
    """Whether we may give a file an attribute that it has: these want capabilities that only root has here."""
    if os.geteuid() == 0:
        return True
    if name == "security.selinux":  # the policy's to allow, and no capability needed; but only where there is one
        return os.path.isdir(paths.sys("fs", "selinux"))
    return not name.startswith(("trusted.", "security."))


def restore(image: Image, path: str, temporary: str) -> None:
    """Make what is at a path be what the image says, durably. Doing it twice does no harm.

    `temporary` is the name of a new file until it takes its place; what a crash left there is removed. Raises
    ImageError and OSError; a missing folder on the way is an error unless absence is wanted anyway.
    """
    try:
        place = Place(path)
    except FileNotFoundError:
        if image.kind == ABSENT:
            return
        raise
    with place:
        _remove(temporary, place.folder)
        if image.kind == ABSENT:
            _remove(place.name, place.folder)
        elif image.kind == FOLDER:
            _restore_folder(image, place)
        elif image.kind == LINK:
            os.symlink(image.target, temporary, dir_fd=place.folder)
            os.chown(temporary, image.uid, image.gid, dir_fd=place.folder, follow_symlinks=False)
            name = f"/proc/self/fd/{place.folder}/{temporary}"
            for key, value in image.xattrs.items():
                os.setxattr(name, key, value, follow_symlinks=False)
            times = (image.atime_ns, image.mtime_ns)
            os.utime(temporary, ns=times, dir_fd=place.folder, follow_symlinks=False)
            os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        else:
            _restore_file(image, place, temporary)
        os.fsync(place.folder)


def make_folder(path: str) -> None:
    """A folder to put something into, unless one is there; what it was like, and safety, is `restore`'s affair.

    Raises ImageError and OSError.
    """
    with Place(path) as place:
        try:
            os.mkdir(place.name, 0o700, dir_fd=place.folder)
        except FileExistsError:
            pass


def _restore_file(image: Image, place: Place, temporary: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=place.folder)
    try:
        view = memoryview(image.data())
        while view:
            view = view[os.write(handle, view) :]
        _set_attributes(image, handle)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)


def _restore_folder(image: Image, place: Place) -> None:
    make_folder(place.path)
    handle = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    try:
        _set_attributes(image, handle)
        os.fsync(handle)
    finally:
        os.close(handle)


def _set_attributes(image: Image, handle: int) -> None:
    """Owner before mode (chown(2) takes bits away), times last (all else would change them)."""
    status = os.fstat(handle)
    if (status.st_uid, status.st_gid) != (image.uid, image.gid):
        os.fchown(handle, image.uid, image.gid)
    os.fchmod(handle, image.mode)
    present = _xattrs(handle)
    for name in present.keys() - image.xattrs.keys():
        try:
            os.removexattr(handle, name)
        except OSError as error:
            # The label that the system's policy gives to every file cannot be taken away.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTSUP):
                raise
    for name, value in image.xattrs.items():
        if present.get(name) != value:
            os.setxattr(handle, name, value)
    os.utime(handle, ns=(image.atime_ns, image.mtime_ns))


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        os.rmdir(name, dir_fd=folder)


def verify(image: Image, path: str) -> None:
    """Raises Mismatch unless what is at a path is what the image says."""
    found = capture(path)
    if not found.same(image):
        raise Mismatch(f"{path} is not as it should be: {describe(found)} instead of {describe(image)}")


def describe(image: Image) -> str:
    """In a few words, without content."""
    if image.kind == FILE:
        return f"a file of {image.size} bytes ({image.digest[:12]}), {image.mode:04o} {image.uid}:{image.gid}"
    if image.kind == LINK:
        return f"a link to {image.target}"
    return "nothing" if image.kind == ABSENT else f"a folder, {image.mode:04o} {image.uid}:{image.gid}"
