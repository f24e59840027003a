# SPDX-License-Identifier: Apache-2.0
"""One turn, tried at one candidate after the other until somebody begins to answer.

Another is tried only while nothing of an answer has been told to the client, only for errors that another may not
make, and `retries` times at most. Once an answer has begun, its failure is the turn's.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from syntrop.common.http.provider import Generation

    class Place(Protocol):
        """A candidate that can be asked."""

        provider: str
        model: str
        reason: str
        max_latency: float | None  # seconds for the first event; None: as long as the provider itself allows

        def begin(self) -> Generation | None:
            """Start the turn there; None when its breaker lets nothing through just now."""
            ...

        def succeeded(self, latency: float, end: chat.Finished, tokens: int, duration: float) -> None:
            """`end`: of the last choice; `tokens`: of the answers of all."""
            ...

        def failed(self, error: chat.EngineError) -> None: ...

        def abandoned(self) -> None:
            """The client left before the outcome, or the request was at fault."""
            ...

        def closed(self) -> None:
            """What `begin` gave has been closed; comes after one of the three."""
            ...

        async def keep(self, seconds: float) -> None:
            """Behind a complete answer: how long its model is to stay in memory (`Provider.load`)."""
            ...


# Errors that another candidate, or the same a little later, may not make.
RETRYABLE = (chat.Overloaded, chat.Unavailable, chat.EngineTimeout, chat.GenerationFailed, chat.Unfit)
# And those that are no fault of who was asked: it lacks what another one may have.
LACKING = (chat.ModelNotFound, chat.ContextExceeded, chat.Unhonoured)


class NobodyAnswers(chat.Unavailable):
    """Every candidate was tried, or could not be. The message has each with its reason. `final`: to ask again is
    no use."""

    def __init__(self, message: str, *, retry_after: float | None = None, final: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.final = final


class _Waiting:
    """A candidate that is to be asked again, not before its time."""

    __slots__ = ("not_before", "place")

    def __init__(self, place: Place, not_before: float) -> None:
        self.place = place
        self.not_before = not_before


class Attempts:
    """A generation over the candidates of a request, the best first; closed by whoever made it.

    Where nobody else is left, one that said after how many seconds to try again is, if all such waits together
    take no more than `patience` seconds. `choices`: answers that the request asks for, each with its Finished.
    `unfit`: those that were never candidates, for the message when nobody answers.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        retries: int,
        clock: Callable[[], float] = monotonic,
        unfit: str = "",
        patience: float = 0.0,
        choices: int = 1,
    ) -> None:
        self._places = list(places)
        self._again: list[_Waiting] = []
        self._retries = retries
        self._clock = clock
        self._unfit = unfit
        self._patience = patience
        self._choices = choices
        self._tokens = 0  # of the choices that have ended
        self._refusals: list[str] = []
        self._errors: list[chat.EngineError] = []
        self._generation: Generation | None = None
        self._started = 0.0
        self._first: float | None = None  # seconds to the first event
        self._ended = False
        self.place: Place | None = None  # who answers
        self.failed: list[str] = []  # who was asked before
        self.tries = 0

    async def next(self, timeout: float | None = None) -> chat.Event:
        """The next event. Raises EngineError, and TimeoutError when there is none yet: then ask again. Whoever was
        asked may end the wait soon, by telling that the request is good."""
        until = None if timeout is None else self._clock() + timeout
        while True:
            if self._generation is None:
                await self._begin(until)
            assert self._generation is not None and self.place is not None
            wait, late = self._wait(until)
            try:
                event = await self._generation.next(wait)
            except TimeoutError:
                if not late:
                    raise
                seconds = self.place.max_latency
                await self._fail(chat.EngineTimeout(f"{self.place.provider} did not begin within {seconds:g} s."))
                continue
            except chat.EngineError as error:
                await self._fail(error)
                continue
            if isinstance(event, chat.Accepted):
                if until is not None:
                    until = min(until, self._clock() + chat.GRACE)
                continue
            self._note(event)
            return event

    def ready(self) -> list[chat.Event]:
        """The events that have arrived already, without waiting."""
        if self._generation is None:
            return []
        events = self._generation.ready()
        for event in events:
            self._note(event)
        return events

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return self._choices <= 0

    async def close(self) -> None:
        if self._generation is not None:
            if not self._ended and self.place is not None:
                self.place.abandoned()
            generation, self._generation = self._generation, None
            await self._close(generation)

    async def _close(self, generation: Generation) -> None:
        place = self.place
        assert place is not None
        try:
            await generation.close()
        finally:
            place.closed()

    async def _begin(self, until: float | None) -> None:
        """Ask the next candidate that can be asked. Raises EngineError when there is none, and TimeoutError."""
        while self.tries <= self._retries and (self._places or self._again):
            if self._places:
                place = self._places.pop(0)
            else:
                # Taken out of the list only when its time has come: this wait may be broken off.
                waiting = min(self._again, key=lambda one: one.not_before)
                await self._sleep(waiting.not_before, until)
                self._again.remove(waiting)
                place = waiting.place
            generation = place.begin()
            if generation is None:
                self._refuse(place, "lets nothing through just now")
                continue
            self.tries += 1
            self.place = place
            self._generation = generation
            self._started = self._clock()
            self._ended = False
            return
        raise self._nobody()

    async def _sleep(self, at: float, until: float | None) -> None:
        from syntrop.common import loop

        while (now := self._clock()) < at:
            if until is not None and now >= until:
                raise TimeoutError
            await loop.sleep(min(at, at if until is None else until) - now)

    def _wait(self, until: float | None) -> tuple[float | None, bool]:
        """(seconds to wait for the next event, whether it is this candidate's own time that ends first)"""
        if self._first is not None and until is None:
            return None, False
        now = self._clock()
        rest = None if until is None else max(0.0, until - now)
        assert self.place is not None
        if self._first is not None or self.place.max_latency is None:
            return rest, False
        own = max(0.0, self._started + self.place.max_latency - now)
        return (own, True) if rest is None or own <= rest else (rest, False)

    async def _fail(self, error: chat.EngineError) -> None:
        """Let the next one try, or raise what the client is told."""
        assert self._generation is not None and self.place is not None
        place, generation, self._generation = self.place, self._generation, None
        self._ended = True
        lacking = isinstance(error, LACKING) and not isinstance(error, chat.Refused)
        if isinstance(error, RETRYABLE):
            place.failed(error)
        else:
            place.abandoned()
        await self._close(generation)
        if self._first is not None or not (lacking or isinstance(error, RETRYABLE)):
            raise error
        self._refuse(place, error.message)
        self.failed.append(f"{place.provider}/{place.model}")
        self._errors.append(error)
        if error.retry_after is not None and error.retry_after <= self._patience:
            self._patience -= error.retry_after
            self._again.append(_Waiting(place, self._clock() + error.retry_after))
        if self.tries > self._retries or not (self._places or self._again):
            raise self._nobody()

    def _nobody(self) -> chat.EngineError:
        """What the client is told when nobody is left to be tried."""
        errors, rest = self._errors, len(self._places)
        if len(errors) == len(self._refusals) == 1 and not rest:
            return errors[0]  # there was nobody else: its own words say most
        if errors and all(isinstance(one, LACKING) for one in errors):
            # They all know it of themselves; the one that could take most is told of.
            long = [one for one in errors if isinstance(one, chat.ContextExceeded)]
            return max(long, key=lambda one: one.most) if len(long) == len(errors) else errors[0]
        for place in self._places:
            self._refuse(place, f"not tried after {self.tries} others")
        message = "Nobody can answer this request: " + "; ".join(filter(None, [*self._refusals, self._unfit]))
        final = bool(errors) and all(isinstance(one, chat.Denied) for one in errors)
        again = min((one.retry_after for one in errors if one.retry_after is not None), default=None)
        if errors and all(isinstance(one, chat.Overloaded) for one in errors):
            return chat.Overloaded(message, retry_after=again)
        return NobodyAnswers(message, retry_after=again, final=final)

    def _refuse(self, place: Place, reason: str) -> None:
        self._refusals.append(f"{place.provider}/{place.model}: {reason}")

    def _note(self, event: chat.Event) -> None:
        if self._first is None:
            self._first = self._clock() - self._started
        if isinstance(event, chat.Finished) and self.place is not None:
            self._choices -= 1
            self._tokens += event.completion_tokens
            if self._choices == 0:
                self._ended = True
                self.place.succeeded(self._first, event, self._tokens, self._clock() - self._started)
