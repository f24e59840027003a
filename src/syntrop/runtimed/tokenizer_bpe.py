# SPDX-License-Identifier: Apache-2.0
"""Byte-pair encoding: of bytes (`gpt2` in GGUF), or of characters (`gemma4`).

A piece of text becomes UTF-8, each byte one printable character (`BYTE_TO_CHAR`), and then the neighbours
whose merge ranks lowest are joined, the leftmost first, until no merge applies. Vocabularies of characters
write a space as U+2581 and what has no token byte by byte.
"""

from __future__ import annotations

from syntrop.runtimed import families, pretokenize
from syntrop.runtimed._kernels import ffi, lib
from syntrop.runtimed.tokenizer import BYTE, NORMAL, USER_DEFINED, Tokenizer, TokenizerError, strings, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.runtimed.pretokenize import Splitter

SPACE = "\u2581"

_CACHED_PIECES = 1 << 15
_CACHED_PIECE_LENGTH = 32


def _byte_to_char() -> list[str]:
    """Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_TO_CHAR = _byte_to_char()
_TO_BYTES = {char: bytes([byte]) for byte, char in enumerate(BYTE_TO_CHAR)}


class _Merging(Tokenizer):
    """What both have: merges, and a memory of pieces that came before."""

    flags = 0
    compose = False  # bring the text to NFC first

    def __init__(self, metadata: dict[str, object], split: Splitter) -> None:
        super().__init__(metadata)
        self._split = split
        self._scores: Any = ffi.NULL
        self._bytes: Any = ffi.NULL
        if metadata.get("tokenizer.ggml.merges") is None and metadata.get("tokenizer.ggml.pre") == "kimi-k2":
            # Files of this one have no merges: what forms the token of the lowest number is joined first.
            self._merges = None
            self._scores = ffi.new("float[]", [-float(token) for token in range(len(self))])
        else:
            self._merges = strings(metadata, "tokenizer.ggml.merges", b" ")
        self._cache: dict[str, list[int]] = {}

    def at_least(self, characters: int) -> int:
        # Four characters, a letter and its marks, may become one.
        return super().at_least(characters) // (4 if self.compose else 1)

    def _plain(self, text: str, first: bool) -> list[int]:
        tokens: list[int] = []
        cache = self._cache
        if self.compose and not text.isascii():
            from unicodedata import normalize

            text = normalize("NFC", text)
        for piece in self._split(text):
            known = cache.get(piece)
            if known is None:
                known = self._merge(piece)
                if len(piece) <= _CACHED_PIECE_LENGTH:
                    if len(cache) >= _CACHED_PIECES:
                        cache.clear()
                    cache[piece] = known
            tokens += known
        return tokens

    def _merge(self, piece: str) -> list[int]:
        data = piece.encode("utf-8", "replace")
        out = ffi.new("int32_t[]", len(data))
        merges = ffi.NULL if self._merges is None else self._merges.table
        count = lib.sy_merge(self.texts.table, merges, self._scores, self._bytes, self.flags, data, len(data), out)
        return unpacked(out, count)


class BytePairTokenizer(_Merging):
    """Byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` names, or with `split` in its place.

    With `whole` a piece that is a token is that token, whatever the merges say.
    """

    def __init__(self, metadata: dict[str, object], split: Splitter | None = None, *, whole: bool = False) -> None:
        name = text_of(metadata, "tokenizer.ggml.pre", "default")
        self.add_bos_default = name in families.BEGINNING
        self.flags = lib.SY_BYTE_LEVEL | (lib.SY_WHOLE if whole or name in families.WHOLE else 0)
        super().__init__(metadata, split or pretokenize.splitter(name))

    def _piece(self, text: str, kind: int) -> bytes:
        if kind != NORMAL:
            return text.encode()
        return b"".join(_TO_BYTES.get(char) or char.encode() for char in text)


class CharacterPairTokenizer(_Merging):
    """BPE of characters, spaces as U+2581, byte fallback.

    `prefix` says where a blank comes first: "never", "first" (of the whole text, unless it begins with one),
    "always" (after special tokens too) or "prepend" (as that, whatever the text begins with).
    """

    add_bos_default = True

    def __init__(
        self, metadata: dict[str, object], split: Splitter | None = None, *, prefix: str = "never"
    ) -> None:
        super().__init__(metadata, split or pretokenize.splitter("lines"))
        self._bytes = byte_tokens(self)
        self._prefix = prefix
        # Ends of lines come as one token where there is one, whatever the merges say.
        self._whole_lines = split is None

    def _plain(self, text: str, first: bool) -> list[int]:
        text = text.replace(" ", SPACE)
        if self._prefix == "prepend" or (
            not text.startswith(SPACE) and (self._prefix == "always" or (first and self._prefix == "first"))
        ):
            text = SPACE + text
        return super()._plain(text, first)

    def _merge(self, piece: str) -> list[int]:
        whole = self.ids.get(piece) if self._whole_lines and not piece.strip("\n") else None
        return super()._merge(piece) if whole is None else [whole]

    def _piece(self, text: str, kind: int) -> bytes:
        return character_piece(text, kind)


def load(metadata: dict[str, object]) -> Tokenizer:
    """Of whichever kind the metadata describe. Raises TokenizerError and UnknownFamily."""
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        return CharacterPairTokenizer(metadata | {"tokenizer.ggml.add_bos_token": True})
    if text_of(metadata, "tokenizer.ggml.pre", "default") in families.IN_CHARACTERS:
        return CharacterPairTokenizer(metadata)
    return BytePairTokenizer(metadata)


def byte_tokens(tokenizer: Tokenizer) -> Any:
    """For C: the token of each byte, or the unknown one; -1 where there is neither."""
    unknown = -1 if tokenizer.unknown is None else tokenizer.unknown
    found = (tokenizer.ids.get(f"<0x{byte:02X}>") for byte in range(256))
    return ffi.new("int32_t[256]", [unknown if token is None else token for token in found])


def character_piece(text: str, kind: int) -> bytes:
    """The bytes of a token in a vocabulary of characters."""
    if kind == BYTE:
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            return b""
    if kind == USER_DEFINED:
        return text.encode()
    return text.replace(SPACE, " ").encode()


def unpacked(out: Any, count: int) -> list[int]:
    """What C wrote. Raises TokenizerError."""
    if count < 0:
        raise TokenizerError("the text is too long to be cut into tokens")
    return list(ffi.unpack(out, count)) if count else []
