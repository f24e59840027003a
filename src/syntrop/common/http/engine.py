# SPDX-License-Identifier: Apache-2.0
"""The local engine as a provider (`provider.Provider`): `Runtime1.Generate` with `more`, and its companions.

Hanging up is how a turn is cancelled, so a connection carries one turn at a time. Those that ended in order are
kept for the next; the Varlink client reconnects by itself when the engine has exited idle meanwhile.
"""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common import loop, paths
from syntrop.common.http import chat
from syntrop.common.http.engine_request import RUNTIME as RUNTIME
from syntrop.common.http.engine_request import engine_error, parameters, prompt
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from syntrop.common.http import provider
    from syntrop.common.http.engine_answer import Answer

_MODELS = "io.syntrop.Model1"
_INFO = "org.varlink.service.GetInfo"
_UNKNOWN = ("org.varlink.service.MethodNotImplemented", "org.varlink.service.MethodNotFound")
_KEPT = 16  # idle connections; fewer than there are clients would be made anew for every turn
_AHEAD = 8  # events read ahead of the client
_EMBED_MAX = 64  # texts in one call, so that no reply is huge


class Engine:
    """The local engine. `timeout` (seconds) bounds the wait for each piece of an answer, the first included."""

    kind = "runtimed"

    def __init__(self, *, id: str = "runtimed", timeout: float = 300.0, connect_timeout: float = 5.0) -> None:
        self.id = id
        self._address = paths.endpoint(RUNTIME)
        self.timeout = timeout
        self._connect_timeout = connect_timeout
        self._kept: list[varlink.Client] = []

    def generate(self, request: chat.GenerateRequest) -> provider.Generation:
        """Start a turn. Whoever calls closes the generation."""
        if request.n == 1:
            return Generation(self, request)
        from functools import partial

        from syntrop.common.http.together import Together

        return Together([partial(Generation, self, request, choice) for choice in range(request.n)])

    async def load(self, model: str, keep: float | None = None) -> int | None:
        given: dict[str, Any] = {"model": model}
        if keep is not None:
            given["keep_sec"] = keep
        loaded = (await self._call(f"{RUNTIME}.LoadModel", given)).get("model")
        return None if loaded is None else int(loaded["context_window"])

    async def embed(self, request: chat.EmbedRequest) -> chat.Embeddings:
        await self.check_context(request)
        name, inputs = _embed_inputs(request)
        vectors: list[list[float]] = []
        tokens = 0
        for start in range(0, len(inputs), _EMBED_MAX):
            given: dict[str, Any] = {"model": request.model, name: inputs[start : start + _EMBED_MAX]}
            if request.routing.leased is not None:
                given["leased_bytes"] = request.routing.leased
            try:
                reply = await self._call(f"{RUNTIME}.Embed", given)
            except chat.Unhonoured as error:
                raise _of_input(error, name, start) from None
            found = [one["vector"] for one in reply.get("embeddings") or ()]
            if len(found) != len(given[name]):
                raise chat.GenerationFailed("The engine did not embed every text.")
            vectors += found
            tokens += reply.get("prompt_tokens") or 0
        if request.dimensions is not None and request.dimensions != len(vectors[0]):
            raise chat.Unhonoured("dimensions", f"the vectors of this model have {len(vectors[0])}")
        return chat.Embeddings(request.model, vectors, tokens)

    async def check_context(self, request: chat.GenerateRequest | chat.EmbedRequest) -> None:
        """Raises Unhonoured where a model's context is smaller than what is asked for."""
        if request.context is not None:
            most = await self.load(request.model)
            if most is not None and request.context > most:
                raise chat.Unhonoured("context", f"the context of {request.model} has {most} tokens")

    async def count(self, request: chat.GenerateRequest) -> int | None:
        given = prompt(request)
        if "prompt_ids" in given:
            return len(given["prompt_ids"])
        try:
            reply = await self._call(f"{RUNTIME}.CountTokens", given)
        except _NotThere:
            return None
        tokens: int = reply["tokens"]
        return tokens

    async def models(self) -> list[str]:
        """Identifiers of all models in the store, each once."""
        reply = await self._call(f"{_MODELS}.List", {}, paths.endpoint(_MODELS))
        return list(dict.fromkeys(entry["id"] for entry in reply["models"]))

    async def status(self, model: str) -> dict[str, Any] | None:
        """Runtime1's `LoadedModel`; None for a model that is not in memory."""
        loaded: dict[str, Any] | None = (await self._call(f"{RUNTIME}.GetModelStatus", {"model": model})).get(
            "model"
        )
        return loaded

    async def probe(self, timeout: float) -> float:
        started = monotonic()
        try:
            with loop.deadline(timeout):
                await self._call(_INFO, {})
        except TimeoutError:
            raise chat.EngineTimeout(f"The engine gave no sign of life within {timeout:g} seconds.") from None
        return monotonic() - started

    def close(self) -> None:
        """Close the kept connections."""
        kept, self._kept = self._kept, []
        for one in kept:
            one.close()

    # --- connections -------------------------------------------------------------------------------------

    async def _call(self, method: str, arguments: dict[str, Any], address: str | None = None) -> dict[str, Any]:
        client = await self.connect() if address is None else await self._open(address)
        try:
            with Outcome(self.timeout), await client.call(method, arguments, timeout=self.timeout) as reply:
                return reply.parameters
        finally:
            # One that was broken off is closed by now.
            if address is None:
                self.give_back(client)
            else:
                client.close()

    async def connect(self) -> varlink.Client:
        return self._kept.pop() if self._kept else await self._open(self._address)

    async def _open(self, address: str) -> varlink.Client:
        try:
            return await varlink.connect(address, timeout=self._connect_timeout)
        except (OSError, TimeoutError) as error:
            raise chat.Unavailable(f"The local engine cannot be reached: {error}.") from None

    def give_back(self, client: varlink.Client) -> None:
        if len(self._kept) < _KEPT and not client.closed:
            self._kept.append(client)
        else:
            client.close()


class _NotThere(chat.GenerationFailed):
    """The engine has no such method: it is older than we are."""


class Outcome:
    """Turns what a Varlink call may raise into EngineErrors."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, VarlinkError):
            if error.error in _UNKNOWN:
                raise _NotThere(f"The engine does not know {error.parameters.get('method', 'this method')}.")
            raise engine_error(error)
        if isinstance(error, TimeoutError):
            raise chat.EngineTimeout(f"The engine said nothing for {self._timeout:g} seconds.")
        if isinstance(error, OSError):  # a kept connection had ended, and there is no new one to be had
            raise chat.Unavailable(f"The local engine cannot be reached: {error}.")
        if isinstance(error, ConnectionLost):
            raise chat.GenerationFailed("The engine went away before the answer was complete.")
        if isinstance(error, InvalidReply):
            raise chat.GenerationFailed(f"The engine broke its protocol: {error}.")


class Generation:
    """One choice that runs. Events are read ahead of whoever asks for them, up to a bound."""

    def __init__(self, engine: Engine, request: chat.GenerateRequest, choice: int = 0) -> None:
        self._queue: loop.Queue[chat.Told | Exception] = loop.Queue(_AHEAD)
        self._next: chat.Told | Exception | None = None
        run = self._run(engine, request, choice)
        self._task = loop.spawn(run, "generation", eager=True)

    async def next(self, timeout: float | None = None) -> chat.Told:
        """The next event. Raises EngineError, and TimeoutError when there is none yet: then ask again."""
        event = self._take()
        if event is None:
            with loop.deadline(timeout):
                event = await self._queue.get()
        if isinstance(event, Exception):
            raise event
        return event

    def ready(self) -> list[chat.Event]:
        """The events that have arrived already, without waiting, up to the end or a failure."""
        events: list[chat.Event] = []
        while (event := self._take()) is not None:
            if isinstance(event, Exception | chat.Finished):
                self._next = event
                break
            if not isinstance(event, chat.Accepted):
                events.append(event)
        return events

    def _take(self) -> chat.Told | Exception | None:
        event, self._next = self._next, None
        if event is None and len(self._queue):
            event = self._queue.get_nowait()
        return event

    async def close(self) -> None:
        """Hang up, unless the turn has ended."""
        await loop.stop(self._task)

    async def _run(self, engine: Engine, request: chat.GenerateRequest, choice: int) -> None:
        from syntrop.common.http.engine_answer import Answer

        try:
            await engine.check_context(request)
            await self._tell(engine, parameters(request, choice), Answer(request, _call_id))
        except Exception as error:  # whoever asks for the next event gets it
            await self._queue.put(error)

    async def _tell(self, engine: Engine, arguments: dict[str, Any], answer: Answer) -> None:
        client = await engine.connect()
        try:
            with Outcome(engine.timeout):
                end = await self._read(
                    client.stream(f"{RUNTIME}.Generate", arguments, timeout=engine.timeout), answer
                )
        except chat.EngineError:
            engine.give_back(client)
            raise
        except BaseException:
            client.close()
            raise
        if answer.enough:
            client.close()  # hangs up, unless the turn has ended
        engine.give_back(client)
        await self._queue.put(end)

    async def _read(self, replies: AsyncIterator[varlink.Reply], answer: Answer) -> chat.Finished:
        """Pass the events on but for the last, which is the result."""
        end: chat.Finished | None = None
        async for reply in replies:
            if reply.continues and not reply.parameters:
                await self._queue.put(chat.Accepted())
                continue
            for event in answer.feed(reply.parameters):
                await self._queue.put(event)
            if answer.enough and (end := answer.stop()) is not None:
                return end
            if (result := reply.parameters.get("result")) is not None:
                events, end = answer.finish(result)
                for event in events:
                    await self._queue.put(event)
        if end is None:
            raise chat.GenerationFailed("The engine ended without a result.")
        return end


def _call_id() -> str:
    return "call_" + os.urandom(12).hex()


def _embed_inputs(request: chat.EmbedRequest) -> tuple[str, list[Any]]:
    if isinstance(request.inputs[0], str):
        return "texts", list(request.inputs)
    return "tokens", [{"ids": ids} for ids in request.inputs]


def _of_input(error: chat.Unhonoured, name: str, start: int) -> chat.Unhonoured:
    """The same error in the terms of the client, whose inputs before `start` were in earlier calls."""
    parameter = error.parameter or ""
    word, _, rest = parameter.partition("[")
    if word != name:
        return error
    number, _, rest = rest.partition("]")
    parameter = f"input[{int(number) + start}]{rest}" if number.isdecimal() else "input"
    return chat.Unhonoured(parameter, error.reason)
