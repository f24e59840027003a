# SPDX-License-Identifier: Apache-2.0
"""The models that can be asked for: what modeld has in its store."""

from __future__ import annotations

from syntrop.common import paths
from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODEL = "io.syntrop.Model1"
_TIMEOUT = 10.0


async def names() -> list[str]:
    """Identifiers of all models, each once. Raises chat.EngineError."""
    reply = await _call("List", {})
    return list(dict.fromkeys(entry["id"] for entry in reply["models"]))


async def find(name: str) -> str:
    """Identifier of the model that a name means. Raises chat.ModelNotFound and other EngineErrors."""
    reply: dict[str, Any] = await _call("Inspect", {"id": name})
    identifier: str = reply["info"]["id"]
    return identifier


async def _call(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    from syntrop.common.varlink.client import connect
    from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

    try:
        client = await connect(paths.endpoint(MODEL))
        try:
            with await client.call(f"{MODEL}.{method}", parameters, timeout=_TIMEOUT) as reply:
                return reply.parameters
        finally:
            client.close()
    except VarlinkError as error:
        if error.error in (f"{MODEL}.NoSuchModel", f"{MODEL}.InvalidIdentifier"):
            raise chat.ModelNotFound(parameters["id"]) from None
        raise chat.GenerationFailed(f"The model store failed: {error.name}.") from error
    except TimeoutError:
        raise chat.EngineTimeout("The model store did not answer in time.") from None
    except (OSError, ConnectionLost, InvalidReply) as error:
        raise chat.Unavailable(f"The model store cannot be reached: {error}.") from error
