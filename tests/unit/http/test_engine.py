# SPDX-License-Identifier: Apache-2.0
"""The local engine as a provider, against a double of runtimed that speaks bare Varlink, in one process.

The double knows no interface: what is asked is compared here, and what is told may be ahead of an older engine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from syntrop.common import loop, paths
from syntrop.common.http import chat
from syntrop.common.http.engine import RUNTIME, Engine
from syntrop.common.http.engine_request import engine_seed, parameters, prompt
from syntrop.common.varlink import client, idl
from syntrop.common.varlink.errors import ConnectionLost
from syntrop.common.varlink.wire import Wire, decode

RESULT = {"text": "", "prompt_tokens": 7, "completion_tokens": 2, "finish_reason": "stop", "duration_ms": 1}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

Say = Callable[..., Awaitable[None]]
Script = Callable[[dict[str, Any], Say], Awaitable[None]]


class Double:
    """Answers calls with `script(parameters, say)`; `say` sends a reply, a last one with `last=True`."""

    def __init__(self, script: Script, name: str = RUNTIME) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.connections = 0
        self.running = 0
        self.most = 0
        self.hung_up = loop.Event()
        self._script = script
        path = paths.endpoint(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(16)
        self._socket.setblocking(False)
        self._tasks = [loop.spawn(self._accept(), "double")]

    async def close(self) -> None:
        for task in self._tasks:
            await loop.stop(task)
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            await loop.readable(self._socket.fileno())
            peer, _ = self._socket.accept()
            self.connections += 1
            self._tasks.append(loop.spawn(self._serve(Wire(peer)), "double's connection"))

    async def _serve(self, wire: Wire) -> None:
        try:
            while (received := await wire.receive()) is not None:
                message = decode(received[0])
                given = message.get("parameters") or {}
                self.calls.append((message["method"].rpartition(".")[2], given))
                self.running += 1
                self.most = max(self.most, self.running)
                watch = loop.hangup(wire.fd, half=True)
                running = loop.spawn(self._answer(wire, given), "double's answer")
                watch.when_done(lambda _done, task=running: task.cancel())
                try:
                    await running
                except loop.TaskCancelled:
                    self.hung_up.set()
                    return
                finally:
                    self.running -= 1
        except ConnectionLost:
            self.hung_up.set()
        finally:
            loop.forget(wire.fd)
            wire.close()

    async def _answer(self, wire: Wire, given: dict[str, Any]) -> None:
        async def say(*, error: str | None = None, last: bool = False, **told: Any) -> None:
            message: dict[str, Any] = {"parameters": told}
            if error is not None:
                message["error"] = error
            elif not last:
                message["continues"] = True
            await wire.send(message, ())

        await self._script(given, say)


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path_factory.mktemp("r")))
    monkeypatch.setattr(client, "_signature", lambda _method: None)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with loop.deadline(20):
            return await main()

    return loop.run(bounded())


def ask(text: str = "hi", **fields: Any) -> chat.GenerateRequest:
    request = chat.GenerateRequest("m:1", [chat.Message("user", text)])
    for name, value in fields.items():
        setattr(request, name, value)
    return request


async def collect(generation: Any, choices: int = 1) -> list[chat.Event]:
    events: list[chat.Event] = []
    try:
        while choices:
            came = [await generation.next(), *generation.ready()]
            choices -= sum(isinstance(event, chat.Finished) for event in came)
            events += came
    finally:
        await generation.close()
    return events


def text_of(events: list[chat.Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, chat.Delta) and event.choice == choice)


async def greet(given: dict[str, Any], say: Say) -> None:
    await say(delta="Hel", start={"prompt_tokens": 7, "cached_tokens": 3, "thinking": False}, completion_tokens=1)
    await say(delta="lo", completion_tokens=2)
    await say(result=RESULT, last=True)


def test_a_turn_and_the_connection_is_kept() -> None:
    async def main() -> None:
        double, engine = Double(greet), Engine()
        for _ in range(3):
            events = await collect(engine.generate(ask()))
            assert text_of(events) == "Hello"
            end = events[-1]
            assert isinstance(end, chat.Finished)
            assert (end.reason, end.prompt_tokens, end.completion_tokens, end.cached_tokens) == ("stop", 7, 2, 3)
        assert double.connections == 1 and [name for name, _ in double.calls] == ["Generate"] * 3
        engine.close()
        await double.close()

    run(main)


def test_choices_run_together_a_few_at_a_time_each_with_its_seed() -> None:
    async def script(given: dict[str, Any], say: Say) -> None:
        await loop.sleep(0.01)
        await say(delta=f"{given['seed']}")
        await say(result=RESULT, last=True)

    async def main() -> None:
        double, engine = Double(script), Engine()
        events = await collect(engine.generate(ask(n=10, seed=5)), 10)
        assert [text_of(events, i) for i in range(10)] == [str(engine_seed(5, i)) for i in range(10)]
        assert sorted(e.choice for e in events if isinstance(e, chat.Finished)) == list(range(10))
        assert 1 < double.most <= 4
        engine.close()
        await double.close()

    run(main)


@pytest.mark.parametrize("n", [1, 3])
def test_an_engine_announces_to_streams_that_it_has_accepted_the_request(n: int) -> None:
    go: list[loop.Event] = []

    async def script(given: dict[str, Any], say: Say) -> None:
        assert given["announce"] is True
        await say()
        await go[0].wait()
        await say(delta="x")
        await say(result=RESULT, last=True)

    async def main() -> None:
        go.append(loop.Event())
        double, engine = Double(script), Engine()
        assert "announce" not in parameters(ask())
        generation = engine.generate(ask(n=n, stream=True))
        assert isinstance(await generation.next(), chat.Accepted)
        with pytest.raises(TimeoutError):  # once, however many choices there are
            await generation.next(0.05)
        assert generation.ready() == []
        go[0].set()
        events = await collect(generation, n)
        assert [text_of(events, i) for i in range(n)] == ["x"] * n
        assert all(isinstance(one, chat.Delta | chat.Finished) for one in events)
        engine.close()
        await double.close()

    run(main)


def test_one_choice_that_fails_fails_them_all() -> None:
    async def script(given: dict[str, Any], say: Say) -> None:
        if given["seed"] == engine_seed(0, 1):
            await say(error=f"{RUNTIME}.Overloaded", reason="4 of 4")
        else:
            await say(delta="x")
            await loop.sleep(60)

    async def main() -> None:
        double, engine = Double(script), Engine()
        with pytest.raises(chat.Overloaded):
            await collect(engine.generate(ask(n=3, seed=0)), 3)
        while double.running:
            await loop.sleep(0.01)
        engine.close()
        await double.close()

    run(main)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("said", [False, True])
def test_closing_hangs_up(n: int, said: bool) -> None:
    async def script(given: dict[str, Any], say: Say) -> None:
        if said:
            await say(delta="x")
        await loop.sleep(60)

    async def main() -> None:
        double, engine = Double(script), Engine()
        generation = engine.generate(ask(n=n))
        while len(double.calls) < n:
            await loop.sleep(0.01)
        if said:
            assert text_of([await generation.next(), *generation.ready()], 0) in ("", "x")
        else:
            with pytest.raises(TimeoutError):
                await generation.next(0.01)
        await generation.close()
        await double.hung_up.wait()
        while double.running:
            await loop.sleep(0.01)
        engine.close()
        await double.close()

    run(main)


def test_thoughts_calls_and_the_template() -> None:
    async def script(given: dict[str, Any], say: Say) -> None:
        await say(start={"prompt_tokens": 7, "cached_tokens": 0, "thinking": True})
        for i, text in enumerate(["hm", "</think>", "\n\n", "ok ", CALL]):
            await say(delta=text, completion_tokens=i + 1)
        await say(result={**RESULT, "completion_tokens": 5}, last=True)

    async def main() -> None:
        double, engine = Double(script), Engine()
        request = ask(tools=[chat.Tool("f", "d", {"type": "object"})], reasoning_effort="low")
        events = await collect(engine.generate(request))
        kinds = [type(event).__name__ for event in events]
        assert kinds == ["Reasoning", "Delta", "CallStarted", "CallArguments", "Finished"]
        end = events[-1]
        assert isinstance(end, chat.Finished) and (end.reason, end.reasoning_tokens) == ("tool_calls", 2)
        given = double.calls[0][1]
        assert given["tools"] == [{"name": "f", "description": "d", "parameters": '{"type": "object"}'}]
        assert '"enable_thinking":true' in given["template_variables"]
        engine.close()
        await double.close()

    run(main)


@pytest.mark.parametrize("tells", [False, True])
def test_no_more_than_one_call(tells: bool) -> None:
    """An engine that tells its usage as it goes is hung up on; another is heard to its end."""

    async def script(given: dict[str, Any], say: Say) -> None:
        start = {"start": {"prompt_tokens": 7, "cached_tokens": 0, "thinking": False}} if tells else {}
        await say(delta=CALL, **start, **({"completion_tokens": 4} if tells else {}))
        if tells:
            await loop.sleep(60)
        await say(delta=CALL)
        await say(result={**RESULT, "completion_tokens": 8}, last=True)

    async def main() -> None:
        double, engine = Double(script), Engine()
        request = ask(tools=[chat.Tool("f", None, None)], parallel_tool_calls=False)
        events = await collect(engine.generate(request))
        assert [type(event).__name__ for event in events] == ["CallStarted", "CallArguments", "Finished"]
        end = events[-1]
        assert isinstance(end, chat.Finished)
        assert (end.reason, end.completion_tokens) == ("tool_calls", 4 if tells else 8)
        if tells:
            await double.hung_up.wait()
        engine.close()
        await double.close()

    run(main)


@pytest.mark.parametrize(
    ("error", "told", "expected"),
    [
        ("ModelNotFound", {"model": "x"}, chat.ModelNotFound),
        ("ContextExceeded", {"requested": 9, "max": 8}, chat.ContextExceeded),
        ("Overloaded", {"reason": "r"}, chat.Overloaded),
        ("Shutdown", {"reason": "r"}, chat.Unavailable),
        ("HardwareIncompatible", {"deficit": "d"}, chat.Unfit),
        ("GenerationFailed", {"reason": "r"}, chat.GenerationFailed),
    ],
)
def test_errors_of_the_engine(error: str, told: dict[str, Any], expected: type[chat.EngineError]) -> None:
    async def script(given: dict[str, Any], say: Say) -> None:
        await say(delta="x")
        await say(error=f"{RUNTIME}.{error}", **told)

    async def main() -> None:
        double, engine = Double(script), Engine()
        for _ in range(2):
            generation = engine.generate(ask())
            await generation.next()
            with pytest.raises(expected):
                await generation.next()
            await generation.close()
        assert double.connections == 1, "an error reply ends a turn in order"
        engine.close()
        await double.close()

    run(main)


def test_engines_that_break_off() -> None:
    async def ends(given: dict[str, Any], say: Say) -> None:
        await say(delta="x")
        await say(last=True)

    async def silent(given: dict[str, Any], say: Say) -> None:
        await loop.sleep(60)

    async def main() -> None:
        engine, hasty = Engine(), Engine(timeout=0.05)
        with pytest.raises(chat.Unavailable):
            await engine.generate(ask()).next()
        double = Double(ends)
        generation = engine.generate(ask())
        await generation.next()
        with pytest.raises(chat.GenerationFailed):
            await generation.next()
        double._script = silent
        with pytest.raises(chat.EngineTimeout):
            await hasty.generate(ask()).next()
        with pytest.raises(chat.EngineTimeout):
            await engine.probe(0.02)
        await double.close()
        engine.close()

    run(main)


# --- embeddings and the rest -----------------------------------------------------------------------------


async def embed(given: dict[str, Any], say: Say) -> None:
    inputs = given.get("texts") or [one["ids"] for one in given["tokens"]]
    if "bad" in inputs:
        where = f"texts[{inputs.index('bad')}]"
        return await say(error=f"{RUNTIME}.InvalidParameter", parameter=where, reason="no tokens")
    vectors = [{"vector": [float(len(one)), 0.5], "tokens": len(one)} for one in inputs]
    total = sum(map(len, inputs))
    return await say(embedding=vectors[0]["vector"], embeddings=vectors, prompt_tokens=total, last=True)


def test_embeddings_in_calls_of_bounded_size() -> None:
    async def main() -> None:
        double, engine = Double(embed), Engine()
        found = await engine.embed(chat.EmbedRequest("m", ["x" * i for i in range(1, 151)]))
        assert found.vectors == [[float(i), 0.5] for i in range(1, 151)]
        assert found.prompt_tokens == sum(range(1, 151))
        assert [len(given["texts"]) for _, given in double.calls] == [64, 64, 22]
        found = await engine.embed(chat.EmbedRequest("m", [[1, 2], [3]], dimensions=2))
        assert found.vectors == [[2.0, 0.5], [1.0, 0.5]]
        assert double.calls[-1][1]["tokens"] == [{"ids": [1, 2]}, {"ids": [3]}]
        with pytest.raises(chat.Unhonoured) as caught:
            await engine.embed(chat.EmbedRequest("m", ["x"], dimensions=3))
        assert caught.value.parameter == "dimensions"
        with pytest.raises(chat.Unhonoured) as caught:
            await engine.embed(chat.EmbedRequest("m", [*["x"] * 70, "bad"]))
        assert caught.value.parameter == "input[70]" and "no tokens" in caught.value.message
        assert double.connections == 1
        engine.close()
        await double.close()

    run(main)


def test_counts_models_and_signs_of_life() -> None:
    known = True

    async def script(given: dict[str, Any], say: Say) -> None:
        if not known:
            await say(error="org.varlink.service.MethodNotImplemented", method="CountTokens")
        else:
            await say(tokens=42, last=True)

    async def store(given: dict[str, Any], say: Say) -> None:
        await say(models=[{"id": one} for one in ("a:1", "b:1", "a:1")], last=True)

    async def main() -> None:
        nonlocal known
        double, models, engine = Double(script), Double(store, "io.syntrop.Model1"), Engine()
        assert await engine.count(ask()) == 42
        assert double.calls[-1] == ("CountTokens", prompt(ask()))
        assert await engine.count(chat.GenerateRequest("m", None, [1, 2, 3])) == 3
        known = False
        assert await engine.count(ask()) is None, "an engine that cannot tell"
        assert await engine.models() == ["a:1", "b:1"]
        known = True
        assert 0 <= await engine.probe(5.0) < 5.0
        engine.close()
        for one in (double, models):
            await one.close()

    run(main)


# --- what is asked ---------------------------------------------------------------------------------------


def test_what_the_engine_is_asked() -> None:
    assert parameters(ask()) == {
        "model": "m:1",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2**31 - 1,
        "seed": 0,
    }
    interface = idl.load(RUNTIME)
    interface.check(
        interface.methods["Generate"].input, parameters(ask(max_tokens=3, temperature=0.5, stop=["x"]))
    )
    full = parameters(
        ask(
            temperature=0.0,
            top_k=1,
            top_p=0.5,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={5: -100.0},
            top_logprobs=0,
            seed=0,
            reasoning_effort="none",
        )
    )
    assert full["logit_bias"] == [{"token": 5, "bias": -100.0}] and full["top_logprobs"] == 0
    assert (full["temperature"], full["min_p"], full["presence_penalty"]) == (0.0, 0.0, 0.5)
    assert full["seed"] != 0 and full["template_variables"] == '{"enable_thinking":false,"thinking":false}'


def test_what_the_engine_is_told_of_a_conversation() -> None:
    request = ask()
    request.messages = [
        chat.Message("assistant", "", reasoning="hm", tool_calls=[chat.ToolCall("c1", "f", "{}")]),
        chat.Message("tool", "", tool_call_id="c1"),
    ]
    request.tools = [chat.Tool("f", None, None)]
    assert prompt(request)["messages"] == [
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c1", "name": "f", "arguments": "{}"}],
        },
        {"role": "tool", "content": "", "tool_call_id": "c1"},
    ]
    assert prompt(request)["tools"] == [{"name": "f"}]
    request.tool_choice = "none"
    assert "tools" not in prompt(request), "what may not be called is not shown"
    assert prompt(chat.GenerateRequest("m", None, [1, 2])) == {"model": "m", "prompt_ids": [1, 2]}


@pytest.mark.parametrize("seed", [None, 0, 1, -1, 2**63 - 1, -(2**63)])
def test_seeds(seed: int | None) -> None:
    assert 0 <= engine_seed(seed) < 2**53
    assert (engine_seed(seed) == 0) is (seed is None), "0 is the engine's word for any"
    assert seed is None or engine_seed(seed, 1) != engine_seed(seed)
