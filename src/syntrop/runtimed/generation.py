# SPDX-License-Identifier: Apache-2.0
"""One generation: the loop reads its text, the engine's thread makes it."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from time import monotonic
from typing import TYPE_CHECKING

from syntrop.common import loop
from syntrop.runtimed.ledger import Ledger
from syntrop.runtimed.sampler import Sampler, logprobs
from syntrop.runtimed.stop import StopStrings
from syntrop.runtimed.tokenizer import Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence as SequenceOf
    from types import TracebackType
    from typing import Any, Protocol

    from syntrop.runtimed.model.kv import Pool, Sequence
    from syntrop.runtimed.model.lora import Adapter
    from syntrop.runtimed.sampler import Logprobs, Sampling
    from syntrop.runtimed.tokenizer import Tokenizer

    class Model(Protocol):
        """What the engine needs of a model; `model.llama.LlamaModel` is one."""

        context: int
        kv: Pool

        def sequence(self, max_tokens: int) -> Sequence: ...
        def step(self, batch: SequenceOf[Any]) -> list[Any]: ...

    class Runnable(Protocol):
        """A model with its vocabulary."""

        @property
        def model(self) -> Model: ...
        @property
        def tokenizer(self) -> Tokenizer: ...

    class Host(Protocol):
        """What a generation tells its engine."""

        def changed(self) -> None: ...


STOP, LENGTH = "stop", "length"


class Tier(IntEnum):
    """Whose work goes first, by the names that inferenced gives to priorities."""

    Batch = 0
    Interactive = 1
    EmergencyTriage = 2


class GenerationError(Exception):
    """The generation ended without a result."""


class OutOfMemory(GenerationError):
    """The budget could not hold its keys and values, although nothing else took any; the text has the numbers."""


class Result:
    """What came of a generation."""

    __slots__ = (
        "completion_tokens",
        "duration",
        "finish_reason",
        "logprobs",
        "prompt_tokens",
        "seed",
        "stop_string",
        "text",
    )

    def __init__(
        self,
        text: str,
        finish_reason: str,
        prompt_tokens: int,
        completion_tokens: int,
        duration: float,
        seed: int,
        logprobs: list[Logprobs] | None = None,
        stop_string: str | None = None,
    ) -> None:
        self.text = text
        self.finish_reason = finish_reason
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.duration = duration  # seconds, from the submission to the last token
        self.seed = seed
        self.logprobs = logprobs  # of the tokens whose text is part of `text`, where they were asked for
        self.stop_string = stop_string  # the one that ended it


class Generation:
    """One generation. The loop reads it to its end, or leaves its `with` block, which cancels it.

    `tokens` are the prompt and what came after it; the model has seen the first `cache.length` of them. So a
    generation whose cache was taken away reads them all again and goes on as if nothing had been.
    """

    def __init__(
        self,
        engine: Host,
        runnable: Runnable,
        tokens: SequenceOf[int],
        sampling: Sampling,
        max_tokens: int,
        stops: SequenceOf[str],
        top_logprobs: int | None = None,
        tier: Tier = Tier.Interactive,
        adapter: Adapter | None = None,
    ) -> None:
        self.result: Result | None = None
        self.cancelled = False
        self.tier = tier
        self.logprobs: list[Logprobs] = []  # of the text that `next` gave last
        self.told = 0  # tokens that were generated up to the end of that text
        self.cached = 0  # tokens of the prompt that an earlier generation had read
        self._engine = engine
        self._error: GenerationError | None = None
        self._ready: deque[tuple[str, list[Logprobs], int]] = deque()
        self._woken = False
        self._event = loop.Event()
        # The thread's, from here on.
        self.arrival = 0  # order of submission
        self.runnable = runnable
        self.model = runnable.model
        self._adapter = adapter
        self.prompt = tokens
        self.tokens = list(tokens)
        self.cache: Sequence | None = None
        self._started = monotonic()
        self._sampling = sampling
        self._budget = min(max_tokens, self.model.context - len(tokens))
        self._made = 0
        self._parts: list[str] = []
        self._top_logprobs = top_logprobs
        self._ledger = None if top_logprobs is None else Ledger()
        self._notes: list[Logprobs] = []
        self._stop = StopStrings(stops)
        self._decoder = Decoder(runnable.tokenizer)
        self._ends = runnable.tokenizer.ends
        self._sampler: Sampler | None = None
        self._outcome: Result | None = None

    # --- the loop's side ------------------------------------------------------------------------------------

    async def next(self) -> str | None:
        """Text that has come since; None at the end, when `result` is there. Raises GenerationError.

        With logprobs, the last text may be empty: the last tokens need not have any.
        """
        while True:
            if self._ready:
                pieces = []
                self.logprobs = []
                while self._ready:
                    piece, notes, self.told = self._ready.popleft()
                    pieces.append(piece)
                    self.logprobs += notes
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

    @property
    def rank(self) -> tuple[int, int]:
        """The smallest goes first, and is the last to lose what it holds."""
        return -self.tier, self.arrival

    @property
    def unread(self) -> int:
        """Tokens that the model has not seen: one, once it is past the prompt."""
        return len(self.tokens) - (0 if self.cache is None else self.cache.length)

    def start(self) -> None:
        """Begin, or begin anew. Raises ModelError and MemoryError."""
        if self._sampler is None:
            self._sampler = Sampler(len(self.runnable.tokenizer), self._sampling)
            self._sampler.accept(self.prompt, generated=False)
        self.open_cache()

    def open_cache(self) -> None:
        """What is known of the tokens already is not computed again."""
        self.cache = self.model.sequence(len(self.prompt) + self._budget)
        self.cache.adapter = self._adapter
        adopted = self.cache.adopt(self.tokens)
        if not self._made:
            self.cached = adopted

    def wants(self, start: int, count: int) -> int:
        """After how many of the last of these `tokens` the logits are wanted."""
        return int(start + count == len(self.tokens))

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
        decoded = self._decoder.feed(token)
        text = self._stop.feed(decoded)
        if self._ledger is not None:
            note = logprobs(logits, len(self.runnable.tokenizer), token, self._top_logprobs or 0)
            self._ledger.add(note, len(decoded))
        if text:
            self._give(text, [] if self._ledger is None else self._ledger.show(len(text)))
        if self._stop.found is not None:
            self._finish(STOP, held=False)
            return False
        if self._made >= self._budget:
            self._finish(LENGTH)
            return False
        if text:
            self._notify()
        self._sampler.accept((token,), generated=True)
        self.tokens.append(token)
        return True

    def conclude(self) -> None:
        """Tell the end."""
        self.result = self._outcome
        self._notify()

    def fail(self, error: GenerationError) -> None:
        self._error = error
        self._notify()

    def release_cache(self) -> None:
        if self.cache is not None:
            self.cache.close()
            self.cache = None

    def release(self) -> None:
        """Give cache and sampler back."""
        self.release_cache()
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _notify(self) -> None:
        # One call into the loop at a time: while it has not run, what comes now is found by it too.
        if not self._woken:
            self._woken = True
            loop.threadsafe(self._wake)

    def _finish(self, reason: str, *, held: bool = True) -> None:
        text = self._stop.flush() if held else ""
        notes = [] if self._ledger is None else self._ledger.show(len(text)) + self._ledger.end(cut=not held)
        if text or notes:
            self._give(text, notes)
        self._outcome = Result(
            "".join(self._parts),
            reason,
            len(self.prompt),
            self._made,
            monotonic() - self._started,
            self._sampling.seed,
            None if self._ledger is None else self._notes,
            self._stop.found,
        )

    def _give(self, text: str, notes: list[Logprobs]) -> None:
        self._parts.append(text)
        self._notes += notes
        self._ready.append((text, notes, self._made))
