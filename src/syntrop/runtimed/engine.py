# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: one thread that steps the models for all generations at once.

The loop submits a generation and reads its text; the thread does the rest. Each turn of the thread

1. drops what was cancelled, wherever it stood, and gives its cache back;
2. decides who runs (schedule.py);
3. makes one step for each model that has work: the next token of every generation that is past its prompt, and
   with them at most `chunk` prompt tokens, shared evenly among those that still read theirs, tier by tier. Where
   several models have prompts to read, they take turns.

So long prompts hold the others up by one chunk a token at most, and whoever hangs up is gone within one step.
Text goes to the loop as it comes; when the loop is slower, it finds several pieces joined.

Memory is taken block by block. Where the budget has none left, the generation with the least claim to its cache
(lowest tier, then the latest) gives it back, waits in its place in the queue, and reads its tokens again when
there is room. Only what does not fit alone fails; Batch work that lacks what inferenced lends to others waits.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from time import sleep
from typing import TYPE_CHECKING

from syntrop.common import journal, loop
from syntrop.runtimed.generation import Generation, GenerationError, OutOfMemory, Result, Tier
from syntrop.runtimed.model.errors import ModelError, OverBudget
from syntrop.runtimed.sampler import NoToken
from syntrop.runtimed.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Sequence as SequenceOf
    from typing import Any

    from syntrop.runtimed.generation import Model, Runnable
    from syntrop.runtimed.model.lora import Adapter
    from syntrop.runtimed.sampler import Sampling

__all__ = ["Engine", "Generation", "GenerationError", "OutOfMemory", "Overloaded", "Result", "Tier"]

LATER = 2.0  # seconds after which Batch work that lacks memory tries again


class Overloaded(Exception):
    """No slot is free and the queue is full, or the memory cannot hold it; the text has the numbers."""


class Engine:
    """Slots, the queues before them, and the thread. `close()` ends it; nothing may be submitted after that."""

    def __init__(self, *, max_slots: int = 4, max_queue: int = 64, chunk: int = 256) -> None:
        from threading import Condition

        self._chunk = chunk
        self._changed = Condition()
        self._schedule = Schedule(max_slots, max_queue)
        self._closing = False
        self._wanted_back = self._given_back = 0
        self._turns = 0
        self._ended = allocate_lock()
        self._ended.acquire()
        start_new_thread(any, (self._thread(),))

    # --- the loop's side ------------------------------------------------------------------------------------

    def submit(
        self,
        runnable: Runnable,
        tokens: SequenceOf[int],
        sampling: Sampling,
        *,
        max_tokens: int,
        stops: SequenceOf[str] = (),
        top_logprobs: int | None = None,
        tier: Tier = Tier.Interactive,
        adapter: Adapter | None = None,
    ) -> Generation:
        """Queue a generation after `tokens`, which leave room in the context. Raises Overloaded.

        With `top_logprobs`, each token's logprob and those of that many of the likeliest are told.
        """
        if not 0 < len(tokens) < runnable.model.context or max_tokens < 1:
            raise ValueError("a prompt needs at least one token, and room for one more")
        generation = Generation(self, runnable, tokens, sampling, max_tokens, stops, top_logprobs, tier, adapter)
        self.enqueue(generation)
        return generation

    def enqueue(self, generation: Generation) -> None:
        """Queue what was made for this engine. Raises Overloaded."""
        pool = generation.model.kv
        if not pool.fits(len(generation.prompt) + 1):
            raise Overloaded(
                f"{len(generation.prompt)} tokens of prompt do not fit into the {pool.room} bytes that are left "
                "for keys and values"
            )
        with self._changed:
            if self._closing:
                raise Overloaded("the engine is stopping")
            refusal = self._schedule.add(generation)
            if refusal:
                raise Overloaded(refusal)
            self._changed.notify()

    def changed(self) -> None:
        """A generation was cancelled."""
        with self._changed:
            self._schedule.cancelled = True
            self._changed.notify()

    def yield_batch(self, seconds: float, *, give_back: bool = False) -> None:
        """Pause Batch work within one step, for so long or until `resume_batch`.

        With `give_back`, its caches and what is kept of earlier work are given up.
        """
        with self._changed:
            self._schedule.yield_batch(seconds, give_back=give_back)
            self._wanted_back += give_back
            self._changed.notify()

    @property
    def gives_back(self) -> bool:
        """Whether caches that `yield_batch` asked back are still to be given up."""
        return self._wanted_back != self._given_back and not self._closing

    def resume_batch(self) -> None:
        with self._changed:
            self._schedule.yield_batch(0)
            self._changed.notify()

    @property
    def active(self) -> int:
        """Generations that have a slot."""
        return len(self._schedule.running)

    @property
    def waiting(self) -> int:
        """Generations in the queues, and paused ones."""
        with self._changed:
            return self._schedule.waiting

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values that generations hold."""
        with self._changed:
            return sum(one.cache.kv_bytes for one in self._schedule.holders() if one.cache is not None)

    async def close(self) -> None:
        """Fail what runs, and wait for the step that is in progress."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await loop.thread(self._join)

    def _join(self) -> None:
        with self._ended:
            pass

    # --- the thread's side ----------------------------------------------------------------------------------

    def _thread(self) -> Generator[None]:
        """The thread's body: a generator has its frame where there is no memory for one (common/loop.py).

        Where memory runs out between steps, what was submitted fails, and the engine goes on when there is some.
        """
        try:
            while True:
                try:
                    self._run()
                    break
                except MemoryError:
                    sleep(0.05)
                    try:
                        self._fail("memory ran out: the system gives no more")
                    except MemoryError:
                        pass
        finally:
            self._ended.release()
        yield

    def _run(self) -> None:
        try:
            while (running := self._next()) is not None:
                self._turn(running)
        except MemoryError:
            raise
        except BaseException as error:
            # A fault of ours: the callers must not wait for ever, and nothing more is let in.
            journal.exception("The engine failed", error)
            self._end("the engine failed; the log has the detail")
        else:
            self._end("the engine is stopping")

    def _end(self, reason: str) -> None:
        with self._changed:
            self._closing = True
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        with self._changed:
            left = self._schedule.clear()
        while left:
            try:
                left[-1].release()
                left[-1].fail(GenerationError(reason))
                left.pop()
            except MemoryError:
                sleep(0.05)

    def _next(self) -> list[Generation] | None:
        """Wait for work: who runs now, first come first; None when the engine is to end."""
        while True:
            with self._changed:
                dropped = self._schedule.drop_cancelled()
                wanted_back = self._wanted_back
                taken = self._schedule.turn()
                if not dropped and not taken:
                    self._given_back = wanted_back
                if not dropped and not taken and not self._schedule.running and not self._closing:
                    self._changed.wait(self._schedule.patience())
                    continue
                closing = self._closing
            for one in dropped:
                one.release()
            for one in taken:
                one.release_cache()
                one.model.kv.budget.compact()
            self._given_back = wanted_back
            if closing:
                return None
            if self._schedule.running:
                return sorted(self._schedule.running, key=lambda one: one.rank)

    def _turn(self, running: list[Generation]) -> None:
        """A step of each model. One of them reads prompts, and goes first: so no stream waits for more than that
        between two of its tokens."""
        models = list({id(one.model): one.model for one in running}.values())
        readers = [one for one in running if one.unread > 1]
        most = max((one.tier for one in readers), default=None)
        reading = [model for model in models if any(one.model is model and one.tier == most for one in readers)]
        self._turns += 1
        reader = reading[self._turns % len(reading)] if reading else None
        for model in sorted(models, key=lambda one: one is not reader):
            generations = [one for one in running if one.model is model]
            try:
                self._step(model, generations, self._chunk if model is reader else 0)
            except MemoryError:
                raise
            except Exception as error:
                # A fault of ours: those who met it must not wait for ever, and the others go on.
                journal.exception("A step failed", error)
                for one in generations:
                    self._drop(one, GenerationError("the step failed; the log has the detail"))

    def _step(self, model: Model, generations: list[Generation], room: int) -> None:
        """One step of a model over its generations, the first in rank first, with `room` tokens of prompts."""
        for one in generations:
            if one.cache is None and one in self._schedule.running:
                try:
                    one.start()
                except (ModelError, MemoryError) as error:
                    self._drop(one, GenerationError(f"no memory for another generation: {error}"))
        batch = self._batch(model, [one for one in generations if one.cache is not None], room)
        if not batch:
            return
        try:
            rows = model.step([piece for _, piece in batch])
        except ModelError as error:
            self._step_apart(model, batch, error)
            return
        for (one, _), row in zip(batch, rows, strict=True):
            self._digest(one, row)

    def _step_apart(self, model: Model, batch: list[tuple[Generation, Any]], error: ModelError) -> None:
        """A step was refused as a whole: find out who cannot go on, and let the others."""
        if len(batch) == 1:
            self._drop(batch[0][0], GenerationError(str(error)))
            return
        for one, piece in batch:
            try:
                rows = model.step([piece])
            except ModelError as fault:
                self._drop(one, GenerationError(str(fault)))
            else:
                self._digest(one, rows[0])

    def _batch(self, model: Model, generations: list[Generation], room: int) -> list[tuple[Generation, Any]]:
        from syntrop.runtimed.model.llama import MAX_BATCH, MAX_LOGITS, Piece

        # A model makes room for no more tokens a step than its context has.
        most = min(MAX_BATCH, model.context)
        takes = self._takes(generations, most, room)
        batch: list[tuple[Generation, Any]] = []
        rows = 0
        for one in generations:
            take = min(takes.get(id(one), 0), most)
            if not take or one.cache is None:  # its cache went to one before it
                continue
            start = one.cache.length
            wanted = one.wants(start, take)
            if rows + wanted > MAX_LOGITS or not self._reserve(one, take):
                continue
            batch.append((one, Piece(one.cache, one.tokens[start : start + take], wanted)))
            rows += wanted
            most -= take
        return batch

    def _takes(self, generations: list[Generation], most: int, room: int) -> dict[int, int]:
        """Tokens that each reads in the next step, `room` of them of prompts."""
        takes = {id(one): 1 for one in generations if one.unread == 1}
        room = min(room, most - len(takes))
        for tier in sorted(Tier, reverse=True):
            # The shortest first: what it does not need of its even share goes to the others.
            reading = sorted(
                (one for one in generations if one.tier == tier and one.unread > 1), key=lambda one: one.unread
            )
            for index, one in enumerate(reading):
                take = min(one.unread, max(1, room // (len(reading) - index)))
                if take > room:
                    break
                room -= take
                takes[id(one)] = take
        return takes

    def _reserve(self, one: Generation, count: int) -> bool:
        """Memory for so many tokens more, taken from those with less of a claim. False: not now, or never."""
        while one.cache is not None:
            try:
                one.cache.reserve(one.cache.length + count)
                return True
            except OverBudget as error:
                others = [other for other in self._schedule.holders() if other is not one]
                if not others:
                    if one.tier == Tier.Batch and one.model.kv.budget.is_short:
                        with self._changed:
                            self._schedule.requeue(one)
                            self._schedule.yield_batch(LATER)
                        one.release_cache()
                    else:
                        self._drop(one, OutOfMemory(str(error)))
                    break
                last = max([one, *others], key=lambda other: other.rank)
                with self._changed:
                    self._schedule.requeue(last)
                last.release_cache()
            except ModelError as error:
                self._drop(one, GenerationError(str(error)))
        return False

    def _digest(self, one: Generation, row: Any) -> None:
        if row is None:
            return
        try:
            if one.advance(row):
                return
        except (NoToken, MemoryError) as error:
            self._drop(one, GenerationError(str(error) or "out of memory"))
            return
        except Exception as error:
            # A fault of ours with this one: the others of its step go on.
            journal.exception("A generation failed", error)
            self._drop(one, GenerationError("the generation failed; the log has the detail"))
            return
        self._leave(one)
        one.conclude()

    def _drop(self, one: Generation, error: GenerationError) -> None:
        self._leave(one)
        one.fail(error)

    def _leave(self, one: Generation) -> None:
        with self._changed:
            self._schedule.remove(one)
        one.release()
