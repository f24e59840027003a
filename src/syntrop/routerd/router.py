# SPDX-License-Identifier: Apache-2.0
"""A request's way: to the best candidate, and to the next ones where that fails before it has begun to answer."""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop
from syntrop.common.http import chat
from syntrop.routerd import asking, scoring
from syntrop.routerd.affinity import Affinity
from syntrop.routerd.attempts import Attempts
from syntrop.routerd.choosing import Chooser, Option
from syntrop.routerd.config import Config
from syntrop.routerd.fleet import Fleet
from syntrop.routerd.host import Pressed
from syntrop.routerd.observed import Observations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from syntrop.common.http.provider import Generation, Provider
    from syntrop.routerd.choosing import Choice
    from syntrop.routerd.fleet import Create, Member
    from syntrop.routerd.metrics import Metrics

    Start = Callable[[Provider, str], Generation]

PATIENCE = 5.0  # seconds that a request may wait because providers ask it to


class Place:
    """A candidate of one request; an `attempts.Place`."""

    __slots__ = ("_member", "_note", "_router", "_start", "max_latency", "model", "provider", "reason", "upstream")

    def __init__(
        self, router: Router, verdict: scoring.Verdict, start: Start, note: Callable[[str, str], None]
    ) -> None:
        option = verdict.candidate
        assert isinstance(option, Option)
        self.provider = option.provider
        self.model = option.model
        self.upstream = option.offer.upstream
        self.reason = verdict.reason
        self.max_latency: float | None = None
        self._router = router
        self._member = option.member
        self._start = start
        self._note = note

    def begin(self) -> Generation | None:
        member = self._member
        if not member.usable or not member.health.enter(monotonic()):
            return None
        try:
            generation = self._start(member.provider, self.upstream)
        except BaseException as error:
            member.health.abandoned()
            if isinstance(error, chat.Unavailable):
                return None
            raise
        member.hold()
        return generation

    def succeeded(self, latency: float, end: chat.Finished, tokens: int, duration: float) -> None:
        self._member.health.success(latency)
        self._router.observations.note(self.provider, self.model, latency, tokens, duration, monotonic())
        self._note(self.provider, self.model)
        if self._router.metrics is not None:
            self._router.metrics.answered(self.provider, self.model, end.prompt_tokens, tokens)

    def failed(self, error: chat.EngineError) -> None:
        self._member.health.failure(error, monotonic())
        self._member.watch()
        if not isinstance(error, chat.Overloaded):
            journal.warning(f"{self.provider} failed with {self.model}: {error.message}")

    def abandoned(self) -> None:
        self._member.health.abandoned()
        self._member.watch()

    def closed(self) -> None:
        self._member.release()

    async def keep(self, seconds: float) -> None:
        """The answer is complete, and the client says how long the model is to stay (`Provider.load`)."""
        try:
            await self._member.provider.load(self.upstream, seconds)
        except chat.EngineError as error:
            journal.warning(f"{self.provider} does not keep {self.model} as it was asked to: {error.message}")


class Router:
    """All that routing knows."""

    def __init__(self, config: Config, create: Create, *, metrics: Metrics | None = None) -> None:
        self.metrics = metrics
        self.observations = Observations()
        self.affinity = Affinity()
        self.pressed = Pressed(config.thresholds.shed)
        self._fleet = Fleet(create)
        self.chooser = Chooser(self._fleet, self.pressed, self.observations, self.affinity)
        # Triage waits for nobody: its connections and its view of the engine are its own.
        self._triage = Fleet(create)
        self._triage_chooser = Chooser(self._triage, self.pressed, self.observations, self.affinity)
        self.apply(config)

    @property
    def config(self) -> Config:
        assert self._fleet.config is not None
        return self._fleet.config

    @property
    def members(self) -> dict[str, Member]:
        return self._fleet.members

    def apply(self, config: Config) -> None:
        """Put a configuration into force; requests under way end as they began."""
        for id in self._fleet.apply(config):
            self.observations.forget(id)
            self.affinity.forget(id)
        local = [one for one in config.providers if one.local]
        self._triage.apply(Config(local, config.thresholds, config.weights, config.defaults))
        self.pressed.set_threshold(config.thresholds.shed)

    def set_engine_timeout(self, seconds: float) -> None:
        for fleet in (self._fleet, self._triage):
            fleet.set_engine_timeout(seconds)

    async def close(self) -> None:
        self._fleet.close()
        self._triage.close()
        self.pressed.close()

    async def generate(self, requests: Sequence[chat.GenerateRequest], *, triage: bool = False) -> Attempts:
        """A turn for requests that differ in their prompt alone; the caller closes it. Raises EngineError."""
        first = max(requests, key=asking.estimate) if len(requests) > 1 else requests[0]
        parts = asking.parts(first)

        def start(provider: Provider, model: str) -> Generation:
            turns = [asking.renamed(one, model) for one in requests]
            if len(turns) == 1:
                return provider.generate(turns[0])
            from functools import partial

            from syntrop.common.http.together import Together

            return Together([partial(provider.generate, turn) for turn in turns], first.n)

        ask = asking.of(first)
        chooser = self._chooser(ask, triage=triage)
        choice = await chooser.choose(ask, request=first, parts=parts)
        return self._attempts(ask, choice, start, parts, first.n * len(requests), triage=triage)

    async def embed(self, request: chat.EmbedRequest, *, triage: bool = False) -> tuple[Attempts, Embedding]:
        """Like `generate`; the turn's one event is its end, and then the vectors are in the second."""
        result = Embedding(request)
        ask = asking.of_embedding(request)
        choice = await self._chooser(ask, triage=triage).choose(ask)
        return self._attempts(ask, choice, result.start, _nothing, 1, triage=triage), result

    async def load(self, request: chat.GenerateRequest, *, triage: bool = False) -> str:
        """Have the model of a request be in memory at whoever would be asked; its name. Raises EngineError."""
        ask = asking.of(request)
        choice = await self._chooser(ask, triage=triage).choose(ask)
        if not choice.fit:
            raise choice.nobody(ask)
        option = choice.fit[0].candidate
        assert isinstance(option, Option)
        option.member.hold()
        try:
            context = await option.member.provider.load(option.offer.upstream, request.keep)
        finally:
            option.member.release()
        if request.context is not None and context is not None and request.context > context:
            raise chat.Unhonoured("context", f"the context of {option.model} has {context} tokens")
        return option.model

    async def count(self, request: chat.GenerateRequest) -> int:
        """Tokens of a prompt, counted by the first who can. Raises EngineError."""
        ask = asking.of(request)
        choice = await self.chooser.choose(ask)
        if not (choice.fit or choice.unfit):
            raise choice.nobody(ask)
        # Who cannot answer because the prompt is too long can tell how long it is.
        failure: chat.EngineError | None = None
        for verdict in (*choice.fit, *choice.unfit):
            option = verdict.candidate
            if not isinstance(option, Option) or not option.member.usable:
                continue
            option.member.hold()
            try:
                tokens = await option.member.provider.count(asking.renamed(request, option.offer.upstream))
            except chat.EngineError as error:
                failure = failure or error
            else:
                if tokens is not None:
                    return tokens
            finally:
                option.member.release()
        raise failure or chat.Unhonoured("model", "nobody who has it counts tokens")

    def _chooser(self, ask: scoring.Ask, *, triage: bool) -> Chooser:
        if not triage:
            return self.chooser
        ask.local = True  # it never leaves this machine
        return self._triage_chooser

    def _attempts(
        self,
        ask: scoring.Ask,
        choice: Choice,
        start: Start,
        parts: Callable[[], Iterable[str]],
        choices: int,
        *,
        triage: bool,
    ) -> Attempts:
        if not choice.fit:
            raise choice.nobody(ask)
        several = len(choice.fit) > 1

        def note(provider: str, model: str) -> None:
            if several:
                self.affinity.note(provider, model, parts())

        places = [Place(self, verdict, start, note) for verdict in choice.fit]
        limits = self.config.thresholds
        for place, verdict in zip(places[:-1], choice.fit, strict=False):
            if not verdict.candidate.local:
                place.max_latency = limits.max_latency
        return Attempts(
            places,
            retries=limits.retries,
            unfit=choice.reasons(),
            patience=0.0 if triage else PATIENCE,
            choices=choices,
        )


class Embedding:
    """Texts to be embedded, as a turn of one event."""

    def __init__(self, request: chat.EmbedRequest) -> None:
        self._request = request
        self.vectors: chat.Embeddings | None = None

    def start(self, provider: Provider, model: str) -> Generation:
        twin = chat.EmbedRequest(model, self._request.inputs, self._request.dimensions)
        twin.routing = self._request.routing
        twin.context = self._request.context
        return _EmbeddingTurn(self, provider, twin)


class _EmbeddingTurn:
    def __init__(self, result: Embedding, provider: Provider, request: chat.EmbedRequest) -> None:
        self._result = result
        self._task = loop.spawn(provider.embed(request), "embedding", eager=True)

    async def next(self, timeout: float | None = None) -> chat.Told:
        with loop.deadline(timeout):
            found = await self._task
        self._result.vectors = found
        return chat.Finished("stop", found.prompt_tokens, 0)

    def ready(self) -> list[chat.Event]:
        return []

    async def close(self) -> None:
        await loop.stop(self._task)


def _nothing() -> Iterator[str]:
    return iter(())
