# SPDX-License-Identifier: Apache-2.0
"""Providers that speak OpenAI's API: vLLM, Ray Serve, llama.cpp, Ollama, and services on the net.

`base_url` is what OpenAI's own clients call so, with its `/v1`; one without a path gets that.
"""

from __future__ import annotations

import math
import os
from functools import partial

from syntrop.common.http import chat
from syntrop.routerd.providers.openai_answer import Answer
from syntrop.routerd.providers.openai_request import embed_body, generate_body, generate_path, is_official
from syntrop.routerd.providers.remote import Remote, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.http.provider import Generation
    from syntrop.routerd.config import ProviderConfig


def create(config: ProviderConfig, secret: str | None) -> OpenAI:
    """Raises ValueError for a base URL that is none."""
    return OpenAI(config, secret)


class OpenAI(Remote):
    """A `provider.Provider`."""

    kind = "openai"

    def __init__(self, config: ProviderConfig, secret: str | None) -> None:
        headers = [] if secret is None else [("authorization", f"Bearer {secret}")]
        super().__init__(config, secret, config.base_url, headers)
        if not self.client.base:
            self.client.base = "/v1"
        self._official = is_official(self.client.host)

    def generate(self, request: chat.GenerateRequest) -> Generation:
        make = partial(generate_body, request, official=self._official)
        answer = Answer(request, self.teller, new_call_id)
        return Turn(self, generate_path(request), make, answer, request.model)

    async def embed(self, request: chat.EmbedRequest) -> chat.Embeddings:
        value = await self.ask("POST", "/embeddings", embed_body(request), model=request.model)
        self._fail_told(value, request.model)
        try:
            vectors = _vectors(value.get("data"), len(request.inputs))
        except (ValueError, OverflowError) as error:
            raise self.teller.broken(str(error)) from None
        length = len(vectors[0])
        if request.dimensions is not None and request.dimensions != length:
            raise chat.Unhonoured("dimensions", f"the vectors of this model have {length}")
        usage = value.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
        return chat.Embeddings(request.model, vectors, tokens if type(tokens) is int and tokens >= 0 else 0)

    async def count(self, request: chat.GenerateRequest) -> int | None:
        """OpenAI's API has no such question."""
        return None

    async def models(self) -> list[str]:
        value = await self.ask("GET", "/models")
        self._fail_told(value, "")
        data = value.get("data")
        if not isinstance(data, list):
            raise self.teller.broken("its list of models is none")
        names = [one.get("id") if isinstance(one, dict) else None for one in data]
        return list(dict.fromkeys(name for name in names if isinstance(name, str) and _is_name(name)))

    def _fail_told(self, value: dict[str, Any], model: str) -> None:
        """Raise the error that came in the place of an answer."""
        if value.get("error"):
            raise self.teller.told(value["error"], model)


def _vectors(data: Any, count: int) -> list[list[float]]:
    """In the order of the inputs. Raises ValueError."""
    if not isinstance(data, list) or len(data) != count:
        raise ValueError("it did not embed every text, once")
    found: dict[int, list[float]] = {}
    for place, one in enumerate(data):
        if not isinstance(one, dict):
            raise ValueError("an embedding is no object")
        index = one.get("index", place)
        if type(index) is not int or index in found:
            raise ValueError("it did not embed every text, once")
        found[index] = _vector(one.get("embedding"))
    if set(found) != set(range(count)):
        raise ValueError("it did not embed every text, once")
    lengths = {len(vector) for vector in found.values()}
    if len(lengths) != 1:
        raise ValueError("its vectors are not of one length")
    return [found[index] for index in range(count)]


def _vector(value: Any) -> list[float]:
    if isinstance(value, str):  # base64, though numbers were asked for
        import base64
        import struct

        data = base64.b64decode(value, validate=True)
        if len(data) % 4:
            raise ValueError("a vector is cut off")
        value = list(struct.unpack(f"<{len(data) // 4}f", data))
    if not isinstance(value, list) or not value:
        raise ValueError("a vector is no list of numbers")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError("a vector is no list of numbers")
    return [float(number) for number in value]


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 256 and name.isprintable()


def new_call_id() -> str:
    return "call_" + os.urandom(12).hex()
