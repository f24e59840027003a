# SPDX-License-Identifier: Apache-2.0
"""SentencePiece with scores (`llama` in GGUF): the best-scored neighbours that form a token are joined first.

Spaces are written as U+2581. Characters that are in no token fall back to one token for each byte.
"""

from __future__ import annotations

from syntrop.runtimed.merging import merge_pairs
from syntrop.runtimed.tokenizer import BYTE, USER_DEFINED, Tokenizer, TokenizerError

SPACE = "\u2581"


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece BPE; `tokenizer.ggml.scores` orders the merges, higher first."""

    add_bos_default = True

    def __init__(self, metadata: dict[str, object]) -> None:
        super().__init__(metadata)
        scores = metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(self.texts):
            raise TokenizerError("tokenizer.ggml.scores is missing or does not match the tokens")
        self._scores: list[float] = scores
        self._space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        self._bytes = [self.ids.get(f"<0x{byte:02X}>", self.unknown) for byte in range(256)]

    def _plain(self, text: str, after_special: bool) -> list[int]:
        if self._space_prefix and after_special:
            text = " " + text
        ids, scores = self.ids, self._scores

        def cost(left: str, right: str) -> float | None:
            token = ids.get(left + right)
            return None if token is None else -scores[token]

        tokens: list[int] = []
        for symbol in merge_pairs(list(text.replace(" ", SPACE)), cost):
            token = ids.get(symbol)
            if token is not None:
                tokens.append(token)
                continue
            for byte in symbol.encode("utf-8", "replace"):
                single = self._bytes[byte]
                if single is not None:
                    tokens.append(single)
        return tokens

    def _piece(self, text: str, kind: int) -> bytes:
        if kind == BYTE:
            return bytes([int(text[3:5], 16)])
        if kind == USER_DEFINED:
            return text.encode()
        return text.replace(SPACE, " ").encode()
