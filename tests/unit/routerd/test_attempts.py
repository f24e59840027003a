# SPDX-License-Identifier: Apache-2.0
"""Trying one candidate after the other: when another is asked, and what the client hears when nobody answers."""

from __future__ import annotations

import pytest

from syntrop.common import loop
from syntrop.common.http import chat
from syntrop.routerd.attempts import Attempts, NobodyAnswers

END = chat.Finished("stop", 3, 2)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A generation that says what it was given: events, errors, or a number: seconds that pass."""

    def __init__(self, clock: Clock, script: list[chat.Told | chat.EngineError | float]) -> None:
        self._clock = clock
        self._script = script
        self.closed = False

    async def next(self, timeout: float | None = None) -> chat.Told:
        step = self._script[0]
        if isinstance(step, float):
            if timeout is not None and timeout < step:
                self._clock.now += timeout
                self._script[0] = step - timeout
                raise TimeoutError
            self._clock.now += step
            self._script.pop(0)
            return await self.next(timeout)
        self._script.pop(0)
        if isinstance(step, chat.EngineError):
            raise step
        return step

    def ready(self) -> list[chat.Event]:
        events: list[chat.Event] = []
        while self._script and not isinstance(self._script[0], float | chat.EngineError):
            step = self._script.pop(0)
            assert not isinstance(step, float | chat.EngineError | chat.Accepted)
            events.append(step)
        return events

    async def close(self) -> None:
        self.closed = True


class Place:
    model = "m"
    reason = ""

    def __init__(self, provider: str, clock: Clock, *script: chat.Told | chat.EngineError | float) -> None:
        self.provider = provider
        self.max_latency: float | None = None
        self.generation = Script(clock, list(script))
        self.open = True
        self.told: list[object] = []
        self.releases = 0

    def begin(self) -> Script | None:
        if not self.open:
            return None
        self.told.append("begun")
        return self.generation

    def succeeded(self, latency: float, end: chat.Finished, tokens: int, duration: float) -> None:
        assert end.reason
        self.told.append((latency, tokens, duration))

    def failed(self, error: chat.EngineError) -> None:
        self.told.append(type(error).__name__)

    def abandoned(self) -> None:
        self.told.append("abandoned")

    def closed(self) -> None:
        assert self.generation.closed
        self.releases += 1


async def run(attempts: Attempts, timeout: float | None = None) -> str:
    text = ""
    try:
        while not isinstance(event := await attempts.next(timeout), chat.Finished):
            assert isinstance(event, chat.Delta)
            text += event.text
        return text
    finally:
        await attempts.close()


def test_the_first_answers_and_the_others_are_not_asked() -> None:
    clock = Clock()
    first = Place("a", clock, 0.5, chat.Delta("x"), 1.0, chat.Delta("y"), END)
    second = Place("b", clock)
    attempts = Attempts([first, second], retries=2, clock=clock)
    assert loop.run(run(attempts)) == "xy"
    assert first.told == ["begun", (0.5, 2, 1.5)]
    assert second.told == [] and first.generation.closed
    assert attempts.place is first and attempts.tries == 1


@pytest.mark.parametrize(
    "error", [chat.Overloaded("full"), chat.Unavailable("gone"), chat.GenerationFailed("broke")]
)
def test_a_failure_before_the_first_event_goes_to_the_next(error: chat.EngineError) -> None:
    clock = Clock()
    first, second = Place("a", clock, error), Place("b", clock, 0.25, chat.Delta("x"), END)
    assert loop.run(run(Attempts([first, second], retries=1, clock=clock))) == "x"
    assert first.told == ["begun", type(error).__name__] and first.generation.closed
    assert second.told == ["begun", (0.25, 2, 0.25)]


def test_a_failure_after_the_first_event_is_the_turn_s() -> None:
    clock = Clock()
    first, second = Place("a", clock, chat.Delta("x"), chat.GenerationFailed("broke")), Place("b", clock)
    with pytest.raises(chat.GenerationFailed, match="broke"):
        loop.run(run(Attempts([first, second], retries=2, clock=clock)))
    assert (first.told, second.told) == (["begun", "GenerationFailed"], [])


@pytest.mark.parametrize("error", [chat.Refused("no"), chat.EngineError("?")])
def test_what_is_the_request_s_fault_is_not_tried_again(error: chat.EngineError) -> None:
    clock = Clock()
    first, second = Place("a", clock, error), Place("b", clock)
    with pytest.raises(type(error)):
        loop.run(run(Attempts([first, second], retries=2, clock=clock)))
    assert (first.told, second.told) == (["begun", "abandoned"], [])


@pytest.mark.parametrize("error", [chat.ContextExceeded(9, 8), chat.Unhonoured("n"), chat.ModelNotFound("m")])
def test_what_one_lacks_another_may_have(error: chat.EngineError) -> None:
    clock = Clock()
    first, second = Place("a", clock, error), Place("b", clock, chat.Delta("x"), END)
    assert loop.run(run(Attempts([first, second], retries=2, clock=clock))) == "x"
    assert first.told == ["begun", "abandoned"], "it has not failed"
    first, second = Place("a", clock, error), Place("b", clock, chat.ContextExceeded(9, 9))
    with pytest.raises(type(error)):
        loop.run(run(Attempts([first, second], retries=2, clock=clock)))
    first, second = Place("a", clock, error), Place("b", clock, chat.Unavailable("gone"))
    with pytest.raises(NobodyAnswers, match="b/m: gone"):
        loop.run(run(Attempts([first, second], retries=2, clock=clock)))


def test_the_budget_of_tries() -> None:
    clock = Clock()
    places = [Place(name, clock, chat.Unavailable(f"{name} is down")) for name in "abcd"]
    places[1].open = False
    with pytest.raises(NobodyAnswers) as caught:
        loop.run(run(Attempts(places, retries=1, clock=clock)))
    assert [place.told for place in places] == [["begun", "Unavailable"], [], ["begun", "Unavailable"], []]
    assert caught.value.message == (
        "Nobody can answer this request: a/m: a is down; b/m: lets nothing through just now; c/m: c is down; "
        "d/m: not tried after 2 others"
    )


def test_nobody_at_all_says_why() -> None:
    attempts = Attempts([], retries=2, unfit="cloud/m: context of 8 tokens, 9 + 1 needed")
    with pytest.raises(NobodyAnswers, match="context of 8 tokens"):
        loop.run(run(attempts))


def test_alone_it_speaks_for_itself() -> None:
    clock = Clock()
    with pytest.raises(chat.Overloaded, match="4 of 4 slots"):
        loop.run(run(Attempts([Place("a", clock, chat.Overloaded("4 of 4 slots"))], retries=2, clock=clock)))


def test_who_does_not_begin_in_time_is_left() -> None:
    clock = Clock()
    first, second = Place("a", clock, 60.0, chat.Delta("late")), Place("b", clock, chat.Delta("x"), END)
    first.max_latency = 15.0
    attempts = Attempts([first, second], retries=1, clock=clock)

    async def patiently() -> str:
        waits = 0
        while True:
            try:
                event = await attempts.next(5.0)
            except TimeoutError:
                waits += 1
                continue
            assert isinstance(event, chat.Delta)
            await attempts.close()
            return f"{event.text} after {waits} pings"

    assert loop.run(patiently()) == "x after 2 pings"
    assert first.told == ["begun", "EngineTimeout"] and first.generation.closed
    assert second.told == ["begun", "abandoned"]


def test_a_request_that_is_accepted_is_not_waited_for_much_longer() -> None:
    clock = Clock()
    place = Place("a", clock, 2.0, chat.Accepted(), 9.0, chat.Delta("x"), 1.0, END)

    async def patiently() -> None:
        attempts = Attempts([place], retries=0, clock=clock)
        with pytest.raises(TimeoutError):
            await attempts.next(60.0)
        assert clock.now == 2.05
        event = await attempts.next(60.0)
        assert isinstance(event, chat.Delta) and clock.now == 11.0
        assert isinstance(await attempts.next(), chat.Finished)
        await attempts.close()

    loop.run(patiently())
    assert place.told == ["begun", (11.0, 2, 12.0)], "to be accepted is no answer yet"

    clock = Clock()
    first = Place("a", clock, chat.Accepted(), chat.Unavailable("gone"))
    second = Place("b", clock, chat.Accepted(), chat.Delta("x"), END)
    assert loop.run(run(Attempts([first, second], retries=1, clock=clock))) == "x", "another one may still answer"


def test_leaving_hangs_up() -> None:
    clock = Clock()
    place = Place("a", clock, chat.Delta("x"), chat.Delta("y"), 9.0, END)

    async def leave() -> None:
        attempts = Attempts([place], retries=0, clock=clock)
        await attempts.next()
        assert [event.text for event in attempts.ready() if isinstance(event, chat.Delta)] == ["y"]
        await attempts.close()

    loop.run(leave())
    assert place.told == ["begun", "abandoned"] and place.generation.closed
    assert place.releases == 1


def test_one_that_says_when_is_waited_for_where_nobody_else_is_left() -> None:
    first = Place("a", Clock(), chat.Overloaded("full", retry_after=0.02), chat.Delta("x"), END)
    second = Place("b", Clock(), chat.Overloaded("full", retry_after=9.0))
    attempts = Attempts([first, second], retries=2, patience=1.0)

    async def patiently() -> str:
        while True:
            try:
                event = await attempts.next(0.005)
            except TimeoutError:
                continue
            assert isinstance(event, chat.Delta)
            await attempts.close()
            return event.text

    assert loop.run(patiently()) == "x"
    assert first.told == ["begun", "Overloaded", "begun", "abandoned"] and first.releases == 2
    assert second.told == ["begun", "Overloaded"]


def test_waits_have_a_budget() -> None:
    first = Place("a", Clock(), chat.Overloaded("full", retry_after=2.0))
    second = Place("b", Clock(), chat.Overloaded("full", retry_after=3.0))
    with pytest.raises(chat.Overloaded) as caught:
        loop.run(run(Attempts([first, second], retries=9, patience=1.0)))
    assert caught.value.retry_after == 2.0 and "a/m: full; b/m: full" in caught.value.message


def test_a_turn_of_several_answers_ends_with_the_last() -> None:
    clock = Clock()
    place = Place("a", clock, 0.5, chat.Finished("stop", 3, 2, choice=1), 0.5, chat.Finished("length", 3, 4))

    async def both() -> None:
        attempts = Attempts([place], retries=0, clock=clock, choices=2)
        await attempts.next()
        assert not attempts.complete and place.told == ["begun"]
        await attempts.next()
        assert attempts.complete
        await attempts.close()

    loop.run(both())
    assert place.told == ["begun", (0.5, 6, 1.0)]
