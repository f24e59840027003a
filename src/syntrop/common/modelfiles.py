# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder belong to a model: asked by whoever hands them in, and by the store that takes them."""

from __future__ import annotations

import re

_COMPANIONS = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_PAPERS = re.compile(r"(?:LICEN[CS]E|NOTICE|README|COPYING)(?:\.(?:md|txt))?", re.IGNORECASE)


def is_weights(path: str) -> bool:
    """Whether it holds tensors. Pickled ones are never taken: reading them runs code."""
    return path.endswith((".safetensors", ".gguf"))


def belongs(path: str) -> bool:
    """Whether it is taken along: weights, their configuration and tokenizer, and what may be done with them."""
    name = path.rpartition("/")[2]
    return is_weights(path) or name.endswith(_COMPANIONS) or _PAPERS.fullmatch(name) is not None
