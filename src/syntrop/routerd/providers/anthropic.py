# SPDX-License-Identifier: Apache-2.0
"""Providers that speak Anthropic's Messages API. `base_url` may end with `/v1` or stop before it."""

from __future__ import annotations

import re
from functools import partial

from syntrop.common.http import chat
from syntrop.routerd.providers.anthropic_answer import Answer
from syntrop.routerd.providers.anthropic_request import LONGEST, count_body, generate_body
from syntrop.routerd.providers.remote import Remote, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.provider import Generation
    from syntrop.routerd.config import ProviderConfig

VERSION = "2023-06-01"
_PAGES_MAX = 10  # of the list of models, each with a thousand
_MODELS_MAX = 1024
_NAME = re.compile(r"[A-Za-z0-9._:@/-]{1,256}")
_TOO_LONG = re.compile(r"max_tokens: \d+ > (\d+)")


def create(config: ProviderConfig, secret: str | None) -> Anthropic:
    """Raises ValueError for a base URL that is none."""
    return Anthropic(config, secret)


class Anthropic(Remote):
    """A `provider.Provider`."""

    kind = "anthropic"
    probed = "/models?limit=1"

    def __init__(self, config: ProviderConfig, secret: str | None) -> None:
        headers = [("anthropic-version", VERSION)]
        if secret is not None:
            headers.append(("x-api-key", secret))
        super().__init__(config, secret, config.base_url, headers)
        if not self.client.base.endswith("/v1"):
            self.client.base += "/v1"
        self._longest: dict[str, int] = {}  # tokens of an answer, of the models that said so

    def generate(self, request: chat.GenerateRequest) -> Generation:
        if request.n == 1:
            return self._turn(request)
        from syntrop.common.http.together import Together

        return Together([partial(self._turn, request)] * request.n)

    def _turn(self, request: chat.GenerateRequest) -> Generation:
        def make() -> dict[str, Any]:
            return generate_body(request, self._longest.get(request.model, LONGEST))

        def amend(refusal: chat.Refused) -> bool:
            # Models differ in how long an answer may be, and say so only when more is asked for.
            found = _TOO_LONG.search(refusal.message)
            if request.max_tokens is not None or found is None or len(self._longest) >= _MODELS_MAX:
                return False
            self._longest[request.model] = int(found[1])
            return True

        return Turn(self, "/messages", make, Answer(request, self.teller), request.model, amend)

    async def embed(self, request: chat.EmbedRequest) -> chat.Embeddings:
        raise chat.Unhonoured("model", "Anthropic's models make no embeddings")

    async def count(self, request: chat.GenerateRequest) -> int | None:
        body = count_body(request)
        value = await self.ask("POST", "/messages/count_tokens", body, model=request.model)
        tokens = value.get("input_tokens")
        if type(tokens) is not int or tokens < 0:
            raise self.teller.broken("it did not count the tokens")
        return tokens

    async def models(self) -> list[str]:
        names: list[str] = []
        after = ""
        for _ in range(_PAGES_MAX):
            value = await self.ask("GET", f"/models?limit=1000{after}")
            data = value.get("data")
            if not isinstance(data, list):
                raise self.teller.broken("its list of models is none")
            found = [one.get("id") if isinstance(one, dict) else None for one in data]
            names += [name for name in found if isinstance(name, str) and _NAME.fullmatch(name)]
            last = value.get("last_id")
            if value.get("has_more") is not True or not isinstance(last, str) or not _NAME.fullmatch(last):
                break
            after = f"&after_id={last}"
        return list(dict.fromkeys(names))
