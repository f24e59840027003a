# SPDX-License-Identifier: Apache-2.0
"""Routing between providers elsewhere, which a thread of the test plays, and the scripted local engine."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)
ask, varlink, wait_for = process.ask, process.varlink, process.wait_for

CHAT = "/v1/chat/completions"
LOCAL = """
[[providers]]
id = "local"
kind = "runtimed"
models = [{name = "alpha:1", max_context_tokens = 20}]
"""
KEY = "sk-secret"


class Upstream:
    """A server that speaks OpenAI's API as far as is needed. `play` answers a chat by the handler it is given."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.left: list[float] = []  # when clients hung up
        self.models = ["cloud-model"]
        self.listed = 0
        self.play: Callable[[Handler], None] = Handler.answer
        upstream = self

        class Bound(Handler):
            pass

        Bound.upstream = upstream
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.upstream.listed += 1
        models = [{"id": name, "object": "model"} for name in self.upstream.models]
        self.json(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.upstream.requests.append({"headers": dict(self.headers), "path": self.path, **json.loads(body)})
        with contextlib.suppress(ConnectionError):
            self.upstream.play(self)

    def json(self, status: int, value: Any, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, **headers: str) -> None:
        self.json(status, {"error": {"message": "scripted", "type": "server_error"}}, **headers)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def say(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def event(self, value: Any) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def end(self) -> None:
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}})
        self.event("[DONE]")

    def answer(self) -> None:
        self.begin()
        self.say("from ")
        self.say("afar")
        self.end()

    def stall(self) -> None:
        """Say nothing till the client leaves."""
        if select.select([self.connection], [], [], 20)[0]:
            self.upstream.left.append(time.monotonic())
        self.close_connection = True


@pytest.fixture
def one() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def two() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


def provider(id: str, upstream: Upstream, *, models: str = '[{name = "m"}]', **more: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    listed = f"models = {models}" if models else ""
    head = f'[[providers]]\nid = "{id}"\nkind = "openai"\nbase_url = "{upstream.url}"\n{listed}\n'
    return head + "\n".join(lines) + "\n"


@contextlib.contextmanager
def routing(config: str, *options: str, **environment: str) -> Iterator[Any]:
    # Headers wait for the first piece, however busy the machine is, where a test does not say otherwise.
    options = ("--ping-sec=0.1", "--headers-after-sec=20", *options)
    router = process.Router(*options, config=config, environment=environment)
    try:
        router.start_double()
        yield router
    finally:
        router.close()


def question(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def text_of(reply: Any) -> str:
    text: str = reply["choices"][0]["message"]["content"]
    return text


def test_a_provider_elsewhere_answers(one: Upstream, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    config = provider("far", one, models='[{name = "m", upstream = "vendor/m"}]', credential="key")
    with routing(config, CREDENTIALS_DIRECTORY=str(tmp_path)) as router:
        status, headers, reply = router.request("POST", CHAT, question())
        assert (status, text_of(reply), reply["model"]) == (200, "from afar", "m")
        assert (headers["x-syntrop-provider"], headers["x-syntrop-model"]) == ("far", "m")
        got = one.requests[0]
        assert (got["model"], got["headers"]["authorization"]) == ("vendor/m", f"Bearer {KEY}")
        with router.client() as client:
            chunks = list(client.chat.completions.create(**question(stream=True)))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "from afar"
        # The local engine's models are there besides, and what the router says never has the key.
        assert router.request("POST", CHAT, ask(["say", "x"]))[1]["x-syntrop-provider"] == "local"
        listed = {model["id"]: model["owned_by"] for model in router.request("GET", "/v1/models")[2]["data"]}
        assert listed["m"] == "far" and listed["alpha:1"] == "syntrop"
        assert KEY not in json.dumps(varlink(router, "ListProviders")) + router.log()
        assert router.request("POST", CHAT, question(local=True))[0] == 503


def test_models_that_the_provider_lists(one: Upstream) -> None:
    with routing(provider("far", one, models="")) as router:
        for _ in range(3):
            status, _, reply = router.request("POST", CHAT, question(model="cloud-model"))
            assert (status, text_of(reply)) == (200, "from afar")
        assert one.listed == 1
        assert router.request("GET", "/v1/models/cloud-model")[2]["owned_by"] == "far"
        one.models.append("newer")
        assert varlink(router, "Reload") == {"parameters": {}}
        assert router.request("POST", CHAT, question(model="newer"))[0] == 200
        assert router.request("POST", CHAT, question(model="nobody's"))[0] == 404


@pytest.mark.parametrize("stream", [False, True])
def test_another_one_answers_where_the_first_fails(one: Upstream, two: Upstream, stream: bool) -> None:
    one.play = lambda handler: handler.fail(500)
    with routing(provider("a", one) + provider("b", two, weight=0.5)) as router:
        with router.client() as client:
            raw = client.chat.completions.with_raw_response.create(**question(stream=stream))
            assert raw.headers["x-syntrop-provider"] == "b"
            assert raw.headers["x-syntrop-reason"].endswith("; after a/m")
            parsed = raw.parse()
            if stream:
                assert "".join(chunk.choices[0].delta.content or "" for chunk in parsed) == "from afar"
        assert (len(one.requests), len(two.requests)) == (1, 1)
        providers = {p["id"]: p for p in varlink(router, "ListProviders")["parameters"]["providers"]}
        assert (providers["a"]["total_errors"], providers["b"]["total_errors"]) == (1, 0)


def test_nobody_answers_and_each_says_why(one: Upstream, two: Upstream) -> None:
    one.play = lambda handler: handler.fail(500)
    two.play = lambda handler: handler.fail(503)
    with routing(provider("a", one) + provider("b", two)) as router:
        status, headers, reply = router.request("POST", CHAT, question())
        assert (status, reply["error"]["code"]) == (503, "no_healthy_provider")
        assert "retry-after" in headers and "x-should-retry" not in headers
        assert "a/m: a failed" in reply["error"]["message"] and "b/m: b is not" in reply["error"]["message"]
        for _ in range(2):
            router.request("POST", CHAT, question())
        # Three failures each: they are left alone, and the client is told for how long.
        status, headers, reply = router.request("POST", CHAT, question())
        assert status == 503 and int(headers["retry-after"]) <= 5
        assert "a/m: 3 failures in a row; left alone for another" in reply["error"]["message"]
        assert len(one.requests) == len(two.requests) == 3
        assert router.request("GET", "/health")[2]["healthy_providers_count"] == 1


def test_nobody_fits(one: Upstream) -> None:
    config = provider("a", one, models='[{name = "m", max_context_tokens = 10}]') + LOCAL
    with routing(config) as router:
        body = question(model="auto", max_tokens=10, messages=[{"role": "user", "content": "x" * 1000}])
        status, headers, reply = router.request("POST", CHAT, body)
        assert (status, reply["error"]["code"]) == (503, "no_healthy_provider")
        assert headers["x-should-retry"] == "false" and "retry-after" not in headers
        message = reply["error"]["message"]
        assert "a/m: context of 10 tokens, 269 + 10 needed" in message
        assert "local/alpha:1: context of 20 tokens, 11 + 10 needed" in message, "the engine counts exactly"
        assert not one.requests
        assert router.request("POST", CHAT, {**body, "model": "m"})[0] == 200, "it counts for itself"
        wanting = {"logprobs": True, "top_logprobs": 1}
        status, _, reply = router.request("POST", CHAT, question(**wanting))
        assert (status, reply["error"]["param"]) == (400, "logprobs")


def test_a_provider_that_breaks_off_is_no_clean_end(one: Upstream, two: Upstream) -> None:
    def play(handler: Handler) -> None:
        handler.begin()
        handler.say("so far")

    one.play = play
    with routing(provider("a", one) + provider("b", two, weight=0.5)) as router:
        with router.client() as client:
            stream = iter(client.chat.completions.create(**question(stream=True)))
            with pytest.raises(openai.APIError) as caught:
                for chunk in stream:
                    assert chunk.choices[0].delta.content in (None, "so far")
            assert caught.value.code == "provider_unavailable"
        status, headers, _ = router.request("POST", CHAT, question())
        assert (status, headers["x-should-retry"]) == (502, "false")
        assert not two.requests, "an answer that has begun is nobody else's"


def test_one_that_asks_to_wait_is_asked_again(one: Upstream) -> None:
    def play(handler: Handler) -> None:
        if len(one.requests) == 1:
            handler.fail(429, retry_after_ms="50")
        else:
            handler.answer()

    one.play = play
    with routing(provider("a", one)) as router:
        status, _, reply = router.request("POST", CHAT, question())
        assert (status, text_of(reply)) == (200, "from afar") and len(one.requests) == 2
        one.play = lambda handler: handler.fail(429, retry_after="77")
        status, headers, reply = router.request("POST", CHAT, question())
        assert (status, headers["retry-after"], reply["error"]["code"]) == (429, "77", "overloaded")
        assert len(one.requests) == 3
        status, headers, _ = router.request("POST", CHAT, question())
        assert status == 503 and 70 < int(headers["retry-after"]) <= 77 and len(one.requests) == 3


def test_one_that_does_not_begin_is_left_for_another(one: Upstream, two: Upstream) -> None:
    one.play = Handler.stall
    config = "[thresholds]\nmax_latency_ms = 400\n" + provider("a", one) + provider("b", two, weight=0.5)
    with routing(config, "--headers-after-sec=0.1") as router:
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        connection.request("POST", CHAT, json.dumps(question(stream=True)))
        response = connection.getresponse()
        assert response.getheader("x-syntrop-provider") == "a", "who was asked when the headers went"
        wire = response.read().decode()
        connection.close()
        assert wire.startswith(": ping\n\n") and ": x-syntrop-provider: b\n" in wire
        assert wire.endswith("data: [DONE]\n\n") and "afar" in wire
        wait_for(lambda: one.left)


@pytest.mark.parametrize("phase", ["before it begins", "in mid-stream"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_reaches_the_provider(one: Upstream, phase: str, stream: bool) -> None:
    def play(handler: Handler) -> None:
        if phase == "in mid-stream":
            handler.begin()
            handler.say("x")
        handler.stall()

    one.play = play
    with routing(provider("a", one)) as router:

        def hang_up() -> float:
            before = len(one.requests)
            client = socket.create_connection(("127.0.0.1", router.port))
            process.send(client, question(stream=stream))
            wait_for(lambda: len(one.requests) > before)
            time.sleep(0.2)  # well into the phase
            left = time.monotonic()
            client.close()
            wait_for(lambda: len(one.left) > before)
            return one.left[-1] - left

        process.within(0.05, hang_up)
        wait_for(lambda: router.request("GET", "/health")[2]["active_requests"] == 0)
        assert router.request("GET", "/health")[2]["healthy_providers_count"] == 2, "that was nobody's failure"


def test_a_hang_up_while_a_provider_is_waited_for(one: Upstream) -> None:
    one.play = lambda handler: handler.fail(429, retry_after="4")
    with routing(provider("a", one)) as router:
        client = socket.create_connection(("127.0.0.1", router.port))
        process.send(client, question())
        wait_for(lambda: one.requests)
        client.close()
        wait_for(lambda: router.request("GET", "/health")[2]["active_requests"] == 0)
        assert len(one.requests) == 1


def test_a_hang_up_while_models_are_listed(one: Upstream) -> None:
    gate = threading.Event()
    listing = threading.Event()

    def do_get(handler: Handler) -> None:
        listing.set()
        gate.wait(60)
        handler.json(200, {"object": "list", "data": []})

    one.server.RequestHandlerClass.do_GET = do_get  # type: ignore[attr-defined]
    with routing(provider("a", one, models="")) as router:
        client = socket.create_connection(("127.0.0.1", router.port))
        process.send(client, question(model="perhaps"))
        assert listing.wait(60)
        client.close()
        wait_for(lambda: router.request("GET", "/health")[2]["active_requests"] == 0)
        gate.set()


def test_a_reload_lets_the_old_provider_end_its_answer(one: Upstream, two: Upstream) -> None:
    go = threading.Event()

    def play(handler: Handler) -> None:
        handler.begin()
        handler.say("be")
        go.wait(60)
        handler.say("gun")
        handler.end()

    one.play = play
    with routing(provider("a", one)) as router, router.client() as client:
        stream = iter(client.chat.completions.create(**question(stream=True)))
        first = next(chunk for chunk in stream if chunk.choices[0].delta.content)
        router.config.write_text(provider("a", two))
        assert "error" not in varlink(router, "Reload")
        assert text_of(router.request("POST", CHAT, question())[2]) == "from afar" and len(two.requests) == 1
        go.set()
        rest = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert (first.choices[0].delta.content or "") + "".join(rest) == "begun"


def test_memory_pressure_sends_work_away_and_back(one: Upstream, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("1 4096 1 1 0 1 0\n")
    (tmp_path / "pressure").mkdir()

    def press(some: float) -> None:
        for resource in ("cpu", "memory", "io"):
            share = some if resource == "memory" else 0
            rest = "avg60=0.00 avg300=0.00 total=0"
            text = f"some avg10={share:.2f} {rest}\nfull avg10=0.00 {rest}\n"
            (tmp_path / "pressure" / resource).write_text(text)

    def answers(**fields: Any) -> str:
        status, headers, _ = router.request("POST", CHAT, {**ask(["say", "x"]), **fields})
        assert status == 200
        who: str = headers["x-syntrop-provider"]
        return who

    press(0)
    config = provider("far", one, models='[{name = "alpha:1"}]', weight=0.01)
    with routing(config, SYNTROP_PROC_ROOT=str(tmp_path)) as router:
        assert answers() == "local"
        press(30)
        wait_for(lambda: answers() == "far")
        assert answers(local=True) == "local"
        text = varlink(router, "RouteRequest", model="alpha:1")["parameters"]["candidates"][-1]["reason"]
        assert "behind the others while memory stalls 30.0 % of the time" in text
        assert varlink(router, "GetStatus")["parameters"]["psi_memory_some"] == 30.0
        press(0)
        wait_for(lambda: answers() == "local", 60)


def test_a_sick_provider_keeps_nobody_awake(one: Upstream) -> None:
    one.play = lambda handler: handler.fail(500)
    router = process.Router(config=provider("a", one), idle=2)
    try:
        router.start_double()
        for _ in range(3):
            assert router.request("POST", CHAT, question())[0] == 502
        assert router.process.wait(30) == 0, "its breaker is open, and a sign of life is due in five seconds"
    finally:
        router.close()


def test_a_provider_without_its_credential_says_so(one: Upstream) -> None:
    with routing(provider("far", one, credential="nowhere")) as router:
        status, _, reply = router.request("POST", CHAT, question())
        assert status == 503 and "the credential 'nowhere' was not passed" in reply["error"]["message"]
        tested = varlink(router, "TestProvider", provider_id="far")
        assert tested["error"] == "io.syntrop.Router1.TestFailed" and "nowhere" in tested["parameters"]["message"]
        assert router.request("POST", CHAT, ask(["say", "x"]))[0] == 200
    assert not one.requests
