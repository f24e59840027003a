# SPDX-License-Identifier: Apache-2.0
"""Blocks, prefixes and the budget: driven at random against a plain model of what they must be.

The part of the kernels is played by the test: it writes into each position of a block what follows from the whole
text up to there, as they do, so that a block that is shared, copied or given away wrongly shows in its content.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from syntrop.common.gguf import parse
from syntrop.runtimed.model.errors import BadRequest
from syntrop.runtimed.model.kv import BLOCK, Budget, OverBudget, Pool, Sequence, blocks_of, ffi, lib
from syntrop.runtimed.model.llama import LlamaModel

_spec = importlib.util.spec_from_file_location("tinymodel_k", Path(__file__).with_name("tinymodel.py"))
assert _spec is not None and _spec.loader is not None
tinymodel: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tinymodel)

DATA = tinymodel.Tiny(layers=1, heads=1, heads_kv=1, head_dim=32, n_embd=32, n_ff=32, vocab=33).file()
LIMIT = 12  # blocks
IDLE_MAX = 7


def load(budget: Budget | None = None) -> LlamaModel:
    model = LlamaModel.load(parse(DATA), DATA, threads=1)
    if budget is not None:
        model.kv.join(budget)
    return model


class Adapter:
    """All that matters of one here is which it is."""


def write(sequence: Sequence, tokens: list[int]) -> None:
    """What a step does."""
    sequence.reserve(sequence.length + len(tokens))
    text = [*sequence._tokens, *tokens]
    for position in range(sequence.length, len(text)):
        cell(sequence, position)[0] = content(text[: position + 1], sequence.adapter)
    sequence.extend(tokens)


def content(text: list[int], adapter: object) -> int:
    return hash((adapter, *text)) & 0x7FFFFFFF


def cell(sequence: Sequence, position: int) -> Any:
    memory = lib.sy_block_memory(sequence.pool._handle, sequence.table[position // BLOCK])
    assert memory != ffi.NULL
    return ffi.cast("int32_t *", memory) + position % BLOCK


def check(sequence: Sequence, text: list[int]) -> None:
    assert sequence._tokens == text
    for position in range(len(text)):
        assert cell(sequence, position)[0] == content(text[: position + 1], sequence.adapter), position


class Machine(RuleBasedStateMachine):
    """Sequences of two models under one budget. What each must hold is known by its text."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget()
        self.models = [load(self.budget), load(self.budget)]
        self.size = self.models[0].kv.block_bytes
        self.budget.limit = LIMIT * self.size
        self.budget.idle_max = IDLE_MAX * self.size
        self.adapters: list[Any] = [None, Adapter()]
        self.roots = {0}  # serials of all adapters that there ever were
        for model in self.models:
            model.kv._hash = self.hash
        self.collides = False
        self.live: dict[int, tuple[Sequence, list[int]]] = {}  # sequence and its text

    def hash(self, value: tuple[Any, ...]) -> int:
        return 7 if self.collides else hash(value)

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.live)))

    def add(self, sequence: Sequence, text: list[int]) -> None:
        self.live[max(self.live, default=0) + 1] = (sequence, text)

    # Few texts, cut around the ends of blocks: prefixes repeat.
    tokens = st.tuples(
        st.sampled_from([(0,), (1,), (0, 1)]), st.sampled_from([1, 15, 16, 17, 31, 32, 33, 48])
    ).map(lambda drawn: (list(drawn[0]) * drawn[1])[: drawn[1]])

    @rule(which=st.sampled_from([0, 0, 1]), adapter=st.sampled_from([0, 0, 1]), tokens=tokens)
    def begin(self, which: int, adapter: int, tokens: list[int]) -> None:
        if len(self.live) >= 6:
            return
        sequence = self.models[which].sequence(200, self.adapters[adapter])
        known = sequence.adopt(tokens)
        assert 0 <= known < len(tokens)
        text = tokens[:known]
        check(sequence, text)
        self.add(sequence, text)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=tokens)
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence, text = self.live[self.pick(data)]
        if len(text) + len(tokens) > sequence.max_tokens:
            return
        held = self.budget.held
        try:
            write(sequence, tokens)
        except OverBudget:
            # It had been full indeed: a copy and what lies beyond what it has.
            need = blocks_of(len(text) + len(tokens)) - len(text) // BLOCK
            assert held + need * self.size > self.budget.limit
        else:
            text += tokens

    @precondition(lambda self: self.live)
    @rule(data=st.data(), less=st.sampled_from([0, 1, 8, 16, 17, 40]))
    def truncate(self, data: st.DataObject, less: int) -> None:
        sequence, text = self.live[self.pick(data)]
        del text[max(0, len(text) - less) :]
        sequence.truncate(len(text))

    @precondition(lambda self: 0 < len(self.live) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sequence, text = self.live[self.pick(data)]
        self.add(sequence.fork(), text.copy())

    @precondition(lambda self: self.live)
    @rule(data=st.data(), twice=st.booleans())
    def close(self, data: st.DataObject, twice: bool) -> None:
        sequence, _ = self.live.pop(self.pick(data))
        for _ in range(1 + twice):
            sequence.close()
        assert sequence.kv_bytes == 0

    @rule(
        event=st.sampled_from(["compact", "adapt", "collide", "weights", "reload"]),
        which=st.integers(0, 1),
        number=st.integers(0, 1),
    )
    def happens(self, event: str, which: int, number: int) -> None:
        """What is rarer, as one rule."""
        getattr(self, event)(which, number)

    def compact(self, which: int, number: int) -> None:
        idle = self.budget.idle
        assert self.budget.compact() == idle
        assert self.budget.idle == 0

    def adapt(self, which: int, number: int) -> None:
        self.adapters[1] = Adapter()  # it may get the old one's address: still another

    def collide(self, which: int, collide: int) -> None:
        self.collides = bool(collide)

    def weights(self, which: int, number: int) -> None:
        size = (1 + number * 4) * self.size
        before = self.budget.held
        try:
            self.budget.take_weights(size)
        except OverBudget:
            assert before + size > self.budget.limit
            return
        assert self.budget.held == before + size
        self.budget.give_weights(size)

    def reload(self, which: int, number: int) -> None:
        pool = self.models[which].kv
        self.models[which].close()
        self.close_all(pool)  # after the model: harmless
        assert pool.blocks == 0
        self.models[which] = load(self.budget)
        self.models[which].kv._hash = self.hash

    def close_all(self, pool: Pool) -> None:
        for number in [n for n, (sequence, _) in self.live.items() if sequence.pool is pool]:
            self.live.pop(number)[0].close()

    @invariant()
    def contents(self) -> None:
        for sequence, text in self.live.values():
            check(sequence, text)

    @invariant()
    def accounts(self) -> None:
        budget = self.budget
        held: dict[int, int] = {}  # users by block, as the sequences have it
        objects = {}
        for sequence, _ in self.live.values():
            for index, block in enumerate(sequence._blocks):
                assert sequence.table[index] == block.number
                held[id(block)] = held.get(id(block), 0) + 1
                objects[id(block)] = block
        for key, block in objects.items():
            assert block.users == held[key]
            assert block not in budget._idle
        numbers = [(id(block.pool), block.number) for block in [*objects.values(), *budget._idle]]
        assert len(set(numbers)) == len(numbers), "a block is two things at once"
        assert budget.idle == len(budget._idle) * self.size <= budget.idle_max
        assert budget.used == len(numbers) * self.size <= budget.limit
        assert sum(model.kv.blocks for model in self.models) == len(numbers)
        for model in self.models:
            pool = model.kv
            for key, block in pool._index.items():
                assert block.key == key and len(block.tokens) == BLOCK
                assert block.users or block in budget._idle
            self.roots.update(pool._roots.values())
            serials = {*self.roots, *(block.serial for block in pool._index.values())}
            assert serials.issuperset(block.parent for block in pool._index.values()), "out of reach"
            there = [n for p, n in numbers if p == id(pool)]
            for number in range(LIMIT + 4):
                memory = lib.sy_block_memory(pool._handle, number)
                assert (memory != ffi.NULL) == (number in there), "lost or freed twice"

    def teardown(self) -> None:
        for sequence, _ in self.live.values():
            sequence.close()
        assert self.budget.held == 0
        self.budget.compact()
        assert self.budget.used == 0
        for model in self.models:
            assert model.kv.blocks == 0
            model.close()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase


@pytest.fixture
def model() -> Iterator[LlamaModel]:
    model = load(Budget())
    yield model
    model.close()


def text(n: int, start: int = 0) -> list[int]:
    return [(start + i * i) % 33 for i in range(n)]


def test_a_repeated_prefix_is_adopted_and_counted_once(model: LlamaModel) -> None:
    budget, size = model.kv.budget, model.kv.block_bytes
    first = model.sequence(100)
    assert first.adopt(text(50)) == 0
    write(first, text(50))
    assert budget.used == budget.held == 4 * size
    second = model.sequence(100)
    assert second.adopt(text(50)) == 48  # while the first is still there
    assert budget.used == 4 * size
    write(second, text(50)[48:])
    assert budget.used == 5 * size
    for one in (first, second):
        one.close()
    assert (budget.held, budget.idle) == (0, 3 * size)
    third = model.sequence(100)
    assert third.adopt(text(50)) == 48
    assert model.sequence(100).adopt(text(50, start=1)) == 0
    third.close()


def test_only_the_last_token_of_a_whole_prompt_is_computed_again(model: LlamaModel) -> None:
    first = model.sequence(100)
    write(first, text(48))
    first.close()
    second = model.sequence(100)
    assert second.adopt(text(48)) == 47
    write(second, text(48)[47:])
    check(second, text(48))
    # It wrote into a copy, and shares the original again now that they are alike.
    assert model.kv.blocks == 3
    second.close()


def test_a_fork_shares_until_one_writes(model: LlamaModel) -> None:
    first = model.sequence(100)
    write(first, text(20))
    second = first.fork()
    assert model.kv.blocks == 2
    write(second, [1])
    write(first, [2])
    assert model.kv.blocks == 3
    check(first, [*text(20), 2])
    check(second, [*text(20), 1])
    for one in (first, second):
        one.close()


def test_a_known_block_is_not_written_into(model: LlamaModel) -> None:
    first = model.sequence(100)
    write(first, text(32))
    first.truncate(20)
    write(first, [1, 2, 3])
    check(first, [*text(20), 1, 2, 3])
    second = model.sequence(100)
    assert second.adopt(text(40)) == 32
    check(second, text(32))
    for one in (first, second):
        one.close()


def test_a_collision_of_hashes_costs_a_computation_and_no_answer(model: LlamaModel) -> None:
    model.kv._hash = lambda value: 7 if isinstance(value[0], int) and value[1] == (2,) * 16 else hash(value)
    for start in (0, 1):  # the second block has the same tokens and key, but not what came before it
        sequence = model.sequence(100)
        tokens = [start] * 16 + [2] * 16 + [3] * 16
        assert sequence.adopt(tokens) == 0
        write(sequence, tokens)
        check(sequence, tokens)
        sequence.close()
    model.kv._hash = hash_of_first_only
    for start in (4, 5):  # other tokens, same key
        sequence = model.sequence(100)
        assert sequence.adopt([start] * 17) == 0
        write(sequence, [start] * 17)
        check(sequence, [start] * 17)
        sequence.close()


def hash_of_first_only(value: tuple[Any, ...]) -> int:
    return hash(value[0])


def test_the_least_recently_used_leaves_first(model: LlamaModel) -> None:
    budget, size = model.kv.budget, model.kv.block_bytes
    for start in range(3):
        sequence = model.sequence(100)
        write(sequence, text(33, start))
        sequence.close()
    again = model.sequence(100)
    assert again.adopt(text(33, 0)) == 32
    again.close()
    assert budget.idle == 6 * size
    budget.limit = 6 * size
    fresh = model.sequence(100)
    write(fresh, text(30, start=5))  # two blocks leave: those of text 1
    known = []
    for start in range(3):
        sequence = model.sequence(100)
        known.append(sequence.adopt(text(33, start)))
        sequence.close()
    assert known == [32, 0, 32]
    fresh.close()


def test_nothing_is_kept_beyond_a_limit_that_fell_while_it_was_held(model: LlamaModel) -> None:
    budget, size = model.kv.budget, model.kv.block_bytes
    sequence = model.sequence(100)
    write(sequence, text(65))
    budget.allow(2 * size, 2 * size)
    assert budget.used == 5 * size, "who has it keeps it"
    sequence.close()
    assert budget.used == budget.idle == 2 * size
    again = model.sequence(100)
    assert again.adopt(text(65)) == 32, "the beginning is what is of most use"
    again.close()


def test_what_is_over_the_budget_is_refused_with_numbers(model: LlamaModel) -> None:
    budget, size = model.kv.budget, model.kv.block_bytes
    budget.limit = 3 * size
    sequence = model.sequence(100)
    with pytest.raises(OverBudget, match=rf"{size} bytes are wanted, 0 of the {3 * size} allowed are free"):
        write(sequence, text(49))
    assert sequence.length == 0
    write(sequence, text(48))
    budget.limit = 10 * size
    budget.take_weights(7 * size)
    assert model.kv.fits(48) and not model.kv.fits(49)
    with pytest.raises(OverBudget):
        budget.take_weights(1)
    budget.give_weights(7 * size)
    sequence.close()


def test_each_adapter_has_prefixes_of_its_own(model: LlamaModel) -> None:
    one, other = Adapter(), Adapter()
    for adapter in (None, one):
        sequence = model.sequence(100, adapter)  # type: ignore[arg-type]
        assert sequence.adopt(text(20)) == 0
        write(sequence, text(20))
        sequence.close()
    known = []
    for adapter in (None, one, other):
        sequence = model.sequence(100, adapter)  # type: ignore[arg-type]
        known.append(sequence.adopt(text(20)))
        check(sequence, text(20)[: known[-1]])
        sequence.close()
    assert known == [16, 16, 0]


def test_pools_and_sequences_refuse_misuse(model: LlamaModel) -> None:
    sequence = model.sequence(20)
    with pytest.raises(BadRequest):
        sequence.adopt([])
    write(sequence, [1])
    with pytest.raises(BadRequest):
        sequence.adopt([1, 2])
    with pytest.raises(BadRequest):
        model.kv.join(Budget())
    assert lib.sy_block_copy(model.kv._handle, 5, 0) != 0
    sequence.close()
    model.close()
    late = Sequence(model.kv, 20)
    with pytest.raises(BadRequest, match="closed"):
        late.reserve(1)
    assert isinstance(model.kv, Pool)
