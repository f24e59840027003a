# SPDX-License-Identifier: Apache-2.0
"""SentencePiece with scores (`llama` in GGUF): the best-scored neighbours that form a token are joined first.

Spaces are written as U+2581. Characters that are in no token fall back to one token for each byte.
"""

from __future__ import annotations

from syntrop.runtimed._kernels import ffi, lib
from syntrop.runtimed.tokenizer import Tokenizer, flag, floats
from syntrop.runtimed.tokenizer_bpe import SPACE, byte_tokens, character_piece, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece BPE; `tokenizer.ggml.scores` orders the merges, higher first."""

    add_bos_default = True
    defaults = {"bos": 1, "eos": 2, "unknown": 0}  # noqa: RUF012

    def __init__(self, metadata: dict[str, object]) -> None:
        super().__init__(metadata)
        self._score_array = floats(metadata, "tokenizer.ggml.scores", len(self))
        self._scores: Any = ffi.from_buffer("float[]", self._score_array)
        self._bytes = byte_tokens(self)
        self._space_prefix = flag(metadata, "tokenizer.ggml.add_space_prefix", True)
        name = str(metadata.get("general.name", "")).lower()
        if "phi-3" in name or "phi3" in name:
            # Not told by the file: the markers of this vocabulary swallow the blanks after them.
            keeping = (self.ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>"))
            self.strip_right = frozenset(self._every.ids.values()) - {
                token for token in keeping if token is not None
            }

    def _plain(self, text: str, first: bool) -> list[int]:
        if self._space_prefix:
            text = " " + text
        data = text.replace(" ", SPACE).encode("utf-8", "replace")
        out = ffi.new("int32_t[]", len(data))
        count = lib.sy_merge(self.texts.table, ffi.NULL, self._scores, self._bytes, 0, data, len(data), out)
        return unpacked(out, count)

    def _piece(self, text: str, kind: int) -> bytes:
        return character_piece(text, kind)
