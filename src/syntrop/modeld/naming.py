# SPDX-License-Identifier: Apache-2.0
"""How models are named: `name:tag`, a bare `name`, or a digest. Pure.

What passes here is safe as a file name: it starts with a letter or digit and holds neither a slash, nor a NUL,
nor two dots in a row.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

LATEST = "latest"
ALGORITHM = "sha256"
NAME_MAX, TAG_MAX = 128, 64
PATH_MAX, DEPTH_MAX = 255, 4

_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.))*", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_+=@,-]|\.(?!\.))*", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


class InvalidIdentifier(ValueError):
    """An identifier that no model can have."""

    def __init__(self, identifier: str) -> None:
        super().__init__(identifier)
        self.identifier = identifier


class Identifier:
    """A parsed identifier: `digest` (64 hexadecimal digits), or `name` and perhaps `tag`."""

    __slots__ = ("digest", "name", "tag")

    def __init__(self, *, name: str = "", tag: str | None = None, digest: str | None = None) -> None:
        self.name = name
        self.tag = tag
        self.digest = digest

    def __str__(self) -> str:
        if self.digest is not None:
            return digest_id(self.digest)
        return self.name if self.tag is None else f"{self.name}:{self.tag}"


def parse(identifier: str) -> Identifier:
    """Raises InvalidIdentifier."""
    name, colon, tag = identifier.partition(":")
    if name == ALGORITHM:
        if colon and _HEX.fullmatch(tag):
            return Identifier(digest=tag)
    elif is_name(name) and (not colon or is_tag(tag)):
        return Identifier(name=name, tag=tag if colon else None)
    raise InvalidIdentifier(identifier)


def parse_digest(text: str) -> str:
    """The hexadecimal digits of `sha256:<64 digits>`. Raises InvalidIdentifier."""
    parsed = parse(text)
    if parsed.digest is None:
        raise InvalidIdentifier(text)
    return parsed.digest


def parse_path(text: str) -> str:
    """A file's path below its model's folder, as it is. Raises InvalidIdentifier."""
    parts = text.split("/")
    if len(text) > PATH_MAX or len(parts) > DEPTH_MAX or not all(map(_PART.fullmatch, parts)):
        raise InvalidIdentifier(text)
    return text


def is_name(text: str) -> bool:
    return len(text) <= NAME_MAX and text != ALGORITHM and _WORD.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    return len(text) <= TAG_MAX and _WORD.fullmatch(text) is not None


def is_hex(text: str) -> bool:
    return _HEX.fullmatch(text) is not None


def digest_id(hexadecimal: str) -> str:
    return f"{ALGORITHM}:{hexadecimal}"


def derive(text: str, fallback: str) -> str:
    """The nearest name or tag to a text that need not be one."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", text.strip(), flags=re.ASCII)
    word = re.sub(r"\.{2,}", ".", word).strip("._-")[:TAG_MAX].rstrip("._-").lower()
    return word if word and word != ALGORITHM else fallback


def choose_tag(tags: Collection[str]) -> str | None:
    """The tag that a bare name means: `latest`, or the only one. None where neither is there."""
    if LATEST in tags:
        return LATEST
    return next(iter(tags)) if len(tags) == 1 else None
