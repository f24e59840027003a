# SPDX-License-Identifier: Apache-2.0
"""Routing by the process: aliases, headers, reload, Router1, /metrics, and `syntropctl router`."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)
ask, varlink, wait_for = process.ask, process.varlink, process.wait_for

CHAT = "/v1/chat/completions"
DEFAULTS = """
[thresholds]
max_retries = 1

[tiers.auto]
default_model = "alpha:1"
[tiers.fast]
default_model = "alpha:1"
[tiers.hard]
default_model = "beta:latest"
"""


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    router = process.Router(config=DEFAULTS)
    try:
        router.start_double()
        yield router
    finally:
        router.close()


@pytest.fixture
def lone() -> Iterator[Any]:
    router = process.Router()
    try:
        router.start_double()
        yield router
    finally:
        router.close()


def test_sections_of_the_router_are_no_unknown_settings(router: Any) -> None:
    assert router.request("GET", "/health")[0] == 200
    assert "unknown" not in router.log()


@pytest.mark.parametrize(
    ("model", "answers"),
    [
        ("alpha:1", "alpha:1"), ("beta", "beta"), ("auto", "alpha:1"), ("", "alpha:1"), ("router:auto", "alpha:1"),
        ("router:fast", "alpha:1"), ("hard", "beta:latest"), ("router:hard", "beta:latest"),
    ],
)  # fmt: skip
def test_who_answers(router: Any, model: str, answers: str) -> None:
    body = {**ask(["say", "x"]), "model": model}
    if model == "beta":  # a name without its tag is the engine's to understand
        assert router.request("POST", CHAT, body)[0] == 404
        return
    status, headers, reply = router.request("POST", CHAT, body)
    assert status == 200 and reply["model"] == answers and reply["choices"][0]["message"]["content"] == "x"
    assert (headers["x-syntrop-provider"], headers["x-syntrop-model"]) == ("local", answers)
    assert " = 1 * (" in headers["x-syntrop-reason"]
    with router.client() as client:
        raw = client.chat.completions.with_raw_response.create(**{**body, "stream": True})
        assert raw.headers["x-syntrop-model"] == answers and raw.headers["x-syntrop-provider"] == "local"
        assert {chunk.model for chunk in raw.parse()} == {answers}


def test_the_tier_of_a_request(router: Any) -> None:
    body = {**ask(["say", "x"]), "model": "auto"}
    for given, headers, answers in (
        ({}, {"x_syntrop_tier": "hard"}, "beta:latest"),
        ({"tier": "hard"}, {}, "beta:latest"),
        ({"tier": "fast"}, {"x_syntrop_tier": "hard"}, "alpha:1"),
        ({}, {"x_syntrop_local": "yes"}, "alpha:1"),
        ({"local": True}, {"x_syntrop_tier": "auto"}, "alpha:1"),
    ):
        status, got, _ = router.request("POST", CHAT, {**body, **given}, **headers)
        assert (status, got.get("x-syntrop-model")) == (200, answers)
    for headers in ({"x_syntrop_tier": "EmergencyTriage"}, {"x_syntrop_local": "perhaps"}):
        status, _, reply = router.request("POST", CHAT, body, **headers)
        assert (status, reply["error"]["param"]) == (400, next(iter(headers)).replace("_", "-"))


def test_triage_is_not_to_be_had_over_tcp(router: Any) -> None:
    body = {**ask(["say", "x"]), "model": "auto"}
    status, _, reply = router.request("POST", CHAT, body, x_syntrop_tier="triage")
    assert (status, reply["error"]["code"]) == (403, "permission_denied")
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(router.root / "syntrop" / "router.sock"))
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-syntrop-tier: triage\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    response = http.client.HTTPResponse(client)
    response.begin()
    status, headers, _ = process.finish(response)
    assert (status, headers["x-syntrop-provider"]) == (200, "local")
    client.close()


def test_routes_that_do_not_exist_yet(router: Any) -> None:
    for path in ("/v1/audio/speech", "/v1/images/generations"):
        status, headers, reply = router.request("POST", path, {"model": "x"})
        assert (status, headers["x-should-retry"]) == (501, "false")
        assert (reply["error"]["code"], reply["error"]["type"]) == ("not_built", "not_implemented_error")


def test_every_dialect_has_its_routes(router: Any) -> None:
    turn = {"model": "alpha:1", "messages": ask(["say", "x"], ["say", "y"])["messages"]}
    status, headers, reply = router.request("POST", "/v1/messages", {**turn, "max_tokens": 9})
    assert (status, reply["content"], reply["model"]) == (200, [{"type": "text", "text": "xy"}], "alpha:1")
    assert headers["x-syntrop-provider"] == "local"
    status, headers, reply = router.request("POST", "/v1/messages", turn)
    assert (status, reply["type"], reply["request_id"]) == (400, "error", headers["x-request-id"])
    status, _, reply = router.request("POST", "/v1/messages", {**turn, "max_tokens": 9}, x_syntrop_tier="x")
    assert (status, reply["type"]) == (400, "error")
    status, _, reply = router.request("POST", "/v1/messages/count_tokens", turn)
    assert status == 200 or reply["type"] == "error", "an engine that counts, or one that does not yet"

    status, headers, reply = router.request("POST", "/api/chat", {**turn, "stream": False})
    assert (status, reply["message"]["content"], reply["done"]) == (200, "xy", True)
    prompt = {"model": "alpha:1", "prompt": turn["messages"][0]["content"], "raw": True, "stream": False}
    assert router.request("POST", "/api/generate", prompt)[2]["response"] == "xy"
    status, _, reply = router.request("POST", "/api/chat", {**turn, "model": "nope", "stream": False})
    assert status == 404 and list(reply) == ["error"]
    assert router.request("GET", "/api/tags")[2]["models"][0]["name"] == "alpha:1"
    assert router.request("POST", "/api/show", {"model": "beta"})[2]["details"]["format"] == "gguf"
    assert router.request("POST", "/api/show", {"model": "nope"})[0] == 404
    assert router.request("GET", "/api/ps")[2]["models"][0]["context_length"] == 3
    assert set(router.request("GET", "/api/version")[2]) == {"version"}


def test_metrics(router: Any) -> None:
    router.request("POST", CHAT, ask(["say", "x"], ["say", "y"]))
    router.request("GET", "/nothing")
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    text = response.read().decode()
    connection.close()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["syntrop_router_requests_total", (("route", "chat"), ("status", "200"))] >= 1
    assert samples["syntrop_router_requests_total", (("route", "none"), ("status", "404"))] >= 1
    assert samples["syntrop_router_provider_healthy", (("provider", "local"),)] == 1
    assert samples["syntrop_router_completion_tokens_total", (("model", "alpha:1"), ("provider", "local"))] >= 2
    assert samples["syntrop_router_first_token_seconds_count", ()] >= 1
    assert samples["syntrop_router_between_tokens_seconds_count", ()] >= 1
    assert samples["syntrop_router_requests_active", ()] == 0 == samples["syntrop_router_requests_waiting", ()]
    assert samples["syntrop_router_resident_bytes", ()] > 2**20


def test_route_requests(router: Any) -> None:
    candidates = varlink(router, "RouteRequest", model="auto", tier="hard")["parameters"]["candidates"]
    assert [one["model_name"] for one in candidates] == ["beta:latest", "alpha:1", "org/gamma:2"]
    first = candidates[0]
    assert first["reason"].startswith(f"{first['total_score']:.1f} = ") and "default model" in first["reason"]
    (named,) = varlink(router, "RouteRequest", model="alpha")["parameters"]["candidates"]
    assert named["model_name"] == "alpha:1"
    refused = varlink(router, "RouteRequest", model="nobody's")
    assert refused["error"] == "io.syntrop.Router1.RoutingFailed"
    assert "nobody's" in refused["parameters"]["message"]
    assert varlink(router, "RouteRequest", tier="triage")["parameters"] == {"parameter": "tier"}
    assert varlink(router, "RouteRequest", estimated_tokens=-1)["parameters"] == {"parameter": "estimated_tokens"}


def test_providers_can_be_tested(router: Any) -> None:
    result = varlink(router, "TestProvider", provider_id="local")["parameters"]
    assert result["healthy"] and 0 < result["latency_ms"] < 10_000 and "error" not in result
    assert varlink(router, "TestProvider", provider_id="x")["error"] == "io.syntrop.Router1.TestFailed"


def test_reload(lone: Any) -> None:
    body = {**ask(["say", "x"]), "model": "auto"}

    def answers() -> str:
        model: str = lone.request("POST", CHAT, body)[1]["x-syntrop-model"]
        return model

    assert answers() == "alpha:1"
    lone.config.write_text('[tiers.auto]\ndefault_model = "beta:latest"\n')
    assert varlink(lone, "Reload") == {"parameters": {}} and answers() == "beta:latest"
    lone.config.write_text('[tiers.auto]\ndefault_model = "org/gamma:2"\n')
    lone.process.send_signal(signal.SIGHUP)
    wait_for(lambda: answers() == "org/gamma:2")
    # One bad line refuses the whole, and names itself.
    for text, line, word in (
        ('[tiers.auto]\ndefault_model = "alpha:1"\n[[providers]]\nid = "x"\nkind = "nonsense"\n', 5, "nonsense"),
        ("[daemon]\nping_sec = -1\n", 2, "ping_sec"),
    ):
        lone.config.write_text(text)
        refused = varlink(lone, "Reload")
        assert refused["error"] == "io.syntrop.Router1.ReloadFailed"
        assert f"{lone.config}:{line}: " in refused["parameters"]["message"]
        assert word in refused["parameters"]["message"]
        lone.process.send_signal(signal.SIGHUP)
        wait_for(lambda text=f"and the one before stays: {lone.config}:{line}": lone.log().count(text) >= 2)
        assert answers() == "org/gamma:2"


def test_a_reload_changes_settings_or_says_which_wait(lone: Any) -> None:
    assert lone.request("GET", "/health")[0] == 200, "it has started, and will not read this unasked"
    lone.config.write_text('[daemon]\nhosts = ["box.example"]\nbody_max = 4096\n')
    assert lone.request("GET", "/v1/models", Host="box.example")[0] == 403
    assert varlink(lone, "Reload") == {"parameters": {}}
    assert lone.request("GET", "/v1/models", Host="box.example")[0] == 200
    assert lone.request("POST", CHAT, {"model": "x" * 5000})[0] == 413
    # The engine may be silent for a second only; it was asked before, under the old time.
    assert lone.request("POST", CHAT, ask(["wait", 1.2], ["say", "x"]))[0] == 200
    lone.config.write_text("[daemon]\nengine_timeout_sec = 1\nconnections_max = 99\nidle_exit_sec = 77\n")
    waiting = ["idle_exit_sec", "connections_max"]
    if "SYNTROP_IDLE_EXIT_SEC" in lone.environment:  # which outranks the file
        waiting.remove("idle_exit_sec")
    assert varlink(lone, "Reload") == {"parameters": {"at_next_start": waiting}}
    assert lone.request("POST", CHAT, ask(["wait", 30], ["say", "x"]))[0] == 504
    assert lone.request("GET", "/v1/models", Host="box.example")[0] == 403
    assert f"waits for the next start: {', '.join(waiting)}" in lone.log()
    assert ctl(lone, "reload") == f"counts from the next start of routerd: {', '.join(waiting)}\n"
    lone.config.write_text("")
    assert varlink(lone, "Reload") == {"parameters": {}}


def test_a_reload_disturbs_no_request(lone: Any) -> None:
    client = socket.create_connection(("127.0.0.1", lone.port))
    client.settimeout(60)
    process.send(client, ask(["say", "a"], ["wait", 0.3], ["say", "b"]))
    wait_for(lambda: lone.events("call"))
    lone.config.write_text('[[providers]]\nid = "other"\nkind = "runtimed"\n')
    assert "error" not in varlink(lone, "Reload")
    assert varlink(lone, "ListProviders")["parameters"]["providers"][0]["id"] == "other"
    response = http.client.HTTPResponse(client)
    response.begin()
    status, headers, reply = process.finish(response)
    assert (status, headers["x-syntrop-provider"]) == (200, "local")
    assert reply["choices"][0]["message"]["content"] == "ab"
    client.close()
    assert lone.request("POST", CHAT, ask(["say", "x"]))[1]["x-syntrop-provider"] == "other"


def test_a_bad_file_keeps_it_from_starting() -> None:
    router = process.Router(config='[[providers]]\nid = "UPPER"\nkind = "openai"\n')
    try:
        assert router.process.wait(60) == 78
        assert f"{router.config}:2: id must be lower-case" in router.log()
    finally:
        router.close()


def ctl(router: Any, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "syntrop.ctl", "router", *words],
        env=router.environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_syntropctl_router(lone: Any) -> None:
    assert json.loads(ctl(lone, "status", "--json"))["status"] == "ok"
    assert "1 of 1 healthy" in ctl(lone, "status")
    assert json.loads(ctl(lone, "providers", "--json"))[0]["id"] == "local"
    assert "models: alpha:1, beta:latest, org/gamma:2" in ctl(lone, "providers")
    assert json.loads(ctl(lone, "models", "--json"))[1] == {"name": "beta:latest", "providers": ["local"]}
    assert ctl(lone, "models").splitlines()[0].split() == ["alpha:1", "local"]
    assert "speed" in ctl(lone, "route", "hard")
    (one,) = json.loads(ctl(lone, "route", "beta", "--tokens", "10", "--stream", "-t", "fast", "--json"))
    assert one["model_name"] == "beta:latest"
    assert "does not exist" in ctl(lone, "route", "nobody's", status=1)
    assert ctl(lone, "test").startswith("local: answers in ")
    assert json.loads(ctl(lone, "test", "local", "--json"))[0]["healthy"] is True
    assert "no provider 'x'" in ctl(lone, "test", "x", status=1)
    question = json.dumps([["say", "42"]])
    assert ctl(lone, "test", "-p", question, "-m", "beta:latest").splitlines()[0] == "42"
    told = json.loads(ctl(lone, "test", "-p", question, "-t", "hard", "--json"))
    assert told["provider"] == "local" and told["reason"] and told["answer"]["model"] == told["model"]
    assert ctl(lone, "reload") == ""


def test_the_default_model_is_set_and_cleared(lone: Any) -> None:
    assert "no default" in ctl(lone, "default")
    assert "beta:latest" in ctl(lone, "default", "beta:latest")
    assert "org/gamma:2" in ctl(lone, "default", "org/gamma:2", "-t", "hard")
    found = json.loads(ctl(lone, "default", "--json"))
    assert {tier: one["model"] for tier, one in found.items()} == {"auto": "beta:latest", "hard": "org/gamma:2"}
    assert json.loads(ctl(lone, "route", "--json"))[0]["model_name"] == "beta:latest"
    assert "no model 'x'" in ctl(lone, "default", "x", status=1)
    assert "beta:latest" not in ctl(lone, "default", "--clear")
    assert json.loads(ctl(lone, "route", "--json"))[0]["model_name"] == "alpha:1"
    # What the router refuses is taken back.
    drop_in = lone.config.parent / "routerd.toml.d" / "50-default.toml"
    before = drop_in.read_text()
    lone.config.write_text("[thresholds]\nmax_retries = 99\n")
    assert f"{lone.config}:2" in ctl(lone, "default", "alpha:1", status=1)
    assert drop_in.read_text() == before and os.listdir(drop_in.parent) == ["50-default.toml"]
