# SPDX-License-Identifier: Apache-2.0
"""One module an architecture, named as GGUF's `general.architecture` has it, with `read(keys) -> Config`.

A module says what the general decoder (`kernels/forward.c`) does for it: sizes, norms, activation, RoPE, windows,
scales, and which tensor of a layer fills which slot. What a file has beyond that is refused, not left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from syntrop.runtimed.model.config import Config
    from syntrop.runtimed.model.keys import Keys

NAMES = ("gemma3", "granite", "llama", "phi3", "qwen2", "qwen3")


def reader(name: str) -> Callable[[Keys], Config]:
    """`read` of the architecture `name`, one of NAMES. Only the one in use is imported."""
    from importlib import import_module

    read: Callable[[Keys], Config] = import_module(f"{__name__}.{name}").read
    return read
