# SPDX-License-Identifier: Apache-2.0
"""From the descriptor of a model file to a model that can run: the blocking part, for a worker thread.

The weights are repacked by C, which leaves the interpreter to another thread meanwhile: that one builds the
vocabulary and compiles the chat template, so that their 150 ms cost a cold start next to nothing.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from syntrop.common import gguf
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed import vocabulary
from syntrop.runtimed.chat_template import ChatTemplate, TemplateError
from syntrop.runtimed.model.errors import ModelError

if TYPE_CHECKING:
    from typing import Any

    from syntrop.runtimed.model.llama import LlamaModel
    from syntrop.runtimed.tokenizer import Tokenizer


class LoadError(Exception):
    """The file cannot be run: broken, or of a kind that is not supported. The text says why."""


class Loaded:
    """A model in memory. `users` counts the calls that need it to stay."""

    __slots__ = ("architecture", "digest", "model", "name", "template", "template_error", "tokenizer", "users")

    def __init__(
        self,
        name: str,
        digest: str,
        architecture: str,
        model: LlamaModel,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        template_error: str,
    ) -> None:
        self.name = name
        self.digest = digest
        self.architecture = architecture
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        self.template_error = template_error
        self.users = 0

    def describe(self) -> dict[str, Any]:
        """Runtime1's LoadedModel."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "parameter_count": self.model.parameter_count,
            "memory_bytes": self.model.memory_bytes,
            "context_window": self.model.context,
            "compute_backend": self.model.level,
        }

    def close(self) -> None:
        self.model.close()


def warm() -> None:
    """Import what `load` needs, while whoever has the file is still being asked for it."""
    import jinja2.sandbox

    import syntrop.runtimed.model.llama
    import syntrop.runtimed.template_sandbox
    import syntrop.runtimed.tokenizer_bpe

    _ = jinja2, syntrop


def load(
    fd: int, size: int, *, name: str, digest: str, threads: int, level: str = "auto", context_max: int
) -> Loaded:
    """Load the GGUF file behind `fd`, which is closed. `context_max` 0 is the model's own. Raises LoadError."""
    try:
        mapping = mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    except (OSError, ValueError) as error:
        raise LoadError(f"{name} cannot be mapped: {error}") from None
    finally:
        os.close(fd)
    with mapping:
        mapping.madvise(mmap.MADV_WILLNEED)
        try:
            return _load(mapping, name, digest, threads, level, context_max)
        except (gguf.GGUFError, ModelError, tokenizers.TokenizerError) as error:
            raise LoadError(f"{name} cannot be loaded: {error}") from None


def _load(
    mapping: mmap.mmap, name: str, digest: str, threads: int, level: str, context_max: int
) -> Loaded:
    from syntrop.runtimed.model.llama import LlamaModel

    header = gguf.parse(mapping, pack=vocabulary.pack)
    words = _Words(header.metadata)
    trained = header.metadata.get(f"{header.metadata.get('general.architecture')}.context_length")
    context = min(context_max, trained) if context_max and isinstance(trained, int) else None
    try:
        model = LlamaModel.load(header, mapping, threads=threads, level=level, context=context)
    finally:
        words.join()
    try:
        tokenizer = words.tokenizer()
        if len(tokenizer) != model.config.n_vocab:
            raise LoadError(f"{name} has {len(tokenizer)} tokens and {model.config.n_vocab} embeddings")
    except BaseException:
        model.close()
        raise
    architecture = str(header.metadata["general.architecture"])
    return Loaded(name, digest, architecture, model, tokenizer, words.template, words.template_error)


class _Words:
    """Vocabulary and template, made in a thread of their own."""

    def __init__(self, metadata: dict[str, object]) -> None:
        from threading import Thread

        self.template: ChatTemplate | None = None
        self.template_error = "the model has no chat template"
        self._metadata = metadata
        self._tokenizer: Tokenizer | None = None
        self._error: tokenizers.TokenizerError | None = None
        self._thread = Thread(target=self._make, name="vocabulary")
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError."""
        if self._tokenizer is None:
            raise self._error or tokenizers.TokenizerError("the vocabulary could not be read")
        return self._tokenizer

    def _make(self) -> None:
        try:
            self._tokenizer = tokenizer = tokenizers.load(self._metadata)
        except tokenizers.TokenizerError as error:
            self._error = error
            return
        source = self._metadata.get("tokenizer.chat_template")
        if isinstance(source, str):
            bos, eos = ("" if one is None else tokenizer.texts[one] for one in (tokenizer.bos, tokenizer.eos))
            try:
                self.template = ChatTemplate(source, bos=bos, eos=eos)
            except TemplateError as error:
                self.template_error = str(error)
