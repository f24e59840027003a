# SPDX-License-Identifier: Apache-2.0
"""An answer on its way to its client: the events of a generation become the bytes of a dialect."""

from __future__ import annotations

import json

from syntrop.common.http import chat
from syntrop.common.http.errors import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from syntrop.common.http.dialect import Reply
    from syntrop.common.http.dialects import Dialect, Embedding
    from syntrop.common.http.exchange import Exchange

    class Source(Protocol):
        """Where the events come from: `provider.Generation`, and whether every choice has ended."""

        @property
        def complete(self) -> bool: ...
        async def next(self, timeout: float | None = None) -> chat.Event: ...
        def ready(self) -> list[chat.Event]: ...


JSON = ("content-type", "application/json")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Delivery:
    """One answer, whole or as it is made. Who serves it says in a subclass who answers, and what is noted of it.

    `headers_after`: seconds that a stream waits for its first piece before its headers go; `ping`: seconds after
    which a stream without news says that it is alive. Both raise HttpError before the reply has started, and
    whatever the exchange raises. The source stays its owner's to close.
    """

    __slots__ = ("_dialect", "_exchange", "_headers_after", "_ping", "_reply", "_source")

    _source: Source
    _reply: Reply

    def __init__(self, exchange: Exchange, dialect: Dialect, *, headers_after: float, ping: float) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._headers_after = headers_after
        self._ping = ping

    # --- what a subclass says ------------------------------------------------------------------------------

    def _asked(self) -> object:
        """Who is asked just now."""
        return None

    def _who(self) -> Sequence[tuple[str, str]]:
        """Headers that name the same."""
        return ()

    def _note(self, events: Sequence[chat.Event]) -> None:
        """These have come."""

    def _settle(self, request: chat.GenerateRequest) -> None:
        """It is known who answers."""

    async def _keep(self, request: chat.GenerateRequest) -> None:
        """Every choice has ended, and the client is told next: what else the request asks of who answered."""

    def _broken(self) -> None:
        """A stream failed after it had started."""

    # --- the two ways --------------------------------------------------------------------------------------

    async def _collect(self, request: chat.GenerateRequest) -> None:
        """The whole answer as one object."""
        source = self._source
        events: list[chat.Event] = []
        try:
            while not source.complete:
                came = [await source.next(), *source.ready()]
                self._note(came)
                events += came
        except chat.EngineError as error:
            raise failure(self._dialect, error, started=bool(events)) from error
        self._settle(request)
        await self._keep(request)
        try:
            answer = self._reply.whole(events)
        except chat.EngineError as error:
            raise failure(self._dialect, error, started=True) from error
        body = _encode(answer).encode()
        await self._exchange.reply(200, [JSON, *self._who(), *self._dialect.named(self._exchange.id)], body)

    async def _stream(self, request: chat.GenerateRequest) -> None:
        """The answer as it is made. Errors before the headers have a status, later ones are events."""
        source, exchange, reply = self._source, self._exchange, self._reply
        event: chat.Event | None
        try:
            event = await source.next(self._headers_after)
        except TimeoutError:
            event = None
        except chat.EngineError as error:
            raise failure(self._dialect, error, started=False) from error

        headers = (*reply.headers, *self._who(), *self._dialect.named(exchange.id))
        told = self._asked()
        if event is None:
            await exchange.start(200, headers, reply.ping)
            try:
                while event is None:
                    try:
                        event = await source.next(self._ping)
                    except TimeoutError:
                        await exchange.send(reply.ping)
            except chat.EngineError as error:
                return await self._break(error)
        self._settle(request)
        data = b""
        if exchange.started and self._asked() is not told and reply.ping.startswith(b":"):
            # The headers named the one that was asked then. A comment names the one that answers.
            data = "".join(f": {name}: {text}\n" for name, text in self._who()).encode() + b"\n"
        try:
            while True:
                if event is not None:
                    # What has piled up meanwhile goes out at once, each piece still an event of its own.
                    events = [event, *source.ready()]
                    self._note(events)
                    data += reply.frames(events)
                    if source.complete:
                        await self._keep(request)
                        data += reply.end()
                    if exchange.started:
                        await exchange.send(data)
                    else:
                        await exchange.start(200, headers, data)
                    data = b""
                    if source.complete:
                        return await exchange.finish()
                try:
                    event = await source.next(self._ping)
                except TimeoutError:
                    event = None
                    await exchange.send(reply.ping)
        except chat.EngineError as error:
            if not exchange.started:
                raise failure(self._dialect, error, started=True) from error
            await self._break(error)

    async def _break(self, error: chat.EngineError) -> None:
        # Not finished: the connection breaks off behind the event, so that no client takes it for the end.
        self._broken()
        await self._exchange.send(self._reply.broken(failure(self._dialect, error, started=True)))


async def reply(exchange: Exchange, value: dict[str, Any], *headers: tuple[str, str]) -> None:
    """Answer with a JSON object."""
    await exchange.reply(200, [JSON, *headers], json.dumps(value, ensure_ascii=False).encode())


def failure(dialect: Dialect | Embedding, error: chat.EngineError, *, started: bool) -> HttpError:
    """An engine's error as the dialect tells it; `started`: work had begun."""
    return told(dialect.failure(error, started=started), error)


def told(answer: HttpError, error: chat.EngineError) -> HttpError:
    """The answer to an error, with what the error knows of whether and when to repeat the request."""
    headers = dict(answer.headers)
    if "x-should-retry" not in headers:
        if getattr(error, "final", False) or isinstance(error, chat.Denied):
            headers.pop("retry-after", None)
            headers["x-should-retry"] = "false"
        elif error.retry_after is not None and answer.status in (429, 503, 529):
            headers["retry-after"] = str(max(1, -int(-error.retry_after // 1)))
    answer.headers = tuple(headers.items())
    return answer
