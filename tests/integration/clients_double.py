# SPDX-License-Identifier: Apache-2.0
"""Scripted servers elsewhere for the tests with real clients: one that speaks OpenAI's API (calls of tools,
vectors), one that speaks Anthropic's (counts of tokens). A double: nothing here is a model."""

from __future__ import annotations

import importlib.util
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_spec = importlib.util.spec_from_file_location("routerd_process", Path(__file__).with_name("test_routerd.py"))
assert _spec and _spec.loader
process: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(process)
wait_for = process.wait_for

ALPHA, FAR, CLAUDE = "alpha:1", "far", "claude"
THOUGHT = (["say", "<thi"], ["say", "nk>so "], ["say", "it is</thi"], ["say", "nk>\n\nHel"], ["say", "lo ü!"])
FAILURE = ["error", "io.syntrop.Runtime1.GenerationFailed", {"reason": "r"}]
_CONFIG = """
[[providers]]
id = "elsewhere"
kind = "openai"
base_url = "{url}/v1"
models = [{{name = "far", abilities = ["tools", "embeddings"]}}]
[[providers]]
id = "counting"
kind = "anthropic"
base_url = "{url}/v1"
models = [{{name = "claude"}}]
"""


def script(*steps: Any) -> str:
    """What the local engine's double is to do, as the last message of a chat."""
    return json.dumps(steps)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests: list[dict[str, Any]]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(asked)
        if self.path == "/v1/embeddings":
            vectors = [[0.5, float(len(text))] for text in asked["input"]]
            data = [{"index": i, "embedding": one} for i, one in enumerate(vectors)]
            self.json({"data": data, "model": FAR, "usage": {"prompt_tokens": 3, "total_tokens": 3}})
        elif self.path == "/v1/messages/count_tokens":
            self.json({"input_tokens": 1000 + len(asked["messages"])})
        else:
            self.chat(asked)

    def json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chat(self, asked: dict[str, Any]) -> None:
        """Two calls of the first tool, each in pieces; or, behind their results, what they were."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        results = [message["content"] for message in asked["messages"] if message["role"] == "tool"]
        if results:
            self.delta({"content": " and ".join(results)})
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        else:
            name = asked["tools"][0]["function"]["name"]
            for index, city in enumerate(("Köln", "Rom")):
                call = {"index": index, "id": f"c{index}", "type": "function"}
                self.delta({"tool_calls": [{**call, "function": {"name": name, "arguments": '{"ci'}}]})
                piece = {"index": index, "function": {"arguments": f'ty": "{city}"}}'}}
                self.delta({"tool_calls": [piece]})
            self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}})
        self.wfile.write(b"data: [DONE]\n\n")

    def delta(self, delta: dict[str, Any]) -> None:
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())


@contextmanager
def routing() -> Iterator[Any]:
    """A router, the local engine's double and the servers elsewhere; `upstream` of it is what they were asked."""

    class Bound(_Handler):
        requests: list[dict[str, Any]] = []  # noqa: RUF012 - of this class alone, which is one test's

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        config = _CONFIG.format(url=f"http://127.0.0.1:{server.server_address[1]}")
        router = process.Router("--ping-sec=0.1", "--headers-after-sec=0.1", config=config)
        router.upstream = Bound.requests
        try:
            router.start_double()
            yield router
        finally:
            router.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
