# SPDX-License-Identifier: Apache-2.0
"""The requests of `gateway.sock`: OpenAI's routes, each call of the engine under a lease of the caller's tier."""

from __future__ import annotations

from time import monotonic_ns, time

from syntrop.common.http import chat, delivery, dialects, openai, openai_models
from syntrop.common.http.errors import HttpError
from syntrop.common.http.routing import Routes
from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced.tier import NAMES, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.exchange import Exchange
    from syntrop.inferenced.lending import Lender

HEADER = "x-syntrop-priority"
HEADERS_AFTER = 1.0  # seconds that a stream waits for its first piece before its headers go
PING = 5.0  # seconds without news after which a stream says that it is alive
_READ, _POST = ("GET", "HEAD"), ("POST",)
ROUTES = (
    ("/v1/models", _READ, "models"),
    ("/v1/models/{id}", _READ, "model"),
    ("/v1/chat/completions", _POST, "chat"),
    ("/v1/completions", _POST, "completions"),
    ("/v1/responses", _POST, "responses"),
    ("/v1/embeddings", _POST, "embeddings"),
)
_find = Routes(ROUTES).find


class Http:
    """The handler."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender

    async def handle(self, exchange: Exchange) -> None:
        """Answer a request. Raises HttpError before the reply has started, and whatever the exchange raises."""
        name, rest = _find(exchange.request.method, exchange.request.path)
        if name in ("models", "model"):
            return await self._models(exchange, rest)
        lowered = asked_for(exchange.request.header(HEADER))
        dialect = dialects.OPENAI[name]()
        try:
            if isinstance(dialect, dialects.Embedding):
                await self._embed(exchange, dialect, lowered)
            else:
                await _Turn(exchange, dialect, headers_after=HEADERS_AFTER, ping=PING).run(self._lender, lowered)
        except chat.EngineError as error:  # of those before the answer
            raise delivery.failure(dialect, error, started=False) from error
        except VarlinkError as error:
            raise refusal(error) from error

    async def _models(self, exchange: Exchange, name: str) -> None:
        try:
            found = await self._lender.engine.models()
            if not name:
                return await delivery.reply(exchange, openai_models.models(found))
            for one in (name, f"{name}:latest"):
                if one in found:
                    return await delivery.reply(exchange, openai_models.model(one))
            raise chat.ModelNotFound(name)
        except chat.EngineError as error:
            raise delivery.told(openai.failure(error, started=False), error) from error

    async def _embed(self, exchange: Exchange, dialect: dialects.Embedding, lowered: Tier | None) -> None:
        started = monotonic_ns()
        request = dialect.parse(await exchange.body())
        found = await self._lender.embed(exchange.peer, request, lowered)
        found.model = request.model
        await delivery.reply(exchange, dialect.encode(request, found, monotonic_ns() - started))


class _Turn(delivery.Delivery):
    """One request of a dialect, from its body to the end of its answer."""

    __slots__ = ()

    async def run(self, lender: Lender, lowered: Tier | None) -> None:
        exchange, dialect = self._exchange, self._dialect
        requests = dialect.parse(await exchange.body())
        self._reply = dialect.begin(dialect.prefix + exchange.id[4:], int(time()), requests)
        answer = self._source = await lender.generate(exchange.peer, requests, lowered)
        try:
            if requests[0].stream:
                await self._stream(requests[0])
            else:
                await self._collect(requests[0])
        finally:
            await answer.close()


def asked_for(header: str | None) -> Tier | None:
    """The tier that a request asks for. Raises HttpError: there is no way up from here."""
    if header is None:
        return None
    tier = NAMES.get(header)
    if tier is None or tier > Tier.INTERACTIVE:
        raise HttpError(400, f"'{HEADER}' must be Interactive or Batch, not {header[:40]!r}.", param=HEADER)
    return tier


def refusal(error: VarlinkError) -> HttpError:
    """Why there is no lease, as HTTP tells it."""
    given: dict[str, Any] = error.parameters
    retry = (("retry-after", "1"),)
    match error.name:
        case "ResourceExhaustion":
            plane, requested, available = given["plane"], given["requested"], given["available"]
            numbers = {"plane": plane, "requested": requested, "available": available}
            held = ", ".join(
                f"{one['allocated_memory']} by {one['client_unit'] or one['client_pid']} at {one['priority']}"
                for one in given.get("holders") or ()
            )
            return HttpError(
                503,
                f"This call needs {requested} bytes of {plane or 'a plane'}, of which {available} can be had."
                + (f" Bytes are held: {held}." if held else ""),
                code="resource_exhausted",
                headers=(*retry, *((f"x-syntrop-{name}", str(value)) for name, value in numbers.items())),
                type="overloaded_error",
            )
        case "PressureCritical":
            message = "The machine is pressed so hard that only emergencies get memory."
            return HttpError(503, message, code="pressure_critical", headers=retry, type="overloaded_error")
        case "QuotaExceeded":
            message = (
                f"{given['requested']} {given['resource']} would be held, of which {given['limit']} are allowed."
            )
            return HttpError(429, message, code="quota_exceeded", headers=retry)
        case "InvalidParameter":
            return HttpError(403, "The calling process cannot be told from others.", code="unknown_caller")
        case _:  # of the plane that a model is kept on
            return HttpError(
                503,
                f"The plane {given.get('plane')!r} that the model is kept on cannot be used: {error.name}.",
                code="plane_unusable",
                final=True,
            )
