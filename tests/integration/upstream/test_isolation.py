# SPDX-License-Identifier: Apache-2.0
"""Requests side by side: none sees anything of another, however connections are shared; triage waits for none."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from place import CHAT, FAR, LOCAL, Place, connected, http, prompt, settled

TOKENS = 3
STAMP = re.compile(rb"(m\d+)\.(\d+)\.\d+ ")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    try:
        yield place
    finally:
        place.close()


def marked(number: int) -> tuple[str, dict[str, Any]]:
    """(path, body) of a request in one of the dialects, for either kind of provider, whole or streamed, that is
    answered with its own marks."""
    marker = f"m{number}"
    chats = prompt(TOKENS, 1_000, marker)
    text = chats[0]["content"]
    ways: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": chats}),
        ("/v1/messages", {"messages": chats, "max_tokens": 9}),
        ("/v1/responses", {"input": text}),
        ("/api/chat", {"messages": chats}),
        ("/v1/completions", {"prompt": text}),
        ("/api/generate", {"prompt": text, "raw": True}),
    ]
    path, body = ways[number % len(ways)]
    # Only chats are what the upstream knows of OpenAI's dialect.
    model = FAR if "messages" in body and number // 6 % 2 else LOCAL
    return path, {"model": model, "stream": number // 12 % 2 == 0, **body}


def check(number: int, answer: bytes) -> None:
    found = set(STAMP.findall(answer))
    assert found == {(b"m%d" % number, b"%d" % i) for i in range(TOKENS)}, (number, answer)


class Kept:
    """A connection for one request after the other."""

    def __init__(self, address: Any) -> None:
        self.socket = connected(address)
        self.data = b""

    def receive(self) -> bytes:
        """The next reply, whole."""
        while (end := self._end()) is None:
            piece = self.socket.recv(1 << 16)
            assert piece, self.data
            self.data += piece
        answer, self.data = self.data[:end], self.data[end:]
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        return answer

    def _end(self) -> int | None:
        head = self.data.find(b"\r\n\r\n")
        if head < 0:
            return None
        length = re.search(rb"\r\ncontent-length: (\d+)", self.data[:head])
        if length is not None:
            end = head + 4 + int(length[1])
            return end if len(self.data) >= end else None
        end = self.data.find(b"\r\n0\r\n\r\n", head)
        return None if end < 0 else end + 7

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_kept_connections_of_many_clients(place: Place) -> None:
    clients, turns = 24, 12
    gate = threading.Barrier(clients)
    ids: set[bytes] = set()

    def client(which: int) -> None:
        with Kept(place.unix if which % 3 == 0 else place.address) as kept:
            gate.wait(60)
            for turn in range(turns):
                number = which * turns + turn
                path, body = marked(number)
                kept.socket.sendall(http(body, path))
                answer = kept.receive()
                check(number, answer)
                found = re.search(rb"\r\nx-request-id: (\w+)", answer)
                assert found is not None
                ids.add(found[1])

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    assert len(ids) == clients * turns


def test_pipelined_requests_are_answered_in_their_order(place: Place) -> None:
    with Kept(place.address) as kept:
        kept.socket.sendall(b"".join(http(body, path) for path, body in map(marked, range(48))))
        for number in range(48):
            check(number, kept.receive())


def test_streams_of_one_connection(place: Place) -> None:
    """HTTP/2: all at once, and the frames of their answers mixed."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    numbers: dict[int, int] = {}
    for number in range(72):
        path, body = marked(number)
        stream = connection.get_next_available_stream_id()
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        connection.send_headers(stream, headers)
        connection.send_data(stream, json.dumps(body).encode(), end_stream=True)
        numbers[stream] = number
    answers = dict.fromkeys(numbers, b"")
    left = set(numbers)
    with connected(place.address) as sock:
        sock.sendall(connection.data_to_send())
        while left:
            data = sock.recv(1 << 16)
            assert data, "the connection was closed"
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    answers[event.stream_id] += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    left.discard(event.stream_id)
                assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event
            sock.sendall(connection.data_to_send())
    for stream, number in numbers.items():
        check(number, answers[stream])


def test_triage_does_not_wait_behind_200_others() -> None:
    place = Place("--requests-max=200")
    waiting: list[socket.socket] = []
    try:
        for number in range(200):
            sock = connected(place.address)
            # Minutes until the first token.
            body = {"model": (LOCAL, FAR)[number % 2], "messages": prompt(1, 250_000_000), "stream": False}
            sock.sendall(http(body))
            waiting.append(sock)
        settled(lambda: place.answering() == 200)
        status, _, error = place.router.request("POST", CHAT, {"model": LOCAL, "messages": prompt()})
        assert (status, error["error"]["code"]) == (429, "overloaded"), "they fill all the room that there is"
        for model in (LOCAL, "auto"):
            with Kept(place.unix) as kept:
                body = {"model": model, "messages": prompt(TOKENS, 1_000, "m5")}
                kept.socket.sendall(http(body, x_syntrop_tier="triage"))
                answer = kept.receive()
            check(5, answer)
            assert b"\r\nx-syntrop-provider: local\r\n" in answer
        assert place.answering() == 200, "and they wait still"
        for sock in waiting:
            sock.close()
        settled(lambda: place.at_rest)
    finally:
        for sock in waiting:
            sock.close()
        place.close()
