# SPDX-License-Identifier: Apache-2.0
r"""Cut text into the pieces that byte-pair encoding may merge within, by the rules of a family (`families`).

The rules are regular expressions over Unicode categories, which `re` does not have. So each character
outside ASCII is first replaced by one stand-in for its category (`_StandIns`), and `\p{…}` becomes a class of
ASCII characters and stand-ins; the text keeps its length, and the spans that are found are cut from the
original. ASCII text, the common case, passes untouched. Rules that spell characters out, but for `\s`, are
applied to the text itself.
"""

from __future__ import annotations

import re

from syntrop.runtimed import families

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Splitter = Callable[[str], list[str]]
    Span = tuple[int, int]
    # (the text, its stand-ins, the pieces so far) -> smaller pieces, in order
    Rule = Callable[[str, str, Iterable[Span]], Iterable[Span]]

_STAND_INS_KEPT = 1 << 16

# One Latin-1 character for each kind of characters outside ASCII.
_UPPER, _LOWER, _LETTER, _MARK = "\xc0", "\xe0", "\xaa", "\x80"
_DIGIT, _NUMBER, _PUNCTUATION, _SYMBOL, _SPACE, _OTHER = "\xb2", "\xb3", "\xa1", "\xa2", "\xa0", "\x81"
_LONG_S = "\xdf"  # U+017F, which is an s to those who do not tell cases apart
# Of the Han script, where that counts: letters, numbers, others.
_HAN_LETTER, _HAN_NUMBER, _HAN_OTHER = "\xbb", "\xbc", "\xbd"

_KINDS = {
    "Lu": _UPPER, "Lt": _UPPER, "Ll": _LOWER, "Lm": _LETTER, "Lo": _LETTER, "Mn": _MARK, "Mc": _MARK, "Me": _MARK,
    "Nd": _DIGIT, "Nl": _NUMBER, "No": _NUMBER,
}  # fmt: skip
_MAIN_KINDS = {"P": _PUNCTUATION, "S": _SYMBOL}

# Unicode White_Space outside ASCII; str.isspace() would add the separators 0x1c to 0x1f.
_WIDE_SPACES = frozenset("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | set(map(chr, range(0x2000, 0x200B)))

# Script=Han, as Unicode's Scripts.txt lists it.
_HAN = (
    (0x2E80, 0x2E99), (0x2E9B, 0x2EF3), (0x2F00, 0x2FD5), (0x3005, 0x3005), (0x3007, 0x3007), (0x3021, 0x3029),
    (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFA6D), (0xFA70, 0xFAD9), (0x16FE2, 0x16FE3),
    (0x16FF0, 0x16FF1), (0x20000, 0x2A6DF), (0x2A700, 0x2B739), (0x2B740, 0x2B81D), (0x2B820, 0x2CEA1),
    (0x2CEB0, 0x2EBE0), (0x2EBF0, 0x2EE5D), (0x2F800, 0x2FA1D), (0x30000, 0x3134A), (0x31350, 0x323AF),
)  # fmt: skip

_ANY_NUMBER = "0-9" + _DIGIT + _NUMBER + _HAN_NUMBER
_CLASSES = {
    r"\p{L}": "A-Za-z" + _UPPER + _LOWER + _LONG_S + _LETTER + _HAN_LETTER,
    r"\p{Lu}": "A-Z" + _UPPER,
    r"\p{Lt}": "",  # with the upper ones: every rule takes both or none
    r"\p{Ll}": "a-z" + _LOWER + _LONG_S,
    r"\p{Lm}": "",
    r"\p{Lo}": _LETTER,
    r"\p{M}": _MARK,
    r"\p{N}": _ANY_NUMBER,
    r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}" + _PUNCTUATION,
    r"\p{S}": r"$+<=>\^`|~" + _SYMBOL,
    r"\p{Han}": _HAN_LETTER + _HAN_NUMBER + _HAN_OTHER,
}
_SPACES_IN_STAND_INS = r"\t-\r " + _SPACE
_SPACES = r"\t-\r " + "".join(sorted(_WIDE_SPACES))
_EVERY_SPACE = "\t\n\v\f\r " + "".join(sorted(_WIDE_SPACES))
_ESCAPE = re.compile(r"\\p\{\w+\}|\\.|[\[\]]")
_DIGITS = re.compile(rf"[0-9{_DIGIT}]+")
_NUMBERS = re.compile(f"[{_ANY_NUMBER}]+")


class _StandIns(dict[int, str]):
    """For str.translate: code point -> stand-in, worked out when a character is first seen."""

    def __init__(self, han: bool) -> None:
        self._han = han

    def __missing__(self, code: int) -> str:
        from unicodedata import category

        char = chr(code)
        kind = category(char)
        if code < 0x80:
            stand_in = char
        elif char in _WIDE_SPACES:
            stand_in = _SPACE
        elif code == 0x17F:
            stand_in = _LONG_S
        elif self._han and any(first <= code <= last for first, last in _HAN):
            stand_in = {"L": _HAN_LETTER, "N": _HAN_NUMBER}.get(kind[0], _HAN_OTHER)
        else:
            stand_in = _KINDS.get(kind) or _MAIN_KINDS.get(kind[0], _OTHER)
        if len(self) < _STAND_INS_KEPT:
            self[code] = stand_in
        return stand_in


_stand_ins = _StandIns(han=False)
_han_stand_ins = _StandIns(han=True)


class UnknownFamily(ValueError):
    """The file names a family of pre-tokenizers that is not known here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the pre-tokenizer {name!r} is not supported")
        self.name = name


def family(name: str) -> str:
    """The canonical name of the family that `tokenizer.ggml.pre` gives. Raises UnknownFamily."""
    name = families.ALIASES.get(name, name)
    if name not in families.RULES:
        raise UnknownFamily(name)
    return name


def splitter(name: str) -> Splitter:
    """The function text -> pieces of a family; the pieces joined are the text. Raises UnknownFamily."""
    return splitter_by(families.RULES[family(name)])


def splitter_by(rules: Iterable[str]) -> Splitter:
    """The function text -> pieces of any rules of `families`."""
    made = [_rule(one) for one in rules]
    stand_ins = _han_stand_ins if any(r"\p{Han}" in one for one in rules) else _stand_ins

    def split(text: str) -> list[str]:
        if not text:
            return []
        proxy = text if text.isascii() else text.translate(stand_ins)
        spans: Iterable[Span] = ((0, len(text)),)
        for rule in made:
            spans = rule(text, proxy, spans)
        return [text[start:end] for start, end in spans]

    return split


def _rule(source: str) -> Rule:
    if source == families.THREES:
        return _threes(_NUMBERS, anywhere=True)
    if source == families.BEFORE_THREES:
        return _before_threes
    if source == families.THREES_AT_WORD_ENDS:
        return _threes(_DIGITS, anywhere=False)
    if source == families.LAST_SPACES:
        return _last_spaces
    return _expression(source)


def _expression(source: str) -> Rule:
    by_category = r"\p{" in source
    # What `finditer` sees ends where the piece ends; what precedes the piece, no rule looks at.
    find = re.compile(_translated(source, by_category)).finditer

    def cut(text: str, proxy: str, spans: Iterable[Span]) -> Iterable[Span]:
        seen = proxy if by_category else text
        for start, end in spans:
            for match in find(seen, start, end):
                first, last = match.span()
                if first > start:
                    yield start, first
                if last > first:
                    yield first, last
                    start = last
            if start < end:
                yield start, end

    return cut


def _translated(source: str, by_category: bool) -> str:
    """The expression for `re`, over stand-ins or over the text itself."""
    inside = False
    spaces = _SPACES_IN_STAND_INS if by_category else _SPACES

    def replace(match: re.Match[str]) -> str:
        nonlocal inside
        found = match.group()
        if found in ("[", "]"):
            inside = found == "["
            return found
        if found == r"\S":
            return f"[^{spaces}]"
        members = spaces if found == r"\s" else _CLASSES.get(found)
        if members is None:
            return found
        return members if inside else f"[{members}]"

    result = _ESCAPE.sub(replace, source)
    # The long s is an s in any case.
    return result.replace("(?i:'s|", f"(?i:'s|'{_LONG_S}|").replace("(?i:[sdmt]|", f"(?i:[sdmt{_LONG_S}]|")


def _last_spaces(text: str, _proxy: str, spans: Iterable[Span]) -> Iterable[Span]:
    for start, end in spans:
        last = start + len(text[start:end].rstrip(_EVERY_SPACE))
        if start < last:
            yield start, last
        if last < end:
            yield last, end


def _threes(runs: re.Pattern[str], *, anywhere: bool) -> Rule:
    """Groups of three from the right; not `anywhere`: only in runs at the end of a word."""

    def cut(text: str, proxy: str, spans: Iterable[Span]) -> Iterable[Span]:
        for start, end in spans:
            for match in runs.finditer(proxy, start, end):
                first, last = match.span()
                if not anywhere and last < end and _in_word(text[last]):
                    continue
                if first > start:
                    yield start, first
                at = first
                while at < last:
                    step = (last - at) % 3 or 3
                    yield at, at + step
                    at += step
                start = last
            if start < end:
                yield start, end

    return cut


def _before_threes(_text: str, proxy: str, spans: Iterable[Span]) -> Iterable[Span]:
    """Cuts before each group of three digits from the right, and nowhere else."""
    for start, end in spans:
        for match in _DIGITS.finditer(proxy, start, end):
            first, last = match.span()
            for at in range(last - (last - first) // 3 * 3, last, 3):
                if at > start:
                    yield start, at
                    start = at
        if start < end:
            yield start, end


def _in_word(char: str) -> bool:
    r"""Whether Oniguruma's `\w` has it, which made these vocabularies."""
    from unicodedata import category

    kind = category(char)
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or char in "²³¹¼½¾" or "\u24b6" <= char <= "\u24e9"
