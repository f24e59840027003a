# SPDX-License-Identifier: Apache-2.0
"""Chat turns run by runtimed: `Runtime1.Generate` with `more`, one connection for each turn that runs.

Hanging up is how a turn is cancelled, so a connection carries one turn at a time. Those that ended in order are
kept for the next; the Varlink client reconnects by itself when the engine has exited idle meanwhile.
"""

from __future__ import annotations

from syntrop.common import loop, paths
from syntrop.common.http import chat
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidParameter, InvalidReply, VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RUNTIME = "io.syntrop.Runtime1"
_KEPT = 4  # idle connections
_AHEAD = 8  # replies read ahead of the client
_UNBOUNDED = 2**31 - 1  # tokens: until the model stops, or its context is full


class Engine:
    """The local engine. `timeout` (seconds) bounds the wait for each piece of an answer, the first included."""

    def __init__(self, *, timeout: float = 300.0, connect_timeout: float = 5.0) -> None:
        self._address = paths.endpoint(RUNTIME)
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._kept: list[varlink.Client] = []

    def generate(self, request: chat.GenerateRequest) -> Generation:
        """Start a turn. Whoever calls closes the generation."""
        return Generation(self, parameters(request))

    def close(self) -> None:
        """Close the kept connections."""
        kept, self._kept = self._kept, []
        for one in kept:
            one.close()

    async def connect(self) -> varlink.Client:
        if self._kept:
            return self._kept.pop()
        return await varlink.connect(self._address, timeout=self._connect_timeout)

    def give_back(self, client: varlink.Client) -> None:
        if len(self._kept) < _KEPT and not client.closed:
            self._kept.append(client)
        else:
            client.close()

    @property
    def timeout(self) -> float:
        return self._timeout


class Generation:
    """One turn that runs. Pieces are read ahead of whoever asks for them, up to a bound."""

    def __init__(self, engine: Engine, arguments: dict[str, Any]) -> None:
        self._engine = engine
        self._queue: loop.Queue[chat.Delta | chat.Finished | chat.EngineError] = loop.Queue(_AHEAD)
        self._next: chat.Delta | chat.Finished | chat.EngineError | None = None
        self._task = loop.spawn(self._run(arguments), "generation", eager=True)

    async def next(self, timeout: float | None = None) -> chat.Delta | chat.Finished:
        """The next piece. Raises EngineError, and TimeoutError when there is none yet: then ask again."""
        event = self._take()
        if event is None:
            with loop.deadline(timeout):
                event = await self._queue.get()
        if isinstance(event, chat.EngineError):
            raise event
        return event

    def ready(self) -> list[chat.Delta]:
        """The pieces that have arrived already, without waiting, up to what is no piece."""
        pieces = []
        while isinstance(event := self._take(), chat.Delta):
            pieces.append(event)
        self._next = event
        return pieces

    def _take(self) -> chat.Delta | chat.Finished | chat.EngineError | None:
        event, self._next = self._next, None
        if event is None and len(self._queue):
            event = self._queue.get_nowait()
        return event

    async def close(self) -> None:
        """Hang up, unless the turn has ended."""
        await loop.stop(self._task)

    async def _run(self, arguments: dict[str, Any]) -> None:
        try:
            client = await self._engine.connect()
        except (OSError, TimeoutError) as error:
            why = f"The local engine cannot be reached: {error}."
            await self._queue.put(chat.Unavailable(why))
            return
        try:
            await self._queue.put(await self._stream(client, arguments))
        except BaseException:
            client.close()
            raise

    async def _stream(self, client: varlink.Client, arguments: dict[str, Any]) -> chat.Finished | chat.EngineError:
        """Pass the pieces on; the outcome, with the connection given back or closed."""
        outcome: chat.Finished | chat.EngineError | None = None
        try:
            async for reply in client.stream(f"{RUNTIME}.Generate", arguments, timeout=self._engine.timeout):
                delta = reply.parameters.get("delta")
                if delta:
                    await self._queue.put(chat.Delta(delta))
                if not reply.continues:
                    outcome = _finished(reply.parameters.get("result"))
        except VarlinkError as error:
            outcome = engine_error(error)
        except TimeoutError:
            outcome = chat.EngineTimeout(f"The engine said nothing for {self._engine.timeout:g} seconds.")
        except OSError as error:  # a kept connection had ended, and there is no new one to be had
            outcome = chat.Unavailable(f"The local engine cannot be reached: {error}.")
        except ConnectionLost:
            outcome = chat.GenerationFailed("The engine went away before the answer was complete.")
        except InvalidReply as error:
            outcome = chat.GenerationFailed(f"The engine broke its protocol: {error}.")
        self._engine.give_back(client)
        return outcome or chat.GenerationFailed("The engine ended without a result.")


def _finished(result: dict[str, Any] | None) -> chat.Finished | None:
    if result is None:
        return None
    return chat.Finished(result["finish_reason"], result["prompt_tokens"], result["completion_tokens"])


def parameters(request: chat.GenerateRequest) -> dict[str, Any]:
    """A request as `Runtime1.Generate` takes it. What the client left open is left to the engine, but for two:
    the engine's default of 256 tokens would cut answers short, and its seed 0 means that any will do."""
    from syntrop.common.http.openai import engine_seed

    given = {
        "model": request.model,
        "messages": None if request.messages is None else [_message(message) for message in request.messages],
        "prompt": request.prompt,
        "max_tokens": request.max_tokens or _UNBOUNDED,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "seed": engine_seed(request.seed),
        "stop": request.stop or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _message(message: chat.Message) -> dict[str, Any]:
    given = {
        "role": message.role,
        "content": message.content,
        "name": message.name,
        "reasoning_content": message.reasoning,
    }
    return {name: value for name, value in given.items() if value is not None}


def engine_error(error: VarlinkError) -> chat.EngineError:
    """What an error reply of the engine means to a client. Detail that is the engine's own stays out."""
    given = error.parameters
    if isinstance(error, InvalidParameter) or error.name == "InvalidParameter":
        return chat.Unhonoured(str(given.get("parameter", "")), given.get("reason"))
    if error.error.rpartition(".")[0] != RUNTIME:
        return chat.GenerationFailed("The engine failed; its log has the detail.")
    match error.name:
        case "ModelNotFound":
            return chat.ModelNotFound(given["model"])
        case "ContextExceeded":
            return chat.ContextExceeded(given["requested"], given["max"])
        case "Overloaded":
            return chat.Overloaded(f"The engine is busy: {given['reason']}")
        case "Shutdown":
            return chat.Unavailable(f"The engine is going away: {given['reason']}")
        case "PermissionDenied":
            return chat.GenerationFailed("The engine does not let the router generate.")
        case "HardwareIncompatible":
            return chat.Unfit(f"This machine cannot run the model: {given['deficit']}")
        case _:
            return chat.GenerationFailed(f"The engine failed: {given.get('reason', error.name)}")
