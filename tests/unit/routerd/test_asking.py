# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common.http import chat
from syntrop.routerd import asking


def request(model: str = "m", text: str = "x" * 380) -> chat.GenerateRequest:
    return chat.GenerateRequest(model, [chat.Message("user", text)])


@pytest.mark.parametrize(
    ("model", "tier"),
    [
        ("", "auto"), ("auto", "auto"), ("fast", "fast"), ("hard", "hard"), ("router:auto", "auto"),
        ("router:fast", "fast"), ("router:hard", "hard"), ("router:", "auto"), ("router:x", None),
        ("Fast", None), ("fast:1", None), ("m", None),
    ],
)  # fmt: skip
def test_aliases(model: str, tier: str | None) -> None:
    assert asking.alias(model) == tier
    ask = asking.of(request(model))
    assert (ask.model, ask.tier) == ((None, tier) if tier else (model, "auto"))


def test_the_tier_of_an_alias_outranks_the_field() -> None:
    for model, tier in (("m", "hard"), ("auto", "hard"), ("fast", "fast")):
        asked = request(model)
        asked.routing.tier = "hard"
        assert asking.of(asked).tier == tier


def test_sizes() -> None:
    asked = request()
    assert asking.estimate(asked) == 102 + 4
    asked.prompt, asked.messages = [1, 2, 3], None
    assert asking.estimate(asked) == 3
    ask = asking.of(request("m"))
    assert (ask.room, ask.output_tokens) == (1, asking.OUTPUT_USUAL)
    for model, room in (("m", 1), ("auto", 50)):
        asked = request(model)
        asked.max_tokens, asked.n = 50, 2
        ask = asking.of(asked)
        assert (ask.room, ask.output_tokens) == (room, 100)


def test_needs() -> None:
    asked = request()
    assert asking.of(asked).needs == set()
    asked.tools = [chat.Tool("f", None, None)]
    asked.top_logprobs = 0
    asked.reasoning_effort = "high"
    asked.routing.local = True
    ask = asking.of(asked)
    assert ask.needs == {"tools", "logprobs"} and ask.local
    asked.model, asked.tool_choice = "auto", "none"
    assert asking.of(asked).needs == {"logprobs", "reasoning"}
    embedding = chat.EmbedRequest("auto", ["x" * 37, "y"])
    ask = asking.of_embedding(embedding)
    assert ask.needs == {"embeddings"} and ask.model is None and ask.prompt_tokens == 10 and ask.room == 0


def test_another_name_for_the_same_request() -> None:
    asked = request("m")
    asked.seed, asked.stop = 5, ["x"]
    twin = asking.renamed(asked, "up/m")
    assert (twin.model, twin.seed, twin.stop, asked.model) == ("up/m", 5, ["x"], "m")
    assert twin.messages is asked.messages and asking.renamed(asked, "m") is asked


def test_the_chain_of_parts() -> None:
    asked = request("m", "hi")
    asked.tools = [chat.Tool("f", None, None)]
    assert list(asking.parts(asked)()) == ["f", "user\0hi"]
    assert list(asking.parts(chat.GenerateRequest("m", None, "text"))()) == ["text"]
    assert list(asking.parts(chat.GenerateRequest("m", None, [1]))()) == []
