# SPDX-License-Identifier: Apache-2.0
"""routerd as a process of its own, with a scripted engine behind it and real clients in front."""

from __future__ import annotations

import http.client
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

SOURCE = Path(__file__).parents[2] / "src"
DOUBLE = Path(__file__).with_name("routerd_double.py")
# Moves the passed descriptors to 3 and up, as the service manager does, and names them.
LAUNCH = """
import os, sys
given = [int(word) for word in sys.argv[1].split(",")]
high = [os.dup2(fd, 500 + i) for i, fd in enumerate(given)]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)),
                  LISTEN_FDNAMES=":".join(["routerd.socket"] * len(high)))
os.execv(sys.executable, [sys.executable, "-m", "syntrop.routerd", *sys.argv[2:]])
"""


class Router:
    """The sockets of routerd, the process behind them and the double behind that."""

    def __init__(
        self,
        *options: str,
        idle: float = 0,
        config: str = "",
        environment: dict[str, str] | None = None,
        start: bool = True,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="syntrop-router-"))
        (self.root / "syntrop").mkdir()
        self.config = self.root / "config" / "routerd.toml"
        self.config.parent.mkdir()
        if config:
            self.config.write_text(config)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "SYNTROP_RUN_ROOT": str(self.root),
            "SYNTROP_CONFIG_ROOT": str(self.config.parent),
            "SYNTROP_IDLE_EXIT_SEC": str(idle),
            **(environment or {}),
        }
        self.listeners = [
            socket.create_server(("127.0.0.1", 0)),
            socket.create_server(("::1", 0), family=socket.AF_INET6),
            self._unix("router.sock"),
            self._unix("io.syntrop.Router1"),
        ]
        self.port, self.port6 = (one.getsockname()[1] for one in self.listeners[:2])
        self.options = options
        self.processes: list[subprocess.Popen[bytes]] = []
        self.process: subprocess.Popen[bytes]
        if start:
            self.start()

    def _unix(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.root / "syntrop" / name))
        listener.listen(128)
        return listener

    def start(self) -> subprocess.Popen[bytes]:
        fds = [one.fileno() for one in self.listeners]
        command = [sys.executable, "-c", LAUNCH, ",".join(map(str, fds)), *self.options]
        self.process = subprocess.Popen(
            command, env=self.environment, pass_fds=fds, stderr=(self.root / "log").open("ab")
        )
        self.processes.append(self.process)
        return self.process

    def start_double(self) -> subprocess.Popen[bytes]:
        sockets = [self.root / "syntrop" / name for name in ("io.syntrop.Runtime1", "io.syntrop.Model1")]
        for path in sockets:
            path.unlink(missing_ok=True)
        double = subprocess.Popen([sys.executable, str(DOUBLE)], env=self.environment)
        self.processes.append(double)
        wait_for(lambda: all(listening(path) for path in sockets))
        return double

    def client(self, host: str = "127.0.0.1", **options: Any) -> openai.OpenAI:
        port = self.port6 if host == "[::1]" else self.port
        options = {"max_retries": 0, "timeout": 60, **options}
        return openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", **options)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
            return finish(connection.getresponse())
        finally:
            connection.close()

    def events(self, kind: str) -> list[dict[str, Any]]:
        log = self.root / "double.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def log(self) -> str:
        return (self.root / "log").read_text()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)
        for listener in self.listeners:
            listener.close()
        shutil.rmtree(self.root)


def finish(response: http.client.HTTPResponse) -> tuple[int, dict[str, str], Any]:
    raw = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return response.status, headers, json.loads(raw) if raw else None


def listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        select.select([], [], [], 0.005)


def within(seconds: float, measure: Any) -> None:
    """What a quiet moment shows: the machine may have other things to do, but not each time."""
    taken = []
    while not taken or taken[-1] >= seconds:
        assert len(taken) < 20, f"never within {seconds} s: {taken}"
        taken.append(measure())


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    router = Router("--ping-sec=0.2", "--headers-after-sec=0.2")
    try:
        router.start_double()
        yield router
    finally:
        router.close()


@pytest.fixture
def lone() -> Iterator[Router]:
    """One whose engine is started by the test, or not."""
    router = Router()
    try:
        yield router
    finally:
        router.close()


def ask(*steps: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "model": "alpha:1",
        "messages": [{"role": "user", "content": json.dumps(steps)}],
        **fields,
    }


PHASES: dict[str, Any] = {
    "loading": (["wait", 30],),
    "accepted": (["accept"], ["wait", 30]),  # it waits for its turn, or its prompt is read
    "decode": (["repeat", "x", 0.01],),
}
EXTRA = {"/v1/messages": {"max_tokens": 9}}
SHOUT = (["say", "Hel"], ["say", "lo ü"], ["say", "!"], ["finish", "length"])


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_whole_answers(router: Router, host: str) -> None:
    with router.client(host) as client:
        answer = client.chat.completions.create(**ask(*SHOUT))
    assert answer.choices[0].message.content == "Hello ü!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.total_tokens == 10
    assert answer.model == "alpha:1" and answer.id.startswith("chatcmpl-")
    assert answer._request_id and answer._request_id.startswith("req_")


def test_streams(router: Router) -> None:
    with router.client() as client:
        stream = client.chat.completions.create(**ask(*SHOUT, stream=True, stream_options={"include_usage": True}))
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["cache-control"] == "no-cache"
        assert stream.response.headers["x-accel-buffering"] == "no"
        chunks = list(stream)
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:-1])
    assert [c.choices[0].delta.content for c in chunks[1:4]] == ["Hel", "lo ü", "!"]
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (7, 3)
    assert all(c.usage is None for c in chunks[:-1])


def test_the_sdk_s_own_accumulator(router: Router) -> None:
    with router.client() as client, client.chat.completions.stream(**ask(*SHOUT[:-1])) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == "Hello ü!" == final.choices[0].message.content


def test_the_wire_of_a_stream(router: Router) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(ask(*SHOUT, stream=True)))
    wire = connection.getresponse().read()
    assert wire.endswith(b"data: [DONE]\n\n")
    assert b": ping" not in wire
    assert all(json.loads(line[6:]) for line in wire.split(b"\n\n")[:-2])
    # The connection is good for more.
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 200
    connection.close()


def test_parameters_reach_the_engine(router: Router) -> None:
    with router.client() as client:
        client.chat.completions.create(
            **ask(["say", "x"], stop=["END", "\n"], temperature=0, top_p=0.9, seed=5, max_completion_tokens=9)
        )
    parameters = router.events("call")[-1]["parameters"]
    assert parameters["stop"] == ["END", "\n"] and parameters["max_tokens"] == 9
    assert (parameters["temperature"], parameters["top_p"]) == (0.0, 0.9)
    assert parameters["seed"] != 0 and "prompt" not in parameters


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("steps", "status", "code", "param"),
    [
        (["io.syntrop.Runtime1.ContextExceeded", {"requested": 9000, "max": 8192}], 400,
         "context_length_exceeded", "messages"),
        (["io.syntrop.Runtime1.Overloaded", {"reason": "4 of 4 slots"}], 429, "overloaded", None),
        (["io.syntrop.Runtime1.Shutdown", {"reason": "stopping"}], 503, "no_healthy_provider", None),
        (["io.syntrop.Runtime1.GenerationFailed", {"reason": "NaN"}], 502, "provider_unavailable", None),
    ],
)  # fmt: skip
def test_errors_before_the_first_token(
    router: Router, steps: list[Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    with router.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**ask(["error", *steps], stream=stream))
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, code, param)
    assert caught.value.request_id
    assert ("retry-after" in caught.value.response.headers) is (status in (429, 503))


def test_unknown_models(router: Router) -> None:
    with router.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError) as caught:
                client.chat.completions.create(**{**ask(["say", "x"]), "model": "nope", "stream": stream})
            assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**ask(["say", "x"]), "model": None})
        assert refused.value.param == "model"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**ask(["say", "x"], response_format={"type": "json_object"}))
        assert refused.value.param == "response_format"


def test_final_failures_are_not_repeated(router: Router) -> None:
    before = len(router.events("call"))
    with router.client(max_retries=2) as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(
            **ask(["say", "x"], ["error", "io.syntrop.Runtime1.GenerationFailed", {"reason": "r"}])
        )
    assert len(router.events("call")) == before + 1


def test_errors_in_mid_stream(router: Router) -> None:
    failing = ask(["say", "a"], ["error", "io.syntrop.Runtime1.GenerationFailed", {"reason": "r"}], stream=True)
    with router.client() as client:
        stream = iter(client.chat.completions.create(**failing))
        assert [next(stream).choices[0].delta.content for _ in range(2)] == [None, "a"]
        with pytest.raises(openai.APIError) as caught:
            next(stream)
        assert caught.value.code == "provider_unavailable"
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(failing))
    with pytest.raises(http.client.IncompleteRead) as cut:
        connection.getresponse().read()
    assert b"[DONE]" not in cut.value.partial
    connection.close()


def test_pings_until_the_first_token_and_errors_after_them(router: Router) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    slow = ask(["gate", "read"], ["say", "x"], stream=True)
    connection.request("POST", "/v1/chat/completions", json.dumps(slow))
    response = connection.getresponse()  # headers come while the engine still reads the prompt
    assert [response.read1(8) for _ in range(2)] == [b": ping\n\n"] * 2
    (router.root / "read").touch()
    wire = response.read()
    assert b'"content":"x"' in wire and wire.endswith(b"data: [DONE]\n\n")
    late = ask(
        ["wait", 0.5], ["error", "io.syntrop.Runtime1.ContextExceeded", {"requested": 2, "max": 1}], stream=True
    )
    with router.client() as client, pytest.raises(openai.APIError) as caught:
        list(client.chat.completions.create(**late))
    assert caught.value.code == "context_length_exceeded"
    connection.close()


@pytest.mark.parametrize("http", ["1.1", "2"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_headers_come_as_soon_as_the_request_is_accepted(path: str, http: str) -> None:
    # They would come after a minute, and pings too, if nobody told that it is.
    router = Router("--headers-after-sec=60", "--ping-sec=60")
    try:
        router.start_double()
        url = f"http://127.0.0.1:{router.port}{path}"
        asked = json.dumps(ask(["accept"], ["wait", 3600], stream=True, **EXTRA.get(path, {})))
        how = "--http2-prior-knowledge" if http == "2" else "--http1.1"
        command = ["curl", "--silent", "--no-buffer", "--include", how, "--data-binary", "@-", url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as curl:
            assert curl.stdin and curl.stdout
            curl.stdin.write(asked.encode())
            curl.stdin.close()
            assert curl.stdout.readline().split()[1] == b"200"
            while curl.stdout.readline().strip():
                pass  # to the end of the headers
            assert curl.stdout.read(1) in (b":", b" "), "and a sign of life with them"
            curl.kill()
        wait_for(lambda: len(router.events("hang-up")) == 1)
    finally:
        router.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_hang_up_reaches_the_engine(router: Router, phase: str, stream: bool) -> None:
    def hang_up() -> float:
        before = len(router.events("hang-up"))
        calls = len(router.events("call"))
        client = socket.create_connection(("127.0.0.1", router.port))
        send(client, ask(*PHASES[phase], stream=stream))
        wait_for(lambda: len(router.events("call")) > calls)
        time.sleep(0.1)  # well into the phase
        left = time.monotonic()
        client.close()
        wait_for(lambda: len(router.events("hang-up")) > before)
        return float(router.events("hang-up")[-1]["at"]) - left

    within(0.05, hang_up)


def test_the_sdk_breaks_off(router: Router) -> None:
    with router.client() as client:

        def break_off() -> float:
            before = len(router.events("hang-up"))
            stream = client.chat.completions.create(**ask(["repeat", "x", 0.005], stream=True))
            for number, _ in enumerate(stream):
                if number == 10:
                    break
            left = time.monotonic()
            stream.close()
            wait_for(lambda: len(router.events("hang-up")) > before)
            return float(router.events("hang-up")[-1]["at"]) - left

        within(0.05, break_off)
        assert client.chat.completions.create(**ask(["say", "ok"])).choices[0].message.content == "ok"


def send(client: socket.socket, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)


def test_a_slow_reader_slows_the_engine_down(router: Router) -> None:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", router.port))
    before = len(router.events("hang-up"))
    rss = resident(router.process.pid)
    send(client, ask(["repeat", "x" * 100_000, 0], stream=True))
    time.sleep(1)
    assert resident(router.process.pid) - rss < 8 * 2**20
    client.close()
    wait_for(lambda: len(router.events("hang-up")) > before)
    assert router.events("hang-up")[-1]["said"] < 200, "an unbounded engine says thousands in a second"


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_hundred_streams_at_once(router: Router) -> None:
    gate = threading.Barrier(100)

    def one(number: int) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        gate.wait(60)
        steps = [["say", f"{number}-{i} "] for i in range(20)]
        connection.request("POST", "/v1/chat/completions", json.dumps(ask(*steps, stream=True)))
        wire = connection.getresponse().read().decode()
        connection.close()
        assert wire.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in wire.split("\n\n") if line.startswith("data: {")]
        return "".join(e["choices"][0]["delta"].get("content") or "" for e in events)

    with ThreadPoolExecutor(100) as pool:
        texts = list(pool.map(one, range(100)))
    assert texts == ["".join(f"{n}-{i} " for i in range(20)) for n in range(100)]
    # The last byte of an answer comes before its end is on the books, and a hang-up is seen after it.
    wait_for(lambda: router.request("GET", "/health")[2]["active_requests"] == 0)
    wait_for(lambda: len(os.listdir(f"/proc/{router.process.pid}/fd")) < 40)  # connections and engine streams


def test_models(router: Router) -> None:
    with router.client() as client:
        assert [model.id for model in client.models.list()] == ["alpha:1", "beta:latest", "org/gamma:2"]
        assert client.models.retrieve("beta").id == "beta:latest"
        assert client.models.retrieve("org/gamma:2").object == "model"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("nope")
        assert caught.value.code == "model_not_found"


def test_health_and_what_is_not_there(router: Router) -> None:
    status, headers, health = router.request("GET", "/health")
    assert status == 200 and headers["content-type"] == "application/json"
    assert health["status"] == "ok" and health["rss_bytes"] < 32 * 2**20
    assert {"version", "uptime_seconds", "active_requests", "psi_level", "psi_memory_some"} <= set(health)
    status, headers, body = router.request("HEAD", "/health")
    assert status == 200 and body is None and int(headers["content-length"]) > 50
    status, _, body = router.request("GET", "/nothing")
    assert status == 404 and body["error"]["code"] == "unknown_url"
    for method in ("OPTIONS", "GET", "DELETE"):
        status, headers, body = router.request(method, "/v1/chat/completions")
        assert status == 405 and headers["allow"] == "POST" and set(body["error"]) >= {"message", "type"}
    status, _, body = router.request("POST", "/v1/chat/completions", [1])
    assert status == 400 and body["error"]["type"] == "invalid_request_error"


def test_web_pages_are_kept_out(router: Router) -> None:
    assert router.request("GET", "/v1/models", Host="evil.example")[0] == 403
    assert router.request("GET", "/v1/models", Origin="http://evil.example")[0] == 403
    assert router.request("GET", "/v1/models", Origin=f"http://127.0.0.1:{router.port}")[0] == 200


def test_the_unix_sockets(router: Router) -> None:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(router.root / "syntrop" / "router.sock"))
    client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n")
    response = http.client.HTTPResponse(client)
    response.begin()
    assert finish(response)[0] == 200
    client.close()
    status = varlink(router, "GetStatus")["parameters"]
    assert status["status"] == "ok" and status["total_requests"] > 0
    assert varlink(router, "ListModels")["parameters"]["models"] == ["alpha:1", "beta:latest", "org/gamma:2"]
    (local,) = varlink(router, "ListProviders")["parameters"]["providers"]
    assert (local["id"], local["kind"], local["is_healthy"]) == ("local", "runtimed", True)
    assert local["models"] == ["alpha:1", "beta:latest", "org/gamma:2"]


def varlink(router: Router, method: str, **parameters: Any) -> dict[str, Any]:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(router.root / "syntrop" / "io.syntrop.Router1"))
    request = {"method": f"io.syntrop.Router1.{method}", "parameters": parameters}
    client.sendall(json.dumps(request).encode() + b"\0")
    data = b""
    while not data.endswith(b"\0"):
        data += client.recv(65536)
    client.close()
    reply: dict[str, Any] = json.loads(data[:-1])
    return reply


def test_without_an_engine(lone: Router) -> None:
    with lone.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ask(["say", "x"]))
        assert caught.value.status_code == 503 and "retry-after" in caught.value.response.headers
        with pytest.raises(openai.InternalServerError):
            client.models.list()
    assert varlink(lone, "ListModels")["error"] == "io.syntrop.Router1.RoutingFailed"
    for _ in range(3):
        lone.request("POST", "/v1/chat/completions", ask(["say", "x"]))
    assert lone.request("GET", "/health")[2]["status"] == "degraded"
    lone.start_double()
    assert lone.request("POST", "/v1/chat/completions", ask(["say", "x"]))[0] == 200
    assert lone.request("GET", "/health")[2]["status"] == "ok"


def test_an_engine_that_dies_in_mid_stream(lone: Router) -> None:
    double = lone.start_double()
    with lone.client() as client:
        with pytest.raises(openai.APIError) as caught:
            list(client.chat.completions.create(**ask(["say", "x"], ["die"], stream=True)))
        assert caught.value.code == "provider_unavailable"
        double.wait(60)
        double = lone.start_double()
        assert client.chat.completions.create(**ask(["say", "ok"])).choices[0].message.content == "ok"
        # One that has gone between two requests: its kept connection is replaced without a word.
        double.terminate()
        double.wait(60)
        lone.start_double()
        assert client.chat.completions.create(**ask(["say", "ok"])).choices[0].message.content == "ok"


def test_idle_connections_do_not_hold_it(router: Router) -> None:
    other = Router(idle=3)  # long enough for a busy machine to come to the first request
    try:
        client = other.client(max_retries=0)
        double = other.start_double()
        assert client.models.list().data
        assert client.chat.completions.create(**ask(["wait", 3.5], ["say", "x"])).choices, "work holds it"
        assert other.process.wait(30) == 0
        assert double.wait(30) == 0, "nor does the router's kept connection hold the engine"
    finally:
        other.close()


def test_stopping_waits_for_answers_and_says_close(lone: Router) -> None:
    lone.start_double()
    client = socket.create_connection(("127.0.0.1", lone.port))
    send(client, ask(["wait", 0.3], ["say", "x"]))
    wait_for(lambda: lone.events("call"))
    lone.process.terminate()
    response = http.client.HTTPResponse(client)
    response.begin()
    status, headers, body = finish(response)
    assert status == 200 and headers["connection"] == "close"
    assert body["choices"][0]["message"]["content"] == "x"
    assert lone.process.wait(60) == 0
    client.close()
