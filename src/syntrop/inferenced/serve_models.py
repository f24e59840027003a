# SPDX-License-Identifier: Apache-2.0
"""The methods of `io.syntrop.Inference1` about models: what the arbiter was told of them, and their engine."""

from __future__ import annotations

from syntrop.common import authority, paths
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.inferenced.admission import INTERFACE, SIZE_MAX, invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.lending import Lender

RUNTIME = "io.syntrop.Runtime1"
TEXT_MAX = 256
PATH_MAX = 4096
UNLOAD_TIMEOUT = 60.0  # seconds
_FAULTS = (OSError, TimeoutError, ConnectionLost, InvalidReply)


class Models:
    """`ready()` gives the broker, `lender()` what calls the engine and knows the models."""

    def __init__(self, ready: Callable[[], Awaitable[Broker]], lender: Callable[[], Lender]) -> None:
        self._ready = ready
        self._lender = lender

    async def ListModels(self, call: Call) -> dict[str, Any]:
        return {"models": list(self._lender().registry.models.values())}

    async def RegisterModel(
        self,
        call: Call,
        id: str,
        format: str,
        path: str,
        estimated_bytes: int,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        for name, value, most in (("id", id, TEXT_MAX), ("format", format, TEXT_MAX), ("path", path, PATH_MAX)):
            if not value or len(value) > most or not value.isprintable():
                raise invalid(name)
        if not path.startswith("/"):
            raise invalid("path")
        if not 0 <= estimated_bytes <= SIZE_MAX:
            raise invalid("estimated_bytes")
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details={"model": id})
        from syntrop.inferenced.registry import MODELS_MAX, Full

        try:
            registry = self._lender().registry
            await registry.change(registry.add, id, format, path, estimated_bytes)
        except Full:
            raise VarlinkError(
                INTERFACE + "QuotaExceeded", resource="models", requested=MODELS_MAX + 1, limit=MODELS_MAX
            ) from None
        return {}

    async def PinModel(
        self, call: Call, model: str, plane: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        details = {"model": model[:TEXT_MAX], "plane": plane[:TEXT_MAX]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        broker = await self._ready()
        if plane not in broker.topology.planes:
            raise VarlinkError(INTERFACE + "PlaneNotFound", plane=plane[:TEXT_MAX])
        try:
            registry = self._lender().registry
            await registry.change(registry.place, model, plane)
        except KeyError:
            raise _unknown(model) from None
        return {}

    async def EvictModel(
        self, call: Call, model: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        details = {"model": model[:TEXT_MAX]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        registry = self._lender().registry
        try:
            await _unload(model)
        except VarlinkError as error:
            if error.name == "ModelNotFound":
                if model not in registry.models:
                    raise _unknown(model) from None
            elif error.name == "Overloaded":
                reason = str(error.parameters.get("reason"))
                raise VarlinkError(INTERFACE + "ModelBusy", model=model, reason=reason) from None
            else:
                raise _failed(f"the engine says {error.error}") from None
        except _FAULTS as error:
            raise _failed(f"the engine cannot be reached: {error}") from None
        if registry.placement(model) is not None:
            await registry.change(registry.place, model, "")
        return {}

    async def StreamInference(self, call: Call, model: str, prompt: str) -> dict[str, Any]:
        await authority.authorize(call)
        from syntrop.common.http import chat

        text: list[str] = []
        try:
            answer = await self._lender().generate(call.peer, [chat.GenerateRequest(model, None, prompt)])
            try:
                while not answer.complete:
                    for event in (await answer.next(), *answer.ready()):
                        if not isinstance(event, chat.Delta):
                            continue
                        if call.more:
                            await call.send({"chunk": event.text})
                        else:
                            text.append(event.text)
            finally:
                await answer.close()
        except chat.ModelNotFound as error:
            raise _unknown(error.model) from None
        except chat.Unhonoured as error:
            raise invalid(error.parameter or "prompt") from None
        except chat.EngineError as error:
            raise _failed(error.message) from None
        return {"chunk": "".join(text)}


async def _unload(model: str) -> None:
    from syntrop.common.varlink.client import connect

    client = await connect(paths.endpoint(RUNTIME))
    try:
        (await client.call(f"{RUNTIME}.UnloadModel", {"model": model}, timeout=UNLOAD_TIMEOUT)).close()
    finally:
        client.close()


def _unknown(model: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "ModelNotFound", model=model[:TEXT_MAX])


def _failed(reason: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "InferenceFailed", reason=reason)
