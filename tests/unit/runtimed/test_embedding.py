# SPDX-License-Identifier: Apache-2.0
"""Many callers, one model: batches, turns, errors and hang-ups. The model is made up and waits for a gate."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.runtimed.embedding import Crowded, Embedder


class FakeModel:
    """A text's vector is its length and the number of the pooling."""

    batch_tokens = 10
    pooling = "mean"

    def __init__(self) -> None:
        self.batches: list[list[int]] = []  # lengths of the texts
        self.wanted: list[bool] = []
        self.gate: threading.Semaphore | None = None
        self.error: Exception | None = None

    def embed(
        self, texts: Sequence[Sequence[int]], pooling: str | None, adapter: Any, wanted: Any
    ) -> list[list[float]]:
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        self.batches.append([len(text) for text in texts])
        self.wanted.append(wanted())
        if self.error is not None:
            raise self.error
        return [[float(len(text)), float(len(pooling or ""))] for text in texts]


def run(body: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        with loop.deadline(20):
            await body

    loop.run(main())


def texts(*lengths: int) -> list[list[int]]:
    return [[0] * length for length in lengths]


async def until(condition: Any) -> None:
    while not condition():
        await loop.sleep(0.001)


def test_texts_are_packed_and_come_back_in_order() -> None:
    model = FakeModel()

    async def body() -> None:
        vectors = await Embedder(4).embed(model, texts(4, 3, 3, 10, 1, 2))
        assert [vector[0] for vector in vectors] == [4, 3, 3, 10, 1, 2]

    run(body())
    assert model.batches == [[4, 3, 3], [10], [1, 2]]


def test_callers_share_batches_and_take_turns() -> None:
    model = FakeModel()
    model.gate = threading.Semaphore(0)
    embedder = Embedder(8)
    ends: list[str] = []

    async def call(name: str, *lengths: int, pooling: str | None = None) -> None:
        vectors = await embedder.embed(model, texts(*lengths), pooling)
        assert [vector[0] for vector in vectors] == list(lengths)
        assert all(vector[1] == len(pooling or "mean") for vector in vectors)
        ends.append(name)

    async def body() -> None:
        many = loop.spawn(call("many", *[5] * 8))
        await until(lambda: embedder._runner is not None)
        await loop.sleep(0)
        few = loop.spawn(call("few", 2))
        other = loop.spawn(call("other", 3, pooling="last"))
        await until(lambda: len(embedder._jobs) == 3)
        assert model.gate is not None
        for _ in range(9):
            model.gate.release()
        for task in (many, few, other):
            await task

    run(body())
    assert ends[-1] == "many", "who has little does not wait for who has much"
    assert sorted(length for batch in model.batches for length in batch) == sorted([5] * 8 + [2, 3])
    assert [3] in model.batches, "another pooling is another batch"


def test_an_error_of_the_model_reaches_those_of_the_batch_only() -> None:
    model, sound = FakeModel(), FakeModel()
    model.error = ValueError("no")
    embedder = Embedder(4)

    async def body() -> None:
        first = loop.spawn(embedder.embed(model, texts(1, 10)))
        second = loop.spawn(embedder.embed(sound, texts(1)))
        assert await second == [[1.0, 4.0]]
        with pytest.raises(ValueError, match="no"):
            await first
        assert not embedder._jobs
        assert await embedder.embed(sound, texts(2)) == [[2.0, 4.0]]

    run(body())
    assert model.batches == [[1]]


def test_who_hangs_up_costs_no_more_than_the_batch_that_runs() -> None:
    model = FakeModel()
    model.gate = threading.Semaphore(0)
    embedder = Embedder(4)

    async def body() -> None:
        task = loop.spawn(embedder.embed(model, texts(*[10] * 50)))
        await until(lambda: embedder._jobs and embedder._jobs[0].taken == 1)
        await loop.stop(task)
        assert not embedder._jobs
        assert model.gate is not None
        model.gate.release()
        await until(lambda: embedder._runner is None)
        model.gate.release()
        assert await embedder.embed(model, texts(1)) == [[1.0, 4.0]]

    run(body())
    assert model.batches == [[10], [1]]
    assert model.wanted == [False, True]


def test_a_text_longer_than_a_batch_is_one_alone() -> None:
    model = FakeModel()

    async def body() -> None:
        vectors = await Embedder(4).embed(model, texts(4, 30, 11, 1, 2))
        assert [vector[0] for vector in vectors] == [4, 30, 11, 1, 2]

    run(body())
    assert model.batches == [[4], [30], [11], [1, 2]]


def test_too_many_callers_are_refused_with_numbers() -> None:
    model = FakeModel()
    model.gate = threading.Semaphore(0)
    embedder = Embedder(2)

    async def body() -> None:
        # The first leaves the queue for its batch; then two may wait and one more is one too many.
        tasks = [loop.spawn(embedder.embed(model, texts(10, 10))) for _ in range(3)]
        await until(lambda: len(embedder._jobs) == 3)
        with pytest.raises(Crowded, match=r"3 callers .* 2 may wait"):
            await embedder.embed(model, texts(1))
        assert model.gate is not None
        for _ in range(6):
            model.gate.release()
        for task in tasks:
            await task

    run(body())
