# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, for the vocabulary that a GGUF file carries.

`load` picks the algorithm by `tokenizer.ggml.model`: byte-level BPE (`gpt2`, see `tokenizer_bpe`) or
SentencePiece (`llama`, see `tokenizer_spm`). What both share is here: special tokens, begin and end tokens,
the bytes of a token, and the decoder that never shows half a character.

Special tokens are found before anything else, at each place the longest one. Control tokens (a turn's start,
a text's end) count only with `parse_special`; tokens that the vocabulary's author added as text always do.
"""

from __future__ import annotations

import codecs
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)  # tokenizer.ggml.token_type

# Tokens that end a turn or a text wherever they occur, in vocabularies that name only one of them as `eos`.
_ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
)

# The noncharacters, one of which marks text that must not be read as a special token.
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


class TokenizerError(ValueError):
    """The file's tokenizer is missing, inconsistent or of a kind that is not supported."""


class _Specials:
    """The longest of a set of texts at each place, from left to right."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._starts = re.compile("[" + re.escape("".join(lengths)) + "]") if ids else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """-> (start, end) of each special token in the text."""
        if self._starts is None:
            return
        at = 0
        while found := self._starts.search(text, at):
            at = found.start()
            for length in self._lengths[text[at]]:
                if text[at : at + length] in self.ids:
                    yield at, at + length
                    at += length
                    break
            else:
                at += 1


class Tokenizer:
    """A vocabulary. Tokens are list indices; `types` and `texts` run parallel.

    Subclasses give `_plain`, `_piece` and `_is_continued`.
    """

    add_bos_default = False

    def __init__(self, metadata: dict[str, object]) -> None:
        self.texts = _strings(metadata, "tokenizer.ggml.tokens")
        types = metadata.get("tokenizer.ggml.token_type")
        self.types: list[int] = types if isinstance(types, list) else [NORMAL] * len(self.texts)
        if len(self.types) != len(self.texts) or not self.texts:
            raise TokenizerError(f"{len(self.texts)} tokens, but {len(self.types)} token types")
        self.ids = dict(zip(self.texts, range(len(self.texts)), strict=True))
        self.bos = self._token(metadata, "bos")
        self.eos = self._token(metadata, "eos")
        self.unknown = self._token(metadata, "unknown")
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", self.add_bos_default))
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
        self.ends = frozenset(self._find_ends(metadata))
        self._pieces: dict[int, bytes] = {}
        self._longest: int | None = None
        control = {}
        added = {}
        for token, kind in enumerate(self.types):
            if kind != NORMAL and (text := self.texts[token]):
                if kind == USER_DEFINED:
                    added[text] = token
                elif kind in (CONTROL, UNKNOWN):
                    control[text] = token
        self._control = _Specials(control)
        self._added = _Specials(added)
        self._every = _Specials(control | added)

    def _token(self, metadata: dict[str, object], name: str) -> int | None:
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is None:
            return None
        if not isinstance(token, int) or not 0 <= token < len(self.texts):
            raise TokenizerError(f"the {name} token {token!r} is not in the vocabulary")
        return token

    def _find_ends(self, metadata: dict[str, object]) -> Iterator[int]:
        for name in ("eos", "eot", "eom"):
            token = self._token(metadata, name)
            if token is not None:
                yield token
        for text in _ENDS:
            token = self.ids.get(text)
            if token is not None and self.types[token] in (CONTROL, USER_DEFINED):
                yield token

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def longest(self) -> int:
        """Characters of the longest token: a text of n characters is at least n / longest tokens."""
        if self._longest is None:
            self._longest = max(map(len, self.texts))
        return self._longest

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, mark: str = ""
    ) -> list[int]:
        """The tokens of a text.

        `add_special` adds the begin and end tokens that the vocabulary asks for, `parse_special` reads
        control tokens in the text. A `mark` (see `guard`) is taken out of the text after that.
        """
        tokens: list[int] = []
        if add_special and self.add_bos and self.bos is not None:
            tokens.append(self.bos)
        specials = self._every if parse_special else self._added
        at = 0
        first = True
        for start, end in specials.find(text):
            self._append_plain(tokens, text[at:start], mark, first or at > 0)
            tokens.append(specials.ids[text[start:end]])
            at = end
            first = False
        self._append_plain(tokens, text[at:], mark, True)
        if add_special and self.add_eos and self.eos is not None:
            tokens.append(self.eos)
        return tokens

    def _append_plain(self, tokens: list[int], text: str, mark: str, after_special: bool) -> None:
        if mark:
            text = text.replace(mark, "")
        if text:
            tokens += self._plain(text, after_special)

    def _plain(self, text: str, after_special: bool) -> list[int]:
        """Tokens of a text without special tokens; `after_special` at the start and after each of them."""
        raise NotImplementedError

    def guard(self, texts: Sequence[str]) -> tuple[list[str], str]:
        """Texts in which no control token will be read, and the mark to give to `encode`.

        A text from outside that is put into a chat template must not be able to end its own turn. Where it
        spells a control token, a noncharacter that none of the texts contains goes between the letters.
        """
        if not any(next(self._control.find(text), None) for text in texts):
            return list(texts), ""
        mark = next((mark for mark in _MARKS if not any(mark in text for text in texts)), None)
        if mark is None:
            raise TokenizerError("the text uses every noncharacter of Unicode")
        guarded = []
        for text in texts:
            parts = []
            at = 0
            for start, end in self._control.find(text):
                parts.append(text[at:start])
                parts.extend(letter + mark for letter in text[start:end])
                at = end
            parts.append(text[at:])
            guarded.append("".join(parts))
        return guarded, mark

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; control tokens stand for none."""
        piece = self._pieces.get(token)
        if piece is None:
            kind = self.types[token]
            piece = b"" if kind in (CONTROL, UNKNOWN, UNUSED) else self._piece(self.texts[token], kind)
            self._pieces[token] = piece
        return piece

    def _piece(self, text: str, kind: int) -> bytes:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; bytes that are no characters come as U+FFFD."""
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")


class Decoder:
    """Text as its tokens arrive: whole characters only, the rest waits for the next token.

    Bytes that can no longer become a character give U+FFFD. What is still incomplete at the end of a
    generation is never shown.
    """

    __slots__ = ("_decode", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token: int) -> str:
        return self._decode(self._tokenizer.piece(token))


def load(metadata: dict[str, object]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes. Raises TokenizerError."""
    from syntrop.runtimed.pretokenize import UnknownFamily

    model = metadata.get("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            from syntrop.runtimed.tokenizer_bpe import BytePairTokenizer

            return BytePairTokenizer(metadata)
        if model == "llama":
            from syntrop.runtimed.tokenizer_spm import SentencePieceTokenizer

            return SentencePieceTokenizer(metadata)
    except UnknownFamily as error:
        raise TokenizerError(str(error)) from None
    raise TokenizerError(f"no support for tokenizer {model!r}" if model else "the file has no tokenizer")


def _strings(metadata: dict[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or (value and not isinstance(value[0], str)):
        raise TokenizerError(f"{key} is missing or no list of strings")
    return value
