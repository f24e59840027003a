# SPDX-License-Identifier: Apache-2.0
"""The methods of routerd, thin: HTTP by its routes, and io.syntrop.Router1."""

from __future__ import annotations

from time import monotonic

from syntrop import __version__
from syntrop.routerd.status import Counters, read_rss

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from syntrop.common.http.server import Connection, Exchange, Server
    from syntrop.common.psi import Pressure
    from syntrop.common.service import Daemon
    from syntrop.common.settings import Settings
    from syntrop.common.varlink.errors import VarlinkError
    from syntrop.common.varlink.server import Call
    from syntrop.routerd.config import Config
    from syntrop.routerd.metrics import Metrics
    from syntrop.routerd.router import Router

TEST_TIMEOUT = 10.0  # seconds
ESTIMATED = 1024  # tokens of a request that does not say
_RUNNING = b"syntrop is running; it speaks the APIs of OpenAI, Anthropic and Ollama."
_OLLAMA = ("ollama-tags", "ollama-show", "ollama-ps", "ollama-version")  # routes that only look


class Core:
    """What HTTP and Varlink share. The router is made when the first request needs it."""

    def __init__(self, daemon: Daemon) -> None:
        """Raises ConfigError and SettingsError when there is a configuration that cannot be used."""
        from syntrop.common.settings import config_files

        self.daemon = daemon
        self._started = daemon.settings  # those that the daemon began with
        self.counters = Counters()
        self._metrics: Metrics | None = None
        self._router: Router | None = None
        # Without a file there is nothing that could be wrong, and it is not looked at before it is needed.
        self._config: Config | None = _load() if config_files(daemon.name) else None

    @classmethod
    def start(cls, daemon: Daemon) -> Core:
        """Like the class itself; what is wrong with the configuration ends the process, with status 78."""
        from syntrop.common.settings import CONFIG_STATUS, config_files

        if not config_files(daemon.name):
            return cls(daemon)
        from syntrop.routerd.config import ConfigError

        try:
            return cls(daemon)
        except ConfigError as error:
            from syntrop.common import journal

            journal.error(str(error))
            raise SystemExit(CONFIG_STATUS) from None

    @property
    def metrics(self) -> Metrics:
        if self._metrics is None:
            from syntrop.routerd.metrics import Metrics

            self._metrics = Metrics()
        return self._metrics

    @property
    def router(self) -> Router:
        if self._router is None:
            from syntrop.routerd import fleet
            from syntrop.routerd.router import Router

            self._router = Router(
                self._config or _load(),
                lambda config, secret: fleet.create(
                    config, secret, engine_timeout=self.daemon.settings.engine_timeout_sec
                ),
                metrics=self.metrics,
            )
        return self._router

    def reload(self) -> list[str]:
        """Read the files again; the settings that are new and wait for the next start. Raises ConfigError or
        SettingsError, and then nothing has changed."""
        import sys

        from syntrop.common import journal
        from syntrop.common.settings import resolve
        from syntrop.routerd.settings import AT_START, FOREIGN, TABLE

        settings = resolve(self.daemon.name, TABLE, sys.argv[1:], foreign=FOREIGN)
        self._config = _load()
        self.daemon.settings = settings
        journal.set_level(settings.log_level)
        if self._router is not None:
            self._router.apply(self._config)
            self._router.set_engine_timeout(settings.engine_timeout_sec)
        waiting = [name for name in AT_START if getattr(settings, name) != getattr(self._started, name)]
        rest = f", but for what waits for the next start: {', '.join(waiting)}" if waiting else ""
        journal.notice("The configuration was read again" + rest)
        return waiting

    def on_hangup(self) -> None:
        """SIGHUP: what `Reload` does, told to the log."""
        from syntrop.common import journal
        from syntrop.common.settings import SettingsError
        from syntrop.routerd.config import ConfigError

        try:
            self.reload()
        except (ConfigError, SettingsError) as error:
            journal.error(f"The configuration is refused, and the one before stays: {error}")

    async def stop(self) -> None:
        if self._router is not None:
            await self._router.close()

    def status(self) -> dict[str, Any]:
        now = monotonic()
        members = [one for one in self.router.members.values() if one.config.enabled]
        healthy = sum(one.usable and one.health.healthy(now) for one in members)
        return self.counters.report(__version__, self.pressure(), read_rss(), len(members), healthy)

    def pressure(self) -> dict[str, Pressure]:
        return self.router.pressed.readings()

    def metrics_text(self) -> str:
        return self.metrics.render(
            version=__version__,
            uptime=monotonic() - self.counters.started,
            active=self.counters.active,
            rss=read_rss(),
            members=self.router.members.values(),
            pressure=self.pressure(),
            shedding=self.router.pressed.host().shedding,
            now=monotonic(),
        )


def _load() -> Config:
    """The configuration of all files. Raises ConfigError and SettingsError."""
    from syntrop.common.settings import config_files
    from syntrop.routerd import config

    files = []
    for path in config_files("routerd"):
        try:
            with open(path, encoding="utf-8") as file:
                files.append((path, file.read()))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise config.ConfigError(f"{path}: cannot be read: {reason}") from None
    return config.load(files)


class Router1:
    """io.syntrop.Router1."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def GetStatus(self, call: Call) -> dict[str, Any]:
        return self._core.status()

    async def ListProviders(self, call: Call) -> dict[str, Any]:
        from syntrop.routerd.choosing import report

        chooser = self._core.router.chooser
        await chooser.refresh()
        return {"providers": report(self._core.router.members.values())}

    async def ListModels(self, call: Call) -> dict[str, Any]:
        from syntrop.common.http import chat

        try:
            return {"models": [name for name, _ in await self._core.router.chooser.models()]}
        except chat.EngineError as error:
            raise _failed("Routing", error.message) from error

    async def RouteRequest(
        self,
        call: Call,
        model: str = "",
        tier: str | None = None,
        estimated_tokens: int = ESTIMATED,
        require_stream: bool = False,
    ) -> dict[str, Any]:
        # Everybody streams, so there is nobody whom `require_stream` could exclude.
        from syntrop.common.http import chat
        from syntrop.common.varlink.errors import InvalidParameter
        from syntrop.routerd import asking, scoring

        if tier not in (None, *asking.TIERS):
            raise InvalidParameter("tier")
        if estimated_tokens < 0:
            raise InvalidParameter("estimated_tokens")
        named = asking.alias(model)
        prompt = estimated_tokens - estimated_tokens // 2
        ask = scoring.Ask(
            model if named is None else None,
            named if named in (scoring.FAST, scoring.HARD) else tier or scoring.AUTO,
            prompt_tokens=prompt,
            output_tokens=estimated_tokens - prompt,
        )
        try:
            choice = await self._core.router.chooser.choose(ask, thorough=True)
            if not choice.fit:
                raise choice.nobody(ask)
        except chat.EngineError as error:
            raise _failed("Routing", error.message) from error
        return {
            "candidates": [
                {
                    "provider_id": one.candidate.provider,
                    "model_name": one.candidate.model,
                    "total_score": one.total,
                    "speed_score": one.speed,
                    "cost_score": one.cost,
                    "capability_score": one.capability,
                    "estimated_cost": one.price,
                    "reason": one.reason,
                }
                for one in choice.fit
            ]
        }

    async def TestProvider(self, call: Call, provider_id: str) -> dict[str, Any]:
        from syntrop.common.http import chat

        member = self._core.router.members.get(provider_id)
        if member is None:
            raise _failed("Test", f"There is no provider {provider_id!r}.")
        if not member.config.enabled:
            raise _failed("Test", f"{provider_id} is disabled by the configuration.")
        if member.problem is not None:
            raise _failed("Test", f"{provider_id} cannot be asked: {member.problem}.")
        try:
            seconds = await member.test(TEST_TIMEOUT)
        except (chat.EngineError, TimeoutError) as error:
            why = str(error) or f"no answer within {TEST_TIMEOUT:g} s"
            return {"provider_id": provider_id, "healthy": False, "latency_ms": 0.0, "error": why}
        return {"provider_id": provider_id, "healthy": True, "latency_ms": seconds * 1000}

    async def Reload(self, call: Call, allowInteractiveAuthentication: bool | None = None) -> dict[str, Any]:
        from syntrop.common import authority, journal
        from syntrop.common.settings import SettingsError
        from syntrop.routerd.config import ConfigError

        await authority.authorize(call, interactive=allowInteractiveAuthentication)
        try:
            waiting = self._core.reload()
        except (ConfigError, SettingsError) as error:
            journal.error(f"The configuration is refused, and the one before stays: {error}")
            raise _failed("Reload", str(error)) from error
        return {"at_next_start": waiting} if waiting else {}


def _failed(what: str, message: str) -> VarlinkError:
    from syntrop.common.varlink.errors import VarlinkError

    return VarlinkError(f"io.syntrop.Router1.{what}Failed", message=message)


class Http:
    """The HTTP endpoints. What it needs is imported when the first connection comes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._server: Server | None = None
        self._hosts: frozenset[str] = frozenset()
        self._applied: Settings | None = None  # those that hosts and limits are of
        self._active = {False: 0, True: 0}  # requests under way; those of triage are counted by themselves

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        if self._server is None:
            from syntrop.common.http.server import Server

            daemon = self._core.daemon
            settings = daemon.settings
            self._server = Server(
                self._handle,
                busy=daemon.busy,
                connections_max=settings.connections_max,
                connections_per_uid=settings.connections_max_per_uid,
            )
        self._apply(self._server)
        return self._server.connect(sock)

    def _apply(self, server: Server) -> None:
        """The settings as they are now, which a reload may have changed."""
        settings = self._core.daemon.settings
        if settings is not self._applied:
            from syntrop.common.http.exchange import Limits
            from syntrop.common.http.origin import LOCAL_HOSTS

            self._applied = settings
            self._hosts = LOCAL_HOSTS | {host.lower() for host in settings.hosts}
            server.limits = Limits(
                idle=settings.keep_alive_sec,
                write=settings.write_timeout_sec,
                body_max=settings.body_max,
                streams=settings.streams_max,
            )

    async def _handle(self, exchange: Exchange) -> None:
        from syntrop.common.http import origin
        from syntrop.common.http.errors import HttpError
        from syntrop.routerd.routes import route

        if self._server is not None:
            self._apply(self._server)

        request = exchange.request
        objection = None if exchange.local else origin.objection(request, self._hosts)
        if objection is not None:
            raise HttpError(403, objection, code="forbidden_origin")
        started = monotonic()
        name, status = "none", 499
        try:
            name, rest = route(request.method, request.path)
            await self._route(exchange, name, rest)
            status = 200
        except HttpError as error:
            status = error.status
            if name == "none":
                from syntrop.routerd import dialects

                raise dialects.shape(dialects.neighbour(request.path), error, exchange.id) from error
            raise
        except Exception as fault:
            from syntrop.common.http.server import Disconnected

            status = 499 if isinstance(fault, Disconnected) else 500
            raise
        finally:
            self._core.metrics.ended(name, status, monotonic() - started)

    async def _route(self, exchange: Exchange, name: str, rest: str) -> None:
        from syntrop.routerd import serving

        core = self._core
        if name == "health":
            return await serving.reply(exchange, core.status())
        if name == "metrics":
            from syntrop.routerd.metrics import CONTENT_TYPE

            return await exchange.reply(200, [("content-type", CONTENT_TYPE)], core.metrics_text().encode())
        if name == "root":  # where Ollama's clients look whether anybody is there
            return await exchange.reply(200, [("content-type", "text/plain; charset=utf-8")], _RUNNING)
        with core.counters:
            if name in ("models", "model"):
                return await self._models(exchange, rest)
            if name == "unbuilt":
                from syntrop.routerd import routes

                raise routes.unbuilt(exchange.request.path)
            return await self._turn(exchange, name)

    async def _models(self, exchange: Exchange, name: str) -> None:
        """The list of models, or the one that is named."""
        from syntrop.common.http import chat, openai, openai_models
        from syntrop.routerd import serving

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
        from syntrop.common.http.errors import HttpError
        from syntrop.routerd import dialects, serving

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


async def _admit_triage(exchange: Exchange) -> None:
    """Only the suite's own users may ask as triage, and only by the socket that tells who they are."""
    import os

    from syntrop.common import authority, loop
    from syntrop.common.http.errors import HttpError

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


def _full(most: int) -> Exception:
    from syntrop.common.http.errors import HttpError

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
