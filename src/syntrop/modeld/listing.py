# SPDX-License-Identifier: Apache-2.0
"""The answer to `List`, kept on the disk between two activations: reading it is one file instead of thousands.

    <JSON of the stamp>\\n<the answer>

It is believed only where the stamp is that of the store as it is, and the checksum is right. It is written without
any sync, since it can be made again at any time; but before the store changes it is removed durably, so that no
power failure brings back an answer together with the stamp that it was true for. Everything here blocks.
"""

from __future__ import annotations

import os
from binascii import crc32

from syntrop import __version__
from syntrop.modeld import disk

TYPE_CHECKING = False
if TYPE_CHECKING:
    Stamp = tuple[int, ...]
    """The count of changes, and what tells that nobody changed something by hand."""


def read(path: str) -> tuple[Stamp, bytes] | None:
    """The stamp and the answer; None where there is no whole one of this version."""
    import json

    try:
        with open(path, "rb") as file:
            head, answer = file.readline(), file.read()
        known = json.loads(head)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(known, dict) or [known.get("version"), known.get("crc")] != [__version__, crc32(answer)]:
        return None
    stamp = known.get("stamp")
    return (tuple(stamp), answer) if isinstance(stamp, list) else None


def write(path: str, stamp: Stamp, answer: bytes) -> None:
    """Whole or not at all, as far as other processes see; the store is locked. Raises OSError."""
    import json

    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}")
    head = {"version": __version__, "stamp": stamp, "crc": crc32(answer)}
    try:
        with open(temporary, "wb", opener=_private) as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(answer)
        os.rename(temporary, path)
    except BaseException:
        disk.unlink(temporary)
        raise


def drop(path: str) -> bool:
    """Remove it, so that it does not come back; whether there was one. Raises OSError."""
    if not disk.unlink(path):
        return False
    disk.sync(os.path.dirname(path))
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
