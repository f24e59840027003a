# SPDX-License-Identifier: Apache-2.0
"""SentencePiece's unigram model (`t5` in GGUF): of all ways to cut a text the one with the best sum of scores.

Before that the text is normalised by the map that the vocabulary was made with: a trie in a double array
(Kanda, "Space- and Time-Efficient String Dictionaries", 2018), each entry 32 bits, over the bytes of the text;
the longest match is replaced by a zero-terminated text that follows the trie.
"""

from __future__ import annotations

import math
import re
from array import array

from syntrop.runtimed._kernels import ffi, lib
from syntrop.runtimed.tokenizer import NORMAL, UNUSED, USER_DEFINED, Tokenizer, TokenizerError, flag, floats
from syntrop.runtimed.tokenizer_bpe import SPACE, byte_tokens, character_piece, unpacked
from syntrop.runtimed.tokenizer_wordpiece import words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNKNOWN_PENALTY = 10.0
_LONGEST_MATCH = 256  # bytes; a broken trie may go round in circles
_LONGEST_TOKEN = 256  # bytes; the time to cut a text grows with it


class CharacterMap:
    """A `precompiled_charsmap`. Raises TokenizerError for one that is broken."""

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or size > len(blob) - 4:
            raise TokenizerError("the precompiled character map is truncated")
        self._units = array("I", blob[4 : 4 + size])
        self._texts = blob[4 + size :]
        self._next = re.compile(self._starts()).search

    def _starts(self) -> bytes:
        """Where a match can begin. Most of a text is letters that are only replaced together with an accent."""
        alone: list[bytes] = []
        before_wide: list[bytes] = []
        for byte in range(1, 0x80):
            node = self._child(0, byte)
            if node < 0:
                continue
            leaf = self._units[node] >> 8 & 1
            ascii_follows = any(self._child(node, other) >= 0 for other in range(1, 0x80))
            (alone if leaf or ascii_follows else before_wide).append(bytes([byte]))
        parts = [rb"[\x80-\xff]"]
        if alone:
            parts.append(b"[" + re.escape(b"".join(alone)) + b"]")
        if before_wide:
            parts.append(b"[" + re.escape(b"".join(before_wide)) + rb"](?=[\x80-\xff])")
        return b"|".join(parts)

    def _child(self, node: int, byte: int) -> int:
        """The node that a byte leads to, or -1."""
        units = self._units
        if node >= len(units):
            return -1
        child = node ^ _base(units[node]) ^ byte if node else _base(units[0]) ^ byte
        return child if child < len(units) and units[child] & 0x800000FF == byte else -1

    def apply(self, text: str) -> str:
        """The text with the longest matches replaced."""
        data = text.encode("utf-8", "replace")
        parts: list[bytes] = []
        at = kept = 0
        while start := self._next(data, at):
            at = start.start()
            length, replacement = self._match(data, at)
            if length:
                parts += (data[kept:at], replacement)
                at += length
                kept = at
            else:
                at += 1
                while at < len(data) and data[at] & 0xC0 == 0x80:
                    at += 1
        parts.append(data[kept:])
        return b"".join(parts).decode("utf-8", "replace")

    def _match(self, data: bytes, at: int) -> tuple[int, bytes]:
        units = self._units
        found = -1
        length = 0
        try:
            node = _base(units[0])
            for index in range(at, min(len(data), at + _LONGEST_MATCH)):
                byte = data[index]
                node ^= byte
                unit = units[node]
                # The label of the edge, and the bit that a value has in its place.
                if not byte or unit & 0x800000FF != byte:
                    break
                node ^= _base(unit)
                if unit >> 8 & 1:
                    length, found = index - at + 1, units[node] & 0x7FFFFFFF
        except IndexError:
            raise TokenizerError("the precompiled character map points outside itself") from None
        if found < 0:
            return 0, b""
        end = self._texts.find(0, found)
        if end < 0:
            raise TokenizerError("the precompiled character map points outside its texts")
        return length, self._texts[found:end]


def _base(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)


class UnigramTokenizer(Tokenizer):
    """Unigram with `tokenizer.ggml.scores`, log probabilities."""

    add_eos_default = True
    defaults = {"eos": 1, "unknown": 2}  # noqa: RUF012

    def __init__(
        self, metadata: dict[str, object], *, byte_fallback: bool = False, blanks: str = "sentencepiece"
    ) -> None:
        """`blanks` says what becomes of them: "sentencepiece" as its own flags have it, "words" to cut at every
        kind of white space, "runs" to keep one of each run of blanks, "each" to keep them. Raises
        TokenizerError."""
        super().__init__(metadata)
        self._blanks = blanks
        scores = array("f", floats(metadata, "tokenizer.ggml.scores", len(self)))
        if self.texts.longest_bytes > _LONGEST_TOKEN:
            raise TokenizerError(f"a token of {self.texts.longest_bytes} bytes; at most {_LONGEST_TOKEN} are read")
        least = math.inf
        for token, kind in enumerate(self.types):
            if kind == NORMAL:
                least = min(least, scores[token])
            elif kind == USER_DEFINED:
                scores[token] = 0.0
            elif kind != UNUSED:
                scores[token] = math.nan
        self._unknown_score = (0.0 if math.isinf(least) else least) - _UNKNOWN_PENALTY
        self._score_array = scores
        self._scores: Any = ffi.from_buffer("float[]", scores)
        self._bytes: Any = byte_tokens(self) if byte_fallback else ffi.NULL
        self._space_prefix = flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        self._merge_spaces = flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", False)
        blob = metadata.get("tokenizer.ggml.precompiled_charsmap")
        self._map = None if blob is None else CharacterMap(_blob(blob))

    def at_least(self, characters: int) -> int:
        return (
            0
            if self._merge_spaces or self._map or self._blanks != "sentencepiece"
            else super().at_least(characters)
        )

    def _plain(self, text: str, first: bool) -> list[int]:
        if self._map is not None:
            text = self._map.apply(text)
        if self._blanks == "words":
            text = "".join(word if word.startswith(SPACE) else SPACE + word for word in words_of(text))
        elif self._blanks in ("runs", "each"):
            text = (re.sub(" {2,}", " ", text) if self._blanks == "runs" else text).replace(" ", SPACE)
            if self._space_prefix and not text.startswith(SPACE):
                text = SPACE + text
        elif self._merge_spaces:
            # Only the blank itself; what else is one, the map has turned into it.
            words = [word for word in text.split(" ") if word]
            text = "".join(SPACE + word for word in words)
        else:
            if self._space_prefix and text.strip(" "):
                text = _prefixed(text)
            text = text.replace(" ", SPACE)
        data = text.encode("utf-8", "replace")
        out = ffi.new("int32_t[]", max(1, len(data)))
        unknown = -1 if self.unknown is None else self.unknown
        count = lib.sy_unigram(
            self.texts.table, self._scores, self._unknown_score, unknown, self._bytes, data, len(data), out
        )
        return unpacked(out, count)

    def _piece(self, text: str, kind: int) -> bytes:
        return character_piece(text, kind)


def _prefixed(text: str) -> str:
    # The blank goes before the first that is none.
    bare = text.lstrip(" ")
    return text[: len(text) - len(bare)] + " " + bare


def _blob(value: object) -> bytes:
    if isinstance(value, array) and value.itemsize == 1:
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, list) and all(type(byte) is int for byte in value):
        return bytes(byte & 0xFF for byte in value)
    raise TokenizerError("the precompiled character map is no list of bytes")
