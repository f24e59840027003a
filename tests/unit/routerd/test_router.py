# SPDX-License-Identifier: Apache-2.0
"""Requests on their way to scripted providers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop, psi
from syntrop.common.http import chat
from syntrop.routerd import config, scoring
from syntrop.routerd.attempts import Attempts, NobodyAnswers
from syntrop.routerd.breaker import Breaker
from syntrop.routerd.config import ProviderConfig
from syntrop.routerd.metrics import Metrics
from syntrop.routerd.router import Router

END = chat.Finished("stop", 7, 3)
Step = chat.Delta | chat.Finished | chat.EngineError | float


class Turn:
    """Says its steps in order: events, errors, and seconds that it takes."""

    def __init__(self, provider: Double, request: chat.GenerateRequest, steps: list[Step]) -> None:
        self.request = request
        self.closed = False
        self._provider = provider
        self._steps = steps

    async def next(self, timeout: float | None = None) -> chat.Delta | chat.Finished:
        assert not self._provider.closed
        while isinstance(step := self._steps[0], float):
            if timeout is not None and timeout < step:
                await loop.sleep(timeout)
                self._steps[0] = step - timeout
                raise TimeoutError
            await loop.sleep(step)
            self._steps.pop(0)
        self._steps.pop(0)
        if isinstance(step, chat.EngineError):
            raise step
        return step

    def ready(self) -> list[chat.Event]:
        return []

    async def close(self) -> None:
        self.closed = True
        self._provider.open_turns -= 1


class Double:
    """`script` gives the steps of each turn; without one it answers `id` and ends."""

    def __init__(self, settings: ProviderConfig, secret: str | None) -> None:
        self.id = settings.id
        self.kind = settings.kind
        self.secret = secret
        self.closed = False
        self.open_turns = 0
        self.turns: list[Turn] = []
        self.names: list[str] = []
        self.script: Callable[[], list[Step]] = lambda: [chat.Delta(self.id), END]
        self.counted: int | None = None
        self.loads: list[tuple[str, float | None]] = []
        self.context: int | None = None
        self.listed = 0
        self.probes: list[float | chat.EngineError] = []

    def generate(self, request: chat.GenerateRequest) -> Turn:
        assert not self.closed
        turn = Turn(self, request, self.script())
        self.open_turns += 1
        self.turns.append(turn)
        return turn

    async def embed(self, request: chat.EmbedRequest) -> chat.Embeddings:
        return chat.Embeddings(request.model, [[1.0] for _ in request.inputs], 5)

    async def count(self, request: chat.GenerateRequest) -> int | None:
        return self.counted

    async def load(self, model: str, keep: float | None = None) -> int | None:
        self.loads.append((model, keep))
        return self.context

    async def models(self) -> list[str]:
        self.listed += 1
        return self.names

    async def probe(self, timeout: float) -> float:
        outcome = self.probes.pop(0)
        if isinstance(outcome, chat.EngineError):
            raise outcome
        return outcome

    def close(self) -> None:
        assert not self.open_turns, "closed while it answers"
        self.closed = True


class Doubles:
    """Makes them, and remembers each by its id; a later one of the same id replaces it."""

    def __init__(self) -> None:
        self.made: list[Double] = []

    def create(self, settings: ProviderConfig, secret: str | None) -> Double:
        self.made.append(Double(settings, secret))
        return self.made[-1]

    def __getitem__(self, id: str) -> Double:
        return next(one for one in reversed(self.made) if one.id == id)


def toml(text: str) -> config.Config:
    return config.load([("routerd.toml", text)])


def request(model: str = "m", text: str = "hello") -> chat.GenerateRequest:
    return chat.GenerateRequest(model, [chat.Message("user", text)])


TWO = """
[[providers]]
id = "one"
kind = "openai"
base_url = "http://one.test/v1"
models = [{name = "m", upstream = "one/m"}, {name = "only"}]
[[providers]]
id = "two"
kind = "openai"
base_url = "http://two.test/v1"
weight = 0.9
models = [{name = "m"}]
[[providers]]
id = "local"
kind = "runtimed"
models = [{name = "small:1", max_context_tokens = 100}]
"""


@pytest.fixture(autouse=True)
def calm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pressure, whatever the machine does."""
    monkeypatch.setenv("SYNTROP_PROC_ROOT", str(tmp_path))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def routed(text: str, act: Callable[[Router, Doubles], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a router of its own."""
    doubles = Doubles()

    async def main() -> None:
        router = Router(toml(text), doubles.create, metrics=Metrics())
        try:
            await act(router, doubles)
        finally:
            await router.close()

    loop.run(main())
    assert all(one.closed for one in doubles.made), "every provider is closed"


async def answer(attempts: Attempts) -> tuple[str, str | None]:
    """(text, who answered)"""
    text = ""
    try:
        while not attempts.complete:
            event = await attempts.next()
            text += event.text if isinstance(event, chat.Delta) else ""
    finally:
        await attempts.close()
    return text, attempts.place.provider if attempts.place else None


def test_the_best_answers_under_its_own_name_for_the_model() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        attempts = await router.generate([request()])
        assert await answer(attempts) == ("one", "one")
        (turn,) = doubles["one"].turns
        assert turn.request.model == "one/m" and turn.closed
        assert attempts.place and attempts.place.model == "m" and " = 1 × (" in attempts.place.reason
        member = router.members["one"]
        assert (member.health.requests, member.health.errors) == (1, 0)
        assert router.metrics and router.metrics.completion == {("one", "m"): 3}

    routed(TWO, act)


def test_failures_go_on_to_the_next_and_are_remembered() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        first = router.members["one"].provider
        assert isinstance(first, Double)
        first.script = lambda: [chat.Unavailable("gone")]
        for _ in range(3):
            attempts = await router.generate([request()])
            assert await answer(attempts) == ("two", "two")
        # Two failures cost it more than its weight is worth, before the third would open its breaker.
        assert [len(doubles[name].turns) for name in ("one", "two")] == [1, 3]
        assert attempts.failed == []
        (refusal,) = [
            one for one in (await router.chooser.choose(scoring.Ask("m"))).fit if one.candidate.provider == "one"
        ]
        assert "for 1 failures in a row" in refusal.reason

    routed(TWO, act)


def test_a_named_model_is_never_replaced() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        first = router.members["one"].provider
        assert isinstance(first, Double)
        first.script = lambda: [chat.Unavailable("gone")]
        with pytest.raises(chat.Unavailable, match="gone"):
            await answer(await router.generate([request("only")]))
        with pytest.raises(chat.ModelNotFound):
            await router.generate([request("nobody's")])
        assert {one.id for one in doubles.made} == {"one"}

    routed(TWO, act)


def test_an_alias_takes_whoever_fits() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        attempts = await router.generate([request("auto", "x" * 4000)])
        assert (await answer(attempts))[1] in ("one", "two")
        choice = await router.chooser.choose(scoring.Ask(prompt_tokens=1000, output_tokens=1))
        (unfit,) = choice.unfit
        assert (unfit.candidate.model, unfit.reason) == ("small:1", "context of 100 tokens, 1000 + 1 needed")
        local = request("fast")
        local.routing.local = True
        assert await answer(await router.generate([local])) == ("local", "local")
        assert doubles["local"].turns[0].request.model == "small:1"

    routed(TWO, act)


def test_the_default_model_of_a_tier_comes_first() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        attempts = await router.generate([request("hard")])
        assert attempts is not None
        assert await answer(attempts) == ("one", "one")
        assert attempts.place and attempts.place.model == "only"
        assert attempts.place.reason.endswith("; the default model of hard requests")

    routed(TWO + '[tiers.hard]\ndefault_model = "only"\n', act)


def test_near_its_limit_the_model_itself_counts() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        engine = router.members["local"].provider
        assert isinstance(engine, Double)
        asked = request("auto", "x" * 300)  # 83 tokens by estimate
        asked.routing.local = True
        engine.counted = 98
        assert (await answer(await router.generate([asked])))[1] == "local"
        engine.counted = 100
        with pytest.raises(NobodyAnswers, match=r"context of 100 tokens, 100 \+ 1 needed") as caught:
            asked.max_tokens = 1
            await router.generate([asked])
        assert caught.value.final
        # By its name it is asked all the same: what is too long is the engine's to say.
        assert (await answer(await router.generate([request("small:1", "x" * 4000)])))[1] == "local"

    routed(TWO, act)


def test_nobody_fits_and_each_says_why() -> None:
    text = """
    [[providers]]
    id = "off"
    kind = "openai"
    base_url = "http://off.test"
    enabled = false
    models = [{name = "big"}]
    [[providers]]
    id = "keyless"
    kind = "anthropic"
    base_url = "http://keyless.test"
    credential = "k"
    models = [{name = "claude"}]
    [[providers]]
    id = "local"
    kind = "runtimed"
    models = [{name = "small:1", max_context_tokens = 10}]
    """

    async def act(router: Router, doubles: Doubles) -> None:
        with pytest.raises(NobodyAnswers) as caught:
            await router.generate([request("auto", "x" * 400)])
        message = caught.value.message
        assert "off/big: disabled by the configuration" in message
        assert "local/small:1: context of 10 tokens" in message
        assert "keyless: the credential 'k' was not passed" in message
        with pytest.raises(NobodyAnswers, match="disabled"):
            await router.generate([request("big")])
        tools = request("small:1")
        tools.top_logprobs = 1
        assert (await router.chooser.choose(scoring.Ask("small:1", needs=["logprobs"]))).fit

    routed(text, act)


def test_a_parameter_that_the_named_model_cannot_honour() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        asked = request("m")
        asked.top_logprobs = 1
        with pytest.raises(chat.Unhonoured) as caught:
            await router.generate([asked])
        assert caught.value.parameter == "logprobs"

    routed(TWO, act)


def test_providers_tell_their_models_and_lists_are_kept() -> None:
    text = """
    [[providers]]
    id = "cloud"
    kind = "openai"
    base_url = "http://cloud.test"
    [[providers]]
    id = "local"
    kind = "runtimed"
    models = [{name = "small:1"}]
    """

    async def act(router: Router, doubles: Doubles) -> None:
        cloud = router.members["cloud"].provider
        assert isinstance(cloud, Double)
        cloud.names = ["big", "bigger"]
        for name in ("bigger", "big", "bigger"):
            assert await answer(await router.generate([request(name)])) == ("cloud", "cloud")
        assert cloud.listed == 1
        assert await router.chooser.models() == [("big", "cloud"), ("bigger", "cloud"), ("small:1", "local")]
        assert await router.chooser.find("small") == ("small:1", "local")
        with pytest.raises(chat.ModelNotFound):
            await router.chooser.find("new")

    routed(text, act)


def test_one_that_cannot_be_listed_is_told_of() -> None:
    text = '[[providers]]\nid = "cloud"\nkind = "openai"\nbase_url = "http://cloud.test"\n'
    text += '[[providers]]\nid = "local"\nkind = "runtimed"\nmodels = [{name = "small:1"}]\n'

    async def act(router: Router, doubles: Doubles) -> None:
        cloud = router.members["cloud"].provider

        async def refuse() -> list[str]:
            raise chat.Unavailable("connection refused")

        cloud.models = refuse  # type: ignore[method-assign]
        assert await router.chooser.models() == [("small:1", "local")]
        with pytest.raises(NobodyAnswers, match="cloud: connection refused") as caught:
            await router.generate([request("perhaps")])
        assert not caught.value.final
        assert await answer(await router.generate([request("small:1")])) == ("local", "local")

    routed(text, act)


def test_a_new_configuration_drops_no_request() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        one, two = router.members["one"].provider, router.members["two"].provider
        assert isinstance(one, Double) and isinstance(two, Double)
        one.script = lambda: [chat.Delta("a"), 0.01, chat.Delta("b"), END]
        running = await router.generate([request()])
        await running.next()
        router.members["two"].health.requests = 5
        router.apply(toml(TWO.replace("http://one.test", "http://uno.test")))
        assert router.members["two"].provider is two and router.members["two"].health.requests == 5
        assert not one.closed, "it is still answering"
        later = await router.generate([request()])
        assert await answer(later) == ("one", "one")
        assert doubles["one"] is not one and len(doubles["one"].turns) == 1
        assert await answer(running) == ("b", "one")
        assert one.closed and not doubles["one"].closed
        router.apply(toml(""))
        assert two.closed and set(router.members) == {"local"}

    routed(TWO, act)


def test_a_place_of_the_old_configuration_is_not_asked_any_more() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        attempts = await router.generate([request()])
        router.apply(toml(""))
        with pytest.raises(NobodyAnswers, match="lets nothing through"):
            await answer(attempts)

    routed(TWO, act)


def test_keys_come_from_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "key").write_text("sk-1\n")
    text = TWO.replace('base_url = "http://one.test/v1"', 'base_url = "http://one.test/v1"\ncredential = "key"')

    async def act(router: Router, doubles: Doubles) -> None:
        assert await answer(await router.generate([request()])) == ("one", "one")
        before = doubles["one"]
        assert before.secret == "sk-1"
        (tmp_path / "key").write_text("sk-2\n")
        router.apply(toml(text))
        assert await answer(await router.generate([request()])) == ("one", "one")
        assert doubles["one"].secret == "sk-2" and before.closed

    routed(text, act)


def test_several_prompts_are_one_turn() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        prompts = [chat.GenerateRequest("m", None, text) for text in ("a", "bb")]
        first = router.members["one"].provider
        assert isinstance(first, Double)
        first.script = lambda: [chat.Delta("x"), chat.Finished("stop", 1, 1)]
        attempts = await router.generate(prompts)
        assert (await answer(attempts))[0] == "xx"
        assert [turn.request.prompt for turn in doubles["one"].turns] == ["a", "bb"]
        assert router.metrics and router.metrics.completion == {("one", "m"): 2}

    routed(TWO, act)


def test_embeddings() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        attempts, result = await router.embed(chat.EmbedRequest("auto", ["x", "y"]))
        end = await attempts.next()
        await attempts.close()
        assert isinstance(end, chat.Finished) and end.prompt_tokens == 5
        assert result.vectors and len(result.vectors.vectors) == 2
        assert attempts.place and attempts.place.provider == "local", "remote models must say that they embed"

    routed(TWO, act)


def test_triage_stays_here_and_by_itself() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        assert await answer(await router.generate([request("auto")], triage=True)) == ("local", "local")
        mine = doubles["local"]
        assert await answer(await router.generate([request("small:1")])) == ("local", "local")
        assert doubles["local"] is not mine, "its connections are its own"
        with pytest.raises(chat.ModelNotFound):
            await router.generate([request("m")], triage=True)

    routed(TWO, act)


def test_a_sign_of_life_brings_one_back() -> None:
    async def act(router: Router, doubles: Doubles) -> None:
        member = router.members["one"]
        member.health.breaker = Breaker(threshold=1, cooldown=0.02)
        one = member.provider
        assert isinstance(one, Double)
        one.script = lambda: [chat.Unavailable("gone")]
        one.probes = [chat.Unavailable("still gone"), 0.001]
        assert (await answer(await router.generate([request()])))[1] == "two"
        with loop.deadline(20):
            while one.probes or not member.health.healthy(0.0):
                await loop.sleep(0.005)
        assert member.health.errors == 1 and member.health.requests == 1, "probes are no requests"

    routed(TWO, act)


def test_memory_pressure_moves_work_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise psi.TriggerUnavailable("not here")

    monkeypatch.setattr(psi, "Trigger", refuse)
    folder = tmp_path / "pressure"
    folder.mkdir()
    for resource in ("cpu", "memory", "io"):
        some = 26.0 if resource == "memory" else 0.0
        (folder / resource).write_text(
            f"some avg10={some} avg60=0 avg300=0 total=0\nfull avg10=0 avg60=0 avg300=0 total=0\n"
        )
    text = TWO.replace('models = [{name = "small:1"', 'models = [{name = "m"}, {name = "small:1"')
    text = text.replace("weight = 0.9", "weight = 0.01").replace('id = "one"', 'id = "one"\nweight = 0.01')

    async def act(router: Router, doubles: Doubles) -> None:
        choice = await router.chooser.choose(scoring.Ask("m"))
        assert [one.candidate.provider for one in choice.fit][-1] == "local"
        assert choice.fit[-1].demoted and choice.fit[-1].total > choice.fit[0].total
        stays = await router.chooser.choose(scoring.Ask("m", local=True))
        assert [one.candidate.provider for one in stays.fit] == ["local"]

    routed(text, act)
