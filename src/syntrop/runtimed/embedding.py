# SPDX-License-Identifier: Apache-2.0
"""Embedding for many callers at once: their texts are packed into batches, each caller taking its turn.

A batch is a few hundred tokens, so that nothing else waits long for the processor, and a caller with many texts
does not hold up one with few. The model computes in a worker thread, one batch at a time.
"""

from __future__ import annotations

from collections import deque

from syntrop.common import loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from syntrop.runtimed.model.lora import Adapter

    class Model(Protocol):
        """What embeds; `model.encoder.EncoderModel` is one. Lengths are in tokens."""

        batch_tokens: int
        pooling: str

        def embed(
            self,
            texts: Sequence[Sequence[int]],
            pooling: str | None,
            adapter: Any,
            wanted: Callable[[], bool] | None,
        ) -> list[list[float]]: ...


class Crowded(Exception):
    """Too many callers wait; the text has the numbers."""


class _Job:
    """One caller's texts; `taken` of them are in a batch or done."""

    __slots__ = ("done", "error", "how", "left", "model", "taken", "texts", "vectors", "wanted")

    def __init__(self, model: Model, texts: Sequence[Sequence[int]], how: tuple[str, Adapter | None]) -> None:
        self.model = model
        self.texts = texts
        self.how = how
        self.vectors: list[list[float]] = [[] for _ in texts]
        self.taken = 0
        self.left = len(texts)
        self.wanted = True
        self.error: Exception | None = None
        self.done = loop.Event()


class Embedder:
    """`max_jobs` bounds the callers that wait."""

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._jobs: deque[_Job] = deque()
        self._runner: loop.Task[None] | None = None

    async def embed(
        self,
        model: Model,
        texts: Sequence[Sequence[int]],
        pooling: str | None = None,
        adapter: Adapter | None = None,
    ) -> list[list[float]]:
        """The vector of each text (its tokens; none longer than the model's context). Raises Crowded, and what the
        model raises. When this is cancelled, what has not begun is left, of a long text too. Only decoders take an
        adapter."""
        if len(self._jobs) > self._max_jobs:
            raise Crowded(f"{len(self._jobs)} callers have texts to embed, {self._max_jobs} may wait")
        job = _Job(model, texts, (pooling or model.pooling, adapter))
        self._jobs.append(job)
        if self._runner is None:
            self._runner = loop.spawn(self._run(), "embed")
        try:
            await job.done.wait()
        finally:
            job.wanted = False
            if job in self._jobs:
                self._jobs.remove(job)
        if job.error is not None:
            raise job.error
        return job.vectors

    async def _run(self) -> None:
        try:
            while self._jobs:
                await self._step()
        finally:
            self._runner = None

    async def _step(self) -> None:
        batch = self._batch()
        first = batch[0][0]
        texts = [job.texts[index] for job, index in batch]
        jobs = list({id(job): job for job, _ in batch}.values())

        def wanted() -> bool:
            return any(job.wanted for job in jobs)

        try:
            rows = await loop.thread(first.model.embed, texts, *first.how, wanted)
        except Exception as error:  # the callers of this batch get it, each in its own call
            for job in jobs:
                job.error = error
                self._end(job)
            return
        for (job, index), row in zip(batch, rows, strict=True):
            job.vectors[index] = row
            job.left -= 1
            if not job.left:
                self._end(job)

    def _batch(self) -> list[tuple[_Job, int]]:
        """Texts for one model, the first caller's first, as many as there is room for: one at least."""
        first = self._jobs[0]
        room = first.model.batch_tokens
        batch: list[tuple[_Job, int]] = []
        for job in list(self._jobs):
            if job.model is not first.model or job.how != first.how:
                continue
            while job.taken < len(job.texts) and (not batch or len(job.texts[job.taken]) <= room):
                room -= len(job.texts[job.taken])
                batch.append((job, job.taken))
                job.taken += 1
        # Who has more comes after the others.
        self._jobs.rotate(-1)
        self._jobs = deque(job for job in self._jobs if job.taken < len(job.texts))
        return batch

    def _end(self, job: _Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
        job.done.set()
