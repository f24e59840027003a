# SPDX-License-Identifier: Apache-2.0
"""State files are written whole: a reader, or a crash at any moment, sees the old content or the new one."""

from __future__ import annotations

import os


def write(path: str, data: bytes, *, mode: int = 0o640, sync: bool = True) -> None:
    """Replace the file `path` by `data` durably; `mode` holds regardless of the umask. Raises OSError.

    Without `sync` it survives the end of the process, not that of the machine: after a power failure the old
    content may be there, or, on some file systems, an empty file.

    The temporary file is in the same folder (rename(2) does not cross file systems), and the folder is synced
    too: without that the *name* may be lost in a power failure although the content is safe.
    A symbolic link at `path` is replaced, not followed.
    """
    folder, name = os.path.split(path)
    directory = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        temporary = f".{os.getpid()}.{os.urandom(6).hex()}.tmp"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(handle, view) :]
                os.fchmod(handle, mode)
                if sync:
                    os.fsync(handle)
            finally:
                os.close(handle)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise
        if sync:
            os.fsync(directory)
    finally:
        os.close(directory)


def write_text(path: str, text: str, *, mode: int = 0o640) -> None:
    """`write()` of text in UTF-8."""
    write(path, text.encode(), mode=mode)


def write_json(path: str, value: object, *, mode: int = 0o640, sync: bool = True) -> None:
    """`write()` of a value as JSON with a line end. NaN and infinities raise ValueError."""
    import json

    write(path, json.dumps(value, allow_nan=False, ensure_ascii=False).encode() + b"\n", mode=mode, sync=sync)
