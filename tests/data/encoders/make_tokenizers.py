# SPDX-License-Identifier: Apache-2.0
"""Makes tokenizers.json: small tokenizers in the forms that RoBERTa, XLM-RoBERTa and ModernBERT are published
with, and the tokens that the `tokenizers` package gives for some texts, with and without what goes around them.

Run by hand, in an environment with that package (this was made with 0.23.3):

    python tests/data/encoders/make_tokenizers.py
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
TEXTS = [
    "", " ", "a", "Hello World!", "  two  blanks ", "the <mask> of\tit\nall", "copyright<mask>  <mask> notice",
    "don't WE'LL 12345 \u00fcber", "three\u2026dots and\u2026", "<s>a</s> <pad>", "\u65e5\u672c \u6771\u4eac",
    "[CLS] x [MASK]y [SEP]", "line\n\n   indented\t\ttabs", "a" * 70, "\u2581x \u2581", "e\u0301 caf\u00e9",
]  # fmt: skip


def map_of(pairs: dict[str, str]) -> str:
    """A precompiled map, whose trie has an area of its own for each byte of a text. All differ in the first."""
    units, texts, area = [0] * 256, b"", 512
    units += [0] * (1 << 14)
    units[0] = 256 << 10
    for key, value in pairs.items():
        node = 256
        for index, byte in enumerate(key.encode()):
            node = (256 if index == 0 else area) ^ byte
            area += 256 if index else 0
            units[node] = (node ^ area) << 10 | byte
        units[node] = (node ^ area) << 10 | 1 << 8 | byte
        units[area] = 1 << 31 | len(texts)
        area += 256
        texts += value.encode() + b"\0"
    units = units[:area]
    blob = b"".join(unit.to_bytes(4, "little") for unit in units)
    return b64encode(len(blob).to_bytes(4, "little") + blob + texts).decode()


def byte_level(special: list[str], mask: str) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=special, initial_alphabet=alphabet)
    made.train([str(HERE.parents[2] / "LICENSE")], trainer)
    made.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False)])
    return made


def roberta() -> Tokenizer:
    made = byte_level(["<s>", "<pad>", "</s>", "<unk>"], "<mask>")
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def modernbert() -> Tokenizer:
    made = byte_level(["[UNK]", "[CLS]", "[SEP]", "[PAD]"], "[MASK]")
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken("   ", normalized=True), AddedToken("  ", normalized=True)])
    framed = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", framed)
    return made


def xlm_roberta(*, words: bool = False, runs: bool = False) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=240, special_tokens=special, unk_token="<unk>")
    made.train([str(HERE.parents[2] / "LICENSE")], trainer)
    document = json.loads(made.to_str())
    characters = map_of({"\n": " ", "\t": " ", "\u2026": "..."})
    steps: list[dict[str, Any]] = [{"type": "Precompiled", "precompiled_charsmap": characters}]
    if runs:
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    document["normalizer"] = {"type": "Sequence", "normalizers": steps} if runs else steps[0]
    meta = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True, "prepend_scheme": "always"}
    split: list[dict[str, Any]] = [{"type": "WhitespaceSplit"}]
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*split, meta]} if words else meta
    made = Tokenizer.from_str(json.dumps(document))
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    made.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    return made


def main() -> None:
    found = {}
    for name, made in {
        "roberta": roberta(), "modernbert": modernbert(), "xlm-roberta": xlm_roberta(words=True),
        "xlm-roberta, runs of blanks": xlm_roberta(runs=True), "xlm-roberta, each blank": xlm_roberta(),
    }.items():  # fmt: skip
        cases = [[made.encode(text, add_special_tokens=framed).ids for framed in (True, False)] for text in TEXTS]
        found[name] = {"json": json.loads(made.to_str()), "cases": cases}
    rows = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in found.items()
    )
    text = f'{{"texts": {json.dumps(TEXTS)},\n"tokenizers": {{\n{rows}}}}}\n'
    (HERE / "tokenizers.json").write_text(text)


if __name__ == "__main__":
    main()
