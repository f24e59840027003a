# SPDX-License-Identifier: Apache-2.0
"""Providers of OpenAI's kind against servers that are hostile, broken or gone."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from scripted import (
    DONE,
    HEAD,
    KEY,
    LAST,
    STREAM,
    TEXT,
    USAGE,
    Peer,
    Upstream,
    answer,
    chunked,
    delta,
    descriptors,
    event,
    heard,
    provider,
    question,
    reply,
    run,
    said,
    told,
    until,
)

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.common.http.client import Client, Limits, TooMany

TO_CLOSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def expect(data: bytes, *, cut: int | None = None, text: str = TEXT) -> None:
    """The answer that is heard when a server says these bytes and hangs up."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(data, cut=cut)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            found, end = await told(up)
            assert (found, end.reason, end.prompt_tokens, end.completion_tokens) == (text, "stop", 7, 5)
            up.close()

    run(main())


def fails(
    data: bytes, kind: type[chat.EngineError], match: str = "", *, text: str = "", timeout: float = 60
) -> None:
    """The error that is heard behind `text` when a server says these bytes and hangs up."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(data)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, timeout=timeout)
            await failing(up, kind, match, text)
            up.close()

    run(main())


async def failing(up: Any, kind: type[chat.EngineError], match: str = "", text: str = "") -> chat.EngineError:
    generation = up.generate(question())
    found = ""
    with pytest.raises(kind, match=match) as caught:
        while True:
            came = await said(generation)
            assert isinstance(came, chat.Delta)
            found += came.text
    await generation.close()
    assert found == text and type(caught.value) is kind
    assert KEY not in caught.value.message
    return caught.value


# --- streams, however they are written -------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("framing", ["chunked", "each byte a chunk", "to the end"])
def test_cut_anywhere(cut: int, framing: str) -> None:
    match framing:
        case "chunked":
            expect(HEAD + chunked(STREAM, 50) + LAST, cut=cut)
        case "each byte a chunk":
            expect(HEAD + chunked(STREAM, 1) + LAST, cut=cut)
        case _:
            expect(TO_CLOSE + STREAM, cut=cut)


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_other_line_ends(end: bytes) -> None:
    expect(HEAD + chunked(STREAM.replace(b"\n", end)) + LAST, cut=11)


def test_mixed_line_ends_comments_and_a_byte_order_mark() -> None:
    events = [delta(one) for one in "abc"] + [delta("", "stop"), USAGE, DONE]
    ends = [b"\n", b"\r\n", b"\r"]
    mixed = b"".join(one.replace(b"\n", ends[i % 3]) + b": ping" + ends[i % 2] for i, one in enumerate(events))
    stream = b"\xef\xbb\xbf: hello\n\nretry: 5\nid: 7\nevent: message\n" + mixed
    expect(HEAD + chunked(stream, 13) + LAST, cut=9, text="abc")


def test_data_in_several_lines() -> None:
    pretty = json.dumps(json.loads(delta("x", "stop")[6:]), indent=1)
    stream = "".join(f"data: {line}\n" for line in pretty.split("\n")).encode() + b"\n" + USAGE + DONE
    expect(HEAD + chunked(stream) + LAST, text="x")


@pytest.mark.parametrize("missing", [1, 2, len(DONE)])
def test_without_its_last_bytes(missing: int) -> None:
    expect(HEAD + chunked(STREAM[:-missing]) + LAST)
    expect(TO_CLOSE + STREAM[:-missing])


def test_other_types_that_are_meant_so() -> None:
    for sort in (b"Text/Event-Stream; charset=utf-8", b"text/plain"):
        expect(HEAD.replace(b"text/event-stream", sort) + chunked(STREAM) + LAST)
    expect(b"HTTP/1.1 200 OK\r\n\r\n" + STREAM)


def test_what_follows_the_last_word_is_not_listened_to() -> None:
    expect(HEAD + chunked(STREAM + delta("more") + b"data: no JSON\n\n") + LAST)
    expect(HEAD + chunked(STREAM) + LAST + b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
    expect(HEAD + chunked(STREAM) + LAST + b"garbage")


def test_interim_responses_are_passed_over() -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    expect(hints + HEAD + chunked(STREAM) + LAST, cut=17)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_though_not_asked_for(coding: str) -> None:
    body = gzip.compress(STREAM) if coding == "gzip" else zlib.compress(STREAM)
    head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + coding.encode() + b"\r\n\r\n")
    expect(head + chunked(body, 40) + LAST, cut=33)


def test_an_answer_at_once() -> None:
    value = {
        "choices": [{"index": 0, "message": {"content": TEXT}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    }
    expect(reply(json.dumps(value).encode(), sort="application/json; charset=utf-8"), cut=20)


# --- answers that are none -------------------------------------------------------------------------------

SOME = chunked(delta("so far"))


@pytest.mark.parametrize(
    ("data", "kind", "match"),
    [
        (HEAD + SOME + LAST, chat.GenerationFailed, "before it was complete"),
        (HEAD + SOME, chat.GenerationFailed, "broke off"),
        (HEAD + SOME + b"5\r\nda", chat.GenerationFailed, "broke off"),
        (HEAD + SOME + chunked(delta("", "stop")), chat.GenerationFailed, "broke off"),
        (HEAD + SOME + b"zz\r\n", chat.GenerationFailed, "broke its protocol"),
        (HEAD + SOME + chunked(b"data: {no JSON\n\n"), chat.GenerationFailed, "no JSON"),
        (HEAD + SOME + chunked(b"data: 7\n\n"), chat.GenerationFailed, "no JSON object"),
        (HEAD + SOME + chunked(event({"error": {"message": "boom", "code": 500}})), chat.GenerationFailed, "boom"),
        (HEAD + SOME + chunked(b"event: error\n" + event({"message": KEY, "code": 503})), chat.Unavailable, "…"),
        (HEAD + SOME + chunked(event({"error": {"message": "x", "code": 429}})), chat.Overloaded, "busy"),
        (HEAD + SOME + chunked(b"data: " + bytes(5_000_000)), chat.GenerationFailed, "over"),
        (TO_CLOSE + delta("so far"), chat.GenerationFailed, "before it was complete"),
        (TO_CLOSE.replace(b"\r\n\r\n", b"\r\ncontent-length: 9999\r\n\r\n") + delta("so far"),
         chat.GenerationFailed, "broke off"),
        (reply(delta("so far"), sort="text/event-stream") + STREAM,
         chat.GenerationFailed, "before it was complete"),
    ],
)  # fmt: skip
def test_failures_behind_the_first_words(data: bytes, kind: type[chat.EngineError], match: str) -> None:
    fails(data, kind, match, text="so far")


@pytest.mark.parametrize(
    ("data", "kind", "match"),
    [
        (b"", chat.GenerationFailed, "broke off"),
        (b"HTTP/1.1 200", chat.GenerationFailed, "broke off"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", chat.GenerationFailed, "broke its protocol"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, chat.GenerationFailed, "broke its protocol"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, chat.GenerationFailed, "interim"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", chat.GenerationFailed, "asked"),
        (reply(b"<html>", sort="text/html"), chat.GenerationFailed, "neither events nor JSON"),
        (reply(b"{", sort="application/json"), chat.GenerationFailed, "no JSON"),
        (reply(b"[]", sort="application/json"), chat.GenerationFailed, "no JSON object"),
        (reply(b"{}", sort="application/json"), chat.GenerationFailed, "before it was complete"),
        (reply(b'{"error":{"message":"x","code":429}}'), chat.Overloaded, "busy"),
        (reply(STREAM, "content-encoding: br", sort="text/event-stream"), chat.GenerationFailed, "coding"),
        (reply(STREAM, "content-encoding: gzip", sort="text/event-stream"), chat.GenerationFailed, "gzip"),
        (reply(b"", "location: https://elsewhere.example/", status="302 Found"), chat.Denied, "redirect to https"),
        (reply(b"", "location: /v1/x", status="307 Temporary Redirect"), chat.Denied, "redirect"),
        (reply(b'{"error":{"message":"%b"}}' % KEY.encode(), status="401 No"), chat.Denied, "credential"),
        (reply(KEY.encode(), status="403 No"), chat.Denied, "credential"),
        (reply(b'{"error":{"message":"%b bad"}}' % KEY.encode(), status="400 Bad"), chat.Refused, "… bad"),
        (reply(b"cut", status="500 Oops").replace(b"length: 3", b"length: 9"), chat.GenerationFailed, "500"),
        (reply(b"x" * 1_000_000, status="503 Busy"), chat.Unavailable, "503"),
        (reply(b"", status="204 No Content"), chat.GenerationFailed, "204"),
    ],
)  # fmt: skip
def test_failures_before_the_first_word(data: bytes, kind: type[chat.EngineError], match: str) -> None:
    fails(data, kind, match)


@pytest.mark.parametrize(
    ("header", "seconds"), [("retry-after: 7", 7.0), ("retry-after-ms: 1500", 1.5), ("x-nothing: 1", None)]
)
@pytest.mark.parametrize("status", ["429 Slow down", "503 Service Unavailable"])
def test_when_to_try_again(header: str, seconds: float | None, status: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(reply(b'{"error":{"message":"later"}}', header, status=status))

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            kind = chat.Overloaded if status.startswith("429") else chat.Unavailable
            assert (await failing(up, kind, "later")).retry_after == seconds
            up.close()

    run(main())


def test_a_reset_in_mid_stream() -> None:
    first = loop_event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + SOME)
        await first.wait()
        peer.reset()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            generation = up.generate(question())
            assert isinstance(await said(generation), chat.Delta)
            first.set()
            with pytest.raises(chat.GenerationFailed, match="broke off"):
                await generation.next()
            await generation.close()
            up.close()

    run(main())


def loop_event() -> loop.Event:
    return loop.Event()


# --- silence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"), [(b"", ""), (b"HTTP/1.1 200 OK\r\n", ""), (HEAD, ""), (HEAD + SOME, "so far")]
)
def test_silence_has_an_end(data: bytes, text: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(data)
        await peer.gone()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, timeout=0.3)
            await failing(up, chat.EngineTimeout, "is silent", text)
            await until(lambda: upstream.ended)  # it saw the hang-up
            up.close()

    run(main())


def test_a_head_that_trickles_has_an_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            try:
                await peer.send(b"x: y\r\n")
            except OSError:
                return
            await loop.sleep(0.01)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, timeout=0.3)
            await failing(up, chat.EngineTimeout, "no answer")
            await until(lambda: upstream.ended)
            up.close()

    run(main())


def test_next_may_be_asked_again() -> None:
    go = loop_event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await go.wait()
        await peer.send(HEAD + chunked(STREAM) + LAST)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            generation = up.generate(question())
            assert generation.ready() == []
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await generation.next(0.01)
            go.set()
            assert (await heard(generation))[0] == TEXT
            await generation.close()
            up.close()

    run(main())


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("choices", [1, 3])
def test_who_begins_to_answer_has_accepted_the_request(kind: str, choices: int) -> None:
    go = loop_event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        await go.wait()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, kind)
            request = question()
            request.n = choices
            generation = up.generate(request)
            assert isinstance(await generation.next(), chat.Accepted)
            with pytest.raises(TimeoutError):  # once, however many choices there are
                await generation.next(0.05)
            assert generation.ready() == []
            await generation.close()
            go.set()
            up.close()

    run(main())


# --- hanging up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["asked", "head", "interim", "before the first event", "mid-stream", "backlog"])
def test_a_hang_up_reaches_the_server(phase: str) -> None:
    reached, saw = loop_event(), loop_event()

    async def script(peer: Peer) -> None:
        await peer.request()
        match phase:
            case "head":
                await peer.send(HEAD[:20])
            case "interim":
                await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            case "before the first event":
                await peer.send(HEAD + chunked(b": ping\n\n"))
            case "mid-stream":
                await peer.send(HEAD + SOME)
        reached.set()
        if phase == "backlog":  # more than anybody reads ahead
            try:
                await peer.send(HEAD)
                while True:
                    await peer.send(SOME)
            except OSError:
                pass
        else:
            await peer.gone()
        saw.set()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            generation = up.generate(question())
            await reached.wait()
            if phase in ("mid-stream", "backlog"):
                assert isinstance(await said(generation), chat.Delta)
            await generation.close()
            await saw.wait()
            assert up.client.open == 0  # type: ignore[attr-defined]
            up.close()

    run(main())


def test_a_hang_up_while_the_request_is_sent() -> None:
    saw = loop_event()

    async def script(peer: Peer) -> None:
        assert await peer.read()  # its beginning, and then no more for a while
        saw.set()
        await peer.gone()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            generation = up.generate(question("x" * 30_000_000))
            await saw.wait()
            await generation.close()
            await until(lambda: upstream.ended)
            up.close()

    run(main())


def test_a_hang_up_at_once() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            up = provider(upstream.url)
            for _ in range(50):
                await up.generate(question()).close()
            assert up.client.open == 0  # type: ignore[attr-defined]
            await until(lambda: upstream.ended == upstream.connections)
            up.close()

    run(main())


# --- connections -----------------------------------------------------------------------------------------


def test_connections_are_kept() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            up = provider(upstream.url)
            client = up.client  # type: ignore[attr-defined]
            for _ in range(20):
                assert (await told(up))[0] == TEXT
                await until(lambda: client.kept == 1)
            assert upstream.connections == 1
            up.close()
            await until(lambda: upstream.ended == 1)

    run(main())


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_kept_connection_that_ended_is_replaced(how: str) -> None:
    """The server takes the second request and ends without a byte of an answer: it is sent once more."""
    requests = 0

    async def first(peer: Peer) -> None:
        nonlocal requests
        await peer.request()
        await peer.send(HEAD + chunked(STREAM) + LAST)
        await peer.request()
        requests += 1
        if how == "reset":
            peer.reset()

    async def main() -> None:
        async with Upstream(first, answer) as upstream:
            up = provider(upstream.url)
            await told(up)
            await until(lambda: up.client.kept == 1)  # type: ignore[attr-defined]
            assert (await told(up))[0] == TEXT
            assert (requests, upstream.connections) == (1, 2)
            up.close()

    run(main())


@pytest.mark.parametrize("answers", [0, 1])
def test_nothing_is_sent_twice_otherwise(answers: int) -> None:
    """A new connection that ends, and a kept one on which an answer had begun."""

    async def script(peer: Peer) -> None:
        for _ in range(answers):
            await peer.request()
            await peer.send(HEAD + chunked(STREAM) + LAST)
        await peer.request()
        if answers:
            await peer.send(b"H")

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url)
            for _ in range(answers):
                await told(up)
                await until(lambda: up.client.kept == 1)  # type: ignore[attr-defined]
            await failing(up, chat.GenerationFailed, "broke off")
            assert upstream.connections == 1
            up.close()

    run(main())


def test_kept_connections_that_end_or_speak_are_let_go() -> None:
    async def ends(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunked(STREAM) + LAST)

    spoken = loop_event()

    async def speaks(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunked(STREAM) + LAST)
        await until(lambda: up_kept[0].client.kept == 1)
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
        spoken.set()
        await peer.gone()

    up_kept: list[Any] = []

    async def main() -> None:
        async with Upstream(ends, speaks, answer) as upstream:
            up: Any = provider(upstream.url)
            up_kept.append(up)
            await told(up)
            await until(lambda: up.client.open == 0)  # noticed without being used
            await told(up)
            await spoken.wait()
            assert (await told(up))[0] == TEXT  # not what the other had said
            assert upstream.connections == 3
            up.close()

    run(main())


def test_connections_have_bounds() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            client = Client(upstream.url, limits=Limits(connections=4, kept_most=2))
            used = [await client.request("GET", "/") for _ in range(4)]
            with pytest.raises(TooMany):
                await client.request("GET", "/")
            for one in used:
                await one.read(10_000)
                one.close()
            assert (client.kept, client.open) == (2, 2)
            client.close()
            assert client.open == 0
            late = await client.request("GET", "/")  # in use while it was closed
            await late.read(10_000)
            late.close()
            assert client.open == 0

    run(main())


def test_unused_connections_are_closed_in_time() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            client = Client(upstream.url, limits=Limits(kept=0.05))
            for _ in range(2):
                used = [await client.request("GET", "/") for _ in range(3)]
                for one in used:
                    await one.read(10_000)
                    one.close()
                await until(lambda: client.open == 0)
                await until(lambda: upstream.ended == upstream.connections)
            client.close()

    run(main())


def test_no_descriptor_is_lost() -> None:
    scripts = [
        b"",
        HEAD,
        HEAD + SOME,
        HEAD + chunked(STREAM) + LAST,
        reply(b"", status="500 No"),
        b"garbage\r\n\r\n",
    ]

    async def script(peer: Peer) -> None:
        request = await peer.request()
        await peer.send(scripts[int(request.json["messages"][0]["content"])])

    async def main() -> None:
        async with Upstream(script) as upstream:
            up: Any = provider(upstream.url)
            before = descriptors()
            for i in range(60):
                generation = up.generate(question(str(i % len(scripts))))
                try:
                    await heard(generation)
                except chat.EngineError:
                    pass
                await generation.close()
            await until(lambda: up.client.open == 0 and upstream.ended == 60)
            assert descriptors() == before
            up.close()

    run(main())


def test_an_answer_before_the_whole_request() -> None:
    async def script(peer: Peer) -> None:
        assert await peer.read()
        await peer.send(reply(b'{"error":{"message":"too much"}}', "connection: close", status="413 Too Large"))
        await peer.gone()

    async def main() -> None:
        async with Upstream(script) as upstream:
            up: Any = provider(upstream.url)
            generation = up.generate(question("x" * 30_000_000))
            with pytest.raises(chat.Refused, match="too much"):
                await generation.next()
            await generation.close()
            assert up.client.open == 0
            up.close()

    run(main())


def test_nobody_there() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            url = upstream.url
        up = provider(url)
        await failing(up, chat.Unavailable, "cannot be reached: Connection refused")
        up.close()
        up = provider("http://nowhere.invalid:1")
        await failing(up, chat.Unavailable, "cannot be (reached|looked up)")
        up.close()

    run(main())


# --- requests --------------------------------------------------------------------------------------------


def test_what_the_server_is_told() -> None:
    seen: list[Any] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(HEAD + chunked(STREAM) + LAST)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url + "/some/v1")
            await told(up)
            up.close()
            up = provider(upstream.url, secret=None)
            await told(up)
            up.close()
            (first, second) = seen
            assert (first.method, first.path) == ("POST", "/some/v1/chat/completions")
            assert first.headers["host"] == f"127.0.0.1:{upstream.port}"
            assert first.headers["authorization"] == f"Bearer {KEY}"
            assert first.headers["accept-encoding"] == "identity"
            assert first.headers["user-agent"].startswith("syntrop/")
            assert first.json["messages"] == [{"role": "user", "content": "hi"}]
            assert second.path == "/v1/chat/completions" and "authorization" not in second.headers

    run(main())


def ask_once(data: bytes, act: Any, kind: str = "openai") -> Any:
    """What `act(provider)` gives, and the request that the server saw."""
    seen: list[Any] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(data)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, kind)
            try:
                seen.append(await act(up))
            finally:
                up.close()

    run(main())
    return seen


def test_embeddings() -> None:
    vectors = [{"index": 1, "embedding": [3, 4.5]}, {"index": 0, "embedding": "AACAPwAAAEA="}]
    body = json.dumps({"data": vectors, "usage": {"prompt_tokens": 9}}).encode()
    request, found = ask_once(reply(body), lambda up: up.embed(chat.EmbedRequest("m", ["a", "b"])))
    assert (request.path, request.json["input"]) == ("/v1/embeddings", ["a", "b"])
    assert (found.vectors, found.prompt_tokens) == ([[1.0, 2.0], [3.0, 4.5]], 9)


@pytest.mark.parametrize(
    "data",
    [
        [], [{"embedding": [1]}], [{"index": 0, "embedding": [1]}] * 2,
        [{"embedding": [1]}, {"embedding": [1, 2]}],
        [{"embedding": "AAA="}] * 2, [{"embedding": []}] * 2, [{"embedding": ["x"]}] * 2, ["x", "y"], 7, None,
        [{"index": [], "embedding": [1]}] * 2, [{"embedding": [10**400]}] * 2,
    ],
)  # fmt: skip
def test_embeddings_that_are_none(data: Any) -> None:
    with pytest.raises(chat.GenerationFailed, match="broke its protocol"):
        ask_once(
            reply(json.dumps({"data": data}).encode()), lambda up: up.embed(chat.EmbedRequest("m", ["a", "b"]))
        )


def test_lists_of_models_and_signs_of_life() -> None:
    body = reply(
        json.dumps({"data": [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": 7}, 7, {"id": "x\ny"}]}).encode()
    )
    request, found = ask_once(body, lambda up: up.models())
    assert (request.method, request.path, found) == ("GET", "/v1/models", ["a", "b"])
    for data in (body, reply(b"", status="404 Not Found")):
        _, seconds = ask_once(data, lambda up: up.probe(60))
        assert seconds >= 0
    with pytest.raises(chat.Denied):
        ask_once(reply(b"", status="401 No"), lambda up: up.probe(60))
    with pytest.raises(chat.GenerationFailed):
        ask_once(reply(b"[]"), lambda up: up.models())


# --- Anthropic -------------------------------------------------------------------------------------------

MESSAGE = b"".join(
    b"event: %b\n" % value["type"].encode() + event(value)
    for value in (
        {"type": "message_start", "message": {"usage": {"input_tokens": 7}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}}
            for one in TEXT
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )
)


@pytest.mark.parametrize("cut", [1, 7, None])
def test_messages(cut: int | None) -> None:
    seen: list[Any] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(HEAD + chunked(MESSAGE, 31) + LAST, cut=cut)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, "anthropic")
            found, end = await told(up)
            assert (found, end.prompt_tokens, end.completion_tokens) == (TEXT, 7, 5)
            up.close()

    run(main())
    (request,) = seen
    assert request.path == "/v1/messages"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (KEY, "2023-06-01")


def test_messages_that_may_not_be_so_long() -> None:
    lengths: list[int] = []
    words = (
        b'{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 32000 > 8192, which"}}'
    )

    async def script(peer: Peer) -> None:
        for _ in range(3):
            request = await peer.request()
            lengths.append(request.json["max_tokens"])
            good = request.json["max_tokens"] <= 8192
            await peer.send(HEAD + chunked(MESSAGE) + LAST if good else reply(words, status="400 Bad Request"))

    async def main() -> None:
        async with Upstream(script) as upstream:
            up: Any = provider(upstream.url, "anthropic")
            for _ in range(2):
                assert (await told(up))[0] == TEXT
                await until(lambda: upstream.ended or up.client.kept == 1)
            up.close()

    run(main())
    assert lengths == [32_000, 8192, 8192]


def test_messages_for_several_choices() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + chunked(MESSAGE) + LAST)

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url, "anthropic")
            request = question()
            request.n = 3
            generation = up.generate(request)
            texts, ends = ["", "", ""], 0
            while ends < 3:
                came = await generation.next()
                if isinstance(came, chat.Delta):
                    texts[came.choice] += came.text
                ends += isinstance(came, chat.Finished)
            await generation.close()
            assert texts == [TEXT] * 3
            up.close()

    run(main())


def test_what_is_refused_comes_with_the_events() -> None:
    async def main() -> None:
        async with Upstream(answer) as upstream:
            up = provider(upstream.url, "anthropic")
            request = question()
            request.seed = 1
            generation = up.generate(request)
            with pytest.raises(chat.Unhonoured, match="seed"):
                await generation.next()
            await generation.close()
            with pytest.raises(chat.Unhonoured, match="embeddings"):
                await up.embed(chat.EmbedRequest("m", ["a"]))
            assert upstream.connections == 0
            up.close()

    run(main())


def test_messages_are_counted_and_models_listed() -> None:
    request, found = ask_once(reply(b'{"input_tokens":42}'), lambda up: up.count(question()), "anthropic")
    assert (request.path, found) == ("/v1/messages/count_tokens", 42)
    assert "max_tokens" not in request.json and "stream" not in request.json

    paths: list[str] = []

    async def script(peer: Peer) -> None:
        pages = [
            {"data": [{"id": "a"}], "has_more": True, "last_id": "a"},
            {"data": [{"id": "b"}], "has_more": False},
        ]
        for page in pages:
            paths.append((await peer.request()).path)
            await peer.send(reply(json.dumps(page).encode()))

    async def main() -> None:
        async with Upstream(script) as upstream:
            up = provider(upstream.url + "/v1", "anthropic")
            assert await up.models() == ["a", "b"]
            up.close()

    run(main())
    assert paths == ["/v1/models?limit=1000", "/v1/models?limit=1000&after_id=a"]
