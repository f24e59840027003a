# SPDX-License-Identifier: Apache-2.0
"""gateway.sock and StreamInference: calls of the engine under leases, with a scripted engine behind them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from calm import CALM

SOURCE = Path(__file__).parents[3] / "src"
DOUBLE = Path(__file__).parents[1] / "gateway_double.py"
PATIENCE = 60.0
INFERENCE = "io.syntrop.Inference1."


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        select.select([], [], [], 0.01)


class Host:
    """inferenced with the engine's double behind it."""

    def __init__(self, launch: Any, folder: Path, settings: str = "") -> None:
        config = folder / "inferenced" / "etc"
        config.mkdir(parents=True)
        (config / "inferenced.toml").write_text(CALM + settings)
        self.unit = launch("inferenced")
        self.run: Path = self.unit.run
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "SYNTROP_RUN_ROOT": str(self.run),
            "SYNTROP_CONFIG_ROOT": str(self.run),
            "SYNTROP_IDLE_EXIT_SEC": "0",
        }
        self.double = subprocess.Popen([sys.executable, str(DOUBLE)], env=environment)
        wait_for((self.run / "syntrop/io.syntrop.Model1").exists, "the double")
        self.varlink = launch.client(self.unit, "io.syntrop.Inference1")

    def client(self, **headers: str) -> openai.OpenAI:
        transport = httpx.HTTPTransport(uds=str(self.run / "syntrop/gateway.sock"))
        return openai.OpenAI(
            base_url="http://localhost/v1",
            api_key="none",
            max_retries=0,
            timeout=PATIENCE,
            http_client=httpx.Client(transport=transport),
            default_headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.run / "double.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def cache(self, size: int) -> None:
        (self.run / "cache").write_text(str(size))

    def leases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.varlink.call(INFERENCE + "ListLeases").parameters["leases"]
        return found

    def room(self) -> tuple[str, int]:
        """The processor's node with the most memory to be had, and its bytes."""
        planes = self.varlink.call(INFERENCE + "GetTopology").parameters["planes"]
        best = max((one for one in planes if one["kind"] == "cpu"), key=lambda one: one["available_memory"])
        return best["id"], best["available_memory"]

    def close(self) -> None:
        self.double.terminate()
        self.double.wait(PATIENCE)


@pytest.fixture
def host(launch: Any, tmp_path: Path) -> Iterator[Host]:
    host = Host(launch, tmp_path)
    try:
        yield host
    finally:
        host.close()


def ask(*steps: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": "alpha:1", "messages": [{"role": "user", "content": json.dumps(steps)}], **fields}


def script(*steps: list[Any]) -> str:
    return json.dumps(steps)


def test_every_route_with_the_real_client(host: Host) -> None:
    with host.client() as client:
        assert [one.id for one in client.models.list()] == ["alpha:1", "beta:latest", "org/gamma:2"]
        assert client.models.retrieve("beta").id == "beta:latest"
        whole = client.chat.completions.create(**ask(["say", "Hel"], ["say", "lo"], max_tokens=5))
        assert whole.choices[0].message.content == "Hello"
        chunks = list(client.chat.completions.create(**ask(["say", "Hel"], ["say", "lo"], stream=True)))
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == "Hello"
        assert chunks[-1].choices[0].finish_reason == "stop"
        two = client.completions.create(model="beta:latest", prompt=[script(["say", "a"]), script(["say", "b"])])
        assert [one.text for one in two.choices] == ["a", "b"]
        three = client.completions.create(model="alpha:1", prompt=script(["say", "x"]), n=3)
        assert [one.text for one in three.choices] == ["x", "x", "x"]
        response = client.responses.create(model="alpha:1", input=script(["say", "r"]))
        assert response.output_text == "r"
        vectors = client.embeddings.create(model="alpha:1", input=["one", "three"], encoding_format="float")
        assert [one.embedding for one in vectors.data] == [[3.0, 0.25], [5.0, 0.25]]
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(**{**ask(["say", "x"]), "model": "nope"})
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("nope")
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**ask(["say", "x"]), extra_body={"colour": "red"})
        assert refused.value.param == "colour"
    assert {one["parameters"]["priority"] for one in host.events("call")} == {"Interactive"}
    wait_for(lambda: not host.leases(), "all leases given back")


def test_a_call_holds_a_lease_of_the_caller(host: Host) -> None:
    host.cache(1 << 16)
    with host.client() as client:
        stream = iter(
            client.chat.completions.create(**ask(["say", "a"], ["repeat", "b", 0.02], stream=True, max_tokens=100))
        )
        next(stream), next(stream)
        (lease,) = host.leases()
        assert lease["client_pid"] == os.getpid()
        assert lease["priority"] == "Interactive" and lease["state"] == "Active"
        assert lease["plane_id"].startswith("cpu")
        assert lease["allocated_memory"] == (11 + 100) << 16  # what the double counts, and the answer
    # The client has hung up, and so has the gateway.
    wait_for(lambda: host.events("hang-up"), "the engine to be hung up on")
    wait_for(lambda: not host.leases(), "the lease given back")


def test_a_prompt_of_tokens_has_its_model_loaded_first(host: Host) -> None:
    with host.client() as client:
        answer = client.completions.create(model="beta:latest", prompt=[5, 6, 7])
    assert answer.choices[0].text == "[5, 6, 7]"
    assert [one["parameters"]["model"] for one in host.events("load")] == ["beta:latest"]
    assert not host.events("count")


def test_texts_are_embedded_under_a_lease_that_the_engine_is_told_of(host: Host) -> None:
    host.cache(1 << 16)
    with host.client() as client:
        client.embeddings.create(model="beta:latest", input=["x" * 100, "y" * 200], encoding_format="float")
        client.embeddings.create(model="beta:latest", input=[[1] * 3000, [2]], encoding_format="float")
    # The model was loaded first, or nobody would have known what its cache takes.
    assert [one["parameters"]["model"] for one in host.events("load")] == ["beta:latest"]
    sizes = [one["parameters"]["leased_bytes"] for one in host.events("embed")]
    assert sizes == [300 << 16, 3000 << 16], "short texts share a step of the engine, a long one is alone"
    wait_for(lambda: not host.leases(), "the leases given back")


def test_a_header_lowers_and_never_raises(host: Host) -> None:
    with host.client(x_syntrop_priority="Batch") as client:
        stream = iter(client.chat.completions.create(**ask(["say", "a"], ["repeat", "b", 0.02], stream=True)))
        next(stream)
        assert [one["priority"] for one in host.leases()] == ["Batch"]
        # The engine is told what is leased for it, and of what tier.
        [lease] = host.leases()
        told = host.events("call")[-1]["parameters"]
        assert (told["priority"], told["leased_bytes"]) == ("Batch", lease["allocated_memory"])
    for wrong in ("EmergencyTriage", "batch", ""):
        with host.client(x_syntrop_priority=wrong) as client, pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**ask(["say", "a"]))
        assert caught.value.param == "x-syntrop-priority"


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_is_told_with_its_numbers(launch: Any, tmp_path: Path, stream: bool) -> None:
    host = Host(launch, tmp_path, "[leases]\ncall_wait_ms = 0\n")
    try:
        host.cache(1 << 45)
        with host.client() as client, pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ask(["say", "a"], stream=stream, max_tokens=1))
        error = caught.value
        assert (error.status_code, error.code) == (503, "resource_exhausted")
        assert error.response.headers["retry-after"] == "1"
        assert error.response.headers["x-syntrop-requested"] == str(12 << 45) and str(12 << 45) in error.message
        available = int(error.response.headers["x-syntrop-available"])
        assert available < 12 << 45 and str(available) in error.message
        assert not host.events("call")
        reply = host.varlink.call(INFERENCE + "StreamInference", model="alpha:1", prompt="[]")
        assert reply.error == INFERENCE + "ResourceExhaustion"
        assert reply.parameters["requested"] == (11 + 2048) << 45
    finally:
        host.close()


@pytest.mark.parametrize("stream", [False, True])
def test_the_stronger_gets_the_memory_of_a_call(host: Host, stream: bool, launch: Any) -> None:
    plane, room = host.room()
    share = room * 6 // 10
    host.cache(share // 111)
    emergency = launch.client(host.unit, "sentry.sock")
    request = {"priority": "EmergencyTriage", "memory_bytes": share, "plane": plane, "wait_ms": 30_000}
    given = ask(["say", "a"], ["repeat", "b", 0.02], stream=stream, max_tokens=100)

    def wanted() -> Any:
        wait_for(lambda: host.events("call"), "the call")
        return emergency.call(INFERENCE + "AcquireLease", **request)

    with host.client() as client, ThreadPoolExecutor(1) as pool:
        taken = pool.submit(wanted)
        with pytest.raises(openai.APIError) as caught:
            answer = client.chat.completions.create(**given)
            for _ in answer:
                pass
        assert "broken off" in caught.value.message
        assert isinstance(caught.value, openai.InternalServerError) is not stream
        reply = taken.result(PATIENCE)
    assert reply.error is None, reply.parameters
    wait_for(lambda: host.events("hang-up"), "the engine to be hung up on")
    assert [one["priority"] for one in host.leases()] == ["EmergencyTriage"]


def test_nothing_is_left_of_calls_and_hang_ups(host: Host) -> None:
    def handles() -> int:
        return len(os.listdir(f"/proc/{host.unit.process.pid}/fd"))

    def begin(client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(**ask(["say", "a"], ["repeat", "b", 0.02], stream=True))
        next(iter(stream))
        stream.close()

    with host.client() as client:
        client.chat.completions.create(**ask(["say", "a"]))
        begin(client)
    wait_for(lambda: not host.leases(), "the lease given back")
    before = handles()
    with host.client() as client:
        for number in range(40):
            if number % 4:
                client.chat.completions.create(**ask(["say", "a"]))
            else:
                begin(client)
    wait_for(lambda: not host.leases(), "all leases given back")
    wait_for(lambda: len(host.events("hang-up")) == 11, "the engine to be hung up on")
    # A connection to the engine more may be kept for later; none of ours is.
    wait_for(lambda: handles() <= before + 1, "descriptors closed")


def test_inference_in_pieces_and_as_one(host: Host) -> None:
    prompt = script(["say", "Hel"], ["say", "lo"])
    assert host.varlink.call(INFERENCE + "StreamInference", model="alpha:1", prompt=prompt).parameters == {
        "chunk": "Hello"
    }
    message = {
        "method": INFERENCE + "StreamInference",
        "parameters": {"model": "alpha:1", "prompt": prompt},
        "more": True,
    }
    host.varlink.socket.sendall(json.dumps(message).encode() + b"\0")
    data = b""
    while data.count(b"\0") < 3:
        data += host.varlink.socket.recv(65536)
    replies = [json.loads(one) for one in data.split(b"\0")[:-1]]
    assert [one["parameters"]["chunk"] for one in replies] == ["Hel", "lo", ""]
    assert [one.get("continues", False) for one in replies] == [True, True, False]
    assert host.events("call")[-1]["parameters"]["priority"] == "Interactive"
    unknown = host.varlink.call(INFERENCE + "StreamInference", model="nope", prompt="x")
    assert unknown.error == INFERENCE + "ModelNotFound"
    wait_for(lambda: not host.leases(), "all leases given back")


def test_models_are_told_of_pinned_and_evicted(launch: Any, tmp_path: Path) -> None:
    host = Host(launch, tmp_path)
    try:
        call = host.varlink.call
        facts = {"format": "gguf", "path": "/models/alpha.gguf", "estimated_bytes": 1 << 20}
        assert call(INFERENCE + "RegisterModel", id="alpha:1", **facts).error is None
        plane, _ = host.room()
        assert call(INFERENCE + "PinModel", model="alpha:1", plane="gpu9").error == INFERENCE + "PlaneNotFound"
        assert call(INFERENCE + "PinModel", model="nope", plane=plane).error == INFERENCE + "ModelNotFound"
        assert call(INFERENCE + "PinModel", model="alpha:1", plane=plane).error is None
        entry = {"id": "alpha:1", "format": "gguf", "path": "/models/alpha.gguf", "estimated_memory": 1 << 20}
        assert call(INFERENCE + "ListModels").parameters["models"] == [{**entry, "placement": plane}]
        for wrong in ({"path": "alpha.gguf"}, {"estimated_bytes": -1}, {"id": ""}, {"format": "a\nb"}):
            reply = call(INFERENCE + "RegisterModel", **{"id": "x", **facts, **wrong})
            assert reply.error == INFERENCE + "InvalidParameter" and reply.parameters == {
                "parameter": next(iter(wrong))
            }
        # Kept over a restart of the daemon.
        host.unit.process.terminate()
        host.unit.process.wait(PATIENCE)
        host.unit.start()
        call = launch.client(host.unit, "io.syntrop.Inference1").call
        assert call(INFERENCE + "ListModels").parameters["models"] == [{**entry, "placement": plane}]
        assert call(INFERENCE + "EvictModel", model="alpha:1").error is None
        assert [one["model"] for one in host.events("unload")] == ["alpha:1"]
        assert call(INFERENCE + "ListModels").parameters["models"] == [{**entry, "placement": ""}]
        assert call(INFERENCE + "EvictModel", model="nope").error == INFERENCE + "ModelNotFound"
        busy = call(INFERENCE + "EvictModel", model="org/gamma:2")
        assert busy.error == INFERENCE + "ModelBusy" and "2 calls" in busy.parameters["reason"]
    finally:
        host.close()
    gone = call(INFERENCE + "EvictModel", model="alpha:1")
    assert gone.error == INFERENCE + "InferenceFailed"
