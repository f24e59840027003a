# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine on behalf of others: what one needs, the lease for it, and its answer under that lease."""

from __future__ import annotations

from functools import partial

from syntrop.common import paths
from syntrop.common.http import chat
from syntrop.common.http.engine import Engine
from syntrop.common.http.together import Together
from syntrop.inferenced import demand, loan
from syntrop.inferenced.broker import slice_tiers
from syntrop.inferenced.registry import Registry
from syntrop.inferenced.tier import SPELLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any

    from syntrop.common.http.provider import Generation
    from syntrop.common.peer import Peer
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.loan import Loan
    from syntrop.inferenced.tier import Tier

_DEVICES = ("cuda", "hip", "vulkan", "xpu")
"""How the names of backends begin whose caches are not in the host's memory."""


class Withdrawn(chat.Unavailable):
    """The memory of a call was wanted by somebody stronger; it may be had again in a while."""

    def __init__(self, why: str) -> None:
        super().__init__(f"This call was broken off: {why}.", retry_after=1.0)


class Lender:
    """`ready()` gives the broker. The engine and the registry are those of all endpoints."""

    def __init__(self, ready: Callable[[], Awaitable[Broker]]) -> None:
        self.ready = ready
        self.engine = Engine()
        self.registry = Registry(paths.state("inferenced"))

    def close(self) -> None:
        self.engine.close()

    async def generate(
        self, who: Peer, requests: Sequence[chat.GenerateRequest], lowered: Tier | None = None
    ) -> Answer:
        """Start a turn for requests that differ in their prompt alone, under a lease of the caller's tier; whoever
        calls closes it. Raises EngineError, and VarlinkError where there is no lease."""
        first = requests[0]
        longest = max(requests, key=_length)
        prompt = await self.engine.count(longest)  # which has the model loaded, unless the prompt is tokens
        model = await self._loaded(first.model)
        lent = await self._borrow(who, first.model, model, demand.of_generation(model, requests, prompt), lowered)
        try:
            for one in requests:
                one.routing.priority = SPELLED[lent.lease.tier]
                one.routing.leased = lent.lease.size // demand.sequences(requests)
            turn: Generation
            if len(requests) == 1:
                turn = self.engine.generate(first)
            else:
                turn = Together([partial(self.engine.generate, one) for one in requests], first.n)
        except BaseException:
            lent.close()
            raise
        return Answer(lent, turn, first.n * len(requests))

    async def embed(self, who: Peer, request: chat.EmbedRequest, lowered: Tier | None = None) -> chat.Embeddings:
        """The vectors of texts, made under such a lease. Raises EngineError, and VarlinkError."""
        model = await self._loaded(request.model)
        lent = await self._borrow(who, request.model, model, demand.of_embedding(model, request), lowered)
        request.routing.leased = lent.lease.size
        try:
            return await lent.within(lambda: self.engine.embed(request))
        except loan.Lost as lost:
            raise Withdrawn(str(lost)) from None
        finally:
            lent.close()

    async def _loaded(self, name: str) -> Mapping[str, Any]:
        """What is known of a model that is in memory, or will be. Raises EngineError."""
        model = await self.engine.status(name)
        if model is None:
            await self.engine.load(name)
            model = await self.engine.status(name)
        if model is None:
            raise chat.Unavailable("The engine let go of the model before it was asked.", retry_after=1.0)
        return model

    async def _borrow(
        self, who: Peer, name: str, model: Mapping[str, Any], size: int, lowered: Tier | None
    ) -> Loan:
        broker = await self.ready()
        settings = broker.settings
        return await loan.borrow(
            broker,
            who,
            loan.tier_of(who.pid, slice_tiers(settings.slice_tiers), lowered),
            size,
            plane=self.registry.placement(name),
            kind="gpu" if model.get("compute_backend", "").startswith(_DEVICES) else "cpu",
            wait=settings.call_wait_ms / 1000,
        )


class Answer:
    """A turn under a lease: a `delivery.Source`. Losing the lease ends it."""

    def __init__(self, lent: Loan, turn: Generation, choices: int) -> None:
        self._loan = lent
        self._turn = turn
        self._left = choices
        lent.hang_up = turn.close

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return self._left <= 0

    async def next(self, timeout: float | None = None) -> chat.Event:
        """The next event. Raises EngineError, and TimeoutError when there is none yet: then ask again. The engine
        may end the wait soon, by telling that the request is good."""
        try:
            event = await self._loan.within(lambda: self._turn.next(timeout))
            if isinstance(event, chat.Accepted):
                soon = None if timeout is None else min(timeout, chat.GRACE)
                event = await self._loan.within(lambda: self._turn.next(soon))
        except loan.Lost as lost:
            raise Withdrawn(str(lost)) from None
        if isinstance(event, chat.Accepted):
            raise chat.GenerationFailed("the engine announced a request twice")
        self._left -= isinstance(event, chat.Finished)
        return event

    def ready(self) -> list[chat.Event]:
        """The events that have arrived already."""
        events = self._turn.ready()
        self._left -= sum(isinstance(event, chat.Finished) for event in events)
        return events

    async def close(self) -> None:
        """Hang up, unless the turn has ended, and give the lease back."""
        try:
            await self._turn.close()
        finally:
            self._loan.close()


def _length(request: chat.GenerateRequest) -> int:
    """Of a prompt, in whatever its kind is counted; the prompts of one request are of one kind."""
    return len(request.prompt) if request.prompt is not None else 0
