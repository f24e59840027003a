# SPDX-License-Identifier: Apache-2.0
"""The methods of routerd, thin: io.syntrop.Router1, and the door to HTTP (`ingress`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from syntrop.common.http.server import Connection
    from syntrop.common.varlink.errors import VarlinkError
    from syntrop.common.varlink.server import Call
    from syntrop.routerd.core import Core
    from syntrop.routerd.ingress import Ingress

TEST_TIMEOUT = 10.0  # seconds
ESTIMATED = 1024  # tokens of a request that does not say


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
    """The HTTP endpoints; what they need is imported when the first connection comes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ingress: Ingress | None = None

    def connect(self, sock: socket.socket) -> Connection | None:
        """Take an accepted socket over."""
        if self._ingress is None:
            from syntrop.routerd.ingress import Ingress

            self._ingress = Ingress(self._core)
        return self._ingress.connect(sock)
