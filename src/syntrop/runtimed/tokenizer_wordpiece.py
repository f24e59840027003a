# SPDX-License-Identifier: Apache-2.0
"""WordPiece, the vocabulary of BERT and its kin (`bert` in GGUF).

A text is cleaned, folded to lower case without accents where the vocabulary wants it, and cut into words at
blanks and around each punctuation mark and ideograph. A word becomes the longest token that it begins with,
then the longest continuing one, and so on; a word for which that fails is one unknown token.
"""

from __future__ import annotations

from syntrop.runtimed.tokenizer import CONTROL, UNKNOWN, Tokenizer, TokenizerError, flag

_CACHED_WORDS = 1 << 15
_KEPT = 1 << 16

# Blocks of ideographs, with the gap that BERT's own list has (2B820 is missing there up to 2B91F).
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


# The tokenizers that made these vocabularies know the categories of Unicode 8. Of what was a mark, a sign or a
# format character later, none of their rules holds.
_NEWER = (
    (0x5C8, 0x5C9), (0x61D, 0x61D), (0x7FD, 0x7FD), (0x890, 0x8E2), (0x9FD, 0x9FE),
    (0xA76, 0xA76), (0xAFA, 0xAFF), (0xB53, 0xB55), (0xC04, 0xC3C), (0xC77, 0xC77), (0xC84, 0xC84), (0xD00, 0xD00),
    (0xD3B, 0xD3C), (0xD81, 0xD81), (0xEBA, 0xEBA), (0xECE, 0xECE), (0x180F, 0x1886), (0x1ABF, 0x1AF0),
    (0x1B4E, 0x1B4F), (0x1B7D, 0x1B7F), (0x1DF6, 0x1DFB), (0x2E43, 0x2E63), (0xA82C, 0xA82C), (0xA8C5, 0xA8C5),
    (0xA8FF, 0xA8FF), (0xA9BD, 0xA9BD), (0x10D24, 0x10F89), (0x11070, 0x11074), (0x110C2, 0x110CD),
    (0x111CF, 0x111CF), (0x1123E, 0x11241), (0x1133B, 0x1133B), (0x113BB, 0x1145E), (0x11660, 0x1166C),
    (0x116B9, 0x116B9), (0x1182F, 0x11FFF), (0x12FF1, 0x1612F), (0x16D6D, 0x16F4F), (0x16FE2, 0x16FE4),
    (0x1CF00, 0x1D128), (0x1D25B, 0x1D25C), (0x1E000, 0x1E6F5), (0x1E944, 0x1E95F),
)  # fmt: skip
_WAS = {0x166D: "Po", 0x111C9: "Po", 0x1734: "Mn"}  # what had another category then


class _Normal(dict[int, str]):
    """For str.translate: code point -> what stands for it, with blanks around what is a word of its own."""

    def __init__(self, *, lowercase: bool, strip_accents: bool, clean: bool, ideographs: bool) -> None:
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._clean = clean
        self._ideographs = ideographs

    def __missing__(self, code: int) -> str:
        from unicodedata import normalize

        char = chr(code)
        result = char
        if self._clean and char not in "\t\n\r" and (code in (0, 0xFFFD) or _category(char) in ("Cc", "Cf", "Co")):
            result = ""
        elif self._ideographs and any(first <= code <= last for first, last in _IDEOGRAPHS):
            result = f" {char} "
        if self._strip_accents and result:
            result = "".join(one for one in normalize("NFD", result) if _category(one) != "Mn")
        if self._lowercase:
            result = "".join(map(str.lower, result))  # one by one: the last sigma of a word is none here
        result = "".join(f" {one} " if _is_punctuation(one) else one for one in result)
        if len(self) < _KEPT:
            self[code] = result
        return result


def _category(char: str) -> str:
    from unicodedata import category

    code = ord(char)
    if any(first <= code <= last for first, last in _NEWER):
        return "Cn"
    return _WAS.get(code) or category(char)


def _is_punctuation(char: str) -> bool:
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return _category(char)[0] == "P"


class WordPieceTokenizer(Tokenizer):
    """WordPiece. In GGUF files a token that begins a word is written with U+2581, one that goes on without."""

    defaults = {"bos": 101, "unknown": 100, "seperator": 102}  # noqa: RUF012 — the key's own spelling
    beginning, continuing = "\u2581", ""

    def __init__(
        self,
        metadata: dict[str, object],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        clean: bool = True,
        ideographs: bool = True,
        longest_word: int = 100,
    ) -> None:
        """`longest_word`, in characters: longer ones are unknown."""
        super().__init__(metadata)
        self._longest_word = longest_word
        self._cache: dict[str, list[int]] = {}
        if self.unknown is None:
            raise TokenizerError("a WordPiece vocabulary needs an unknown token")
        self._unknown = self.unknown
        lowercase = flag(metadata, "tokenizer.ggml.normalizer.lowercase", lowercase)
        accents = lowercase if strip_accents is None else strip_accents
        self._normal = _Normal(
            lowercase=lowercase,
            strip_accents=flag(metadata, "tokenizer.ggml.normalizer.strip_accents", accents),
            clean=clean,
            ideographs=ideographs,
        )
        separator = self._token(metadata, "seperator")
        start = self._token(metadata, "cls")
        self.prefix = [one for one in (self.bos if start is None else start,) if one is not None]
        self.suffix = [one for one in (separator,) if one is not None]

    def at_least(self, characters: int) -> int:
        return 0  # blanks make none

    def _plain(self, text: str, first: bool) -> list[int]:
        tokens: list[int] = []
        cache = self._cache
        for word in words_of(text.translate(self._normal)):
            known = cache.get(word)
            if known is None:
                known = self._cut(word)
                if len(cache) >= _CACHED_WORDS:
                    cache.clear()
                cache[word] = known
            tokens += known
        return tokens

    def _cut(self, word: str) -> list[int]:
        if len(word) > self._longest_word:
            return [self._unknown]
        find = self.texts.find
        tokens = []
        at, before = 0, self.beginning
        while at < len(word):
            for end in range(len(word), at, -1):
                token = find(before + word[at:end])
                if token >= 0:
                    break
            else:
                return [self._unknown]
            tokens.append(token)
            at, before = end, self.continuing
        return tokens

    def _piece(self, text: str, kind: int) -> bytes:
        # A word of its own comes with the blank before it.
        if kind in (CONTROL, UNKNOWN):
            return b""
        if self.continuing:
            begins = not text.startswith(self.continuing)
            return (" " + text if begins else text[len(self.continuing) :]).encode()
        return text.replace(self.beginning, " ").encode()


def words_of(text: str) -> list[str]:
    """What stands between white space."""
    # Without the separators 0x1c to 0x1f, which are blanks to Python only.
    if any(char in text for char in "\x1c\x1d\x1e\x1f"):
        import re

        return re.findall(r"(?:[^\s]|[\x1c-\x1f])+", text)
    return text.split()


class HashedWordPieceTokenizer(WordPieceTokenizer):
    """As vocab.txt and tokenizer.json have it: tokens that go on with a word begin with "##"."""

    defaults = {}  # noqa: RUF012
    beginning, continuing = "", "##"
