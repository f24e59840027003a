# SPDX-License-Identifier: Apache-2.0
"""Text to tokens and back, for the vocabulary that a model file carries.

`load` picks the algorithm by `tokenizer.ggml.model`: byte-pair encoding (`gpt2`, `gemma4`, see
`tokenizer_bpe`), SentencePiece (`llama`, see `tokenizer_spm`), WordPiece (`bert`, see `tokenizer_wordpiece`) or
unigram (`t5`, see `tokenizer_unigram`); `load_json` reads the `tokenizer.json` that lies beside safetensors.
What all share is here: special tokens, begin and end tokens, the bytes of a token, and the decoder that never
shows half a character.

Special tokens are found before anything else, at each place the longest one. Control tokens (a turn's start,
a text's end) count only with `parse_special`; tokens that the vocabulary's author added as text always do.
"""

from __future__ import annotations

import codecs
import re
from array import array

from syntrop.runtimed.vocabulary import Ids, Packed, Strings, pack_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)  # tokenizer.ggml.token_type

# Tokens that end a turn or a text wherever they occur, in vocabularies that name only one of them as `eos`.
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
# … but for these, where all of the others are there too.
_NO_ENDS = (
    ("<|end|>", ("<|return|>", "<|call|>")),
    ("<|end|>", ("<|calls|>", "<|flush|>")),
    ("</s>", ("<|tool_response>",)),
)
# Control tokens that a reader of the text needs: they tell thoughts and calls of tools from the answer.
_SHOWN = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))

_LONGEST_SPECIAL = 256  # characters; at each place of a text all lengths that there are may be tried

# The noncharacters, one of which marks text that must not be read as a special token.
_BLANKS = re.compile(r"\s+")
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


class TokenizerError(ValueError):
    """The file's tokenizer is missing, inconsistent or of a kind that is not supported."""


class _Specials:
    """The longest of a set of texts at each place, from left to right."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            if len(text) > _LONGEST_SPECIAL:
                raise TokenizerError(
                    f"a special token of {len(text)} characters; at most {_LONGEST_SPECIAL} are read"
                )
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
    """A vocabulary. Tokens are indices of `texts` and `types`, which run parallel.

    `metadata` is a GGUF file's, its long arrays packed or not. Subclasses give `_plain` and `_piece`.
    """

    add_bos_default = False
    add_eos_default = False
    defaults: dict[str, int] = {}  # noqa: RUF012 — special tokens that a file need not name

    def __init__(self, metadata: dict[str, object]) -> None:
        self.texts = strings(metadata, "tokenizer.ggml.tokens")
        self.ids = Ids(self.texts)
        count = len(self.texts)
        self.types = _types(metadata.get("tokenizer.ggml.token_type"), count)
        if len(self.types) != count or not count:
            raise TokenizerError(f"{count} tokens, but {len(self.types)} token types")
        self.bos = self._token(metadata, "bos")
        self.eos = self._token(metadata, "eos")
        self.unknown = self._token(metadata, "unknown")
        if not self.texts.longest:
            raise TokenizerError("tokenizer.ggml.tokens: every token is empty")
        self.add_bos = flag(metadata, "tokenizer.ggml.add_bos_token", self.add_bos_default)
        self.add_eos = flag(metadata, "tokenizer.ggml.add_eos_token", self.add_eos_default)
        # What goes before and after a text, as the vocabulary asks.
        self.prefix = [self.bos] if self.add_bos and self.bos is not None else []
        self.suffix = [self.eos] if self.add_eos and self.eos is not None else []
        self.ends = frozenset(self._find_ends(metadata))
        self._pieces: dict[int, bytes] = {}
        control: dict[str, int] = {}
        added: dict[str, int] = {}
        for token in _unusual(self.types):
            kind = self.types[token]
            if kind in (CONTROL, UNKNOWN, USER_DEFINED) and (text := self.texts[token]):
                (added if kind == USER_DEFINED else control)[text] = token
        self._set_specials(control, added)
        # Special tokens that swallow the blanks before or after them.
        self.strip_left: frozenset[int] = frozenset()
        self.strip_right: frozenset[int] = frozenset()

    def _set_specials(self, control: dict[str, int], added: dict[str, int]) -> None:
        self._control = _Specials(control)
        self._added = _Specials(added)
        self._every = _Specials(control | added)

    def _token(self, metadata: dict[str, object], name: str) -> int | None:
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is None:
            token = self.defaults.get(name)
            return token if token is not None and token < len(self.texts) else None
        if not isinstance(token, int) or not 0 <= token < len(self.texts):
            raise TokenizerError(f"the {name} token {token!r} is not in the vocabulary")
        return token

    def _find_ends(self, metadata: dict[str, object]) -> Iterator[int]:
        for name in ("eos", "eot", "eom"):
            token = self._token(metadata, name)
            if token is not None:
                yield token
        found = {}
        for text in _ENDS:
            token = self.ids.get(text)
            if token is not None and self.types[token] in (CONTROL, USER_DEFINED):
                found[text] = token
        for text, others in _NO_ENDS:
            if all(other in found for other in others):
                found.pop(text, None)
        yield from found.values()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def longest(self) -> int:
        """Characters of the longest token."""
        return self.texts.longest

    def at_least(self, characters: int) -> int:
        """How many tokens a text of so many characters has at the least."""
        return characters // self.longest

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, mark: str = ""
    ) -> list[int]:
        """The tokens of a text.

        `add_special` adds the begin and end tokens that the vocabulary asks for, `parse_special` reads
        control tokens in the text. A `mark` (see `guard`) is taken out of the text after that.
        """
        tokens = list(self.prefix) if add_special else []
        specials = self._every if parse_special else self._added
        at = 0
        for start, end in specials.find(text):
            token = specials.ids[text[start:end]]
            before = text[at : max(at, start)]
            if token in self.strip_left:
                before = before.rstrip()
            self._append_plain(tokens, before, mark, at == 0)
            tokens.append(token)
            at = end
            if token in self.strip_right and (blanks := _BLANKS.match(text, end)):
                at = blanks.end()
        self._append_plain(tokens, text[at:], mark, at == 0)
        if add_special:
            tokens += self.suffix
        return tokens

    def _append_plain(self, tokens: list[int], text: str, mark: str, first: bool) -> None:
        if mark:
            text = text.replace(mark, "")
        if text:
            tokens += self._plain(text, first)

    def _plain(self, text: str, first: bool) -> list[int]:
        """Tokens of a text without special tokens, from one of them to the next; `first` at the very start."""
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
            text = self.texts[token]
            if kind in (CONTROL, UNKNOWN, UNUSED):
                piece = text.encode() if text in _SHOWN else b""
            else:
                piece = self._piece(text, kind)
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

    model = text_of(metadata, "tokenizer.ggml.model", "")
    try:
        if model in ("gpt2", "gemma4"):
            from syntrop.runtimed import tokenizer_bpe

            return tokenizer_bpe.load(metadata)
        if model == "llama":
            from syntrop.runtimed.tokenizer_spm import SentencePieceTokenizer

            return SentencePieceTokenizer(metadata)
        if model == "bert":
            from syntrop.runtimed.tokenizer_wordpiece import WordPieceTokenizer

            return WordPieceTokenizer(metadata)
        if model == "t5":
            from syntrop.runtimed.tokenizer_unigram import UnigramTokenizer

            return UnigramTokenizer(metadata)
    except UnknownFamily as error:
        raise TokenizerError(str(error)) from None
    raise TokenizerError(f"no support for tokenizer {model!r}" if model else "the file has no tokenizer")


def load_json(tokenizer: bytes, config: bytes | None = None) -> Tokenizer:
    """The tokenizer of a `tokenizer.json` and of the `tokenizer_config.json` beside it. Raises TokenizerError."""
    from syntrop.runtimed.tokenizer_json import load_json as load_it

    return load_it(tokenizer, config)


def text_of(metadata: dict[str, object], key: str, default: str) -> str:
    """A text out of metadata. Raises TokenizerError."""
    value = metadata.get(key, default)
    if not isinstance(value, str):
        raise TokenizerError(f"{key} is no string")
    return value


def flag(metadata: dict[str, object], key: str, default: bool) -> bool:
    """A boolean out of metadata, or a number that stands for one. Raises TokenizerError."""
    value = metadata.get(key, default)
    if not isinstance(value, bool | int):
        raise TokenizerError(f"{key} is no boolean")
    return bool(value)


def strings(metadata: dict[str, object], key: str, separator: bytes = b"") -> Strings:
    """An array of strings out of metadata; with a separator, of pairs. Raises TokenizerError."""
    value = metadata.get(key)
    if isinstance(value, Strings):
        return value
    if isinstance(value, Packed):
        return Strings(value.raw, value.count, separator)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TokenizerError(f"{key} is missing or no list of strings")
    return pack_strings(value, separator)


def floats(metadata: dict[str, object], key: str, count: int) -> array[float]:
    """An array of so many 32-bit floats. Raises TokenizerError."""
    value = metadata.get(key)
    if isinstance(value, list | array) and len(value) == count:
        try:
            return value if isinstance(value, array) and value.typecode == "f" else array("f", value)
        except (TypeError, OverflowError):
            pass
    raise TokenizerError(f"{key} is missing or does not match the tokens")


def _types(value: object, count: int) -> array[int]:
    if value is None:
        return array("i", [NORMAL]) * count
    if isinstance(value, list | array):
        try:
            return value if isinstance(value, array) and value.typecode == "i" else array("i", value)
        except (TypeError, OverflowError):
            pass
    raise TokenizerError("tokenizer.ggml.token_type is no list of types")


def _unusual(types: array[int]) -> Iterator[int]:
    """The tokens of another type than NORMAL: few, and found without a look at each."""
    lowest_bytes = types.tobytes()[:: types.itemsize]
    return (found.start() for found in re.finditer(rb"[^\x01]", lowest_bytes, re.DOTALL))
