# SPDX-License-Identifier: Apache-2.0
"""From the descriptors of a model's files to a model that can run: the blocking part, for a worker thread.

The weights are repacked by C, which leaves the interpreter to another thread meanwhile: that one builds the
vocabulary and compiles the chat template, so that their 150 ms cost a cold start next to nothing.
"""

from __future__ import annotations

import mmap
import os
from _thread import allocate_lock, start_new_thread
from typing import TYPE_CHECKING, NamedTuple

from syntrop.common import gguf
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed import vocabulary
from syntrop.runtimed.chat_template import ChatTemplate, TemplateError
from syntrop.runtimed.model import encoders
from syntrop.runtimed.model.errors import ModelError, NoMemory
from syntrop.runtimed.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    from syntrop.runtimed.model.encoder import EncoderModel
    from syntrop.runtimed.model.llama import LlamaModel
    from syntrop.runtimed.model.lora import Adapter
    from syntrop.runtimed.tokenizer import Tokenizer


class How(NamedTuple):
    """Settings of a load. `context_max` 0 is the model's own."""

    threads: int
    level: str = "auto"
    context_max: int = 0
    kv_type: str = "f16"


class LoadError(Exception):
    """The file cannot be run: broken, or of a kind that is not supported. The text says why."""


class Attached:
    """An adapter in memory. `users` counts the model that has it and the calls that go with it; when the last one
    has let it go, `forget` is called."""

    __slots__ = ("_forget", "adapter", "name", "users")

    def __init__(self, name: str, adapter: Adapter, forget: Callable[[Adapter], object]) -> None:
        self.name = name
        self.adapter = adapter
        self.users = 1
        self._forget = forget

    def let_go(self) -> None:
        self.users -= 1
        if not self.users:
            self._forget(self.adapter)


class Use:
    """`with loaded.use() as adapter:` keeps a model, and the adapter that it has now, for one call."""

    __slots__ = ("_attached", "_model")

    def __init__(self, model: Loaded) -> None:
        self._model = model
        self._attached: Attached | None = None

    def __enter__(self) -> Adapter | None:
        self._model.users += 1
        self._attached = self._model.attached
        if self._attached is None:
            return None
        self._attached.users += 1
        return self._attached.adapter

    def __exit__(self, *_: object) -> None:
        self._model.users -= 1
        if self._attached is not None:
            self._attached.let_go()


class Loaded:
    """A model in memory. `users` counts the calls that need it to stay."""

    __slots__ = (
        "architecture",
        "attached",
        "digest",
        "model",
        "name",
        "template",
        "template_error",
        "tokenizer",
        "users",
    )

    def __init__(
        self,
        name: str,
        digest: str,
        architecture: str,
        model: LlamaModel | EncoderModel,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        template_error: str,
    ) -> None:
        self.name = name
        self.digest = digest
        self.architecture = architecture
        self.model: Any = model
        self.tokenizer = tokenizer
        self.template = template
        self.template_error = template_error
        self.users = 0
        self.attached: Attached | None = None

    def use(self) -> Use:
        return Use(self)

    @property
    def generates(self) -> bool:
        """Whether the model makes text; an encoder does not."""
        return hasattr(self.model, "step")

    def describe(self) -> dict[str, Any]:
        """Runtime1's LoadedModel."""
        told = {
            "name": self.name,
            "architecture": self.architecture,
            "parameter_count": self.model.parameter_count,
            "memory_bytes": self.model.memory_bytes,
            "context_window": self.model.context,
            "compute_backend": self.model.level,
        }
        if self.attached is not None:
            told["lora"] = self.attached.name
        pool = getattr(self.model, "kv", None)
        if pool is not None:
            told["cache_token_bytes"] = pool.token_bytes
        return told

    def close(self) -> None:
        self.model.close()


def warm() -> None:
    """Import what `load` needs, while whoever has the file is still being asked for it."""
    import syntrop.runtimed.model.llama
    import syntrop.runtimed.tokenizer_bpe

    _ = syntrop


def load(fd: int, size: int, *, name: str, digest: str, how: How) -> Loaded:
    """Load the GGUF file behind `fd`, which is closed. Raises LoadError."""
    try:
        with _mapped(fd, size, name) as mapping, Watch(mapping, size) as watch:
            if mapping[:4] != gguf.MAGIC and mapping[8:9] == b"{":
                raise LoadError(
                    f"{name} is a safetensors file without configuration and tokenizer: import its folder"
                )
            mapping.madvise(mmap.MADV_WILLNEED)
            return watch.whole(_load(mapping, name, digest, how), Loaded.close)
    except (gguf.GGUFError, ModelError, tokenizers.TokenizerError) as error:
        raise LoadError(f"{name} cannot be loaded: {error}") from None


def load_adapter(fd: int, size: int, name: str, model: LlamaModel) -> Adapter:
    """Attach the LoRA adapter in the GGUF file behind `fd`, which is closed. Raises LoadError and NoMemory."""
    try:
        with _mapped(fd, size, name) as mapping, Watch(mapping, size) as watch:
            header = gguf.parse(mapping)
            with _Located(header):
                return watch.whole(model.attach(header, mapping), model.detach)
    except NoMemory:
        raise
    except (gguf.GGUFError, ModelError) as error:
        raise LoadError(f"{name} is no adapter for this model: {error}") from None


def _mapped(fd: int, size: int, name: str) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    except (OSError, ValueError) as error:
        raise LoadError(f"{name} cannot be mapped: {error}") from None
    finally:
        os.close(fd)


def load_folder(
    files: Mapping[str, tuple[int, int]],
    *,
    name: str,
    digest: str,
    how: How,
) -> Loaded:
    """As `load`, of a model of several files: path to descriptor, which is closed, and size."""
    from syntrop.common.safetensors import SafetensorsError
    from syntrop.runtimed import folder

    try:
        with folder.Weights(files) as weights:
            words = _Words(lambda: folder.words(files, weights.header))
            loaded = _finish(weights.header, weights.buffer, words, name, digest, how, padded=True)
            return weights.watch.whole(loaded, Loaded.close)
    except (gguf.GGUFError, SafetensorsError, ModelError, tokenizers.TokenizerError, OSError) as error:
        raise LoadError(f"{name} cannot be loaded: {error}") from None
    finally:
        for handle, _ in files.values():
            os.close(handle)


def _load(mapping: mmap.mmap, name: str, digest: str, how: How) -> Loaded:
    header = gguf.parse(mapping, pack=vocabulary.pack)
    words = _Words(lambda: (tokenizers.load(header.metadata), header.metadata.get("tokenizer.chat_template")))
    with _Located(header):
        return _finish(header, mapping, words, name, digest, how)


class _Located:
    """A context in which errors of a model tell where in its file they are."""

    def __init__(self, header: gguf.GGUF) -> None:
        self._places = header.places

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, ModelError):
            error.locate(self._places)


def _finish(
    header: gguf.GGUF,
    buffer: Any,
    words: _Words,
    name: str,
    digest: str,
    how: How,
    *,
    padded: bool = False,
) -> Loaded:
    """`padded`: there may be more embeddings than tokens."""
    architecture = str(header.metadata.get("general.architecture"))
    trained = header.metadata.get(f"{architecture}.context_length")
    context = min(how.context_max, trained) if how.context_max and isinstance(trained, int) else None
    model: LlamaModel | EncoderModel
    try:
        if architecture in encoders.NAMES:
            from syntrop.runtimed.model.encoder import EncoderModel

            model = EncoderModel.load(header, buffer, threads=how.threads, level=how.level, context=context)
        else:
            from syntrop.runtimed.model.llama import LlamaModel

            model = LlamaModel.load(
                header, buffer, threads=how.threads, level=how.level, context=context, kv_type=how.kv_type
            )
    finally:
        words.join()
    try:
        tokenizer = words.tokenizer()
        missing = model.config.n_vocab - len(tokenizer)
        if missing < 0 or (missing and not padded):
            raise LoadError(f"{name} has {len(tokenizer)} tokens and {model.config.n_vocab} embeddings")
    except BaseException:
        model.close()
        raise
    return Loaded(name, digest, architecture, model, tokenizer, words.template, words.template_error)


class _Words:
    """Vocabulary and template, made in a thread of their own by `make`, which gives the template's source too."""

    def __init__(self, make: Callable[[], tuple[Tokenizer, object]]) -> None:
        self.template: ChatTemplate | None = None
        self.template_error = "the model has no chat template"
        self._source = make
        self._tokenizer: Tokenizer | None = None
        self._error: tokenizers.TokenizerError | ModelError | None = None
        self._no_memory = NoMemory("vocabulary", "the system has no memory for it")
        self._made = allocate_lock()
        self._made.acquire()
        try:
            start_new_thread(any, (self._thread(),))
        except RuntimeError:  # no memory for its stack: one after the other, then
            any(self._thread())

    def join(self) -> None:
        with self._made:
            pass

    def _thread(self) -> Generator[None]:
        """The body of the thread: a generator has its frame where there is no memory for one (common/loop.py)."""
        try:
            self._make()
        except MemoryError:
            self._error = self._no_memory
        finally:
            self._made.release()
        yield

    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError."""
        if self._tokenizer is None:
            raise self._error or tokenizers.TokenizerError("the vocabulary could not be read")
        return self._tokenizer

    def _make(self) -> None:
        try:
            tokenizer, source = self._source()
        except (tokenizers.TokenizerError, ModelError) as error:
            self._error = error
            return
        self._tokenizer = tokenizer
        if isinstance(source, str):
            bos, eos = ("" if one is None else tokenizer.texts[one] for one in (tokenizer.bos, tokenizer.eos))
            try:
                self.template = ChatTemplate(source, bos=bos, eos=eos)
            except TemplateError as error:
                self.template_error = str(error)
