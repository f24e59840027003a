# SPDX-License-Identifier: Apache-2.0
"""Tokenizers out of `tokenizer.json`, the format of the `tokenizers` package, which lies beside safetensors.

The file describes a pipeline: normalizer, pre-tokenizer, model, post-processor. What is read of it becomes the
metadata that a GGUF file would have; a step that is not known is refused by name, since the tokens would be
others than the model was trained with. Regular expressions are taken from the families that are known
(`families`) and never compiled as they come: a hostile one can take forever.
"""

from __future__ import annotations

import json

from syntrop.runtimed import families, pretokenize
from syntrop.runtimed.tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Tokenizer,
    TokenizerError,
)
from syntrop.runtimed.vocabulary import pack_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from syntrop.runtimed.pretokenize import Splitter

_SPELLED_OUT = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
# Expressions that stand in `families` under another form.
_OTHER_FORMS = {
    r"[^\r\n\p{L}\p{N}]?+\p{L}+": r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r" ?[^\s\p{L}\p{N}]++": r" ?[^\s\p{L}\p{N}]+",
}
_KNOWN_RULES = frozenset(rule for rules in families.RULES.values() for rule in rules)
_PUNCTUATION = families.RULES["falcon"][0]
_META = "\u2581"


def load_json(tokenizer: bytes, config: bytes | None = None) -> Tokenizer:
    """The tokenizer that the two files describe; `config` is `tokenizer_config.json`. Raises TokenizerError."""
    try:
        return _Reader(_object(tokenizer), _object(config) if config else {}).load()
    except TokenizerError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        raise TokenizerError(f"tokenizer.json is damaged: {type(error).__name__}: {error}") from None


def template_of(config: bytes) -> str | None:
    """The chat template in `tokenizer_config.json`. Raises TokenizerError."""
    template = _object(config).get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenizerError("the tokenizer's file is not JSON") from None
    if not isinstance(value, dict):
        raise TokenizerError("the tokenizer's file is no object")
    return value


def _unsupported(what: str, step: object) -> TokenizerError:
    name = step.get("type", step) if isinstance(step, dict) else step
    return TokenizerError(f"the {what} {name!r} of tokenizer.json is not supported")


def _steps(step: dict[str, Any] | None, inner: str) -> Iterator[dict[str, Any]]:
    """A step, or those of a sequence."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for one in step[inner]:
            yield from _steps(one, inner)
    else:
        yield step


class _Reader:
    def __init__(self, data: dict[str, Any], config: dict[str, Any]) -> None:
        self.data = data
        self.config = config
        self.model = data["model"]
        self.normalizers = list(_steps(data.get("normalizer"), "normalizers"))
        self.splits = list(_steps(data.get("pre_tokenizer"), "pretokenizers"))
        self.added = data.get("added_tokens") or []
        self.metadata: dict[str, object] = {}
        self.ids: dict[str, int] = {}

    def load(self) -> Tokenizer:
        kind = self.model.get("type") or ("BPE" if "merges" in self.model else "WordPiece")
        if kind not in ("BPE", "WordPiece", "Unigram"):
            raise _unsupported("model", kind)
        if any(one.get("single_word") for one in self.added):
            raise _unsupported("added token", "single_word")
        self._vocabulary(kind)
        for name in ("bos", "eos"):
            self._name_token(name, self.config.get(f"{name}_token"))
        self._name_token("unknown", self.model.get("unk_token"))
        made = {"BPE": self._pairs, "WordPiece": self._pieces, "Unigram": self._unigram}[kind]()
        made.prefix, made.suffix = self._frame()
        for side in ("left", "right"):
            tokens = frozenset(one["id"] for one in self.added if one.get(f"{side[0]}strip"))
            setattr(made, f"strip_{side}", tokens)
        return made

    def _vocabulary(self, kind: str) -> None:
        vocabulary = self.model["vocab"]
        if kind == "Unigram":
            self.ids = {text: token for token, (text, _) in enumerate(vocabulary)}
        else:
            self.ids = dict(vocabulary)
        self.ids |= {one["content"]: one["id"] for one in self.added}
        if not all(isinstance(token, int) and token >= 0 for token in self.ids.values()):
            raise TokenizerError("a token of tokenizer.json has no number")
        count = 1 + max(self.ids.values(), default=-1)
        if count > 2 * len(self.ids) + 4096:
            raise TokenizerError(f"{len(self.ids)} tokens of tokenizer.json are numbered up to {count}")
        texts, types = [""] * count, [UNUSED] * count
        for text, token in self.ids.items():
            texts[token] = text
            types[token] = NORMAL
        if self.model.get("byte_fallback"):
            for byte in range(256):
                if (token := self.ids.get(f"<0x{byte:02X}>", -1)) >= 0:
                    types[token] = BYTE
        for one in self.added:
            types[one["id"]] = CONTROL if one.get("special") else USER_DEFINED
        unknown = self.model.get("unk_token") or ""
        if unknown in self.ids and types[self.ids[unknown]] == NORMAL:
            types[self.ids[unknown]] = UNKNOWN
        self.metadata["tokenizer.ggml.tokens"] = pack_strings(texts)
        self.metadata["tokenizer.ggml.token_type"] = types

    def _name_token(self, name: str, token: object) -> None:
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in self.ids:
            self.metadata[f"tokenizer.ggml.{name}_token_id"] = self.ids[text]

    # --- models ---------------------------------------------------------------------------------------------

    def _pairs(self) -> Tokenizer:
        from syntrop.runtimed.tokenizer_bpe import BytePairTokenizer, CharacterPairTokenizer

        for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
            if self.model.get(key):
                raise _unsupported("model's", key)
        merges = self.model["merges"]
        if merges and isinstance(merges[0], list):
            # Sides that may have blanks in them: 0xff is in no UTF-8.
            pairs = [left.encode() + b"\xff" + right.encode() for left, right in merges]
            self.metadata["tokenizer.ggml.merges"] = pack_strings(pairs, b"\xff")
        else:
            self.metadata["tokenizer.ggml.merges"] = pack_strings(merges, b" ")
        if any(one["type"] == "ByteLevel" for one in self.splits):
            made = BytePairTokenizer(self.metadata, self._splitter(), whole=bool(self.model.get("ignore_merges")))
            made.compose = self._composes()
            return made
        if self.model.get("byte_fallback"):
            prefix = self._space_prefix()
            return CharacterPairTokenizer(self.metadata, _undivided, prefix=prefix)
        raise _unsupported("model", "BPE of characters without byte_fallback")

    def _pieces(self) -> Tokenizer:
        from syntrop.runtimed.tokenizer_wordpiece import HashedWordPieceTokenizer

        if [one["type"] for one in self.normalizers] != ["BertNormalizer"]:
            raise _unsupported("normalizer", self.data.get("normalizer"))
        if [one["type"] for one in self.splits] != ["BertPreTokenizer"]:
            raise _unsupported("pre-tokenizer", self.data.get("pre_tokenizer"))
        if self.model.get("continuing_subword_prefix", "##") != "##":
            raise _unsupported("model's prefix", self.model["continuing_subword_prefix"])
        (normal,) = self.normalizers
        return HashedWordPieceTokenizer(
            self.metadata,
            lowercase=normal.get("lowercase", True),
            strip_accents=normal.get("strip_accents"),
            clean=normal.get("clean_text", True),
            ideographs=normal.get("handle_chinese_chars", True),
            longest_word=int(self.model.get("max_input_chars_per_word", 100)),
        )

    def _unigram(self) -> Tokenizer:
        from base64 import b64decode

        from syntrop.runtimed.tokenizer_unigram import UnigramTokenizer

        blanks = "words" if any(one["type"] == "WhitespaceSplit" for one in self.splits) else "each"
        for one in self.normalizers:
            if one["type"] == "Precompiled":
                self.metadata["tokenizer.ggml.precompiled_charsmap"] = b64decode(one["precompiled_charsmap"] or "")
            elif one["type"] == "Replace" and one.get("pattern", {}).get("Regex") == " {2,}":
                if one.get("content") != " ":
                    raise _unsupported("normalizer's content", one.get("content"))
                blanks = "runs" if blanks == "each" else blanks
            else:
                raise _unsupported("normalizer", one)
        kinds = [one["type"] for one in self.splits]
        if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
            raise _unsupported("pre-tokenizer", self.data.get("pre_tokenizer"))
        scores = [float(score) for _, score in self.model["vocab"]]
        scores += [0.0] * (1 + max(self.ids.values()) - len(scores))  # for the tokens that were added
        self.metadata["tokenizer.ggml.scores"] = scores
        self.metadata["tokenizer.ggml.add_space_prefix"] = self._space_prefix() != "never"
        if self.model.get("unk_id") is not None:
            self.metadata["tokenizer.ggml.unknown_token_id"] = self.model["unk_id"]
        fallback = bool(self.model.get("byte_fallback"))
        return UnigramTokenizer(self.metadata, byte_fallback=fallback, blanks=blanks)

    # --- the steps around them ------------------------------------------------------------------------------

    def _composes(self) -> bool:
        """Whether the text is brought to NFC first."""
        for one in self.normalizers:
            if one["type"] != "NFC":
                raise _unsupported("normalizer", one)
        return bool(self.normalizers)

    def _splitter(self) -> Splitter:
        rules = []
        for one in self.splits:
            if one["type"] == "ByteLevel":
                if one.get("add_prefix_space"):
                    raise _unsupported("pre-tokenizer's", "add_prefix_space")
                if one.get("use_regex", True):
                    rules.append(families.GPT2)
            elif one["type"] == "Digits":
                rules.append(r"\p{N}" if one.get("individual_digits") else r"\p{N}+")
            elif one["type"] == "Punctuation" and one.get("behavior") == "Contiguous":
                rules.append(_PUNCTUATION)
            elif one["type"] == "Split":
                rules.append(_rule(one))
            else:
                raise _unsupported("pre-tokenizer", one)
        return pretokenize.splitter_by(rules)

    def _space_prefix(self) -> str:
        """Where a blank goes before a text, in the words of `CharacterPairTokenizer`."""
        prefix = "never"
        for one in self.normalizers:
            if one["type"] == "Prepend" and one["prepend"] == _META:
                prefix = "prepend"
            elif one["type"] not in ("Precompiled", "Replace"):
                raise _unsupported("normalizer", one)
            elif one["type"] == "Replace" and one["pattern"] not in ({"String": " "}, {"Regex": " {2,}"}):
                raise _unsupported("normalizer", one["pattern"])
        for one in self.splits:
            if one["type"] == "Metaspace":
                old = "always" if one.get("add_prefix_space", True) else "never"
                prefix = one.get("prepend_scheme", old)
            elif one["type"] == "Split" and one["pattern"] == {"String": " "}:
                pass  # no blank is left by then
            elif one["type"] != "WhitespaceSplit":
                raise _unsupported("pre-tokenizer", one)
        return prefix

    def _frame(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text."""
        before: list[int] = []
        after: list[int] = []
        for one in _steps(self.data.get("post_processor"), "processors"):
            if one["type"] in ("BertProcessing", "RobertaProcessing"):
                before, after = [self.ids[one["cls"][0]]], [self.ids[one["sep"][0]]]
            elif one["type"] == "TemplateProcessing":
                before, after = [], []
                side = before
                for part in one["single"]:
                    if "SpecialToken" in part:
                        side += one["special_tokens"][part["SpecialToken"]["id"]]["ids"]
                    else:
                        side = after
            elif one["type"] != "ByteLevel":
                raise _unsupported("post-processor", one)
        count = 1 + max(self.ids.values())
        if not all(isinstance(token, int) and 0 <= token < count for token in before + after):
            raise TokenizerError("the post-processor of tokenizer.json adds a token that there is not")
        return before, after


def _rule(split: dict[str, Any]) -> str:
    pattern = split["pattern"].get("Regex", split["pattern"].get("String"))
    behaviour = (split.get("behavior"), bool(split.get("invert")))
    if behaviour not in (("Isolated", False), ("Removed", True)):
        raise _unsupported("pre-tokenizer's behaviour", split.get("behavior"))
    rule = str(pattern).replace(_SPELLED_OUT, "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
    for other, ours in _OTHER_FORMS.items():
        rule = rule.replace(other, ours)
    if rule not in _KNOWN_RULES:
        raise _unsupported("pre-tokenizer's expression", pattern)
    return rule


def _undivided(text: str) -> list[str]:
    return [text]
