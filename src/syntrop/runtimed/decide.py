# SPDX-License-Identifier: Apache-2.0
"""Weighing texts by how likely they are after a prompt: what is to be scored, in which order, and what follows.

Each text is tokenized together with the prompt, as it would be read. Where that joins the end of the prompt with
the beginning of a text, as vocabularies with long words do, there is no boundary between tokens to score from:
then all texts are scored from where the tokens of all still agree. What is compared is so in any case the
likelihood of prompt and text as a whole, and a softmax over it is exact.

Texts that begin alike share the tokens that they begin with: they are walked as a tree, depth first, so that the
cache of keys and values only ever grows at its end or is cut back there. Tokens between forks are read at once.
"""

from __future__ import annotations

import math
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from syntrop.runtimed.tokenizer import Tokenizer

CANDIDATES_MAX = 256
RUN_MAX = 32  # tokens that are read at once, at most


class Unscorable(ValueError):
    """A text cannot be weighed: `index` tells which."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def continuations(tokenizer: Tokenizer, prompt: str, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The tokens that all share, and what follows them for each text. Raises Unscorable."""
    shared = tokenizer.encode(prompt)
    whole = [tokenizer.encode(prompt + text) for text in texts]
    for index, tokens in enumerate(whole):
        agreed = _agreed(shared, tokens)
        if agreed == len(tokens):
            raise Unscorable(index, "adds no token to the prompt")
        del shared[agreed:]
    if not shared:
        raise Unscorable(0, "shares no token with the others: give a longer prompt")
    return shared, [tokens[len(shared) :] for tokens in whole]


def _agreed(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


class _Node:
    """A token at the end of a path that texts share; `total` is the logarithm of the path's probability."""

    __slots__ = ("children", "depth", "ends", "token", "total")

    def __init__(self, token: int, depth: int) -> None:
        self.token = token
        self.depth = depth
        self.total = 0.0
        self.children: dict[int, _Node] = {}
        self.ends: list[int] = []  # the texts that end here


class Scores:
    """The walk: give `take` the distribution after the shared tokens, and after each that `next` asks for."""

    __slots__ = ("_due", "_left", "totals")

    def __init__(self, paths: Sequence[Sequence[int]]) -> None:
        self.totals = [0.0] * len(paths)  # natural logarithms; valid after the walk
        root = _Node(-1, 0)
        for index, path in enumerate(paths):
            node = root
            for token in path:
                node = node.children.setdefault(token, _Node(token, node.depth + 1))
            node.ends.append(index)
        self._left: list[_Node] = []
        self._due = deque([root])

    @property
    def due(self) -> int:
        """Distributions to be taken before what is next can be told."""
        return len(self._due)

    def take(self, logprob: Callable[[int], float]) -> None:
        """Score what may come after the first token that is due."""
        node = self._due.popleft()
        for child in node.children.values():
            child.total = node.total + logprob(child.token)
            for index in child.ends:
                self.totals[index] = child.total
            if child.children and not (self._due and self._due[0] is child):
                self._left.append(child)

    def next(self) -> tuple[int, list[int]] | None:
        """(tokens after the shared ones to keep, tokens to read next), or None at the end. Once none is due."""
        if not self._left:
            return None
        node = self._left.pop()
        kept = node.depth - 1
        self._due.append(node)
        while len(node.children) == 1 and len(self._due) < RUN_MAX:
            (node,) = node.children.values()
            if not node.children:
                break
            self._due.append(node)
        return kept, [one.token for one in self._due]


def decision(
    candidates: Sequence[tuple[str, str]],
    paths: Sequence[Sequence[int]],
    totals: Sequence[float],
    temperature: float,
) -> dict[str, Any]:
    """Runtime1's DecisionResult. `candidates`: (name, text)."""
    order = sorted(range(len(totals)), key=lambda index: (-totals[index], index))
    best = totals[order[0]]
    shares = [math.exp((total - best) / temperature) if total > -math.inf else 0.0 for total in totals]
    whole = sum(shares)
    shares = [share / whole for share in shares]
    return {
        "winner": candidates[order[0]][0],
        "confidence": shares[order[0]],
        "raw_probability": math.exp(best),
        "margin": shares[order[0]] - shares[order[1]],
        "entropy": -sum(share * math.log(share) for share in shares if share > 0) + 0.0,
        "candidates": [
            {
                "name": candidates[index][0],
                "token": candidates[index][1],
                "token_id": paths[index][0],
                "logit": finite(totals[index]),
                "probability": shares[index],
                "tokens": len(paths[index]),
                "per_token": finite(totals[index] / len(paths[index])),
            }
            for index in order
        ],
    }


def finite(logprob: float) -> float:
    """A logarithm of a probability as JSON can carry it: impossible is -9999, as in OpenAI's interface."""
    return max(logprob, -9999.0)
