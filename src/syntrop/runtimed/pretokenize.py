# SPDX-License-Identifier: Apache-2.0
"""Cut text into the pieces that byte-level BPE may merge within: one rule set per family of vocabularies.

The rules are regular expressions over Unicode categories, which `re` does not have. So each character
outside ASCII is first replaced by one stand-in for its category (`_StandIns`); the text keeps its length, the
expressions stay short, and the spans that they find are cut from the original. ASCII text, the common case,
passes untouched.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Splitter = Callable[[str], list[str]]

# The letter must be in no contraction ('s 't 're 've 'm 'll 'd), the number must not be one of 0 to 9.
_LETTER, _NUMBER, _SPACE, _PUNCTUATION, _OTHER = "a", "²", "\t", "!", "\x01"
_STAND_INS_KEPT = 1 << 16

# Unicode White_Space outside ASCII; str.isspace() would add the separators 0x1c to 0x1f.
_WIDE_SPACES = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | set(map(chr, range(0x2000, 0x200B)))


class _StandIns(dict[int, str]):
    """For str.translate: code point -> stand-in, worked out when a character is first seen."""

    def __missing__(self, code: int) -> str:
        import unicodedata

        char = chr(code)
        kind = unicodedata.category(char)[0]
        if code < 0x80:
            stand_in = char
        elif char in _WIDE_SPACES:
            stand_in = _SPACE
        else:
            stand_in = {"L": _LETTER, "N": _NUMBER, "P": _PUNCTUATION}.get(kind, _OTHER)
        if len(self) < _STAND_INS_KEPT:
            self[code] = stand_in
        return stand_in


_stand_ins = _StandIns()

_L, _N, _S = "A-Za-z", "0-9²", r"\t-\r "  # \p{L}, \p{N} and \s, for use inside a class
_LAST_SPACES = rf"[{_S}]+(?![^{_S}])"  # spaces, but not the one in front of a word

_GPT2 = (
    rf"'s|'t|'re|'ve|'m|'ll|'d"
    rf"| ?[{_L}]+"
    rf"| ?[{_N}]+"
    rf"| ?[^{_S}{_L}{_N}]+"
    rf"|{_LAST_SPACES}"
)


def _cl100k(digits: str) -> str:
    return (
        r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
        rf"|[^\r\n{_L}{_N}]?[{_L}]+"
        rf"|[{_N}]{digits}"
        rf"| ?[^{_S}{_L}{_N}]+[\r\n]*"
        rf"|[{_S}]*[\r\n]+"
        rf"|{_LAST_SPACES}"
        rf"|[{_S}]+"
    )


# Expressions of a family are applied one after the other, each inside the pieces that the one before left;
# what lies between two matches is a piece too.
_FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (rf"[{_N}]", _GPT2),
    "default": (r"[!-/:-@\[-_{-~]+", _GPT2, rf"[{_N}]+", r"[0-9]{3}"),
    "llama-bpe": (_cl100k("{1,3}"),),
    "qwen2": (_cl100k(""),),
}

# Names that GGUF files give to vocabularies which are cut by the same rules.
_ALIASES = {
    "gpt2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "phi-2": "gpt-2",
    "jais": "gpt-2",
    "starcoder": "smollm",
    "refact": "smollm",
    "command-r": "smollm",
    "codeshell": "smollm",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "pixtral": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
}


class UnknownFamily(ValueError):
    """The file names a family of pre-tokenizers that is not known here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the pre-tokenizer {name!r} is not supported")
        self.name = name


def family(name: str) -> str:
    """The canonical name of the family that `tokenizer.ggml.pre` gives. Raises UnknownFamily."""
    name = _ALIASES.get(name, name)
    if name not in _FAMILIES:
        raise UnknownFamily(name)
    return name


def splitter(name: str) -> Splitter:
    """The function text -> pieces of a family; the pieces joined are the text. Raises UnknownFamily."""
    patterns = [re.compile(pattern) for pattern in _FAMILIES[family(name)]]

    def split(text: str) -> list[str]:
        proxy = text if text.isascii() else text.translate(_stand_ins)
        pieces = [text] if text else []
        for pattern in patterns:
            # Each expression sees one piece at a time: what precedes and follows it must not be looked at.
            pieces, start, previous = [], 0, pieces
            for piece in previous:
                end = start + len(piece)
                at = start
                part = proxy if len(piece) == len(text) else proxy[start:end]
                for match in pattern.finditer(part):
                    first, last = match.start() + start, match.end() + start
                    if first > at:
                        pieces.append(text[at:first])
                    pieces.append(text[first:last])
                    at = last
                if at < end:
                    pieces.append(text[at:end])
                start = end
        return pieces

    return split
