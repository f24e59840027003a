# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Runtime1`: text generation, and the models that do it.

Nothing heavy is imported here: engine, kernels, numpy and jinja2 come with the first model.
"""

from __future__ import annotations

from syntrop.common import loop
from syntrop.common.varlink.errors import VarlinkError
from syntrop.runtimed.library import CannotLoad, Library, NoRoom, NoSuchModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.runtimed.engine import Engine, Generation, Result
    from syntrop.runtimed.loading import Loaded
    from syntrop.runtimed.sampler import Sampling

_INTERFACE = "io.syntrop.Runtime1."
_ROLES = ("system", "user", "assistant", "tool")
_STOPS_MAX = 64
_STOP_LENGTH_MAX = 4096


class Runtime1:
    """Handler of the interface. Methods that are not built yet are absent."""

    def __init__(self, daemon: Daemon) -> None:
        settings = daemon.settings
        self._daemon = daemon
        self._settings = settings
        self._engine: Engine | None = None
        self._library = Library(
            daemon.busy,
            threads=settings.threads,
            level=settings.kernel_level,
            models_max=settings.models_max,
            context_max=settings.context_max,
            timeout=settings.store_timeout_sec,
        )

    async def stop(self) -> None:
        """End the engine; what still generates fails."""
        if self._engine is not None:
            await self._engine.close()

    # --- generation -----------------------------------------------------------------------------------------

    async def Generate(
        self,
        call: Call,
        model: str,
        prompt: str | None = None,
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        image: str | None = None,
        grammar_type: str | None = None,
        grammar: str | None = None,
        speculative_draft_model: str | None = None,
        reasoning_budget: int | None = None,
        reasoning_effort: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: list[str] | None = None,
    ) -> dict[str, Any]:
        _refuse_unbuilt(
            image=image,
            grammar_type=grammar_type,
            grammar=grammar,
            speculative_draft_model=speculative_draft_model,
            reasoning_budget=reasoning_budget,
            reasoning_effort=reasoning_effort,
        )
        if (prompt is None) == (messages is None):
            raise _invalid("prompt", "exactly one of prompt and messages is to be given")
        if prompt is not None and not prompt:
            raise _invalid("prompt", "empty")
        _check_messages(messages)
        if max_tokens < 1:
            raise _invalid("max_tokens", "less than 1")
        stops = _checked_stops(stop)
        sampling = _sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        loaded = await self._model(model)
        loaded.users += 1
        try:
            tokens = await self._tokens(loaded, prompt, messages)
            with self._submit(loaded, tokens, sampling, max_tokens, stops) as generation:
                result = await self._relay(call, generation)
        finally:
            loaded.users -= 1
        return {"result": _result(result)}

    async def _relay(self, call: Call, generation: Generation) -> Result:
        """Pass the text on as it comes, to a caller who wants it so."""
        from syntrop.runtimed.engine import GenerationError

        try:
            while (text := await generation.next()) is not None:
                if call.more:
                    await call.send({"delta": text})
        except GenerationError as error:
            if self._daemon.stopping:
                raise VarlinkError(_INTERFACE + "Shutdown", reason=str(error)) from None
            raise _failed(str(error)) from None
        assert generation.result is not None
        return generation.result

    async def _tokens(
        self, loaded: Loaded, prompt: str | None, messages: list[dict[str, Any]] | None
    ) -> list[int]:
        """The prompt as tokens: in a thread, since a long one takes a while and a template is not ours."""
        from syntrop.runtimed.chat_template import TemplateError, TemplateLimit
        from syntrop.runtimed.prompt import PromptTooLong, chat_tokens, text_tokens
        from syntrop.runtimed.tokenizer import TokenizerError

        context = loaded.model.context
        given = "prompt" if messages is None else "messages"
        try:
            if messages is None:
                tokens = await loop.thread(text_tokens, loaded.tokenizer, prompt or "", context)
            elif loaded.template is None:
                raise _invalid("messages", f"{loaded.template_error}: give a prompt in their place")
            else:
                tokens = await loop.thread(chat_tokens, loaded.tokenizer, loaded.template, messages, context)
        except PromptTooLong as error:
            parameters = {"requested": error.requested, "max": error.most}
            raise VarlinkError(_INTERFACE + "ContextExceeded", **parameters) from None
        except TemplateLimit as error:
            raise _failed(str(error)) from None
        except (TemplateError, TokenizerError) as error:
            raise _invalid(given, str(error)) from None
        if not tokens:
            raise _invalid(given, "no tokens")
        return tokens

    def _submit(
        self, loaded: Loaded, tokens: list[int], sampling: Sampling, max_tokens: int, stops: tuple[str, ...]
    ) -> Generation:
        from syntrop.runtimed.engine import Engine, Overloaded

        if self._engine is None:
            self._engine = Engine(
                max_slots=self._settings.slots,
                max_queue=self._settings.queue_max,
                chunk=self._settings.prefill_chunk,
            )
        try:
            return self._engine.submit(loaded, tokens, sampling, max_tokens=max_tokens, stops=stops)
        except Overloaded as error:
            raise _overloaded(str(error)) from None

    # --- models ---------------------------------------------------------------------------------------------

    async def GetModelStatus(self, call: Call, model: str) -> dict[str, Any]:
        found = await self._if_loaded(model)
        if found is None:
            return {"status": "not_loaded"}
        return {"status": "loaded", "model": found.describe()}

    async def ListLoadedModels(self, call: Call) -> dict[str, Any]:
        return {"models": [one.describe() for one in self._library.loaded()]}

    async def UnloadModel(
        self, call: Call, model: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority

        interactive = allowInteractiveAuthentication
        await authority.authorize(call, interactive=interactive, details={"model": model[:256]})
        found = await self._if_loaded(model)
        if found is None:
            return {"freed_bytes": 0}
        if found.users:
            raise _overloaded(f"{found.users} calls are using {found.name}")
        return {"freed_bytes": await self._library.unload(found)}

    async def GetLoad(self, call: Call) -> dict[str, Any]:
        slots = self._settings.slots
        taken = 0 if self._engine is None else self._engine.active + self._engine.waiting
        models = [one.describe() for one in self._library.loaded()]
        caches = 0 if self._engine is None else self._engine.cache_bytes
        return {
            "available_slots": max(0, slots - taken),
            "max_slots": slots,
            "used_bytes": sum(one["memory_bytes"] for one in models) + caches,
            "models": models,
        }

    def _named(self, model: str) -> str:
        name: str = model or self._settings.default_model
        if not name:
            raise _invalid("model", "empty, and no default is set")
        return name

    async def _if_loaded(self, model: str) -> Loaded | None:
        name = self._named(model)
        found = self._library.find(name)
        if found is not None:
            return found
        try:
            return await self._library.resolve(name)
        except NoSuchModel:
            raise _not_found(name) from None
        except CannotLoad as error:
            raise _failed(str(error)) from None

    async def _model(self, model: str) -> Loaded:
        name = self._named(model)
        try:
            return await self._library.get(name)
        except NoSuchModel:
            raise _not_found(name) from None
        except CannotLoad as error:
            raise _failed(str(error)) from None
        except NoRoom as error:
            raise _overloaded(str(error)) from None


def _refuse_unbuilt(**parameters: object) -> None:
    """What is published but not built must not be ignored."""
    for name, value in parameters.items():
        if value is not None:
            raise _invalid(name, "not supported by this version")


def _check_messages(messages: list[dict[str, Any]] | None) -> None:
    if messages is None:
        return
    if not messages:
        raise _invalid("messages", "empty")
    for index, message in enumerate(messages):
        if message["role"] not in _ROLES:
            raise _invalid(f"messages[{index}].role", f"none of {', '.join(_ROLES)}")
        if message.get("content") is None and not (message["role"] == "assistant" and message.get("tool_calls")):
            raise _invalid(f"messages[{index}].content", "missing, and no calls of tools stand in its place")


def _checked_stops(stop: list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    if len(stop) > _STOPS_MAX:
        raise _invalid("stop", f"more than {_STOPS_MAX} texts")
    if not all(0 < len(one) <= _STOP_LENGTH_MAX for one in stop):
        raise _invalid("stop", f"a text that is empty or longer than {_STOP_LENGTH_MAX} characters")
    return tuple(stop)


def _sampling(**parameters: Any) -> Sampling:
    from syntrop.runtimed.sampler import Sampling, SamplingError

    try:
        return Sampling(**parameters)
    except SamplingError as error:
        raise _invalid(error.parameter, str(error)) from None


def _result(result: Result) -> dict[str, Any]:
    return {
        "text": result.text,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "finish_reason": result.finish_reason,
        "duration_ms": round(result.duration * 1000),
        "seed": result.seed,
    }


def _invalid(parameter: str, reason: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "InvalidParameter", parameter=parameter, reason=reason)


def _failed(reason: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "GenerationFailed", reason=reason)


def _overloaded(reason: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "Overloaded", reason=reason)


def _not_found(model: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "ModelNotFound", model=model)
