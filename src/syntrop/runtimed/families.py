# SPDX-License-Identifier: Apache-2.0
r"""How families of byte-level vocabularies cut text before anything is merged: the expressions of their authors.

Each family is a sequence of rules; a rule sees one piece at a time of those that the rules before it left, and
what lies between two matches is a piece too. A rule is a regular expression as the `tokenizer.json` of the
family's first model has it, with `\p{…}` for Unicode categories, or one of the two that count digits. The
names are those which `tokenizer.ggml.pre` gives in GGUF files; the tables follow llama.cpp's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# Rules that `re` would take for ever with, or cannot express: numbers in threes counted from the right end, for
# all runs of \p{N}; for decimal digits at the end of a word; and a cut before each three decimal digits.
THREES: Final = "threes of \\p{N}"
THREES_AT_WORD_ENDS: Final = r"\d{1,3}(?=(?:\d{3})*\b)"
BEFORE_THREES: Final = r"(?=(\d{3})+(?!\d))"

# At the end of a piece: as an expression it would be tried from each space of a run that ends elsewhere.
LAST_SPACES: Final = r"\s+$"

_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NUMBER = r"\p{N}"
_UP_TO_THREE = r"\p{N}{1,3}"

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}"
_QWEN2 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}"

# Words that begin anew where lower case turns to upper.
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _cased(ending: str, numbers: str, signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*") -> str:
    words = rf"{_LEAD}[{_UPPER}]*[{_LOWER}]+{ending}|{_LEAD}[{_UPPER}]+[{_LOWER}]*{ending}"
    return f"{words}|{numbers}|{signs}|{_BLANKS}"


_GPT4O = _cased(_ANY_CASE + "?", _UP_TO_THREE)

_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = (
    rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_IDEOGRAPHS_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

# Letters with two cases, as the first DeepSeek vocabulary lists them.
_CASED_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_IDEOGRAPHS_AND_MORE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_ASIAN_WITH_SIGNS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_LINES = r"[^\n]+|[\n]+"

RULES: Final[dict[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (GPT2,),
    "smollm": (_NUMBER, GPT2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (
        rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
        + _BLANKS,
    ),
    # The look behind, at a blank or the stand-in for one, spares the search for a line's end in blanks that were
    # found to have none: without it the time would grow as the square of their number.
    "jais-2": (
        rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|(?<![\t\v\f \xa0])\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ),
    "deepseek-llm": (
        "[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        LAST_SPACES,
        _IDEOGRAPHS_AND_MORE,
        r"\p{N}+",
    ),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS_AND_MORE, _NUMBER),
    "deepseek-v3": (_UP_TO_THREE, _IDEOGRAPHS_AND_KANA, _DEEPSEEK3),
    "spark2_5": (
        _UP_TO_THREE,
        _IDEOGRAPHS_AND_KANA,
        rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]"
        r"|\s+(?!\S)|\s+",
        _NUMBER,
    ),
    "youtu": (_ASIAN_WITH_SIGNS, _cased(_ANY_CASE + "?", _NUMBER)),
    "bloom": (_BLOOM,),
    "viking": (_BLOOM, _NUMBER),
    "tekken": (_cased("", _NUMBER),),
    "gpt-4o": (_GPT4O,),
    "tiny_aya": (THREES_AT_WORD_ENDS, _GPT4O),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        "([\\t\\n]|    |  )",
        _NUMBER,
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
    ),
    "superbpe": (r"\p{N}+", BEFORE_THREES),
    "bailingmoe": (rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",),
    "seed-coder": (rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",),
    "ufakzeka": (rf"{_WORD}|\p{{N}}|{_SIGNS}|{_BLANKS}",),
    "kimi-k2": (
        r"[\p{Han}]+|" + _cased(_ANY_CASE + "?", _UP_TO_THREE, r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    ),
    "afmoe": (THREES, _ASIAN, _DEEPSEEK3),
    "laguna": (_LINES, _QWEN2),
    "exaone-moe": (
        rf"{_ANY_CASE}|{_LEAD}\p{{L}}[\p{{L}}\p{{M}}]*(?: \p{{L}}[\p{{L}}\p{{M}}]*)*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "minicpm5": (_UP_TO_THREE, rf"{_ANY_CASE}|{_WORD}|\p{{N}}+|{_SIGNS}|{_BLANKS}"),
    "lines": (_LINES,),
}  # fmt: skip

# Names of vocabularies -> the family whose rules they share.
ALIASES: Final[dict[str, str]] = {
    name: family
    for family, names in {
        "gpt-2": "gpt2 mpt olmo phi-2 jais trillion granite-docling exaone4 jina-es jina-de jina-v2-es jina-v2-de "
        "jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert",
        "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
        "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe "
        "chatglm-bpe glm4 glm5",
        "qwen2": "deepseek-r1-qwen stablelm2 kormo f2llmv2 megrez hunyuan solar-open grok-2",
        "deepseek-v3": "deepseek-r1 hunyuan-dense joyai-llm hy_v4",
        "bloom": "poro-chat gpt3-finnish",
        "gpt-4o": "llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
        "tiny_aya": "cohere2moe",
        "bailingmoe": "bailingmoe2 llada-moe",
        "jais-2": "jais2",
        "lines": "gemma4 sarvam-moe granite-embed-multi-311m",
    }.items()
    for name in names.split()
}

# Vocabularies whose texts begin with a token although the file may not say so.
_LLAMA3_KIN = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    "tekken",
)  # fmt: skip
BEGINNING: Final = frozenset((*_LLAMA3_KIN, "chameleon"))
# Vocabularies whose whole words outrank merges.
WHOLE: Final = frozenset((*_LLAMA3_KIN, "minicpm5", "youtu", "glm4", "glm5", "granite-embed-multi-97m"))
# Vocabularies that are written in characters, spaces as U+2581, in place of bytes.
IN_CHARACTERS: Final = frozenset(("gemma4", "sarvam-moe", "granite-embed-multi-311m"))
