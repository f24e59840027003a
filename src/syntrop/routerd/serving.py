# SPDX-License-Identifier: Apache-2.0
"""Answers over HTTP: a body becomes requests, their events become the bytes of a dialect."""

from __future__ import annotations

import json
from time import monotonic, monotonic_ns, time

from syntrop.common.http import chat
from syntrop.common.http.delivery import Delivery, failure
from syntrop.common.http.delivery import reply as reply
from syntrop.common.http.delivery import told as told
from syntrop.common.http.errors import HttpError
from syntrop.routerd import asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.common.http.dialects import Dialect, Embedding
    from syntrop.common.http.http1 import Head
    from syntrop.common.http.server import Exchange
    from syntrop.common.settings import Settings
    from syntrop.routerd.attempts import Attempts
    from syntrop.routerd.metrics import Metrics
    from syntrop.routerd.router import Router

_YES, _NO = ("yes", "true", "1", "on"), ("no", "false", "0", "off")
_HEADER_MAX = 1024


class Headers:
    """What a client says of the way of its request in headers."""

    __slots__ = ("local", "tier", "triage")

    def __init__(self, head: Head) -> None:
        """Raises HttpError."""
        tier = head.header("x-syntrop-tier")
        local = head.header("x-syntrop-local")
        self.triage = tier == "triage"
        if tier not in (None, "triage", *asking.TIERS):
            raise HttpError(
                400, f"'x-syntrop-tier' must be auto, fast or hard, not {tier!r}.", param="x-syntrop-tier"
            )
        self.tier = tier if tier in ("fast", "hard") else None
        if local is not None and local.lower() not in _YES + _NO:
            raise HttpError(400, f"'x-syntrop-local' must be yes or no, not {local!r}.", param="x-syntrop-local")
        self.local = local is not None and local.lower() in _YES

    def apply(self, routing: chat.Routing) -> None:
        """A field of the body outranks the header; that a request stays here is said by either."""
        routing.tier = routing.tier or self.tier
        routing.local = routing.local or self.local


class Turn(Delivery):
    """One request of a dialect, from its body to the end of its answer."""

    __slots__ = ("_arrived", "_attempts", "_last", "_metrics")

    def __init__(self, exchange: Exchange, dialect: Dialect, metrics: Metrics, settings: Settings) -> None:
        super().__init__(exchange, dialect, headers_after=settings.headers_after_sec, ping=settings.ping_sec)
        self._metrics = metrics
        self._arrived = monotonic()
        self._last = 0.0

    async def run(self, router: Router, headers: Headers) -> None:
        """Answer it. Raises HttpError before the reply has started, and whatever the exchange raises."""
        exchange, dialect = self._exchange, self._dialect
        requests = dialect.parse(await exchange.body())
        first = requests[0]
        for one in requests:
            headers.apply(one.routing)
        self._reply = dialect.begin(dialect.prefix + exchange.id[4:], int(time()), requests)
        if first.load:
            return await self._load(router, first, headers)
        metrics = self._metrics
        metrics.waiting += 1
        try:
            try:
                self._source = self._attempts = await router.generate(requests, triage=headers.triage)
            except chat.EngineError as error:
                raise failure(dialect, error, started=False) from error
            try:
                if first.stream:
                    await self._stream(first)
                else:
                    await self._collect(first)
            finally:
                await self._attempts.close()
        finally:
            if not self._last:
                metrics.waiting -= 1

    def _asked(self) -> object:
        return self._attempts.place

    def _who(self) -> tuple[tuple[str, str], ...]:
        return who(self._attempts)

    def _broken(self) -> None:
        self._metrics.broken += 1

    async def _load(self, router: Router, request: chat.GenerateRequest, headers: Headers) -> None:
        """There is nothing to answer: the model is to be in memory, or out of it."""
        from syntrop.common.http.ollama_reply import ChatReply

        try:
            model = await router.load(request, triage=headers.triage)
        except chat.EngineError as error:
            raise failure(self._dialect, error, started=False) from error
        assert isinstance(self._reply, ChatReply)
        if asking.alias(request.model) is not None:
            self._reply.model = model
        await reply(self._exchange, self._reply.loaded())

    async def _keep(self, request: chat.GenerateRequest) -> None:
        """Nothing more is asked of the model for this request: it may say how long the model is to stay."""
        if request.keep is not None and self._attempts.place is not None:
            await self._attempts.place.keep(request.keep)

    def _note(self, events: Sequence[chat.Event]) -> None:
        """Time what has come."""
        if (arrived := getattr(self._reply, "arrived", None)) is not None:
            arrived()  # a reply that tells times itself
        now = monotonic()
        if self._last:
            self._metrics.between.observe((now - self._last) / len(events), len(events))
        else:
            self._metrics.waiting -= 1
            self._metrics.first.observe(now - self._arrived)
            if len(events) > 1:
                self._metrics.between.observe(0.0, len(events) - 1)
        self._last = now

    def _settle(self, request: chat.GenerateRequest) -> None:
        """It is known who answers: where the client left the choice open, the answer names the model."""
        place = self._attempts.place
        if place is not None and asking.alias(request.model) is not None:
            self._reply.model = place.model


async def embed(
    exchange: Exchange, dialect: Embedding, router: Router, metrics: Metrics, headers: Headers
) -> None:
    """Texts to vectors. Raises HttpError."""
    started = monotonic_ns()
    request = dialect.parse(await exchange.body())
    headers.apply(request.routing)
    metrics.waiting += 1
    try:
        attempts, result = await router.embed(request, triage=headers.triage)
        try:
            await attempts.next()
            if request.keep is not None and attempts.place is not None:
                await attempts.place.keep(request.keep)
        finally:
            await attempts.close()
    except chat.EngineError as error:
        raise failure(dialect, error, started=False) from error
    finally:
        metrics.waiting -= 1
    assert result.vectors is not None
    found = result.vectors
    place = attempts.place
    found.model = place.model if place is not None and asking.alias(request.model) else request.model
    await reply(exchange, dialect.encode(request, found, monotonic_ns() - started), *who(attempts))


async def count_tokens(exchange: Exchange, router: Router, headers: Headers) -> None:
    """`POST /v1/messages/count_tokens`. Raises HttpError."""
    from syntrop.common.http import anthropic
    from syntrop.common.http.anthropic_messages import parse_count_tokens, token_count

    request = parse_count_tokens(await exchange.body())
    headers.apply(request.routing)
    try:
        tokens = await router.count(request)
    except chat.EngineError as error:
        raise told(anthropic.failure(error, started=False), error) from error
    await reply(exchange, token_count(tokens), (anthropic.ID_HEADER, exchange.id))


def who(attempts: Attempts) -> tuple[tuple[str, str], ...]:
    """Headers that name who answers, and why."""
    place = attempts.place
    if place is None:
        return ()
    reason = place.reason + "".join(f"; after {name}" for name in attempts.failed)
    return (
        ("x-syntrop-provider", place.provider),
        ("x-syntrop-model", header(place.model)),
        ("x-syntrop-reason", header(reason.replace("×", "*"))),
    )


def header(text: str) -> str:
    """A text as the value of a header: what could end the line is written as JSON does."""
    safe = text if text.isascii() and text.isprintable() else json.dumps(text)
    return safe if len(safe) <= _HEADER_MAX else safe[: _HEADER_MAX - 3] + "..."
