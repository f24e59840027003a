# SPDX-License-Identifier: Apache-2.0
"""What a provider of answers is to those who route to it: the local engine, or a server elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from syntrop.common.http import chat

    class Generation(Protocol):
        """One turn that runs. Whoever started it closes it, which hangs up unless the turn has ended."""

        async def next(self, timeout: float | None = None) -> chat.Told:
            """The next event; before all others there may be an Accepted. Raises EngineError, and TimeoutError
            when there is none yet: then ask again."""
            ...

        def ready(self) -> list[chat.Event]:
            """The events that have arrived already, without waiting, up to one that ends a choice or fails."""
            ...

        async def close(self) -> None: ...

    class Provider(Protocol):
        """All methods but `close` raise EngineError."""

        id: str
        kind: str  # runtimed, openai, anthropic
        timeout: float  # seconds of silence that fail a request

        def generate(self, request: chat.GenerateRequest) -> Generation:
            """Start a turn; its errors come with its events."""
            ...

        async def embed(self, request: chat.EmbedRequest) -> chat.Embeddings: ...

        async def count(self, request: chat.GenerateRequest) -> int | None:
            """How many tokens the prompt has for the model, exactly; None where nobody can tell."""
            ...

        async def load(self, model: str, keep: float | None = None) -> int | None:
            """Have a model in memory, and keep it so many seconds (-1: for ever; 0: let go of it) where this is
            the provider's to say; tokens of its context, where it is known."""
            ...

        async def models(self) -> list[str]: ...

        async def probe(self, timeout: float) -> float:
            """Ask for a sign of life that costs no work; the seconds that it took."""
            ...

        def close(self) -> None: ...
