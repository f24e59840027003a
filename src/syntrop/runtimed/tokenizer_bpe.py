# SPDX-License-Identifier: Apache-2.0
"""Byte-level byte-pair encoding (`gpt2` in GGUF).

A piece of text becomes UTF-8, each byte one printable character (`BYTE_TO_CHAR`), and then the neighbours
whose merge ranks lowest are joined, the leftmost first, until no merge applies.
"""

from __future__ import annotations

from syntrop.runtimed import pretokenize
from syntrop.runtimed.merging import merge_pairs
from syntrop.runtimed.tokenizer import NORMAL, Tokenizer, _strings

_CACHED_PIECES = 1 << 15
_CACHED_PIECE_LENGTH = 32


def _byte_to_char() -> list[str]:
    """Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_TO_CHAR = _byte_to_char()
_TO_CHARS = dict(enumerate(BYTE_TO_CHAR))
_TO_BYTES = {char: bytes([byte]) for byte, char in enumerate(BYTE_TO_CHAR)}

# Vocabularies whose texts begin with a token although the file does not say so, and those whose whole words
# outrank merges.
_BOS_FAMILIES = frozenset(("llama-bpe",))
_WHOLE_WORD_FAMILIES = frozenset(("llama-bpe",))


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` names."""

    def __init__(self, metadata: dict[str, object]) -> None:
        family = pretokenize.family(str(metadata.get("tokenizer.ggml.pre", "default")))
        self.add_bos_default = family in _BOS_FAMILIES
        super().__init__(metadata)
        merges = _strings(metadata, "tokenizer.ggml.merges")
        # "left right" -> rank, as the file has it: neither half contains a space.
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))
        self._split = pretokenize.splitter(family)
        self._whole_words = family in _WHOLE_WORD_FAMILIES
        self._cache: dict[str, list[int]] = {}

    def _plain(self, text: str, after_special: bool) -> list[int]:
        tokens: list[int] = []
        cache = self._cache
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
        word = piece.encode("utf-8", "replace").decode("latin-1").translate(_TO_CHARS)
        if len(word) == 1 or self._whole_words:
            whole = self.ids.get(word)
            if whole is not None:
                return [whole]
        ranks = self._ranks
        tokens: list[int] = []
        for symbol in merge_pairs(list(word), lambda left, right: ranks.get(f"{left} {right}")):
            token = self.ids.get(symbol)
            if token is not None:
                tokens.append(token)
                continue
            # A merge whose result is no token: its bytes stand in. A byte that is no token is lost, as it was
            # in training (SmolLM2 lacks some that begin rare characters).
            tokens += [self.ids[char] for char in symbol if char in self.ids]
        return tokens

    def _piece(self, text: str, kind: int) -> bytes:
        if kind != NORMAL:
            return text.encode()
        return b"".join(_TO_BYTES.get(char) or char.encode() for char in text)
