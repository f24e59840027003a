# SPDX-License-Identifier: Apache-2.0
"""What providers elsewhere have in common: one client, requests as JSON, answers as JSON or as a stream of events.

How requests and answers look is the dialect's; here is what is done with them. Answers are always asked for as
streams, whatever the client wants: so its hang-up stops the work, and silence is told from thinking.
"""

from __future__ import annotations

import json
from collections import deque
from time import monotonic

from syntrop.common import journal, loop
from syntrop.common.http import chat, sse
from syntrop.common.http.client import Client, Limits, Silent, TooMany
from syntrop.common.http.response import BadResponse
from syntrop.common.http.wire import Broken, Unreachable
from syntrop.routerd.providers.failures import Teller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from syntrop.common.http.client import Response
    from syntrop.routerd.config import ProviderConfig

    class Reader(Protocol):
        """A dialect's reading of one answer; pure. Its methods raise EngineError."""

        done: bool  # the server has said that nothing follows

        def take(self, event: sse.ServerEvent) -> list[chat.Event]: ...

        def whole(self, value: Any) -> list[chat.Event]:
            """Of an answer that came as one JSON object; `end` follows."""
            ...

        def end(self) -> list[chat.Event]:
            """Nothing follows: the last events, or what is missing."""
            ...


CONNECT = 10.0  # seconds
WHOLE_MAX = 64 * 1024 * 1024  # bytes of an answer that comes at once
EVENT_MAX = 4 * 1024 * 1024  # bytes of an event
ERROR_MAX = 64 * 1024  # bytes of the body of an error
_ERROR_PATIENCE = 5.0  # seconds for that
_DRAIN = 1.0  # seconds for the end of an answer behind its last word
_AHEAD = 4  # pieces that are read ahead of the client
_FAULTS = (Unreachable, TooMany, Silent, Broken, BadResponse)
_STREAM, _JSON = "text/event-stream", "application/json"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Remote:
    """A server elsewhere. `headers` go with every request, and hold the key: they are shown to nobody."""

    kind = ""

    def __init__(
        self, config: ProviderConfig, secret: str | None, base: str, headers: list[tuple[str, str]]
    ) -> None:
        self.id = config.id
        self.teller = Teller(config.id, secret)
        timeout = config.timeout
        self.timeout = timeout
        self.client = Client(base, limits=Limits(connect=min(CONNECT, timeout), head=timeout, idle=timeout))
        self._headers = headers

    async def open(self, method: str, path: str, body: Any = None, *, accept: str = _JSON) -> Response:
        """Send a request; the head of its answer. The caller closes it. Raises what the client does."""
        headers = [*self._headers, ("accept", accept)]
        data = b""
        if body is not None:
            headers.append(("content-type", _JSON))
            data = _encode(body).encode()
        return await self.client.request(method, path, headers, data)

    async def ask(
        self, method: str, path: str, body: Any = None, *, model: str = "", timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request; the JSON object that answers it. Raises EngineError."""
        timeout = timeout or self.timeout
        try:
            with loop.deadline(timeout):
                response = await self.open(method, path, body)
                try:
                    if response.status != 200:
                        raise await self.failure(response, model)
                    return self.json(await response.read(WHOLE_MAX))
                finally:
                    response.close()
        except TimeoutError:
            raise chat.EngineTimeout(f"{self.id} did not answer within {timeout:g} s.") from None
        except _FAULTS as error:
            raise self.teller.transport(error) from None

    async def failure(self, response: Response, model: str) -> chat.EngineError:
        """The error that a response means."""
        body = b""
        if response.status >= 400:
            try:
                with loop.deadline(_ERROR_PATIENCE):
                    body = await response.read(ERROR_MAX)
            except (TimeoutError, *_FAULTS):
                pass  # its status says enough
        return self.teller.status(response.status, response.header, body, model)

    def json(self, body: bytes) -> dict[str, Any]:
        """The object that a body is. Raises EngineError, also for an error that came in the place of an answer."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise self.teller.broken("the body is no JSON") from None
        if not isinstance(value, dict):
            raise self.teller.broken("the body is no JSON object")
        return value

    async def load(self, model: str, keep: float | None = None) -> int | None:
        """What is in memory there is their own affair, and how large its context is nobody tells."""
        return None

    async def probe(self, timeout: float) -> float:
        """Any answer is a sign of life that does not say that the router, or the server, is at fault."""
        started = monotonic()
        try:
            with loop.deadline(timeout):
                response = await self.open("GET", self.probed)
                try:
                    if response.status >= 300 and response.status not in (404, 405, 429):
                        raise await self.failure(response, "")
                finally:
                    response.close()
        except TimeoutError:
            raise chat.EngineTimeout(f"{self.id} gave no sign of life within {timeout:g} s.") from None
        except _FAULTS as error:
            raise self.teller.transport(error) from None
        return monotonic() - started

    probed = "/models"

    def close(self) -> None:
        self.client.close()


class Turn:
    """One turn that runs (`provider.Generation`). What arrives is read ahead of whoever asks, up to a bound.

    `make` makes the request's body, and may raise EngineError. `amend` is asked once about a refusal: whether
    `make` makes another body now.
    """

    def __init__(
        self,
        remote: Remote,
        path: str,
        make: Callable[[], dict[str, Any]],
        reader: Reader,
        model: str,
        amend: Callable[[chat.Refused], bool] | None = None,
    ) -> None:
        self._remote = remote
        self._path = path
        self._make = make
        self._reader = reader
        self._model = model
        self._amend = amend
        self._queue: loop.Queue[Sequence[chat.Told] | chat.EngineError] = loop.Queue(_AHEAD)
        self._ready: deque[chat.Told] = deque()
        self._failure: chat.EngineError | None = None
        self._told = False  # everything has been put into the queue
        self._task = loop.spawn(self._run(), f"turn at {remote.id}", eager=True)

    async def next(self, timeout: float | None = None) -> chat.Told:
        """The next event. Raises EngineError, and TimeoutError when there is none yet: then ask again."""
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            with loop.deadline(timeout):
                self._accept(await self._queue.get())
        return self._ready.popleft()

    def ready(self) -> list[chat.Event]:
        """The events that have arrived already, without waiting."""
        while len(self._queue):
            self._accept(self._queue.get_nowait())
        events = [event for event in self._ready if not isinstance(event, chat.Accepted)]
        self._ready.clear()
        return events

    def _accept(self, came: Sequence[chat.Told] | chat.EngineError) -> None:
        if isinstance(came, chat.EngineError):
            self._failure = came
        else:
            self._ready += came

    async def close(self) -> None:
        """Hang up, unless the turn has ended: then the connection is left to be kept, within a second."""
        if not self._told:
            await loop.stop(self._task)

    async def _run(self) -> None:
        remote = self._remote
        try:
            await self._converse()
            return
        except chat.EngineError as error:
            failure = error
        except _FAULTS as error:
            failure = remote.teller.transport(error)
        except Exception as fault:  # the boundary: whoever asks for the next event must hear of it
            journal.exception(f"The answer of {remote.id} could not be read", fault)
            failure = chat.GenerationFailed(f"The answer of {remote.id} could not be read.")
        if not self._told:
            await self._queue.put(failure)

    async def _converse(self) -> None:
        response = await self._post()
        try:
            if response.status != 200:
                failure = await self._remote.failure(response, self._model)
                if self._amend is None or not (isinstance(failure, chat.Refused) and self._amend(failure)):
                    raise failure
                response.close()
                response = await self._post()
                if response.status != 200:
                    raise await self._remote.failure(response, self._model)
            await self._read(response)
            self._told = True
            if not response.complete:
                await _drain(response)
        finally:
            response.close()

    async def _post(self) -> Response:
        return await self._remote.open("POST", self._path, self._make(), accept=f"{_STREAM}, {_JSON}")

    async def _read(self, response: Response) -> None:
        """Pass the events on to their end. Raises EngineError."""
        reader = self._reader
        given = response.header("content-type") or ""
        sort = given.partition(";")[0].strip().lower()
        if sort == _JSON:
            # It takes no notice of `stream`.
            await self._put(reader.whole(self._remote.json(await response.read(WHOLE_MAX))))
        elif sort in (_STREAM, "text/plain", ""):
            await self._put([chat.Accepted()])
            await self._listen(response)
        else:
            raise self._remote.teller.broken(f"its answer is {given[:80]!r}, neither events nor JSON")
        await self._put(reader.end())

    async def _listen(self, response: Response) -> None:
        parser = sse.Parser(EVENT_MAX)
        while not self._reader.done and (piece := await response.piece()):
            try:
                came = parser.feed(piece)
            except sse.EventTooLong:
                raise self._remote.teller.broken(f"an event is over {EVENT_MAX} bytes") from None
            await self._take(came)
        if not self._reader.done:
            await self._take(parser.end())

    async def _take(self, came: list[sse.ServerEvent]) -> None:
        events: list[chat.Event] = []
        try:
            for one in came:
                if self._reader.done:
                    break  # what follows the last word is no part of the answer
                events += self._reader.take(one)
        finally:
            # What came before a failure is told before it.
            await self._put(events)

    async def _put(self, events: Sequence[chat.Told]) -> None:
        if events:
            await self._queue.put(events)


async def _drain(response: Response) -> None:
    """Let an answer end that has said everything, so that its connection can be kept."""
    try:
        with loop.deadline(_DRAIN):
            while not response.complete:
                await response.piece()
    except (TimeoutError, *_FAULTS):
        pass
