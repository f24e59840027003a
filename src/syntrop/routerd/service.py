# SPDX-License-Identifier: Apache-2.0
"""The methods of routerd, thin: HTTP in OpenAI's dialect, and io.syntrop.Router1."""

from __future__ import annotations

import json

from syntrop import __version__
from syntrop.common import pressure
from syntrop.routerd.status import Counters, read_rss

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from syntrop.common.http import chat
    from syntrop.common.http.engine import Engine, Generation
    from syntrop.common.http.openai import ChatReply
    from syntrop.common.http.server import Connection, Exchange, Server
    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call

_JSON = ("content-type", "application/json")


class Router1:
    """io.syntrop.Router1. Methods that are not here are not built yet."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        return self._counters.report(__version__, pressure.read(), read_rss())

    async def ListModels(self, call: Call) -> dict[str, Any]:
        from syntrop.common.http import chat
        from syntrop.common.varlink.errors import VarlinkError
        from syntrop.routerd import store

        try:
            return {"models": await store.names()}
        except chat.EngineError as error:
            raise VarlinkError("io.syntrop.Router1.RoutingFailed", message=error.message) from error


class Http:
    """The HTTP endpoints. What it needs is imported when the first connection comes."""

    def __init__(self, daemon: Daemon, counters: Counters) -> None:
        self._daemon = daemon
        self._counters = counters
        self._server: Server | None = None
        self._engine: Engine | None = None
        self._hosts: frozenset[str] = frozenset()

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        if self._server is None:
            from syntrop.common.http.origin import LOCAL_HOSTS
            from syntrop.common.http.server import Limits, Server

            settings = self._daemon.settings
            self._hosts = LOCAL_HOSTS | {host.lower() for host in settings.hosts}
            limits = Limits(
                idle=settings.keep_alive_sec, write=settings.write_timeout_sec, body_max=settings.body_max
            )
            self._server = Server(
                self._handle,
                limits=limits,
                busy=self._daemon.busy,
                connections_max=settings.connections_max,
                connections_per_uid=settings.connections_max_per_uid,
            )
        return self._server.connect(sock)

    async def stop(self) -> None:
        if self._engine is not None:
            self._engine.close()

    async def _handle(self, exchange: Exchange) -> None:
        from syntrop.common.http import origin
        from syntrop.common.http.errors import HttpError
        from syntrop.routerd.routes import route

        request = exchange.request
        objection = None if exchange.local else origin.objection(request, self._hosts)
        if objection is not None:
            raise HttpError(403, objection, code="forbidden_origin")
        name, rest = route(request.method, request.path)
        if name == "health":
            return await _reply(exchange, self._counters.report(__version__, pressure.read(), read_rss()))
        with self._counters:
            if name == "chat":
                return await self._chat(exchange)
            return await self._models(exchange, rest)

    async def _models(self, exchange: Exchange, name: str) -> None:
        """The list of models, or the one that is named."""
        from syntrop.common.http import chat, openai
        from syntrop.routerd import store

        try:
            found = openai.model(await store.find(name)) if name else openai.models(await store.names())
        except chat.EngineError as error:
            raise openai.failure(error, started=False) from error
        await _reply(exchange, found)

    async def _chat(self, exchange: Exchange) -> None:
        from time import time

        from syntrop.common.http import openai

        request = openai.parse_chat(await exchange.body())
        reply = openai.ChatReply(
            f"chatcmpl-{exchange.id[4:]}", int(time()), request.model, include_usage=request.include_usage
        )
        generation = self._generate(request)
        try:
            if request.stream:
                await self._stream(exchange, reply, generation)
            else:
                await self._collect(exchange, reply, generation)
        finally:
            await generation.close()

    def _generate(self, request: chat.GenerateRequest) -> Generation:
        if self._engine is None:
            from syntrop.common.http.engine import Engine

            self._engine = Engine(timeout=self._daemon.settings.engine_timeout_sec)
        return self._engine.generate(request)

    async def _collect(self, exchange: Exchange, reply: ChatReply, generation: Generation) -> None:
        """The whole answer as one object."""
        from syntrop.common.http import chat, openai

        texts: list[str] = []
        try:
            while isinstance(event := await generation.next(), chat.Delta):
                texts.append(event.text)
        except chat.EngineError as error:
            self._note(error)
            raise openai.failure(error, started=bool(texts)) from error
        self._note(None)
        await _reply(exchange, reply.completion("".join(texts), event), reply.model)

    async def _stream(self, exchange: Exchange, reply: ChatReply, generation: Generation) -> None:
        """The answer as it is made. Errors before the headers have a status, later ones are events."""
        from syntrop.common.http import chat, openai, sse

        event: chat.Delta | chat.Finished | None
        try:
            event = await generation.next(self._daemon.settings.headers_after_sec)
        except TimeoutError:
            event = None
        except chat.EngineError as error:
            self._note(error)
            raise openai.failure(error, started=False) from error

        headers = (*sse.HEADERS, ("x-syntrop-model", _header(reply.model)))
        await exchange.start(200, headers, sse.PING if event is None else b"")
        before = sse.encode(openai.encode(reply.first()))
        try:
            while not isinstance(event, chat.Finished):
                if event is not None:
                    # What has piled up meanwhile goes out at once, each piece still a chunk of its own.
                    deltas = (reply.delta(piece.text) for piece in (event, *generation.ready()))
                    await exchange.send(before + b"".join(sse.encode(openai.encode(one)) for one in deltas))
                    before = b""
                try:
                    event = await generation.next(self._daemon.settings.ping_sec)
                except TimeoutError:
                    event = None
                    await exchange.send(sse.PING)
        except chat.EngineError as error:
            # Not finished: the connection breaks off behind the event, so that no client takes it for the end.
            self._note(error)
            await exchange.send(sse.encode(openai.encode(openai.failure(error, started=True).body())))
            return
        self._note(None)
        last = [sse.encode(openai.encode(chunk)) for chunk in reply.last(event)]
        await exchange.send(before + b"".join(last) + sse.DONE)
        await exchange.finish()

    def _note(self, error: chat.EngineError | None) -> None:
        """Keep count of how the engine does. A request that it cannot serve is no fault of its."""
        from syntrop.common import journal
        from syntrop.common.http import chat

        if error is None:
            self._counters.failures = 0
        elif isinstance(error, chat.Unavailable | chat.EngineTimeout | chat.GenerationFailed):
            self._counters.failures += 1
            journal.warning(f"The local engine failed: {error.message}")


async def _reply(exchange: Exchange, value: dict[str, Any], model: str | None = None) -> None:
    headers = [_JSON] if model is None else [_JSON, ("x-syntrop-model", _header(model))]
    await exchange.reply(200, headers, json.dumps(value, ensure_ascii=False).encode())


def _header(text: str) -> str:
    """A client's text as the value of a header: what could end the line is written as JSON does."""
    return text if text.isascii() and text.isprintable() else json.dumps(text)
