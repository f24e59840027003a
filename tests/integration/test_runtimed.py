# SPDX-License-Identifier: Apache-2.0
"""runtimed and modeld as processes, with the starter model: the daemon's whole interface from outside."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"
UNIT = Path(__file__).parents[1] / "unit" / "runtimed"
RUNTIME, STORE = "io.syntrop.Runtime1", "io.syntrop.Model1"
MODEL = "smollm2:135m"
TIMEOUT = 60.0
HELLO = [{"role": "user", "content": "Hello"}]
DEEP = '{"a":' * 900 + "1" + "}" * 900


class VarlinkFault(Exception):
    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(reply)
        self.error: str = reply["error"].rpartition(".")[2]
        self.interface: str = reply["error"].rpartition(".")[0]
        self.parameters: dict[str, Any] = reply.get("parameters", {})


class Client:
    """A Varlink client of a few lines, independent of ours."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(str(path))
        self._left = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, method: str, parameters: dict[str, Any], *, more: bool = False, fd: int | None = None) -> None:
        message = {"method": method, "parameters": parameters, **({"more": True} if more else {})}
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
        data = json.dumps(message).encode() + b"\0"
        sent = self.socket.sendmsg([data], rights)
        self.socket.sendall(data[sent:])

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise EOFError
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        reply: dict[str, Any] = json.loads(message)
        if "error" in reply:
            raise VarlinkFault(reply)
        return reply

    def call(self, method: str, passed: int | None = None, **parameters: Any) -> dict[str, Any]:
        self.send(method, parameters, fd=passed)
        result: dict[str, Any] = self.receive()["parameters"]
        return result

    def stream(self, method: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        self.send(method, parameters, more=True)
        while True:
            reply = self.receive()
            yield reply["parameters"]
            if not reply.get("continues"):
                return


class Suite:
    """runtimed and modeld under one root, bound by hand. With `idle`, runtimed is left to be started."""

    def __init__(self, *options: str, idle: float = 0) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="syntrop-runtimed-")
        self.root = Path(self.folder.name)
        (self.root / "run" / "syntrop").mkdir(parents=True)
        (self.root / "state").mkdir()
        (self.root / "config").mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("modeld", STORE)
        if idle == 0:
            self.start("runtimed", RUNTIME, *options)

    def start(self, daemon: str, endpoint: str, *options: str, idle: float = 0) -> subprocess.Popen[bytes]:
        path = self.endpoint(endpoint)
        path.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "SYNTROP_RUN_ROOT": str(self.root / "run"),
            "SYNTROP_CONFIG_ROOT": str(self.root / "config"),
            "STATE_DIRECTORY": str(self.root / "state"),
            "SYNTROP_IDLE_EXIT_SEC": str(idle),
        }
        command = [sys.executable, "-m", f"syntrop.{daemon}", *options]
        process = subprocess.Popen(command, env=environment)
        self.processes[daemon] = process
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                Client(path).socket.close()
                return process
            except OSError:
                assert process.poll() is None, f"{daemon} ended with {process.returncode}"
                assert time.monotonic() < deadline, f"{daemon} does not listen"
                time.sleep(0.01)

    def endpoint(self, name: str) -> Path:
        return self.root / "run" / "syntrop" / name

    def runtime(self) -> Client:
        return Client(self.endpoint(RUNTIME))

    def store(self) -> Client:
        return Client(self.endpoint(STORE))

    def register(self, path: Path, name: str) -> dict[str, Any]:
        with self.store() as client, open(path, "rb") as file:
            label, _, tag = name.partition(":")
            result: dict[str, Any] = client.call(f"{STORE}.Register", file.fileno(), id=label, tag=tag, fd=0)
            return result["entry"]

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(TIMEOUT)
        self.folder.cleanup()


def generate(suite: Suite, **parameters: Any) -> dict[str, Any]:
    with suite.runtime() as client:
        reply = client.call(f"{RUNTIME}.Generate", model=MODEL, **parameters)
        result: dict[str, Any] = reply["result"]
        return result


def fault(suite: Suite, method: str = "Generate", **parameters: Any) -> VarlinkFault:
    with suite.runtime() as client, pytest.raises(VarlinkFault) as caught:
        client.call(f"{RUNTIME}.{method}", **parameters)
    return caught.value


@pytest.fixture(scope="module")
def suite(smollm2_path: Path) -> Iterator[Suite]:
    suite = Suite("--slots", "2", "--queue-max", "1")
    try:
        suite.register(smollm2_path, MODEL)
        yield suite
    finally:
        suite.stop()


def load(suite: Suite) -> dict[str, Any]:
    with suite.runtime() as client:
        return client.call(f"{RUNTIME}.GetLoad")


def wait_until_idle(suite: Suite) -> None:
    # Far less than what was asked for would take, and enough for a machine that has other things to do.
    deadline = time.monotonic() + 10
    while load(suite)["available_slots"] != 2:
        assert time.monotonic() < deadline, "a generation outlived its caller"
        time.sleep(0.01)


# --- before a model is loaded (the order of tests in this file) -----------------------------------------------


def test_nothing_heavy_is_loaded_before_the_first_model(suite: Suite) -> None:
    assert load(suite) == {"available_slots": 2, "max_slots": 2, "used_bytes": 0, "models": []}
    with suite.runtime() as client:
        assert client.call(f"{RUNTIME}.ListLoadedModels") == {"models": []}
        assert client.call(f"{RUNTIME}.GetModelStatus", model=MODEL)["status"] == "not_loaded"
        assert client.call(f"{RUNTIME}.UnloadModel", model=MODEL) == {"freed_bytes": 0}
    process = suite.processes["runtimed"]
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "numpy" not in maps
    assert "_kernels" not in maps


@pytest.mark.parametrize(
    ("parameters", "parameter"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "a"}, {"role": "root", "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "temperature": -1.0}, "temperature"),
        ({"prompt": "a", "top_p": 1.5}, "top_p"),
        ({"prompt": "a", "top_k": -1}, "top_k"),
        ({"prompt": "a", "min_p": 7.0}, "min_p"),
        ({"prompt": "a", "repetition_penalty": 0.0}, "repetition_penalty"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a", "stop": ["x"] * 65}, "stop"),
        ({"prompt": "a", "image": "AAAA"}, "image"),
        ({"prompt": "a", "grammar": "{}"}, "grammar"),
        ({"prompt": "a", "grammar_type": "json"}, "grammar_type"),
        ({"prompt": "a", "speculative_draft_model": "x"}, "speculative_draft_model"),
        ({"prompt": "a", "reasoning_budget": 1}, "reasoning_budget"),
        ({"prompt": "a", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"prompt": "a", "presence_penalty": 1e9}, "presence_penalty"),
        ({"prompt": "a", "top_logprobs": 21}, "top_logprobs"),
        ({"prompt": "a", "top_logprobs": -1}, "top_logprobs"),
        ({"prompt": "a", "logit_bias": [{"token": 1, "bias": 101.0}]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [{"token": -1, "bias": 1.0}]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [{"token": 1, "bias": 1.0}] * 2}, "logit_bias[1].token"),
        ({"prompt": "a", "tools": [{"name": "f"}]}, "tools"),
        ({"prompt": "a", "template_variables": "{}"}, "template_variables"),
        ({"messages": HELLO, "template_variables": "{"}, "template_variables"),
        ({"messages": HELLO, "template_variables": "[]"}, "template_variables"),
        ({"messages": HELLO, "template_variables": '{"messages": 1}'}, "template_variables"),
        ({"messages": HELLO, "template_variables": '{"a b": 1}'}, "template_variables"),
        ({"messages": HELLO, "tools": [{"name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"messages": HELLO, "tools": [{"name": "f", "parameters": DEEP}]}, "tools[0].parameters"),
        ({"messages": HELLO, "template_variables": DEEP}, "template_variables"),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": DEEP}]},
                ]
            },
            "messages",
        ),
    ],
)
def test_parameters_that_cannot_be_honoured_are_named(
    suite: Suite, parameters: dict[str, Any], parameter: str
) -> None:
    error = fault(suite, model=MODEL, **parameters)
    assert (error.interface, error.error) == (RUNTIME, "InvalidParameter")
    assert error.parameters["parameter"] == parameter
    assert error.parameters["reason"]


def test_types_are_checked_by_the_interface(suite: Suite) -> None:
    error = fault(suite, model=MODEL, prompt="a", max_tokens="many")
    assert (error.interface, error.parameters) == ("org.varlink.service", {"parameter": "max_tokens"})


def test_models_that_are_not_there(suite: Suite) -> None:
    decision = {"prompt": "a", "candidates": [{"name": "a", "token": " b"}, {"name": "c", "token": " d"}]}
    for method, given in (
        ("Generate", {"prompt": "a"}),
        ("Decide", decision),
        ("Embed", {"text": "a"}),
        ("GetModelStatus", {}),
        ("UnloadModel", {}),
    ):
        assert fault(suite, method, model="nonesuch:1b", **given).parameters == {"model": "nonesuch:1b"}
    assert fault(suite, model="", prompt="a").parameters["parameter"] == "model"


def test_methods_of_later_versions_say_so(suite: Suite) -> None:
    assert fault(suite, "GenerateMusic", prompt="a").error == "MethodNotImplemented"


def test_many_who_ask_at_once_load_the_model_once(suite: Suite) -> None:
    with ThreadPoolExecutor(3) as pool:
        results = list(
            pool.map(lambda _n: generate(suite, prompt="The capital of France is", max_tokens=2), range(3))
        )
    assert {result["text"] for result in results} == {" Paris."}
    with suite.runtime() as client:
        (model,) = client.call(f"{RUNTIME}.ListLoadedModels")["models"]
        assert client.call(f"{RUNTIME}.GetModelStatus", model=MODEL) == {"status": "loaded", "model": model}
    assert model["name"] == MODEL
    assert (model["architecture"], model["parameter_count"], model["context_window"]) == (
        "llama",
        134_515_008,
        8192,
    )
    assert model["memory_bytes"] > 90_000_000
    assert model["compute_backend"] in ("scalar", "avx2", "avx512", "amx")


# --- generation ------------------------------------------------------------------------------------------


def test_greedy_continuations_of_the_oracle(suite: Suite, golden: Path) -> None:
    """Where the oracle's own margin is wide, the text is the oracle's."""
    cases = json.loads((golden / "smollm2-135m-q4_1.json").read_text())["cases"]
    for case in cases:
        wide = 0
        for step in case["steps"]:
            (_, best), (_, second) = step["top"][:2]
            if best - second <= 0.5:
                break
            wide += 1
        result = generate(suite, prompt=case["prompt"], max_tokens=len(case["greedy"]))
        assert result["prompt_tokens"] == len(case["tokens"])
        if wide == len(case["steps"]):
            assert result["text"] == case["text"]
        elif wide:
            short = generate(suite, prompt=case["prompt"], max_tokens=wide)["text"]
            assert case["text"].startswith(short)


def test_the_published_call_of_four_parameters(suite: Suite) -> None:
    result = generate(suite, prompt="The capital of France is", max_tokens=3, temperature=0.0)
    assert result["finish_reason"] == "length"
    assert (result["prompt_tokens"], result["completion_tokens"]) == (5, 3)
    assert result["text"].startswith(" Paris.")
    assert result["duration_ms"] > 0


def test_a_stream_gives_the_text_of_the_result_in_whole_characters(suite: Suite) -> None:
    messages = [{"role": "user", "content": "Write three emoji: 🦔🦊🐻"}]
    with suite.runtime() as client:
        replies = list(client.stream(f"{RUNTIME}.Generate", model=MODEL, messages=messages, max_tokens=300))
    deltas = [reply["delta"] for reply in replies[:-1]]
    assert all(deltas)
    assert replies[-1].keys() == {"result"}
    assert "".join(deltas) == replies[-1]["result"]["text"]
    assert len(deltas) > 2, "pieces, however few: a slow reader finds them joined"


def test_messages_go_through_the_models_template(suite: Suite) -> None:
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    by_messages = generate(suite, messages=messages, max_tokens=10)
    by_prompt = generate(suite, prompt=rendered, max_tokens=10)
    assert by_messages["text"] == by_prompt["text"]
    assert by_messages["prompt_tokens"] == by_prompt["prompt_tokens"]


def tinymodel() -> Any:
    spec = importlib.util.spec_from_file_location("tinymodel_i", UNIT / "tinymodel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_conversation_that_the_template_refuses_is_named(suite: Suite, tmp_path: Path) -> None:
    from syntrop.runtimed.tokenizer_bpe import BYTE_TO_CHAR

    tiny = tinymodel().Tiny(vocab=257)
    tiny.metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTE_TO_CHAR, "<end>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.chat_template": "{{ raise_exception('only on ' + day) }}",
    }
    (tmp_path / "tiny.gguf").write_bytes(tiny.file())
    suite.register(tmp_path / "tiny.gguf", "tiny:strict")
    error = fault(suite, model="tiny:strict", messages=HELLO, template_variables='{"day": "Sunday"}')
    assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", "messages")
    assert "only on Sunday" in error.parameters["reason"]
    with suite.runtime() as client:
        client.call(f"{RUNTIME}.UnloadModel", model="tiny:strict")


def test_a_model_is_one_by_whatever_name(suite: Suite) -> None:
    digest = "sha256:b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    with suite.runtime() as client:
        texts = {
            client.call(f"{RUNTIME}.Generate", model=name, prompt="a", max_tokens=3)["result"]["text"]
            for name in (MODEL, "smollm2", digest)
        }
        assert len(client.call(f"{RUNTIME}.ListLoadedModels")["models"]) == 1
    assert len(texts) == 1


def test_stop_strings_and_the_end_of_the_turn(suite: Suite) -> None:
    result = generate(suite, prompt="Count: 1, 2, 3, 4,", max_tokens=64, stop=[" 9", "7,"])
    assert result["finish_reason"] == "stop"
    assert "7," not in result["text"] and " 9" not in result["text"]
    assert result["stop_string"] in (" 9", "7,")
    answer = generate(suite, messages=[{"role": "user", "content": "Say hello."}], max_tokens=200)
    assert answer["finish_reason"] == "stop" and answer.get("stop_string") is None
    assert "<|im_end|>" not in answer["text"]


def test_seeds_repeat_and_differ(suite: Suite) -> None:
    how = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.2, "top_k": 50, "min_p": 0.02}
    first = generate(suite, seed=42, **how)
    assert first["seed"] == 42
    with ThreadPoolExecutor(2) as pool:  # whatever runs beside
        beside = pool.submit(generate, suite, seed=7, **how)
        assert generate(suite, seed=42, **how)["text"] == first["text"]
        assert beside.result()["text"] != first["text"]
    by_clock = generate(suite, **how)
    assert by_clock["seed"] > 0
    assert generate(suite, seed=by_clock["seed"], **how)["text"] == by_clock["text"]


def test_repetition_penalty_changes_a_loop(suite: Suite) -> None:
    how = {"prompt": "yes yes yes yes yes yes yes yes", "max_tokens": 12}
    assert generate(suite, repetition_penalty=1.5, **how)["text"] != generate(suite, **how)["text"]


def test_penalties_and_biases_change_the_text(suite: Suite) -> None:
    plain = generate(suite, prompt="The capital of France is", max_tokens=1, top_logprobs=2)
    (told,) = plain["logprobs"]
    assert told["text"] == plain["text"] == " Paris"
    second = told["top"][1]
    bias = [{"token": told["token"], "bias": -100.0}]
    other = generate(suite, prompt="The capital of France is", max_tokens=1, logit_bias=bias)
    assert other["text"] == second["text"]
    error = fault(suite, model=MODEL, prompt="a", logit_bias=[{"token": 49152, "bias": 1.0}])
    assert error.parameters["parameter"] == "logit_bias[0].token"
    how = {"prompt": "yes yes yes yes yes yes yes yes", "max_tokens": 12}
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert generate(suite, **penalty, **how)["text"] != generate(suite, **how)["text"]


def test_logprobs_come_with_their_text(suite: Suite) -> None:
    how = {"model": MODEL, "prompt": "Emoji: 🦊🐻🦊🐻", "max_tokens": 20, "top_logprobs": 3}
    with suite.runtime() as client:
        replies = list(client.stream(f"{RUNTIME}.Generate", **how))
    result = replies[-1]["result"]
    told = [one for reply in replies[:-1] for one in reply.get("logprobs", [])]
    assert told == result["logprobs"]
    assert len(told) == result["completion_tokens"]
    whole = b"".join(bytes(one["bytes"]) for one in told)
    assert whole.decode(errors="replace").rstrip("\ufffd") == result["text"]
    shown = b""
    text = ""
    for reply in replies[:-1]:
        shown += b"".join(bytes(one["bytes"]) for one in reply.get("logprobs", []))
        text += reply.get("delta", "")
        assert shown.decode(errors="ignore") == text
    for one in told:
        assert one["logprob"] <= 0 and len(one["top"]) == 3
        assert one["logprob"] == one["top"][0]["logprob"], "greedy takes the likeliest"
        assert [other["logprob"] for other in one["top"]] == sorted(
            (other["logprob"] for other in one["top"]), reverse=True
        )
    # Temperature and penalties change the choice, not what is told of it.
    hot = generate(suite, prompt=how["prompt"], max_tokens=1, top_logprobs=3, temperature=5.0, seed=3)
    assert hot["logprobs"][0]["top"] == told[0]["top"]
    assert "logprobs" not in generate(suite, prompt="a", max_tokens=1)
    assert generate(suite, prompt="a", max_tokens=1, top_logprobs=0)["logprobs"][0]["top"] == []


def test_logprobs_end_where_a_stop_string_begins(suite: Suite) -> None:
    result = generate(suite, prompt="Count: 1, 2, 3, 4,", max_tokens=64, stop=["7,"], top_logprobs=0)
    text = b"".join(bytes(one["bytes"]) for one in result["logprobs"]).decode()
    assert result["text"] == text


def decide(suite: Suite, prompt: str, *texts: str, **more: Any) -> dict[str, Any]:
    candidates = [{"name": text.strip(), "token": text} for text in texts]
    with suite.runtime() as client:
        reply = client.call(f"{RUNTIME}.Decide", model=MODEL, prompt=prompt, candidates=candidates, **more)
    result: dict[str, Any] = reply["result"]
    return result


def test_a_decision_agrees_with_what_is_generated(suite: Suite) -> None:
    prompt = "The capital of France is"
    result = decide(suite, prompt, " London", " Paris", " a city in England")
    assert result["winner"] == "Paris"
    told = generate(suite, prompt=prompt, max_tokens=1, top_logprobs=0)["logprobs"][0]
    first = result["candidates"][0]
    assert (first["token_id"], first["tokens"]) == (told["token"], 1)
    assert abs(first["logit"] - told["logprob"]) < 1e-3
    assert sum(one["probability"] for one in result["candidates"]) == pytest.approx(1)
    assert result["confidence"] == first["probability"] > 0.9
    flat = decide(suite, prompt, " London", " Paris", " a city in England", temperature=1000.0)
    assert flat["winner"] == "Paris" and flat["confidence"] < 0.4
    assert flat["candidates"][0]["logit"] == pytest.approx(first["logit"], abs=1e-3)


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"candidates": []}, "candidates"),
        ({"candidates": [{"name": "a", "token": " b"}]}, "candidates"),
        ({"candidates": [{"name": "a", "token": " b"}, {"name": "a", "token": " c"}]}, "candidates[1].name"),
        ({"candidates": [{"name": "a", "token": " b"}, {"name": "c", "token": " b"}]}, "candidates[1].token"),
        ({"candidates": [{"name": "a", "token": " b"}, {"name": "c", "token": ""}]}, "candidates[1].token"),
        ({"candidates": [{"name": "", "token": " b"}, {"name": "c", "token": " d"}]}, "candidates[0].name"),
        ({"prompt": ""}, "prompt"),
        ({"temperature": 0.0}, "temperature"),
    ],
    ids=str,
)
def test_decisions_that_cannot_be_made(suite: Suite, change: dict[str, Any], parameter: str) -> None:
    given = {"prompt": "a", "candidates": [{"name": "a", "token": " b"}, {"name": "c", "token": " d"}], **change}
    error = fault(suite, "Decide", model=MODEL, **given)
    assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", parameter)


def test_a_decision_beyond_the_context_or_hung_up_on(suite: Suite) -> None:
    candidates = [{"name": "a", "token": " b"}, {"name": "c", "token": " d"}]
    error = fault(suite, "Decide", model=MODEL, prompt="word " * 9000, candidates=candidates)
    assert (error.error, error.parameters["max"]) == ("ContextExceeded", 8192)
    wait_until_idle(suite)
    with suite.runtime() as client:
        how = {"model": MODEL, "prompt": "word " * 8000, "candidates": candidates}
        client.send(f"{RUNTIME}.Decide", how)
        deadline = time.monotonic() + TIMEOUT
        while load(suite)["available_slots"] == 2:
            assert time.monotonic() < deadline
    wait_until_idle(suite)


def test_a_model_that_generates_embeds_too(suite: Suite) -> None:
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "An index of a database is corrupt."]
    with suite.runtime() as client:
        one = client.call(f"{RUNTIME}.Embed", model=MODEL, text=texts[0])
        many = client.call(f"{RUNTIME}.Embed", model=MODEL, texts=texts, pooling="mean")
        default = client.call(f"{RUNTIME}.Embed", model=MODEL, texts=texts)
    assert len(one["embedding"]) == 576 and "embeddings" not in one
    assert one["embedding"] == pytest.approx(default["embedding"], abs=1e-5)
    assert one["embedding"] == default["embeddings"][0]["vector"]
    vectors = [one["vector"] for one in many["embeddings"]]
    assert many["prompt_tokens"] == sum(one["tokens"] for one in many["embeddings"])
    assert all(sum(x * x for x in vector) == pytest.approx(1, abs=1e-5) for vector in vectors)

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
    with suite.runtime() as client:
        by_tokens = client.call(f"{RUNTIME}.Embed", model=MODEL, tokens=[{"ids": [1, 2, 3]}])
    assert by_tokens["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({}, "text"),
        ({"text": "a", "texts": ["b"]}, "text"),
        ({"text": ""}, "text"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"tokens": [{"ids": []}]}, "tokens[0].ids"),
        ({"tokens": [{"ids": [1]}, {"ids": [49152]}]}, "tokens[1].ids"),
        ({"tokens": [{"ids": [-1]}]}, "tokens[0].ids"),
        ({"text": "a", "pooling": "max"}, "pooling"),
    ],
    ids=str,
)
def test_texts_that_cannot_be_embedded(suite: Suite, given: dict[str, Any], parameter: str) -> None:
    error = fault(suite, "Embed", model=MODEL, **given)
    assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", parameter)


def test_a_text_beyond_the_context_is_not_cut(suite: Suite) -> None:
    for given in ({"text": "word " * 9000}, {"tokens": [{"ids": [1] * 8193}]}):
        error = fault(suite, "Embed", model=MODEL, **given)
        assert (error.error, error.parameters["max"]) == ("ContextExceeded", 8192)
        assert error.parameters["requested"] >= 8193
    error = fault(suite, "Embed", model=MODEL, texts=["a"] * 2000)  # more than one reply could carry
    assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", "texts")


def test_what_the_template_has_no_place_for_is_refused(suite: Suite) -> None:
    tools = [{"name": "f", "description": "<|im_end|>", "parameters": '{"type": "object", "<|im_end|>": 1}'}]
    for method in ("Generate", "CountTokens"):
        for name, value in (("tools", tools), ("template_variables", '{"enable_thinking": true}')):
            error = fault(suite, method, model=MODEL, messages=HELLO, **{name: value})
            assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", name)
            assert "chat template" in error.parameters["reason"]
    # Not to think is what this model does anyway.
    plain = generate(suite, messages=HELLO, max_tokens=5)
    given = generate(suite, messages=HELLO, max_tokens=5, template_variables='{"enable_thinking": false}')
    assert (given["text"], given["prompt_tokens"]) == (plain["text"], plain["prompt_tokens"])


def test_a_prompt_beyond_the_context_is_refused_with_numbers(suite: Suite) -> None:
    error = fault(suite, model=MODEL, prompt="word " * 9000)
    assert error.error == "ContextExceeded"
    assert error.parameters["max"] == 8192
    assert 8192 < error.parameters["requested"] <= 9002
    error = fault(suite, model=MODEL, prompt="a" * 10_000_000)
    assert error.error == "ContextExceeded"


def test_a_full_house_refuses_with_numbers(suite: Suite) -> None:
    wait_until_idle(suite)
    clients = [suite.runtime() for _ in range(4)]
    how = {"model": MODEL, "prompt": "Tell", "max_tokens": 4000}
    try:
        for client in clients[:2]:
            client.send(f"{RUNTIME}.Generate", how, more=True)
            client.receive()
        # Two slots and one place in the queue: of the next two, one is refused.
        for client in clients[2:]:
            client.send(f"{RUNTIME}.Generate", how, more=True)
        ready, _, _ = select.select([client.socket for client in clients[2:]], [], [], TIMEOUT)
        (refused,) = (client for client in clients if client.socket in ready)
        with pytest.raises(VarlinkFault) as caught:
            refused.receive()
        assert caught.value.error == "Overloaded"
        assert "2 of 2 slots" in caught.value.parameters["reason"]
        assert "1 of 1 places" in caught.value.parameters["reason"]
        busy = fault(suite, "UnloadModel", model=MODEL)
        assert (busy.error, "3 calls" in busy.parameters["reason"]) == ("Overloaded", True)
    finally:
        for client in clients:
            client.socket.close()
    wait_until_idle(suite)


def test_a_request_is_announced_as_accepted_before_its_turn(suite: Suite) -> None:
    wait_until_idle(suite)
    clients = [suite.runtime() for _ in range(4)]
    how = {"model": MODEL, "prompt": "Tell", "max_tokens": 4000}
    try:
        for client in clients[:2]:
            client.send(f"{RUNTIME}.Generate", how, more=True)
            client.receive()
        clients[2].send(f"{RUNTIME}.Generate", {**how, "announce": True}, more=True)
        assert clients[2].receive() == {"parameters": {}, "continues": True}, "it waits for a slot"
        clients[3].send(f"{RUNTIME}.Generate", {**how, "prompt": "word " * 9000, "announce": True}, more=True)
        with pytest.raises(VarlinkFault) as caught:
            clients[3].receive()
        assert caught.value.error == "ContextExceeded", "what is refused is not announced"
    finally:
        for client in clients:
            client.socket.close()
    wait_until_idle(suite)
    with suite.runtime() as client:
        replies = list(client.stream(f"{RUNTIME}.Generate", **{**how, "max_tokens": 3, "announce": True}))
        assert replies[0] == {} and replies[1]["start"] and replies[-1]["result"]["completion_tokens"] == 3
        whole = client.call(f"{RUNTIME}.Generate", **{**how, "max_tokens": 3, "announce": True})
        assert whole["result"]["text"] == replies[-1]["result"]["text"]
    wait_until_idle(suite)


def test_hanging_up_frees_the_slot_at_once(suite: Suite) -> None:
    wait_until_idle(suite)
    with suite.runtime() as client:
        client.send(f"{RUNTIME}.Generate", {"model": MODEL, "prompt": "Tell", "max_tokens": 4000}, more=True)
        client.receive()
        assert load(suite)["available_slots"] == 1
    wait_until_idle(suite)
    # During the prompt, and without `more`, too.
    with suite.runtime() as client:
        client.send(f"{RUNTIME}.Generate", {"model": MODEL, "prompt": "word " * 8000, "max_tokens": 4000})
        deadline = time.monotonic() + TIMEOUT
        while load(suite)["available_slots"] == 2:
            assert time.monotonic() < deadline
    wait_until_idle(suite)


def test_a_long_prompt_does_not_stop_a_stream(suite: Suite) -> None:
    with suite.runtime() as client:
        stream = client.stream(f"{RUNTIME}.Generate", model=MODEL, prompt="Once", max_tokens=40)
        next(stream)
        with suite.runtime() as other:
            other.send(f"{RUNTIME}.Generate", {"model": MODEL, "prompt": "word " * 8000, "max_tokens": 1})
            before = time.monotonic()
            next(stream)
            next(stream)
            assert time.monotonic() - before < 5
        assert list(stream)[-1]["result"]["completion_tokens"] == 40
    wait_until_idle(suite)


def test_unloading_gives_the_memory_back_and_the_next_call_loads_again(suite: Suite) -> None:
    with suite.runtime() as client:
        used = client.call(f"{RUNTIME}.GetLoad")["used_bytes"]
        assert 0 < client.call(f"{RUNTIME}.UnloadModel", model=MODEL)["freed_bytes"] <= used
        assert client.call(f"{RUNTIME}.GetLoad")["used_bytes"] == 0
        assert client.call(f"{RUNTIME}.ListLoadedModels") == {"models": []}
    assert generate(suite, prompt="The capital of France is", max_tokens=1)["text"] == " Paris"


def test_loading_and_letting_go(suite: Suite) -> None:
    def load(**how: Any) -> dict[str, Any]:
        with suite.runtime() as client:
            return client.call(f"{RUNTIME}.LoadModel", model=MODEL, **how)

    with suite.runtime() as client:
        for keep in (-2, -0.5, 604_801):
            with pytest.raises(VarlinkFault) as caught:
                client.call(f"{RUNTIME}.LoadModel", model=MODEL, keep_sec=keep)
            assert caught.value.parameters["parameter"] == "keep_sec"
        client.call(f"{RUNTIME}.UnloadModel", model=MODEL)
        assert client.call(f"{RUNTIME}.LoadModel", model=MODEL, keep_sec=0) == {}, "loads nothing"
    assert load()["model"]["name"] == MODEL
    assert load(keep_sec=600)["model"]["context_window"] > 0
    assert load(keep_sec=0) == {}
    with suite.runtime() as client:
        assert client.call(f"{RUNTIME}.ListLoadedModels") == {"models": []}


def tiny_encoder(path: Path) -> Path:
    """A BERT of one layer with six words, as a GGUF file."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (32, 7), "position_embd.weight": (32, 16), "token_types.weight": (32, 2),
        "token_embd_norm.weight": (32,), "token_embd_norm.bias": (32,),
    }  # fmt: skip
    for name, rows, cols in (
        ("attn_q", 32, 32), ("attn_k", 32, 32), ("attn_v", 32, 32), ("attn_output", 32, 32), ("ffn_up", 64, 32),
        ("ffn_down", 32, 64),
    ):  # fmt: skip
        shapes[f"blk.0.{name}.weight"] = (cols, rows)
        shapes[f"blk.0.{name}.bias"] = (rows,)
    for name in ("attn_output_norm", "layer_output_norm"):
        shapes |= {f"blk.0.{name}.weight": (32,), f"blk.0.{name}.bias": (32,)}
    tensors = {}
    for number, (name, shape) in enumerate(shapes.items()):
        values = [((i * 37 + number * 11) % 101 - 50) / 100 for i in range(math.prod(shape))]
        tensors[name] = (0, shape, struct.pack(f"<{len(values)}f", *values))
    metadata = {
        "general.architecture": "bert", "bert.block_count": 1, "bert.context_length": 16,
        "bert.embedding_length": 32, "bert.feed_forward_length": 64, "bert.attention.head_count": 2,
        "bert.attention.layer_norm_epsilon": 1e-12, "bert.pooling_type": 2, "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581hello", "\u2581world", "s"],
        "tokenizer.ggml.token_type": [3, 2, 3, 3, 1, 1, 1], "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip
    path.write_bytes(tinymodel().gguf(metadata, tensors))
    return path


def test_an_encoder_embeds_and_generates_nothing(suite: Suite, tmp_path: Path) -> None:
    suite.register(tiny_encoder(tmp_path / "tiny.gguf"), "tiny:bert")
    with suite.runtime() as client:
        one = client.call(f"{RUNTIME}.Embed", model="tiny:bert", text="Hello, worlds")
        assert (len(one["embedding"]), one["prompt_tokens"]) == (32, 6)
        many = client.call(f"{RUNTIME}.Embed", model="tiny:bert", texts=["hello", "world", "hello"])
        vectors = [one["vector"] for one in many["embeddings"]]
        assert vectors[0] == vectors[2] != vectors[1]
        status = client.call(f"{RUNTIME}.GetModelStatus", model="tiny:bert")["model"]
        assert (status["architecture"], status["context_window"]) == ("bert", 16)
    candidates = [{"name": "a", "token": " b"}, {"name": "c", "token": " d"}]
    for method, given in (("Generate", {}), ("Decide", {"candidates": candidates})):
        error = fault(suite, method, model="tiny:bert", prompt="hello", **given)
        assert (error.error, error.parameters["parameter"]) == ("InvalidParameter", "model")
        assert "encoder" in error.parameters["reason"]
    error = fault(suite, "Embed", model="tiny:bert", text="hello " * 15)
    assert (error.error, error.parameters) == ("ContextExceeded", {"requested": 17, "max": 16})
    with suite.runtime() as client:
        assert client.call(f"{RUNTIME}.UnloadModel", model="tiny:bert")["freed_bytes"] > 0


def test_a_file_that_cannot_be_run_says_why(suite: Suite, tmp_path: Path) -> None:
    name = b"general.architecture"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(name)) + name
    path = tmp_path / "other.gguf"
    path.write_bytes(head + struct.pack("<IQ", 8, 5) + b"mamba" + bytes(32))
    suite.register(path, "other:1b")
    error = fault(suite, model="other:1b", prompt="a")
    assert error.error == "GenerationFailed"
    assert "mamba" in error.parameters["reason"]


def test_a_store_that_sleeps_for_ever_is_said_to_be_away(smollm2_path: Path) -> None:
    suite = Suite("--store-timeout-sec", "1")
    try:
        suite.processes["modeld"].send_signal(signal.SIGSTOP)
        error = fault(suite, model=MODEL, prompt="a")
        assert error.error == "GenerationFailed"
        assert "store" in error.parameters["reason"]
    finally:
        suite.processes["modeld"].send_signal(signal.SIGCONT)
        suite.stop()


def test_the_kernel_level_can_be_forced_and_the_text_stays(smollm2_path: Path) -> None:
    suite = Suite("--kernel-level", "scalar")
    try:
        suite.register(smollm2_path, MODEL)
        assert generate(suite, prompt="The capital of France is", max_tokens=1)["text"] == " Paris"
        with suite.runtime() as client:
            (model,) = client.call(f"{RUNTIME}.ListLoadedModels")["models"]
        assert model["compute_backend"] == "scalar"
    finally:
        suite.stop()


def test_idle_exit_with_a_model_loaded_and_the_default_model(smollm2_path: Path) -> None:
    suite = Suite(idle=1.0)
    try:
        suite.register(smollm2_path, MODEL)
        process = suite.start("runtimed", RUNTIME, "--default-model", MODEL, idle=1.0)
        with suite.runtime() as client:
            result = client.call(f"{RUNTIME}.Generate", model="", prompt="The capital of France is", max_tokens=60)
            assert result["result"]["text"].startswith(" Paris.")
            assert client.call(f"{RUNTIME}.LoadModel", model="", keep_sec=600)["model"]["name"] == MODEL
        time.sleep(2)
        assert process.poll() is None, "a model that is to stay holds it"
        with suite.runtime() as client:
            assert client.call(f"{RUNTIME}.LoadModel", model=MODEL, keep_sec=0.1)["model"]
        assert process.wait(60) == 0
    finally:
        suite.stop()


def test_stopping_in_mid_stream_ends_it_with_an_error(smollm2_path: Path) -> None:
    suite = Suite("--stop-timeout-sec", "0.5")
    try:
        suite.register(smollm2_path, MODEL)
        with suite.runtime() as client:
            client.send(f"{RUNTIME}.Generate", {"model": MODEL, "prompt": "Tell", "max_tokens": 8000}, more=True)
            client.receive()
            suite.processes["runtimed"].terminate()
            with pytest.raises((VarlinkFault, EOFError, ConnectionError)):
                while True:
                    client.receive()
        assert suite.processes["runtimed"].wait(60) == 0
    finally:
        suite.stop()
