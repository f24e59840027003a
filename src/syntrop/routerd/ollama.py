# SPDX-License-Identifier: Apache-2.0
"""Ollama's routes that only look: which models there are, what one is, which are in memory, which version."""

from __future__ import annotations

from syntrop import __version__
from syntrop.common.http import chat, ollama, ollama_models
from syntrop.routerd import serving, store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.server import Exchange
    from syntrop.routerd.router import Router


async def answer(exchange: Exchange, route: str, router: Router) -> None:
    """Raises HttpError."""
    try:
        match route:
            case "ollama-tags":
                found = await _tags(router)
            case "ollama-show":
                found = await _show(router, ollama_models.parse_show(await exchange.body()))
            case "ollama-ps":
                found = ollama_models.ps(await store.loaded())
            case _:
                found = ollama_models.version(__version__)
    except chat.EngineError as error:
        raise serving.told(ollama.failure(error, started=False), error) from error
    await serving.reply(exchange, found)


async def _tags(router: Router) -> dict[str, Any]:
    names = [name for name, _ in await router.chooser.models()]
    try:
        stored = await store.entries()
    except chat.EngineError:
        stored = {}  # they are providers' elsewhere, of which the name is all that is known
    return ollama_models.tags([stored.get(name, {"id": name}) for name in names])


async def _show(router: Router, name: str) -> dict[str, Any]:
    found, provider = await router.chooser.find(name)
    member = router.members.get(provider)
    if member is None or not member.config.local:
        return ollama_models.show({"id": found}, {})
    return ollama_models.show(*await store.inspect(found))
