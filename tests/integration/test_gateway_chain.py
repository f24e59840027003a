# SPDX-License-Identifier: Apache-2.0
"""The whole chain of a local program: gateway.sock → runtimed ← modeld, with the starter model."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import Any

import httpx
import openai

MODEL = "smollm2:135m"
# Greedy, the answer to this goes on for thousands of tokens.
LONG: list[Any] = [{"role": "user", "content": "Write a long story about a dragon."}]
RUNTIME, INFERENCE = "io.syntrop.Runtime1", "io.syntrop.Inference1"


def call(suite: Any, interface: str, method: str, **parameters: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as varlink:
        varlink.settimeout(60)
        varlink.connect(suite.endpoint(interface))
        request = {"method": f"{interface}.{method}", "parameters": parameters}
        varlink.sendall(json.dumps(request).encode() + b"\0")
        data = b""
        while not data.endswith(b"\0"):
            data += varlink.recv(65536)
    reply: dict[str, Any] = json.loads(data[:-1])
    assert "error" not in reply, reply
    found: dict[str, Any] = reply["parameters"]
    return found


def mine(suite: Any) -> list[int]:
    """Bytes of the leases that this process holds."""
    leases = call(suite, INFERENCE, "ListLeases")["leases"]
    return [one["allocated_memory"] for one in leases if one["client_pid"] == os.getpid()]


def test_a_call_from_its_client_to_the_weights(stocked_suite: Any) -> None:
    suite = stocked_suite
    transport = httpx.HTTPTransport(uds=suite.endpoint("gateway.sock"))
    with openai.OpenAI(
        base_url="http://localhost/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        http_client=httpx.Client(transport=transport),
    ) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        whole = client.chat.completions.create(model=MODEL, messages=LONG, max_tokens=8, temperature=0)
        assert whole.choices[0].message.content and whole.choices[0].finish_reason == "length"
        stream = client.chat.completions.create(
            model=MODEL, messages=LONG, max_tokens=4000, temperature=0, stream=True
        )
        pieces = iter(stream)
        text = "".join(next(pieces).choices[0].delta.content or "" for _ in range(6))
        assert text and whole.choices[0].message.content.startswith(text[:10])
        held = mine(suite)
        (model,) = call(suite, RUNTIME, "ListLoadedModels")["models"]
        prompt = call(suite, RUNTIME, "CountTokens", model=MODEL, messages=LONG)["tokens"]
        assert held == [(prompt + 4000) * model["cache_token_bytes"]]
        stream.close()
    # The hang-up has reached the engine, and the lease is given back.
    slots = call(suite, RUNTIME, "GetLoad")["max_slots"]
    end = time.monotonic() + 60
    while mine(suite) or call(suite, RUNTIME, "GetLoad")["available_slots"] < slots:
        assert time.monotonic() < end, "the engine still answers nobody"
        select.select([], [], [], 0.05)
    one = call(suite, INFERENCE, "StreamInference", model=MODEL, prompt="The capital of France is")
    assert one["chunk"]
    suite.wait_asleep(60)
