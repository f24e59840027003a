# SPDX-License-Identifier: Apache-2.0
"""`syntropctl ask`: one chat answer over the router's HTTP surface, shown as it comes."""

from __future__ import annotations

import http.client
import io
import json
import socket
import sys
import time

from syntrop.common import paths
from syntrop.ctl import find
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TIMEOUT = 120.0  # seconds between two pieces of an answer; a cold start and a long prompt fit well


class AskError(Exception):
    """The router, or the way to it, said no."""


class _Router(http.client.HTTPConnection):
    """HTTP over the router's Unix socket where there is one, else over TCP on loopback."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 32768, timeout=TIMEOUT)
        self.path = paths.endpoint("router.sock") if find.settle() else ""

    def connect(self) -> None:
        if not self.path:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self.path)


# Near their likeliest text small models go round in circles: seen as a page of one sentence.
REPETITION_PENALTY = 1.1
# Small models, which is what most machines run, wander off at the interface's default temperature of 1; an
# answer on a terminal has an end in any case.
TEMPERATURE = 0.2
TOKENS = 1024


def ask(
    prompt: str,
    model: str | None,
    *,
    tokens: int = TOKENS,
    temperature: float = TEMPERATURE,
    timing: bool = False,
) -> int:
    """Print the answer to standard output; the exit status."""
    if prompt == "-":
        prompt = sys.stdin.read()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding does not have is no reason to lose the rest of the answer.
        sys.stdout.reconfigure(errors="replace")
    started = time.monotonic()
    first = 0.0
    pieces = 0
    try:
        for piece in _answer(prompt, model or _only_model(), tokens, temperature):
            if not pieces:
                first = time.monotonic()
            pieces += 1
            sys.stdout.write(piece)
            sys.stdout.flush()
    except AskError as error:
        if pieces:
            print()
        return fail(str(error))
    print()
    if timing and pieces:
        ended = time.monotonic()
        rate = f", then {(pieces - 1) / (ended - first):.1f} a second" if pieces > 1 else ""
        print(f"first piece after {first - started:.3f} s{rate}; {pieces} pieces", file=sys.stderr)
    return 0


def _answer(prompt: str, model: str, tokens: int, temperature: float) -> Iterator[str]:
    """Pieces of the answer as they arrive. Raises AskError, also for a stream that breaks off."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "max_completion_tokens": tokens,
        "temperature": temperature,
        "repetition_penalty": REPETITION_PENALTY,
    }
    response = request("POST", "/v1/chat/completions", json.dumps(body))
    try:
        for data in _events(response):
            if data == "[DONE]":
                return
            event = json.loads(data)
            if error := event.get("error"):
                raise AskError(_said(error))
            for choice in event.get("choices", ()):
                if piece := choice.get("delta", {}).get("content"):
                    yield piece
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise AskError(f"the answer broke off: {error or type(error).__name__}") from None
    raise AskError("the answer broke off: the stream ended without being finished")


def _events(response: http.client.HTTPResponse) -> Iterator[str]:
    """`data` of each server-sent event."""
    lines: list[str] = []
    while raw := response.readline():
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines.clear()


def _only_model() -> str:
    """The model to use when none was named: the first that the router lists."""
    response = request("GET", "/v1/models", None)
    models = json.loads(response.read()).get("data") or []
    if not models:
        raise AskError("no model is stored; `syntropctl models fetch-starter --import` gets a small one")
    return str(models[0]["id"])


def request(
    method: str, path: str, body: str | None, headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    """Send a request to the router; its reply, if it is 200. Raises AskError."""
    router = _Router()
    where = router.path or f"{router.host}:{router.port}"
    try:
        router.request(method, path, body, {"content-type": "application/json", **(headers or {})})
        response = router.getresponse()
    except (FileNotFoundError, ConnectionRefusedError):
        raise AskError(
            f"no suite serves {where}; `syntropctl up`, or `systemctl start syntrop-sockets.target`, starts one"
        ) from None
    except TimeoutError:
        raise AskError(f"the router at {where} did not answer within {TIMEOUT:.0f} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise AskError(f"the router at {where} failed: {error or type(error).__name__}") from None
    if response.status != 200:
        raise AskError(_refusal(response))
    return response


def _refusal(response: http.client.HTTPResponse) -> str:
    text = response.read().decode("utf-8", "replace")
    try:
        return _said(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the router answered {response.status} {response.reason}"


def _said(error: Any) -> str:
    if isinstance(error, dict):
        code = f" ({error['code']})" if error.get("code") else ""
        return f"{error.get('message', 'unknown error')}{code}"
    return str(error)
