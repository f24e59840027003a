# SPDX-License-Identifier: Apache-2.0
"""The engine on a real, tiny model: what is shared, what is taken away and computed again, and that the text is
the same all the while; tiers; crowds; and that everything comes back."""

from __future__ import annotations

import importlib.util
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.common.gguf import parse
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed.engine import Engine, Generation, OutOfMemory, Overloaded, Tier
from syntrop.runtimed.model.kv import Budget
from syntrop.runtimed.model.llama import LlamaModel
from syntrop.runtimed.sampler import Sampling
from syntrop.runtimed.tokenizer import CONTROL, NORMAL, Tokenizer
from syntrop.runtimed.tokenizer_bpe import BYTE_TO_CHAR

_spec = importlib.util.spec_from_file_location("tinymodel_e", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

END = 256
DATA = tinymodel.Tiny(layers=1, heads=2, heads_kv=1, n_embd=32, n_ff=32, vocab=257, context=2048).file()
SYSTEM = [(i * 31) % 200 + 40 for i in range(100)]


def tokenizer() -> Tokenizer:
    return tokenizers.load(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*BYTE_TO_CHAR, "<end>"],
            "tokenizer.ggml.token_type": [NORMAL] * 256 + [CONTROL],
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": END,
        }
    )


class Watched:
    """A model that notes the tokens of each step, and steps only when `gate` lets it."""

    def __init__(self, budget: Budget) -> None:
        self.model = LlamaModel.load(parse(DATA), DATA, threads=1)
        self.model.kv.join(budget)
        self.kv, self.context, self.sequence = self.model.kv, self.model.context, self.model.sequence
        self.steps: list[list[int]] = []  # tokens of each piece
        self.read: list[list[int]] = []  # the pieces themselves
        self.gate: threading.Semaphore | None = None
        self.arrived = 0  # steps that have come to the gate

    def step(self, batch: Any) -> list[Any]:
        self.arrived += 1
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        rows = self.model.step(batch)
        self.steps.append([len(piece.tokens) for piece in batch])
        self.read += (piece.tokens for piece in batch)
        return rows

    @property
    def computed(self) -> int:
        """Tokens, since it was looked at last."""
        total = sum(map(sum, self.steps))
        self.steps.clear()
        return total


class Runnable:
    def __init__(self, budget: Budget) -> None:
        self.model = Watched(budget)
        self.tokenizer = tokenizer()


@pytest.fixture
def runnable() -> Iterator[Runnable]:
    budget = Budget()
    runnable = Runnable(budget)
    yield runnable
    assert budget.held == 0, "a generation kept blocks"
    runnable.model.model.close()
    assert budget.used == 0


def run(body: Callable[[Engine], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        engine = Engine(**options)
        try:
            with loop.deadline(60):
                await body(engine)
        finally:
            await engine.close()

    loop.run(main())


async def read(generation: Generation) -> str:
    while await generation.next() is not None:
        pass
    assert generation.result is not None
    return generation.result.text


def submit(
    engine: Engine, runnable: Runnable, prompt: list[int], seed: int = 1, n: int = 60, **how: Any
) -> Generation:
    sampling = Sampling(temperature=1.0, seed=seed)
    return engine.submit(runnable, prompt, sampling, max_tokens=n, **how)  # type: ignore[arg-type]


async def begin(runnable: Runnable, steps: int) -> None:
    """Let so many steps be made, until the one after them stands at the gate."""
    model = runnable.model
    assert model.gate is not None
    while not model.arrived:
        await loop.sleep(0.001)
    count = model.arrived + steps
    model.gate.release(steps)
    while model.arrived < count:
        await loop.sleep(0.001)


def submit_all(engine: Engine, runnable: Runnable, prompts: list[list[int]], tier: Tier, n: int = 60) -> list[Any]:
    return [submit(engine, runnable, prompt, seed, n, tier=tier) for seed, prompt in enumerate(prompts, 1)]


def texts_of(runnable: Runnable, prompts: list[list[int]], n: int = 60) -> list[str]:
    """What each says when it is alone, without any memory of the others."""
    texts: list[str] = []

    async def body(engine: Engine) -> None:
        for seed, prompt in enumerate(prompts, 1):
            texts.append(await read(submit(engine, runnable, prompt, seed, n)))
            runnable.model.kv.budget.compact()

    run(body)
    assert len(set(texts)) == len(texts)
    runnable.model.steps.clear()
    runnable.model.arrived = 0
    return texts


def prompts_of(count: int) -> list[list[int]]:
    return [[*SYSTEM[: 10 * i], *range(i + 1)] for i in range(count)]


def test_a_seed_gives_the_same_text_alone_and_among_seven_others(runnable: Runnable) -> None:
    prompts = prompts_of(8)
    alone = texts_of(runnable, prompts)
    runnable.model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        together = submit_all(engine, runnable, prompts, Tier.Interactive)
        gate.release(1000)
        assert [await read(one) for one in together] == alone
        assert max(map(len, runnable.model.steps)) == 8

    run(body, max_slots=8, chunk=32)


def test_a_repeated_system_prompt_costs_nothing(runnable: Runnable) -> None:
    async def body(engine: Engine) -> None:
        first = await read(submit(engine, runnable, [*SYSTEM, 1, 2], n=1))
        assert runnable.model.computed == 102
        assert await read(submit(engine, runnable, [*SYSTEM, 1, 2], n=1)) == first
        assert runnable.model.computed == 102 - 96  # the block that is not full
        await read(submit(engine, runnable, SYSTEM[:96], n=1))
        assert runnable.model.computed == 1  # the last token
        await read(submit(engine, runnable, [0, *SYSTEM], n=1))
        assert runnable.model.computed == 101

    run(body)


def test_memory_is_taken_from_the_latest_and_nobody_notices(runnable: Runnable) -> None:
    prompts = prompts_of(5)
    alone = texts_of(runnable, prompts, 100)
    budget, kv = runnable.model.kv.budget, runnable.model.kv
    budget.limit = 20 * kv.block_bytes  # together they would take 40
    runnable.model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        together = submit_all(engine, runnable, prompts, Tier.Interactive, 100)
        gate.release(10_000)
        assert [await read(one) for one in together] == alone
        assert budget.used <= budget.limit
        assert runnable.model.computed > sum(map(len, prompts)) + 5 * 99 - 5, "nothing was computed again"

    run(body, max_slots=5)


def test_what_cannot_fit_is_refused_with_numbers(runnable: Runnable) -> None:
    kv, budget = runnable.model.kv, runnable.model.kv.budget
    budget.limit = 4 * kv.block_bytes

    async def body(engine: Engine) -> None:
        with pytest.raises(Overloaded, match=rf"64 tokens of .* fit into the {4 * kv.block_bytes} bytes"):
            submit(engine, runnable, SYSTEM[:64])
        fits = submit(engine, runnable, SYSTEM[:63], n=2)
        await read(fits)
        grows = submit(engine, runnable, SYSTEM[:40], n=60)
        with pytest.raises(OutOfMemory, match=rf"0 of the {4 * kv.block_bytes} allowed are free"):
            await read(grows)
        assert len(await read(submit(engine, runnable, [1, 2], n=5))) > 0

    run(body)


def test_triage_stops_batch_work_at_once_and_it_goes_on_where_it_was(runnable: Runnable) -> None:
    prompts = prompts_of(4)
    alone = texts_of(runnable, prompts)

    model = runnable.model
    model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        batch = submit_all(engine, runnable, prompts[:3], Tier.Batch)
        await begin(runnable, 5)
        urgent = submit(engine, runnable, prompts[3], 4, tier=Tier.EmergencyTriage)
        await begin(runnable, 11)
        assert [len(step) for step in model.steps][1:] == [3] * 5 + [1] * 10  # one step was on its way
        assert all(one.cache is not None and one.cache.length for one in batch)
        gate.release(1000)
        assert await read(urgent) == alone[3]
        assert [await read(one) for one in batch] == alone[:3]

    run(body, max_slots=3)
    # Nothing was computed twice.
    assert model.computed <= 4 * 60 + sum(map(len, prompts))


def test_interactive_work_goes_before_batch_work_that_waits(runnable: Runnable) -> None:
    runnable.model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        running = submit(engine, runnable, [1, 2], n=20, tier=Tier.Batch)
        await begin(runnable, 3)
        batch = submit(engine, runnable, [3, 4], n=20, tier=Tier.Batch)
        interactive = submit(engine, runnable, [5, 6], n=20)
        gate.release(1000)
        for one in (running, batch, interactive):
            await read(one)
        prompts = [tokens for tokens in runnable.model.read if len(tokens) > 1]
        assert prompts == [[1, 2], [5, 6], [3, 4]]
        assert {len(step) for step in runnable.model.steps} == {1}, "somebody lost a slot, or got two"

    run(body, max_slots=1)


def test_each_tier_has_a_queue_of_its_own(runnable: Runnable) -> None:
    runnable.model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        running = submit(engine, runnable, [1, 2], n=20, tier=Tier.Batch)
        await begin(runnable, 3)
        queued = submit(engine, runnable, [1, 2], n=5, tier=Tier.Batch)
        with pytest.raises(Overloaded, match="1 of 1 slots generate and 1 of 1 places"):
            submit(engine, runnable, [1, 2], tier=Tier.Batch)
        ahead = submit(engine, runnable, [1, 2], n=5)
        urgent = submit(engine, runnable, [1, 2], n=5, tier=Tier.EmergencyTriage)
        gate.release(1000)
        for one in (urgent, running, ahead, queued):
            await read(one)

    run(body, max_slots=1, max_queue=1)


@pytest.mark.parametrize("give_back", [False, True])
def test_batch_work_yields_to_the_host_and_says_the_same(runnable: Runnable, give_back: bool) -> None:
    prompts = prompts_of(3)
    alone = texts_of(runnable, prompts)
    budget, model = runnable.model.kv.budget, runnable.model
    model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        batch = submit_all(engine, runnable, prompts, Tier.Batch)
        await begin(runnable, 5)
        engine.yield_batch(600, give_back=give_back)
        gate.release(1)  # the one that is on its way
        while engine.active or (give_back and budget.used):
            await loop.sleep(0.001)
        assert engine.waiting == 3
        assert bool(budget.held) == (not give_back)
        model.steps.clear()
        gate.release(1000)
        await read(submit(engine, runnable, [1, 2, 3], n=5))  # others go on
        assert {len(step) for step in model.steps} == {1}
        assert all(one.result is None for one in batch)
        engine.resume_batch()
        assert [await read(one) for one in batch] == alone

    run(body)


def test_yielding_ends_by_itself(runnable: Runnable) -> None:
    async def body(engine: Engine) -> None:
        engine.yield_batch(0.05)
        await read(submit(engine, runnable, [1, 2], n=5, tier=Tier.Batch))

    run(body)


def test_who_leaves_while_paused_or_queued_leaves_nothing(runnable: Runnable) -> None:
    budget = runnable.model.kv.budget

    runnable.model.gate = gate = threading.Semaphore(0)

    async def body(engine: Engine) -> None:
        batch = submit_all(engine, runnable, prompts_of(4), Tier.Batch)
        await begin(runnable, 3)
        engine.yield_batch(600)
        gate.release(1)
        while engine.active:
            await loop.sleep(0.001)
        assert engine.waiting == 4 and budget.held
        for one in batch:
            one.cancel()
        while engine.waiting or budget.held:
            await loop.sleep(0.001)

    run(body, max_slots=2)


def test_sixty_four_streams_with_random_hang_ups(runnable: Runnable) -> None:
    chance = random.Random(5)
    budget, kv = runnable.model.kv.budget, runnable.model.kv
    budget.limit = 150 * kv.block_bytes  # they would take 64 × 8
    descriptors = len(os.listdir("/proc/self/fd"))
    ended = []

    async def caller(engine: Engine, seed: int) -> None:
        tier = chance.choice(list(Tier))
        prompt = [*SYSTEM[: chance.randrange(100)], seed]
        with submit(engine, runnable, prompt, seed, chance.randrange(1, 60), tier=tier) as generation:
            pieces = chance.randrange(30)
            while (text := await generation.next()) is not None:
                pieces -= bool(text)
                if not pieces:
                    return
            ended.append(generation)

    async def body(engine: Engine) -> None:
        tasks = [loop.spawn(caller(engine, seed)) for seed in range(64)]
        for task in tasks:
            await task
        while engine.active or engine.waiting:
            await loop.sleep(0.001)
        assert ended

    run(body, max_slots=24)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert budget.held == 0


def test_ten_thousand_tiny_requests(runnable: Runnable) -> None:
    budget = runnable.model.kv.budget
    budget.idle_max = 50 * runnable.model.kv.block_bytes

    async def body(engine: Engine) -> None:
        left = iter(range(10_000))

        async def caller() -> None:
            for number in left:
                prompt = [number % 251, number // 251]
                try:
                    await read(submit(engine, runnable, prompt, n=1))
                except Overloaded:
                    await loop.sleep(0.001)  # more callers than places

        tasks = [loop.spawn(caller()) for _ in range(96)]
        for task in tasks:
            await task

    run(body, max_slots=64, max_queue=16)
    assert budget.used == budget.idle <= budget.idle_max
