# SPDX-License-Identifier: Apache-2.0
"""A model of several files: which ones, and their digests. Pure.

The manifest's canonical form is a JSON object whose SHA-256 is the model's digest, so that two folders with the
same files are the same model.
"""

from __future__ import annotations

import json

from syntrop.modeld import naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION = 1
FILES_MAX = 4096
BYTES_MAX = 4 << 20


class InvalidManifest(ValueError):
    """These bytes are no manifest."""


class Member:
    """One file: its path below the model's folder, its digest in hexadecimal, its size in bytes."""

    __slots__ = ("digest", "path", "size")

    def __init__(self, path: str, digest: str, size: int) -> None:
        self.path = path
        self.digest = digest
        self.size = size


class Manifest:
    """The files of a model by path."""

    __slots__ = ("format", "members")

    def __init__(self, format: str, members: Iterable[Member]) -> None:
        self.format = format
        self.members = {one.path: one for one in sorted(members, key=lambda one: one.path)}

    @property
    def size(self) -> int:
        return sum(one.size for one in self.members.values())

    @property
    def digests(self) -> set[str]:
        return {one.digest for one in self.members.values()}

    def encode(self) -> bytes:
        files = [
            {"path": one.path, "digest": naming.digest_id(one.digest), "size": one.size}
            for one in self.members.values()
        ]
        value = {"version": VERSION, "format": self.format, "files": files}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> Manifest:
    """Raises InvalidManifest, also for what is not in the canonical form."""
    try:
        value = json.loads(data) if len(data) <= BYTES_MAX else None
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise InvalidManifest("of no version that we know")
        members = [
            Member(naming.parse_path(row["path"]), naming.parse_digest(row["digest"]), _size(row["size"]))
            for row in value["files"]
        ]
        manifest = Manifest(str(value["format"]), members)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidManifest(str(error) or "not a manifest") from None
    if not 0 < len(members) <= FILES_MAX or manifest.encode() != data:
        raise InvalidManifest("not in its canonical form")
    return manifest


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidManifest("a size that none can have")
    return value
