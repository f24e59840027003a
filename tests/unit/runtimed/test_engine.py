# SPDX-License-Identifier: Apache-2.0
"""The engine on a model whose next token is known: slots, chunks, fairness, cancellation, ends, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from syntrop.runtimed._kernels import ffi

from syntrop.common import loop
from syntrop.runtimed import tokenizer as tokenizers
from syntrop.runtimed.engine import Engine, Generation, GenerationError, Overloaded, Result
from syntrop.runtimed.model.errors import NoMemory
from syntrop.runtimed.model.kv import Budget
from syntrop.runtimed.sampler import Sampling
from syntrop.runtimed.tokenizer import CONTROL, NORMAL, Tokenizer
from syntrop.runtimed.tokenizer_bpe import BYTE_TO_CHAR

END = 256
VOCAB = 257


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


class FakeSequence:
    def __init__(self, model: FakeModel, max_tokens: int) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.tokens: list[int] = []
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def kv_bytes(self) -> int:
        return len(self.tokens)

    def adopt(self, tokens: list[int]) -> int:
        return 0

    def reserve(self, length: int) -> None:
        assert length <= self.max_tokens

    def close(self) -> None:
        self.closed = True


class FakePool:
    """Room for everything."""

    def __init__(self) -> None:
        self.budget = Budget()
        self.room = self.budget.limit

    def cost(self, tokens: int) -> int:
        return tokens

    def fits(self, tokens: int) -> bool:
        return True


class FakeModel:
    """After prompt and text so far, the likeliest token is `follow(tokens)`; steps wait for `gate`."""

    def __init__(self, follow: Callable[[list[int]], int], context: int = 1000) -> None:
        self.follow = follow
        self.context = context
        self.kv = FakePool()
        self.gate: threading.Semaphore | None = None
        self.steps: list[list[int]] = []  # tokens of each piece
        self.sequences: list[FakeSequence] = []
        self.refuse: Callable[[list[FakeSequence]], Exception | None] = lambda _sequences: None

    def sequence(self, max_tokens: int) -> FakeSequence:
        one = FakeSequence(self, max_tokens)
        self.sequences.append(one)
        return one

    def step(self, batch: Any) -> list[Any]:
        if self.gate is not None:
            assert self.gate.acquire(timeout=60)
        if (error := self.refuse([piece.sequence for piece in batch])) is not None:
            raise error
        self.steps.append([len(piece.tokens) for piece in batch])
        rows = []
        for sequence, tokens, logits in batch:
            assert not sequence.closed
            sequence.tokens += tokens
            assert len(sequence.tokens) <= sequence.max_tokens
            if not logits:
                rows.append(None)
                continue
            values = np.zeros(VOCAB, dtype=np.float32)
            values[self.follow(sequence.tokens)] = 5
            rows.append(ffi.from_buffer("float[]", values, require_writable=True))
        return rows


class Runnable:
    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.tokenizer = tokenizer()


def script(text: str | bytes) -> Callable[[list[int]], int]:
    """Says the text after the first 0 byte of what was read, then ends."""
    data = text.encode() if isinstance(text, str) else text

    def follow(tokens: list[int]) -> int:
        at = len(tokens) - 1 - tokens.index(0)
        return data[at] if at < len(data) else END

    return follow


PROMPT = [65, 66, 0]


async def read(generation: Generation) -> tuple[list[str], Result]:
    pieces = []
    while (text := await generation.next()) is not None:
        pieces.append(text)
    assert generation.result is not None
    return pieces, generation.result


def run(body: Callable[[Engine], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        engine = Engine(**options)
        try:
            with loop.deadline(20):
                await body(engine)
        finally:
            await engine.close()

    loop.run(main())


def generate(text: str | bytes, *, max_tokens: int = 100, stops: tuple[str, ...] = ()) -> tuple[list[str], Result]:
    outcome: list[tuple[list[str], Result]] = []

    async def body(engine: Engine) -> None:
        model = FakeModel(script(text))
        with engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=max_tokens, stops=stops) as generation:
            outcome.append(await read(generation))
        assert [one.closed for one in model.sequences] == [True]

    run(body)
    return outcome[0]


def test_text_until_the_end_token() -> None:
    pieces, result = generate("Hello, wörld 🦔")
    assert "".join(pieces) == result.text == "Hello, wörld 🦔"
    assert not any("\ufffd" in piece for piece in pieces)
    assert result.finish_reason == "stop"
    assert result.prompt_tokens == 3
    assert result.completion_tokens == len("Hello, wörld 🦔".encode()) + 1  # the end token was generated too
    assert result.seed > 0


def test_text_until_max_tokens() -> None:
    _, result = generate("abcdef", max_tokens=4)
    assert (result.text, result.finish_reason, result.completion_tokens) == ("abcd", "length", 4)


def test_a_character_cut_by_max_tokens_is_not_shown() -> None:
    _, result = generate("a🦔", max_tokens=3)
    assert (result.text, result.finish_reason) == ("a", "length")


def test_bytes_that_are_no_character_are_replaced() -> None:
    _, result = generate(b"a\xffb")
    assert result.text == "a\ufffdb"


def test_stop_strings_are_cut_off_and_never_shown() -> None:
    pieces, result = generate("one two END three", stops=("END",))
    assert "".join(pieces) == result.text == "one two "
    assert (result.finish_reason, result.stop_string) == ("stop", "END")
    pieces, result = generate("one EN", stops=("END",))
    assert "".join(pieces) == result.text == "one EN"  # held back until nothing followed
    assert result.stop_string is None


def test_text_until_the_context_is_full() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 100), context=10)
        with engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=1 << 31) as generation:
            _, result = await read(generation)
        assert (result.finish_reason, result.completion_tokens) == ("length", 7)
        for tokens in ([], [0] * 10):
            with pytest.raises(ValueError, match="prompt"):
                engine.submit(Runnable(model), tokens, Sampling(), max_tokens=1)

    run(body)


def test_a_long_prompt_stalls_the_others_one_chunk_at_most() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 60))
        runnable = Runnable(model)
        model.gate = threading.Semaphore(0)
        with engine.submit(runnable, PROMPT, Sampling(), max_tokens=60) as first:
            model.gate.release()
            await first.next()
            with engine.submit(runnable, [*[1] * 99, 0], Sampling(), max_tokens=5) as second:
                model.gate.release(1000)
                await read(first)
                await read(second)
        mixed = [step for step in model.steps if len(step) == 2 and step[1] > 1]
        # The prompt came in chunks, and beside each of them the first generation had its next token.
        assert mixed == [[1, 10]] * 10

    run(body, chunk=10)


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("xyz"))
        runnable = Runnable(model)
        model.gate = threading.Semaphore(0)
        with (
            engine.submit(runnable, [*[1] * 499, 0], Sampling(), max_tokens=2) as long,
            engine.submit(runnable, PROMPT, Sampling(), max_tokens=2) as short,
        ):
            model.gate.release(6)
            _, result = await read(short)
            assert result.text == "xy"
            assert long.result is None
            model.gate.release(1000)
            await read(long)
        assert all(sum(step) <= 10 + 4 for step in model.steps)

    run(body, chunk=10)


def test_generations_run_side_by_side_in_one_step() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("abcdefgh"))
        model.gate = threading.Semaphore(0)
        runnable = Runnable(model)
        many = [engine.submit(runnable, PROMPT, Sampling(), max_tokens=8) for _ in range(6)]
        model.gate.release(1000)
        assert {(await read(one))[1].text for one in many} == {"abcdefgh"}
        assert max(len(step) for step in model.steps) == 4

    run(body, max_slots=4)


def test_two_models_take_turns() -> None:
    async def body(engine: Engine) -> None:
        models = [FakeModel(script("aaaa")), FakeModel(script("bbbb"))]
        many = [engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=4) for model in models]
        assert [(await read(one))[1].text for one in many] == ["aaaa", "bbbb"]

    run(body)


def test_long_prompts_of_several_models_stall_a_stream_one_chunk_together() -> None:
    steps: list[tuple[int, list[int]]] = []  # of all models, in their order

    class Noted(FakeModel):
        def step(self, batch: Any) -> list[Any]:
            rows = super().step(batch)
            steps.append((models.index(self), self.steps[-1]))
            return rows

    models: list[FakeModel] = [Noted(script("x" * 200)) for _ in range(3)]

    async def body(engine: Engine) -> None:
        models[0].gate = threading.Semaphore(1)
        with engine.submit(Runnable(models[0]), PROMPT, Sampling(), max_tokens=200) as stream:
            await stream.next()
            long = [*[1] * 199, 0]
            others = [engine.submit(Runnable(model), long, Sampling(), max_tokens=1) for model in models[1:]]
            others.append(engine.submit(Runnable(models[0]), long, Sampling(), max_tokens=1))
            models[0].gate.release(1000)
            for one in (stream, *others):
                await read(one)

    run(body, chunk=10)
    between = 0
    read_by = [0, 0, 0]
    for model, step in steps[1:]:
        between += sum(step)
        if model == 0:  # the stream, whose token is the first of the step, and perhaps a piece of a prompt
            assert between <= 1 + 10
            between = 0
        read_by[model] += sum(step[model == 0 :])
        # No prompt waits for another.
        assert max(read_by) - min(read_by) <= 20 or max(read_by) >= 200
    assert read_by == [200, 200, 200]


def test_a_full_queue_refuses_with_numbers() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 50))
        model.gate = threading.Semaphore(0)
        runnable = Runnable(model)
        running = [engine.submit(runnable, PROMPT, Sampling(), max_tokens=50)]
        model.gate.release()
        await running[0].next()  # it has its slot
        running += [engine.submit(runnable, PROMPT, Sampling(), max_tokens=50) for _ in range(2)]
        assert (engine.active, engine.waiting) == (1, 2)
        with pytest.raises(Overloaded, match=r"1 of 1 slots .* 2 of 2 places"):
            engine.submit(runnable, PROMPT, Sampling(), max_tokens=50)
        running[1].cancel()
        running.append(engine.submit(runnable, PROMPT, Sampling(), max_tokens=50))
        model.gate.release(1000)
        for one in (running[0], running[2], running[3]):
            await read(one)
        assert len(model.sequences) == 3  # the cancelled one never took a slot

    run(body, max_slots=1, max_queue=2)


def test_cancellation_frees_a_running_one_within_one_step() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 500))
        model.gate = threading.Semaphore(0)
        generation = engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=500)
        model.gate.release(3)
        await generation.next()
        with generation:
            pass  # left before its end
        model.gate.release(1)  # the step that may have begun already
        with loop.deadline(60):
            while not model.sequences[0].closed:
                await loop.sleep(0.001)
        assert engine.active == 0
        assert len(model.steps) <= 4

    run(body)


def test_cancelling_one_leaves_the_others() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 300))
        runnable = Runnable(model)
        first, second = (engine.submit(runnable, PROMPT, Sampling(), max_tokens=300) for _ in range(2))
        await first.next()
        first.cancel()
        assert (await read(second))[1].completion_tokens == 300

    run(body)


def test_a_refused_step_fails_only_who_cannot_go_on() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("xyz"))
        runnable = Runnable(model)

        def refuse(sequences: list[FakeSequence]) -> Exception | None:
            return NoMemory("sequence", "no memory") if model.sequences[0] in sequences else None

        model.refuse = refuse
        first, second = (engine.submit(runnable, PROMPT, Sampling(), max_tokens=3) for _ in range(2))
        with pytest.raises(GenerationError, match="no memory"):
            await read(first)
        assert (await read(second))[1].text == "xyz"
        assert all(one.closed for one in model.sequences)

    run(body)


def test_a_fault_of_ours_fails_those_who_met_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def body(engine: Engine) -> None:
        bad, good = FakeModel(script("xyz")), FakeModel(script("x" * 300))
        bad.refuse = lambda _sequences: KeyError("bug")
        stream = engine.submit(Runnable(good), PROMPT, Sampling(), max_tokens=300)
        generation = engine.submit(Runnable(bad), PROMPT, Sampling(), max_tokens=3)
        with pytest.raises(GenerationError, match="the step failed"):
            await read(generation)
        assert (await read(stream))[1].completion_tokens == 300
        # One that cannot take its token leaves the others of its batch alone.
        good.gate = threading.Semaphore(0)
        first, second = (engine.submit(Runnable(good), PROMPT, Sampling(), max_tokens=9) for _ in range(2))
        first.advance = lambda _row: 1 // 0  # type: ignore[method-assign]
        good.gate.release(100)
        with pytest.raises(GenerationError, match="the generation failed"):
            await read(first)
        assert (await read(second))[1].text == "x" * 9
        assert all(one.closed for model in (bad, good) for one in model.sequences)

    run(body)
    log = capfd.readouterr().err
    assert "KeyError" in log and "ZeroDivisionError" in log


def test_a_fault_between_steps_fails_everything_and_lets_nothing_in(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("xyz"))
        monkeypatch.setattr(engine, "_turn", lambda running: running[99])
        generation = engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=3)
        with pytest.raises(GenerationError, match="the engine failed"):
            await read(generation)
        with pytest.raises(Overloaded):
            engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=3)

    run(body)
    assert "IndexError" in capfd.readouterr().err


def test_memory_that_ran_out_between_steps_fails_what_runs_and_no_more() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("xyz"))
        model.refuse = lambda _sequences: MemoryError()
        both = [engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=3) for _ in range(2)]
        for generation in both:
            with pytest.raises(GenerationError, match="memory ran out"):
                await read(generation)
        model.refuse = lambda _sequences: None
        _, result = await read(engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=3))
        assert result.text == "xyz"
        assert engine.active == 0

    run(body)


def test_closing_fails_what_runs() -> None:
    async def body(engine: Engine) -> None:
        model = FakeModel(script("x" * 900))
        model.gate = threading.Semaphore(2)
        generation = engine.submit(Runnable(model), PROMPT, Sampling(), max_tokens=900)
        await generation.next()
        closing = loop.spawn(engine.close())
        await loop.sleep(0)
        model.gate.release(2)
        await closing
        with pytest.raises(GenerationError, match="stopping"):
            while await generation.next() is not None:
                pass

    run(body)


def test_the_seed_decides_whatever_runs_beside() -> None:
    def even(_tokens: list[int]) -> int:
        return 97

    async def body(engine: Engine) -> None:
        runnable = Runnable(FakeModel(even))
        how = {"temperature": 1.7, "seed": 11}
        alone = (await read(engine.submit(runnable, PROMPT, Sampling(**how), max_tokens=40)))[1].text
        beside = [
            engine.submit(runnable, PROMPT, Sampling(temperature=1.7, seed=n), max_tokens=60) for n in (1, 2)
        ]
        again = (await read(engine.submit(runnable, PROMPT, Sampling(**how), max_tokens=40)))[1]
        others = [(await read(one))[1].text for one in beside]
        assert again.text == alone
        assert again.seed == 11
        assert all(other[:40] != alone for other in others)

    run(body)


def test_waiting_costs_no_time_of_the_processor() -> None:
    async def body(engine: Engine) -> None:
        before = time.process_time()
        await loop.sleep(0.3)
        assert time.process_time() - before < 0.1

    run(body)
