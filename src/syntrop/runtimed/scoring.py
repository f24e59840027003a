# SPDX-License-Identifier: Apache-2.0
"""A decision as the engine runs it: a generation whose tokens are given, and which looks at how likely they were.

The prompt is read once, as any prompt is, beside what else runs. Then each step reads the tokens up to the next
fork, where texts part; for another branch the cache is cut back to it. A text of one token costs no step at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from syntrop.runtimed.decide import Scores
from syntrop.runtimed.generation import Generation, Tier
from syntrop.runtimed.sampler import Sampling, logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.runtimed.engine import Engine
    from syntrop.runtimed.generation import Runnable
    from syntrop.runtimed.model.lora import Adapter


class Scoring(Generation):
    """`totals` has the logarithm of each path's probability after the shared tokens, once `next` gave None."""

    def __init__(
        self,
        engine: Engine,
        runnable: Runnable,
        shared: Sequence[int],
        paths: Sequence[Sequence[int]],
        adapter: Adapter | None = None,
        tier: Tier = Tier.Interactive,
    ) -> None:
        """Shared tokens and the longest path fit into the context together."""
        how = Sampling(seed=1)
        super().__init__(engine, runnable, shared, how, max(map(len, paths)), (), tier=tier, adapter=adapter)
        self._scores = Scores(paths)

    @property
    def totals(self) -> list[float]:
        return self._scores.totals

    def start(self) -> None:
        self.open_cache()

    def wants(self, start: int, count: int) -> int:
        return min(count, max(0, start + count - (len(self.tokens) - self._scores.due)))

    def advance(self, logits: Any) -> bool:
        n_vocab = len(self.runnable.tokenizer)
        self._made += 1
        for row in logits if isinstance(logits, list) else [logits]:
            self._scores.take(partial(_logprob, row, n_vocab))
        if self._scores.due:
            return True
        step = self._scores.next()
        if step is None:
            self._finish("stop")
            return False
        kept, tokens = step
        kept += len(self.prompt)
        self.tokens[kept:] = tokens
        if self.cache is not None and self.cache.length > kept:
            self.cache.truncate(kept)
        return True


def _logprob(row: Any, n_vocab: int, token: int) -> float:
    return logprobs(row, n_vocab, token).logprob
