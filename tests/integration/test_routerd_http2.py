# SPDX-License-Identifier: Apache-2.0
"""Chats over HTTP/2 through the whole router, by others' clients: curl, nghttp and h2."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)
ask, wait_for = process.ask, process.wait_for

CURL = ("curl", "-sSN", "--max-time", "60", "-w", "\n%{http_version}", "--data-binary", "@-")
TEXT = [f"piece {number} ü " for number in range(40)]
STREAMS_MAX = 7


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    router = process.Router("--ping-sec=0.2", "--headers-after-sec=0.2", f"--streams-max={STREAMS_MAX}")
    try:
        router.start_double()
        yield router
    finally:
        router.close()


def output(*command: str, given: bytes) -> bytes:
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def said(events: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in events.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


# A request with a body is not changed by `Upgrade`: it is answered in HTTP/1.1 (RFC 9113 has no Upgrade at all).
@pytest.mark.parametrize(
    ("how", "version"), [("--http2-prior-knowledge", b"2"), ("--http2", b"1.1"), ("--http1.1", b"1.1")]
)
def test_a_streamed_chat_by_curl(router: Any, how: str, version: bytes) -> None:
    body = json.dumps(ask(*(["say", text] for text in TEXT), stream=True)).encode()
    url = f"http://127.0.0.1:{router.port}/v1/chat/completions"
    events, _, spoken = output(*CURL, how, url, given=body).rpartition(b"\n")
    assert spoken == version
    assert events.endswith(b"data: [DONE]\n\n") and said(events) == "".join(TEXT)
    # The same by the socket.
    local = ("--unix-socket", str(router.root / "syntrop" / "router.sock"), "http://localhost/v1/chat/completions")
    assert said(output(*CURL, how, *local, given=body)) == "".join(TEXT)


def test_a_streamed_chat_by_nghttp(router: Any, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_text(json.dumps(ask(*(["say", text] for text in TEXT), ["wait", 0.5], ["say", "end"], stream=True)))
    url = f"http://127.0.0.1:{router.port}/v1/chat/completions"
    events = output("nghttp", "--no-dep", "-d", str(body), url, given=b"")
    assert events.endswith(b"data: [DONE]\n\n") and said(events) == "".join(TEXT) + "end"
    assert b": ping\n\n" in events


class Client:
    """A client of HTTP/2 that has as many streams as it likes; with `upgrade` it begins by Upgrade."""

    def __init__(self, port: int, *, upgrade: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.events: list[h2.events.Event] = []
        if upgrade:
            settings = self.h2.initiate_upgrade_connection()
            assert settings is not None
            self.socket.sendall(
                b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                b"Upgrade: h2c\r\nHTTP2-Settings: " + settings + b"\r\n\r\n"
            )
            data = b""
            while b"\r\n\r\n" not in data:
                data += self.socket.recv(65536)
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 ")
            self.flush()
            self.take(rest)
        else:
            self.h2.initiate_connection()
            self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.events.append(event)
        self.flush()

    def post(self, body: Any, path: str = "/v1/chat/completions") -> int:
        stream = self.h2.get_next_available_stream_id()
        heads = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self.h2.send_headers(stream, heads)
        self.h2.send_data(stream, json.dumps(body).encode(), end_stream=True)
        self.flush()
        return stream

    def until(self, sort: type[Any], stream: int | None = None) -> Any:
        while True:
            for event in self.events:
                if isinstance(event, sort) and (stream is None or event.stream_id == stream):
                    return event
            data = self.socket.recv(65536)
            assert data, "the router closed the connection"
            self.take(data)

    def data(self, stream: int) -> bytes:
        told = [one for one in self.events if isinstance(one, h2.events.DataReceived) and one.stream_id == stream]
        return b"".join(one.data for one in told)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.mark.parametrize("upgrade", [False, True], ids=["prior knowledge", "upgrade"])
def test_many_streams_on_one_connection(router: Any, upgrade: bool) -> None:
    with Client(router.port, upgrade=upgrade) as client:
        streams = {
            client.post(ask(*(["say", f"{number}: {text}"] for text in TEXT), stream=True)): number
            for number in range(STREAMS_MAX - 1)
        }
        for stream, number in streams.items():
            client.until(h2.events.StreamEnded, stream)
            assert said(client.data(stream)) == "".join(f"{number}: {text}" for text in TEXT)
        if upgrade:
            client.until(h2.events.StreamEnded, 1)
            assert json.loads(client.data(1))["data"][0]["id"] == "alpha:1"


def test_a_reset_stream_reaches_the_engine_and_leaves_the_others(router: Any) -> None:
    with Client(router.port) as client:
        left = len(router.events("hang-up"))
        gone = client.post(ask(["repeat", "x", 0.01], stream=True))
        stays = client.post(ask(["say", "a"], ["wait", 0.5], ["say", "b"], stream=True))
        client.until(h2.events.DataReceived, gone)
        client.h2.reset_stream(gone)
        client.flush()
        wait_for(lambda: len(router.events("hang-up")) == left + 1)
        client.until(h2.events.StreamEnded, stays)
        assert said(client.data(stays)) == "ab"


@pytest.mark.parametrize("how", ["reset", "end"])
@pytest.mark.parametrize("phase", process.PHASES)
def test_a_hang_up_reaches_the_engine(router: Any, phase: str, how: str) -> None:
    def hang_up() -> float:
        before, calls = len(router.events("hang-up")), len(router.events("call"))
        with Client(router.port) as client:
            stream = client.post(ask(*process.PHASES[phase], stream=True))
            wait_for(lambda: len(router.events("call")) > calls)
            time.sleep(0.1)  # well into the phase
            if how == "reset":
                client.h2.reset_stream(stream)
            left = time.monotonic()
            if how == "reset":
                client.flush()
            else:
                client.socket.close()
            wait_for(lambda: len(router.events("hang-up")) > before)
        return float(router.events("hang-up")[-1]["at"]) - left

    process.within(0.05, hang_up)


def test_a_failure_in_mid_stream_resets_the_stream(router: Any) -> None:
    failure = ["error", "io.syntrop.Runtime1.GenerationFailed", {"reason": "r"}]
    with Client(router.port) as client:
        stream = client.post(ask(["say", "a"], failure, stream=True))
        client.until(h2.events.StreamReset, stream)
        assert b'"provider_unavailable"' in client.data(stream)
        assert b"[DONE]" not in client.data(stream)
        # An answer in another stream of the same connection is whole.
        whole = client.post(ask(["say", "x"]))
        client.until(h2.events.StreamEnded, whole)
        assert json.loads(client.data(whole))["choices"][0]["message"]["content"] == "x"


def test_as_many_streams_as_the_setting_says(router: Any) -> None:
    with Client(router.port) as client:
        told = client.until(h2.events.RemoteSettingsChanged).changed_settings
        code = h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS
        assert told[code].new_value == STREAMS_MAX
