# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: one thread that steps the models for all generations at once.

The loop submits a generation and reads its text; the thread does the rest. Each turn of the thread

1. drops what was cancelled, wherever it stood, and gives its cache back;
2. lets waiting generations into free slots, in the order of their arrival;
3. makes one step for each model that has work: the next token of every generation that is past its prompt, and
   with them at most `chunk` prompt tokens, shared evenly among those that still read theirs.

So a long prompt holds the others up by one chunk a token at most, and whoever hangs up is gone within one step.
Text goes to the loop as it comes; when the loop is slower, it finds several pieces joined.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from syntrop.common import journal, loop
from syntrop.runtimed.model.errors import ModelError
from syntrop.runtimed.sampler import NoToken, Sampler
from syntrop.runtimed.stop import StopStrings
from syntrop.runtimed.tokenizer import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf
    from types import TracebackType
    from typing import Any, Protocol

    from syntrop.runtimed.sampler import Sampling
    from syntrop.runtimed.tokenizer import Tokenizer

    class Model(Protocol):
        """What the engine needs of a model; `model.llama.LlamaModel` is one."""

        context: int

        def sequence(self, max_tokens: int) -> Any: ...
        def step(self, batch: SequenceOf[Any]) -> list[Any]: ...

    class Runnable(Protocol):
        """A model with its vocabulary."""

        @property
        def model(self) -> Model: ...
        @property
        def tokenizer(self) -> Tokenizer: ...


STOP, LENGTH = "stop", "length"


class Overloaded(Exception):
    """No slot is free and the queue is full; the text has the numbers."""


class GenerationError(Exception):
    """The generation ended without a result."""


class Result:
    """What came of a generation."""

    __slots__ = ("completion_tokens", "duration", "finish_reason", "prompt_tokens", "seed", "text")

    def __init__(
        self,
        text: str,
        finish_reason: str,
        prompt_tokens: int,
        completion_tokens: int,
        duration: float,
        seed: int,
    ) -> None:
        self.text = text
        self.finish_reason = finish_reason
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.duration = duration  # seconds, from the submission to the last token
        self.seed = seed


class Generation:
    """One generation. The loop reads it to its end, or leaves its `with` block, which cancels it."""

    def __init__(
        self,
        engine: Engine,
        runnable: Runnable,
        tokens: SequenceOf[int],
        sampling: Sampling,
        max_tokens: int,
        stops: SequenceOf[str],
    ) -> None:
        self.result: Result | None = None
        self.cancelled = False
        self._engine = engine
        self._error: GenerationError | None = None
        self._ready: deque[str] = deque()
        self._woken = False
        self._event = loop.Event()
        # The thread's, from here on.
        self.runnable = runnable
        self.model = runnable.model
        self.prompt = tokens
        self.read = 0  # tokens of the prompt that the model has seen
        self.next_token = -1
        self._started = monotonic()
        self._sampling = sampling
        self._budget = min(max_tokens, self.model.context - len(tokens))
        self._made = 0
        self._parts: list[str] = []
        self._stop = StopStrings(stops)
        self._decoder = Decoder(runnable.tokenizer)
        self._ends = runnable.tokenizer.ends
        self._sampler: Sampler | None = None
        self._outcome: Result | None = None
        self.cache: Any = None  # model.llama.Sequence

    # --- the loop's side ------------------------------------------------------------------------------------

    async def next(self) -> str | None:
        """Text that has come since; None at the end, when `result` is there. Raises GenerationError."""
        while True:
            if self._ready:
                pieces = []
                while self._ready:
                    pieces.append(self._ready.popleft())
                return "".join(pieces)
            if self._error is not None:
                raise self._error
            if self.result is not None:
                return None
            self._event.clear()
            await self._event.wait()

    def cancel(self) -> None:
        """Free what it holds within one step. After the end this does nothing."""
        self.cancelled = True
        self._engine.changed()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.result is None and self._error is None:
            self.cancel()

    def _wake(self) -> None:
        self._woken = False
        self._event.set()

    # --- the thread's side ----------------------------------------------------------------------------------

    def _notify(self) -> None:
        # One call into the loop at a time: while it has not run, what comes now is found by it too.
        if not self._woken:
            self._woken = True
            loop.threadsafe(self._wake)

    def start(self) -> None:
        """Take a slot. Raises ModelError and MemoryError."""
        self.cache = self.model.sequence(len(self.prompt) + self._budget)
        self._sampler = Sampler(len(self.runnable.tokenizer), self._sampling)
        self._sampler.accept(self.prompt, generated=False)

    def advance(self, logits: Any) -> bool:
        """Take the next token by its logits; False at the end, to be told by `conclude()`.

        Raises NoToken and MemoryError.
        """
        assert self._sampler is not None
        token = self._sampler.sample(logits)
        self._made += 1
        if token in self._ends:
            self._finish(STOP)
            return False
        text = self._stop.feed(self._decoder.feed(token))
        if text:
            self._parts.append(text)
            self._ready.append(text)
        if self._stop.found is not None:
            self._finish(STOP, held=False)
            return False
        if self._made >= self._budget:
            self._finish(LENGTH)
            return False
        if text:
            self._notify()
        self._sampler.accept((token,), generated=True)
        self.next_token = token
        return True

    def _finish(self, reason: str, *, held: bool = True) -> None:
        if held and (text := self._stop.flush()):
            self._parts.append(text)
            self._ready.append(text)
        self._outcome = Result(
            "".join(self._parts),
            reason,
            len(self.prompt),
            self._made,
            monotonic() - self._started,
            self._sampling.seed,
        )

    def conclude(self) -> None:
        """Tell the end."""
        self.result = self._outcome
        self._notify()

    def fail(self, reason: str) -> None:
        self._error = GenerationError(reason)
        self._notify()

    def release(self) -> None:
        """Give cache and sampler back."""
        if self.cache is not None:
            self.cache.close()
            self.cache = None
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None


class Engine:
    """Slots, the queue before them, and the thread. `close()` ends it; nothing may be submitted after that."""

    def __init__(self, *, max_slots: int = 4, max_queue: int = 64, chunk: int = 256) -> None:
        from threading import Condition, Thread

        self.max_slots = max_slots
        self.max_queue = max_queue
        self._chunk = chunk
        self._changed = Condition()
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []
        self._closing = False
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # --- the loop's side ------------------------------------------------------------------------------------

    def submit(
        self,
        runnable: Runnable,
        tokens: SequenceOf[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        stops: SequenceOf[str] = (),
    ) -> Generation:
        """Queue a generation after `tokens`, which leave room in the context. Raises Overloaded."""
        if not 0 < len(tokens) < runnable.model.context or max_tokens < 1:
            raise ValueError("a prompt needs at least one token, and room for one more")
        with self._changed:
            if self._closing:
                raise Overloaded("the engine is stopping")
            waiting = sum(not one.cancelled for one in self._waiting)
            if waiting >= self.max_queue and len(self._active) >= self.max_slots:
                raise Overloaded(
                    f"{len(self._active)} of {self.max_slots} slots generate and {waiting} of {self.max_queue} "
                    "places in the queue are taken"
                )
            generation = Generation(self, runnable, tokens, sampling, max_tokens, stops)
            self._waiting.append(generation)
            self._changed.notify()
        return generation

    def changed(self) -> None:
        with self._changed:
            self._changed.notify()

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that generations hold."""
        caches = [one.cache for one in tuple(self._active)]
        return sum(cache.kv_bytes for cache in caches if cache is not None)

    async def close(self) -> None:
        """Fail what runs, and wait for the step that is in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await loop.thread(self._thread.join)

    # --- the thread's side ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._admit():
                for model in {id(one.model): one.model for one in self._active}.values():
                    self._step(model, [one for one in self._active if one.model is model])
        except BaseException as error:
            # A fault of ours: the callers must not wait for ever, and nothing more is let in.
            journal.exception("The engine failed", error)
            self._end("the engine failed; the log has the detail")
        else:
            self._end("the engine is stopping")

    def _end(self, reason: str) -> None:
        with self._changed:
            self._closing = True
            left = [*self._active, *self._waiting]
            self._active.clear()
            self._waiting.clear()
        for one in left:
            one.release()
            one.fail(reason)

    def _admit(self) -> bool:
        """Wait for work and fill the slots; False when the engine is to end."""
        while True:
            with self._changed:
                dropped = [one for one in self._active if one.cancelled]
                for one in dropped:
                    self._active.remove(one)
                while self._waiting and (self._waiting[0].cancelled or len(self._active) < self.max_slots):
                    one = self._waiting.popleft()
                    if not one.cancelled:
                        self._active.append(one)
                if not dropped and not self._active and not self._closing:
                    self._changed.wait()
                    continue
                closing = self._closing
            for one in dropped:
                one.release()
            if closing:
                return False
            if self._active:
                return True

    def _step(self, model: Model, generations: list[Generation]) -> None:
        """One step of a model over its generations."""
        for one in generations:
            if one.cache is None:
                try:
                    one.start()
                except (ModelError, MemoryError) as error:
                    self._drop(one, f"no memory for another generation: {error}")
        batch = self._batch(model, [one for one in generations if one.cache is not None])
        if not batch:
            return
        try:
            rows = model.step([piece for _, piece in batch])
        except ModelError as error:
            self._step_apart(model, batch, error)
            return
        for (one, piece), row in zip(batch, rows, strict=True):
            self._digest(one, piece, row)

    def _step_apart(self, model: Model, batch: list[tuple[Generation, Any]], error: ModelError) -> None:
        """A step was refused as a whole: find out who cannot go on, and let the others."""
        if len(batch) == 1:
            self._drop(batch[0][0], str(error))
            return
        for one, piece in batch:
            try:
                rows = model.step([piece])
            except ModelError as fault:
                self._drop(one, str(fault))
            else:
                self._digest(one, piece, rows[0])

    def _batch(self, model: Model, generations: list[Generation]) -> list[tuple[Generation, Any]]:
        from syntrop.runtimed.model.llama import MAX_BATCH, Piece

        batch = []
        reading = []
        for one in generations:
            if one.read < len(one.prompt):
                reading.append(one)
            else:
                batch.append((one, Piece(one.cache, (one.next_token,))))
        # A model makes room for no more tokens a step than its context has.
        room = min(self._chunk, min(MAX_BATCH, model.context) - len(batch))
        # The shortest first: what it does not need of its even share goes to the others.
        reading.sort(key=lambda one: len(one.prompt) - one.read)
        for index, one in enumerate(reading):
            take = min(len(one.prompt) - one.read, max(1, room // (len(reading) - index)))
            if take > room:
                break
            room -= take
            tokens = one.prompt[one.read : one.read + take]
            batch.append((one, Piece(one.cache, tokens, one.read + take == len(one.prompt))))
        return batch

    def _digest(self, one: Generation, piece: Any, row: Any) -> None:
        if one.read < len(one.prompt):
            one.read += len(piece.tokens)
        if row is None:
            return
        try:
            if one.advance(row):
                return
        except (NoToken, MemoryError) as error:
            self._drop(one, str(error) or "out of memory")
            return
        self._leave(one)
        one.conclude()

    def _drop(self, one: Generation, reason: str) -> None:
        self._leave(one)
        one.fail(reason)

    def _leave(self, one: Generation) -> None:
        with self._changed:
            if one in self._active:
                self._active.remove(one)
        one.release()
