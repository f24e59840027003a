# SPDX-License-Identifier: Apache-2.0
"""Several generations as one: those of `n` choices, or of the prompts of one request.

A few run at a time, so that one request neither floods the engine nor holds many connections; the others wait
here. The first that fails ends them all.
"""

from __future__ import annotations

from syntrop.common import loop
from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from syntrop.common.http.provider import Generation

AT_ONCE = 4
_AHEAD = 16  # events read ahead of the client


class Together:
    """A `provider.Generation` of others. `starts` begin them; each has `choices` choices, numbered on."""

    def __init__(
        self, starts: Sequence[Callable[[], Generation]], choices: int = 1, *, at_once: int = AT_ONCE
    ) -> None:
        self._queue: loop.Queue[chat.Told | Exception] = loop.Queue(_AHEAD)
        self._begun = False  # something has been told
        self._next: Exception | None = None
        self._waiting = list(enumerate(starts))[::-1]
        self._choices = choices
        self._tasks = [loop.spawn(self._run(), "choices") for _ in range(min(at_once, len(starts)))]

    async def next(self, timeout: float | None = None) -> chat.Told:
        event: chat.Told | Exception
        if self._next is not None:
            event, self._next = self._next, None
        else:
            with loop.deadline(timeout):
                event = await self._queue.get()
        if isinstance(event, Exception):
            raise event
        return event

    def ready(self) -> list[chat.Event]:
        events: list[chat.Event] = []
        while self._next is None and len(self._queue):
            event = self._queue.get_nowait()
            if isinstance(event, Exception):
                self._next = event
                break
            if isinstance(event, chat.Accepted):
                continue
            events.append(event)
            if isinstance(event, chat.Finished):
                break
        return events

    async def close(self) -> None:
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await loop.stop(task)

    async def _run(self) -> None:
        while self._waiting:
            number, start = self._waiting.pop()
            try:
                await self._pass(start(), number * self._choices)
            except Exception as error:  # whoever asks for the next event gets it
                self._waiting.clear()
                await self._queue.put(error)
                return

    async def _pass(self, generation: Generation, first: int) -> None:
        left = self._choices
        try:
            while left:
                event = await generation.next()
                if isinstance(event, chat.Accepted) and self._begun:
                    continue
                self._begun = True
                left -= isinstance(event, chat.Finished)
                event.choice += first
                await self._queue.put(event)
        finally:
            await generation.close()
