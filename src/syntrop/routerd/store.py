# SPDX-License-Identifier: Apache-2.0
"""The models that the local engine can be asked for: what modeld has in its store."""

from __future__ import annotations

from syntrop.common import paths
from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.varlink.client import Client

MODEL = "io.syntrop.Model1"
_TIMEOUT = 10.0
_KNOWN_MAX = 1024


class Contexts:
    """Context lengths by digest, which never change: what a model's file says of itself is asked for once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    async def listing(self) -> list[tuple[str, int | None]]:
        """(identifier, context length in tokens) of all models, each once. Raises chat.EngineError."""
        found: dict[str, int | None] = {}
        async with _Store() as store:
            for entry in (await store.call("List", {}))["models"]:
                digest = entry["digest"]
                if digest not in self._known:
                    if len(self._known) >= _KNOWN_MAX:
                        self._known.clear()
                    try:
                        self._known[digest] = _context(await store.call("Inspect", {"id": entry["id"]}))
                    except chat.ModelNotFound:
                        continue  # removed meanwhile
                found.setdefault(entry["id"], self._known[digest])
        return list(found.items())


async def entries() -> dict[str, dict[str, Any]]:
    """What the store says of each model, by identifier. Raises chat.EngineError."""
    async with _Store() as store:
        reply = await store.call("List", {})
    return {entry["id"]: entry for entry in reply["models"]}


async def inspect(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the model that a name means, what its file says of itself). Raises chat.ModelNotFound and other
    EngineErrors."""
    async with _Store() as store:
        reply = await store.call("Inspect", {"id": name})
    return reply["info"], _metadata(reply)


def _context(reply: dict[str, Any]) -> int | None:
    length = _metadata(reply).get("context_length")
    return length if isinstance(length, int) and length > 0 else None


def _metadata(reply: dict[str, Any]) -> dict[str, Any]:
    import json

    try:
        found = json.loads(reply.get("metadata") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Store:
    """A connection to modeld for a few calls. Errors become chat.EngineErrors."""

    _client: Client

    async def __aenter__(self) -> _Store:
        from syntrop.common.varlink.client import connect

        try:
            self._client = await connect(paths.endpoint(MODEL))
        except (OSError, TimeoutError) as error:
            raise chat.Unavailable(f"The model store cannot be reached: {error}.") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    async def call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

        try:
            with await self._client.call(f"{MODEL}.{method}", parameters, timeout=_TIMEOUT) as reply:
                return reply.parameters
        except VarlinkError as error:
            if error.error in (f"{MODEL}.NoSuchModel", f"{MODEL}.InvalidIdentifier"):
                raise chat.ModelNotFound(parameters["id"]) from None
            raise chat.GenerationFailed(f"The model store failed: {error.name}.") from error
        except TimeoutError:
            raise chat.EngineTimeout("The model store did not answer in time.") from None
        except (OSError, ConnectionLost, InvalidReply) as error:
            raise chat.Unavailable(f"The model store cannot be reached: {error}.") from error


async def loaded() -> list[dict[str, Any]]:
    """Models in the local engine's memory, as `Runtime1.ListLoadedModels` tells them. Raises chat.EngineError."""
    from syntrop.common.http.engine_request import RUNTIME
    from syntrop.common.varlink.client import connect
    from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

    try:
        client = await connect(paths.endpoint(RUNTIME))
        try:
            with await client.call(f"{RUNTIME}.ListLoadedModels", timeout=_TIMEOUT) as reply:
                models: list[dict[str, Any]] = reply.parameters["models"]
                return models
        finally:
            client.close()
    except VarlinkError as error:
        raise chat.GenerationFailed(f"The local engine does not list its models: {error.name}.") from error
    except (OSError, TimeoutError, ConnectionLost, InvalidReply) as error:
        raise chat.Unavailable(f"The local engine cannot be reached: {error}.") from error
