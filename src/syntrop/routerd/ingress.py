# SPDX-License-Identifier: Apache-2.0
"""What comes in by HTTP: who may ask, how many at once, and which handler answers by the route."""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal
from syntrop.common.http import chat
from syntrop.common.http.errors import HttpError, InternalFault
from syntrop.common.http.exchange import Limits
from syntrop.common.http.origin import LOCAL_HOSTS, objection
from syntrop.common.http.server import Disconnected, Server
from syntrop.routerd import dialects, routes, serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from syntrop.common.http.server import Connection, Exchange
    from syntrop.common.settings import Settings
    from syntrop.routerd.core import Core

_RUNNING = b"syntrop is running; it speaks the APIs of OpenAI, Anthropic and Ollama."
_OLLAMA = ("ollama-tags", "ollama-show", "ollama-ps", "ollama-version")  # routes that only look


class Ingress:
    """The HTTP endpoints, from an accepted connection to the handler of each request."""

    def __init__(self, core: Core) -> None:
        daemon = core.daemon
        settings = daemon.settings
        self._core = core
        self._server = Server(
            self._handle,
            busy=daemon.busy,
            connections_max=settings.connections_max,
            connections_per_uid=settings.connections_max_per_uid,
        )
        self._hosts: frozenset[str] = LOCAL_HOSTS
        self._applied: Settings | None = None  # those that hosts and limits are of
        self._active = {False: 0, True: 0}  # requests under way; those of triage are counted by themselves

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        self._apply()
        return self._server.connect(sock)

    def _apply(self) -> None:
        """The settings as they are now, which a reload may have changed."""
        settings = self._core.daemon.settings
        if settings is not self._applied:
            self._applied = settings
            self._hosts = LOCAL_HOSTS | {host.lower() for host in settings.hosts}
            self._server.limits = Limits(
                idle=settings.keep_alive_sec,
                write=settings.write_timeout_sec,
                body_max=settings.body_max,
                streams=settings.streams_max,
            )

    async def _handle(self, exchange: Exchange) -> None:
        self._apply()
        request = exchange.request
        foreign = None if exchange.local else objection(request, self._hosts)
        if foreign is not None:
            raise HttpError(403, foreign, code="forbidden_origin")
        started = monotonic()
        name, status = "none", 499
        try:
            name, rest = routes.route(request.method, request.path)
            await self._route(exchange, name, rest)
            status = 200
        except HttpError as error:
            status = error.status
            if name == "none":
                raise dialects.shape(dialects.neighbour(request.path), error, exchange.id) from error
            raise
        except Exception as fault:
            status = 499 if isinstance(fault, Disconnected) else 500
            raise
        finally:
            self._core.metrics.ended(name, status, monotonic() - started)

    async def _route(self, exchange: Exchange, name: str, rest: str) -> None:
        core = self._core
        if name == "health":
            return await serving.reply(exchange, core.status())
        if name == "metrics":
            from syntrop.routerd.metrics import CONTENT_TYPE

            return await exchange.reply(200, [("content-type", CONTENT_TYPE)], core.metrics_text().encode())
        if name == "root":  # where Ollama's clients look whether anybody is there
            return await exchange.reply(200, [("content-type", "text/plain; charset=utf-8")], _RUNNING)
        if name == "openapi":
            from syntrop.routerd import openapi

            return await serving.reply(exchange, openapi.document())
        with core.counters:
            if name in ("models", "model"):
                return await self._models(exchange, rest)
            if name == "unbuilt":
                raise routes.unbuilt(exchange.request.path)
            return await self._turn(exchange, name)

    async def _models(self, exchange: Exchange, name: str) -> None:
        """The list of models, or the one that is named."""
        from syntrop.common.http import openai, openai_models

        chooser = self._core.router.chooser
        try:
            if name:
                found = openai_models.model(*_owned(*await chooser.find(name)))
            else:
                models = [openai_models.model(*_owned(*one)) for one in await chooser.models()]
                found = {"object": "list", "data": models}
        except chat.EngineError as error:
            raise serving.told(openai.failure(error, started=False), error) from error
        await serving.reply(exchange, found)

    async def _turn(self, exchange: Exchange, name: str) -> None:
        """What asks a model, or is asked in a dialect with errors of its own shape."""
        core, triage = self._core, False
        settings = core.daemon.settings
        try:
            if name in _OLLAMA:
                from syntrop.routerd import ollama

                return await ollama.answer(exchange, name, core.router)
            headers = serving.Headers(exchange.request)
            if headers.triage:
                await _admit_triage(exchange)
                triage = True
            most = settings.triage_max if triage else settings.requests_max
            if self._active[triage] >= most:
                raise _full(most)
            self._active[triage] += 1
            try:
                if name == "count-tokens":
                    return await serving.count_tokens(exchange, core.router, headers)
                dialect = dialects.find(name)
                if isinstance(dialect, dialects.Embedding):
                    return await serving.embed(exchange, dialect, core.router, core.metrics, headers)
                await serving.Turn(exchange, dialect, core.metrics, settings).run(core.router, headers)
            finally:
                self._active[triage] -= 1
        except HttpError as error:
            shaped = dialects.shape(name, error, exchange.id)
            if exchange.started or shaped is error:
                raise
            raise shaped from error
        except Disconnected:
            raise
        except Exception as fault:  # logged as any other, but told in the dialect
            inner = InternalFault(exchange.id)
            shaped = dialects.shape(name, inner, exchange.id)
            if exchange.started or shaped is inner:
                raise
            journal.exception(f"{exchange.id} {exchange.request.method} {exchange.request.path} failed", fault)
            raise shaped from fault


async def _admit_triage(exchange: Exchange) -> None:
    """Only the suite's own users may ask as triage, and only by the socket that tells who they are."""
    import os

    from syntrop.common import authority, loop

    if exchange.local and (
        exchange.uid in (0, os.geteuid()) or exchange.uid in (await loop.thread(authority.Accounts.look_up)).uids
    ):
        return
    raise HttpError(
        403,
        "'x-syntrop-tier: triage' is for the suite's own users, by router.sock.",
        param="x-syntrop-tier",
        code="permission_denied",
    )


def _full(most: int) -> HttpError:
    return HttpError(
        429,
        f"{most} requests are being answered, which is as many as the router takes.",
        code="overloaded",
        headers=(("retry-after", "1"),),
        type="overloaded_error",
    )


def _owned(name: str, provider: str) -> tuple[str, str]:
    """A model with its owner, as `/v1/models` tells them."""
    return name, "syntrop" if provider == "local" else provider
