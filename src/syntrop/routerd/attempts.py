# SPDX-License-Identifier: Apache-2.0
"""One turn, tried at one candidate after the other until somebody begins to answer.

Another is tried only while nothing has been told to the client, only for errors that say nothing about the
request itself, and `retries` times at most. Once an answer has begun, its failure is the turn's.
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

        def succeeded(self, latency: float, end: chat.Finished, duration: float) -> None: ...

        def failed(self, error: chat.EngineError) -> None: ...

        def abandoned(self) -> None:
            """The client left before the outcome, or the request was at fault."""
            ...


# Errors that another candidate, or the same a little later, may not make.
RETRYABLE = (chat.Overloaded, chat.Unavailable, chat.EngineTimeout, chat.GenerationFailed, chat.Unfit)


class NobodyAnswers(chat.Unavailable):
    """Every candidate was tried, or could not be. The message has each with its reason."""


class Attempts:
    """A generation over the candidates of a request, the best first; closed by whoever made it."""

    def __init__(
        self, places: Sequence[Place], *, retries: int, clock: Callable[[], float] = monotonic, unfit: str = ""
    ) -> None:
        self._places = list(places)
        self._retries = retries
        self._clock = clock
        self._unfit = unfit
        self._refusals: list[str] = []
        self._generation: Generation | None = None
        self._started = 0.0
        self._first: float | None = None  # seconds to the first event
        self._ended = False
        self.place: Place | None = None  # who answers
        self.tries = 0

    async def next(self, timeout: float | None = None) -> chat.Event:
        """The next event. Raises EngineError, and TimeoutError when there is none yet: then ask again."""
        until = None if timeout is None else self._clock() + timeout
        while True:
            if self._generation is None:
                self._begin()
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

    async def close(self) -> None:
        if self._generation is not None:
            if not self._ended and self.place is not None:
                self.place.abandoned()
            generation, self._generation = self._generation, None
            await generation.close()

    def _begin(self) -> None:
        """Ask the next candidate that can be asked. Raises EngineError when there is none."""
        while self._places and self.tries <= self._retries:
            place = self._places.pop(0)
            generation = place.begin()
            if generation is None:
                self._refuse(place, "let nothing through just now")
                continue
            self.tries += 1
            self.place = place
            self._generation = generation
            self._started = self._clock()
            return
        for place in self._places:
            self._refuse(place, f"not tried after {self.tries} others")
        raise NobodyAnswers(
            "Nobody can answer this request: " + "; ".join([*self._refusals, self._unfit]).strip("; ")
        )

    def _wait(self, until: float | None) -> tuple[float | None, bool]:
        """(seconds to wait for the next event, whether it is this candidate's own time that ends first)"""
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
        if isinstance(error, RETRYABLE):
            place.failed(error)
        else:
            place.abandoned()
        await generation.close()
        if self._first is not None or not isinstance(error, RETRYABLE):
            raise error
        if not self._places or self.tries > self._retries:
            if self.tries == 1 and not self._places:
                raise error  # there was nobody else: its own words say most
            self._refuse(place, error.message)
            for other in self._places:
                self._refuse(other, f"not tried after {self.tries} others")
            raise NobodyAnswers("Nobody could answer this request: " + "; ".join(self._refusals))
        self._refuse(place, error.message)
        self._ended = False

    def _refuse(self, place: Place, reason: str) -> None:
        self._refusals.append(f"{place.provider}/{place.model}: {reason}")

    def _note(self, event: chat.Event) -> None:
        now = self._clock()
        if self._first is None:
            self._first = now - self._started
        if isinstance(event, chat.Finished) and self.place is not None:
            self._ended = True
            self.place.succeeded(self._first, event, now - self._started)
