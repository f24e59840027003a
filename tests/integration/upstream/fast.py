# SPDX-License-Identifier: Apache-2.0
"""An upstream that costs next to nothing: it answers at once, with bytes that are made once.

It speaks OpenAI's HTTP on a port of the loopback, and Runtime1's and Model1's Varlink on sockets below the run
root, so that the same process stands behind a router's either kind of provider and behind a client that asks
straight. It answers what the prompt says: `bench TOKENS MICROSECONDS MARKER`, so many tokens with so long a pause
before each. Without pauses the answer is one write. With them every token is a write of its own that says which it
is, of whose answer, and when it was sent (CLOCK_MONOTONIC): `MARKER.NUMBER.NANOSECONDS `.

Prints its port when it listens. `GET /stats` tells the connections and answers that are open.
"""

from __future__ import annotations

import heapq
import json
import re
import select
import socket
import sys
from pathlib import Path
from time import monotonic, monotonic_ns

_PROMPT = re.compile(rb"bench (\d+) (\d+) (\w+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": *true')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_SSE, _JSON = b"text/event-stream; charset=utf-8", b"application/json"
_USAGE = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
MODEL = "bench:1"


def packed(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Http:
    """OpenAI's dialect."""

    end = b"0\r\n\r\n"

    @staticmethod
    def taken(data: bytes) -> int:
        """Bytes of the request that is whole at the front of these; 0 while none is."""
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return 0
        length = _LENGTH.search(data, 0, head)
        size = head + 4 + (int(length[1]) if length else 0)
        return size if len(data) >= size else 0

    @staticmethod
    def whole(value: object) -> bytes:
        body = packed(value)
        return _HEAD % _JSON + b"content-length: %d\r\n\r\n" % len(body) + body

    @staticmethod
    def event(value: object) -> bytes:
        data = value if isinstance(value, bytes) else packed(value)
        return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)

    @classmethod
    def chunk(cls, delta: dict[str, object], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return cls.event({**cls.frame("chat.completion.chunk"), "choices": [choice]})

    @staticmethod
    def frame(sort: str) -> dict[str, object]:
        return {"id": "chatcmpl-bench", "object": sort, "created": 1, "model": MODEL}

    @classmethod
    def begin(cls) -> bytes:
        head = _HEAD % _SSE + b"transfer-encoding: chunked\r\n\r\n"
        return head + cls.chunk({"role": "assistant", "content": ""})

    @classmethod
    def token(cls, text: str, _number: int) -> bytes:
        return cls.chunk({"content": text})

    @classmethod
    def finish(cls, tokens: int) -> bytes:
        usage = {**_USAGE, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        last = {**cls.frame("chat.completion.chunk"), "choices": [], "usage": usage}
        return cls.chunk({}, "stop") + cls.event(last) + cls.event(b"[DONE]") + cls.end

    @classmethod
    def answer(cls, text: str) -> bytes:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return cls.whole({**cls.frame("chat.completion"), "choices": [choice], "usage": _USAGE})


class Varlink:
    """Runtime1.Generate and what is asked beside it."""

    @staticmethod
    def taken(data: bytes) -> int:
        return data.find(b"\0") + 1

    @staticmethod
    def whole(value: object) -> bytes:
        return packed({"parameters": value}) + b"\0"

    @staticmethod
    def begin() -> bytes:
        return b""

    @staticmethod
    def token(text: str, number: int) -> bytes:
        told: dict[str, object] = {"delta": text, "completion_tokens": number + 1}
        if number == 0:
            told["start"] = {"prompt_tokens": 7, "cached_tokens": 0, "thinking": False}
        return packed({"parameters": told, "continues": True}) + b"\0"

    @classmethod
    def finish(cls, tokens: int) -> bytes:
        told = {"text": "", "prompt_tokens": 7, "completion_tokens": tokens, "finish_reason": "stop"}
        return cls.whole({"result": {**told, "duration_ms": 1}})


class Peer:
    """One connection."""

    def __init__(self, sock: socket.socket, speech: type[Http] | type[Varlink]) -> None:
        self.socket = sock
        self.speech = speech
        self.data = b""
        self.answering = False


class Upstream:
    def __init__(self, run: Path) -> None:
        self.epoll = select.epoll()
        self.peers: dict[int, Peer] = {}
        self.listeners: dict[int, tuple[socket.socket, type[Http] | type[Varlink]]] = {}
        self.timers: list[tuple[float, int, Peer, str, int, float, int]] = []
        self.made: dict[tuple[type[Http] | type[Varlink], int, bool], bytes] = {}
        self.counted = 0
        http = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = http.getsockname()[1]
        self._listen(http, Http)
        for name in ("io.syntrop.Runtime1", "io.syntrop.Model1"):
            unix = socket.socket(socket.AF_UNIX)
            unix.bind(str(run / name))
            unix.listen(4096)
            self._listen(unix, Varlink)

    def _listen(self, sock: socket.socket, speech: type[Http] | type[Varlink]) -> None:
        sock.setblocking(False)
        self.listeners[sock.fileno()] = (sock, speech)
        self.epoll.register(sock.fileno(), select.EPOLLIN)

    def run(self) -> None:
        while True:
            wait = max(0.0, self.timers[0][0] - monotonic()) if self.timers else -1
            for fd, _ in self.epoll.poll(wait, 512):
                if fd in self.listeners:
                    self._accept(*self.listeners[fd])
                else:
                    self._receive(self.peers[fd])
            now = monotonic()
            while self.timers and self.timers[0][0] <= now:
                _, _, peer, marker, number, pause, tokens = heapq.heappop(self.timers)
                self._tick(peer, marker, number, pause, tokens)

    def _accept(self, listener: socket.socket, speech: type[Http] | type[Varlink]) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            if speech is Http:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peers[sock.fileno()] = Peer(sock, speech)
            self.epoll.register(sock.fileno(), select.EPOLLIN)

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.data = peer.data + data if peer.data else data
        while not peer.answering and (size := peer.speech.taken(peer.data)):
            request, peer.data = peer.data[:size], peer.data[size:]
            self._answer(peer, request)

    def _drop(self, peer: Peer) -> None:
        if self.peers.pop(peer.socket.fileno(), None) is not None:
            peer.socket.close()
            peer.answering = False

    def _send(self, peer: Peer, data: bytes) -> None:
        """All of it fits into the kernel's buffers: nobody here asks for more."""
        try:
            peer.socket.sendall(data)
        except OSError:
            self._drop(peer)

    def _answer(self, peer: Peer, request: bytes) -> None:
        prompt = _PROMPT.search(request)
        speech = peer.speech
        if prompt is None:
            self._send(peer, speech.whole(self._told(request)))
            return
        tokens, pause = int(prompt[1]), int(prompt[2])
        if pause == 0:
            stream = speech is Varlink or _STREAM.search(request) is not None
            made = self.made.get((speech, tokens, stream))
            if made is None:
                made = self.made[speech, tokens, stream] = self._make(speech, tokens, stream=stream)
            self._send(peer, made)
            return
        peer.answering = True
        self._send(peer, speech.begin())
        self._later(peer, prompt[3].decode(), 0, pause / 1e6, tokens)

    @staticmethod
    def _make(speech: type[Http] | type[Varlink], tokens: int, *, stream: bool) -> bytes:
        if speech is Http and not stream:
            return speech.answer(" word" * tokens)
        pieces = [speech.token(" word", number) for number in range(tokens)]
        return b"".join([speech.begin(), *pieces, speech.finish(tokens)])

    def _told(self, request: bytes) -> object:
        if b"/stats" in request:
            answering = sum(peer.answering for peer in self.peers.values())
            return {"connections": len(self.peers), "answering": answering}
        if b"Model1." in request:
            entry: dict[str, object] = {"id": MODEL, "digest": "sha256:" + "0" * 64, "name": "bench", "tag": "1"}
            entry = {**entry, "size_bytes": 1, "pinned": False, "format": "gguf"}
            return {"info": entry} if b"Inspect" in request else {"models": [entry]}
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}]}

    def _later(self, peer: Peer, marker: str, number: int, pause: float, tokens: int) -> None:
        self.counted += 1
        heapq.heappush(self.timers, (monotonic() + pause, self.counted, peer, marker, number, pause, tokens))

    def _tick(self, peer: Peer, marker: str, number: int, pause: float, tokens: int) -> None:
        if not peer.answering:
            return  # it left
        if number < tokens:
            self._send(peer, peer.speech.token(f"{marker}.{number}.{monotonic_ns()} ", number))
            self._later(peer, marker, number + 1, pause, tokens)
            return
        self._send(peer, peer.speech.finish(tokens))
        peer.answering = False


def main() -> None:
    upstream = Upstream(Path(sys.argv[1]))
    print(upstream.port, flush=True)
    upstream.run()


if __name__ == "__main__":
    main()
