# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Runtime1`: text generation, decisions and embeddings, and the models that do it.

Nothing heavy is imported here: engine, kernels, numpy and jinja2 come with the first model.
"""

from __future__ import annotations

from syntrop.common import loop, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.runtimed import parameters
from syntrop.runtimed.leases import Lent
from syntrop.runtimed.library import CannotLoad, Library, NoAdapter, NoRoom, NoSuchModel
from syntrop.runtimed.parameters import failed, invalid, not_found, overloaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, TypeVar

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.runtimed.embedding import Embedder
    from syntrop.runtimed.engine import Engine, Generation, Result
    from syntrop.runtimed.loading import Loaded
    from syntrop.runtimed.model.lora import Adapter
    from syntrop.runtimed.prefixes import Prefixes
    from syntrop.runtimed.sampler import Logprobs
    from syntrop.runtimed.tokenizer import Tokenizer

    T = TypeVar("T")

_UNBOUNDED = 2**31 - 1  # tokens: where they are counted, the context is no limit
_FOREVER, _KEEP_MAX = -1, 604_800  # seconds: as long as the daemon runs; a week
_NUMBERS_MAX = 1 << 20  # in the vectors of one reply: as JSON each takes about ten bytes


class Runtime1:
    """Handler of the interface. Methods that are not built yet are absent."""

    def __init__(self, daemon: Daemon) -> None:
        settings = daemon.settings
        self._daemon = daemon
        self._settings = settings
        self._engine: Engine | None = None
        self._embedder: Embedder | None = None
        self._prefixes: Prefixes | None = None
        self._library = Library(
            daemon.busy,
            threads=settings.threads,
            level=settings.kernel_level,
            models_max=settings.models_max,
            context_max=settings.context_max,
            timeout=settings.store_timeout_sec,
            memory_max=settings.memory_max,
            prefixes_max=settings.prefixes_max,
            kv_type=settings.kv_type,
            lease_wait=settings.lease_wait_sec,
            pressure_wait=settings.pressure_wait_sec,
        )

    def reload(self) -> None:
        """Take over the settings that can change while models are loaded: the threads."""
        import sys

        from syntrop.common.settings import resolve
        from syntrop.runtimed.settings import TABLE

        threads = resolve("runtimed", TABLE, sys.argv[1:]).threads
        loop.spawn(self._library.set_threads(threads), "set threads")

    def yield_batch(self) -> None:
        """The host needs its resources: Batch work stands still for a while, and memory is given back."""
        from syntrop.runtimed.yielding import give_back

        loop.spawn(give_back(self._library, self._engine, self._settings.yield_sec), "give back", eager=True)

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
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: list[dict[str, Any]] | None = None,
        top_logprobs: int | None = None,
        tools: list[dict[str, Any]] | None = None,
        template_variables: str | None = None,
        priority: str = "Interactive",
        prompt_ids: list[int] | None = None,
        announce: bool = False,
        leased_bytes: int = 0,
    ) -> dict[str, Any]:
        parameters.refuse_unbuilt(
            image=image,
            grammar_type=grammar_type,
            grammar=grammar,
            speculative_draft_model=speculative_draft_model,
            reasoning_budget=reasoning_budget,
            reasoning_effort=reasoning_effort,
        )
        chat = parameters.chat(prompt, messages, tools, template_variables, prompt_ids)
        if max_tokens < 1:
            raise invalid("max_tokens", "less than 1")
        stops = parameters.stops(stop)
        most = parameters.top_logprobs(top_logprobs)
        tier = await _tier(call, priority)
        lent = await self._lent(call, leased_bytes)
        sampling = parameters.sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=logit_bias,
            seed=seed,
        )
        if chat is not None:
            _warm_templates()
        loaded = await self._decoder(model)
        with loaded.use() as adapter:
            parameters.check_biases(sampling, loaded.tokenizer)
            if prompt_ids is None:
                tokens, thinking = await self._tokens(loaded, prompt, chat)
            else:
                tokens, thinking = _checked_ids(loaded, prompt_ids), False
            with (
                lent,
                self._submit(
                    loaded,
                    tokens,
                    sampling,
                    max_tokens=max_tokens,
                    stops=stops,
                    top_logprobs=most,
                    tier=tier,
                    adapter=adapter,
                ) as generation,
            ):
                start = {"prompt_tokens": len(tokens), "thinking": thinking}
                if announce and call.more:
                    await call.send({})
                return await self._relay(call, generation, loaded.tokenizer, start)

    async def _lent(self, call: Call, size: int) -> Lent:
        """What a caller says it has leased for the cache of its call. Raises InvalidParameter."""
        if size:
            if size < 0:
                raise invalid("leased_bytes", "less than none")
            await _believe(call, "leased_bytes")
        return Lent(self._library.leases, size)

    async def CountTokens(
        self,
        call: Call,
        model: str,
        prompt: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        tools: list[dict[str, Any]] | None = None,
        template_variables: str | None = None,
    ) -> dict[str, Any]:
        chat = parameters.chat(prompt, messages, tools, template_variables)
        if chat is not None:
            _warm_templates()
        loaded = await self._decoder(model)
        with loaded.use():
            tokens, _ = await self._tokens(loaded, prompt, chat, _UNBOUNDED)
        return {"tokens": len(tokens)}

    async def _relay(
        self, call: Call, generation: Generation, tokenizer: Tokenizer, start: dict[str, Any]
    ) -> dict[str, Any]:
        """Pass the text on as it comes, to a caller who wants it so; the last reply. `start` is in the first."""
        begun = False
        from syntrop.runtimed.engine import GenerationError, OutOfMemory

        try:
            while (text := await generation.next()) is not None:
                if call.more:
                    delta: dict[str, Any] = {"delta": text, "completion_tokens": generation.told}
                    if not begun:
                        delta["start"] = {**start, "cached_tokens": generation.cached}
                        begun = True
                    if generation.logprobs:
                        delta["logprobs"] = _logprobs(generation.logprobs, tokenizer)
                    await call.send(delta)
        except OutOfMemory as error:
            raise overloaded(str(error)) from None
        except GenerationError as error:
            raise self._failed(str(error)) from None
        assert generation.result is not None
        last = {"result": _result(generation.result, tokenizer)}
        return last if begun else {**last, "start": {**start, "cached_tokens": generation.cached}}

    async def _tokens(
        self, loaded: Loaded, prompt: str | None, chat: parameters.Chat | None, most: int | None = None
    ) -> tuple[list[int], bool]:
        """The prompt as tokens: in a thread, since a long one takes a while and a template is not ours."""
        from syntrop.runtimed.chat_template import TemplateError, TemplateLacks, TemplateLimit
        from syntrop.runtimed.prompt import PromptTooLong, chat_prompt, text_tokens
        from syntrop.runtimed.tokenizer import TokenizerError

        context = loaded.model.context if most is None else most
        thinking = False
        given = "prompt" if chat is None else "messages"
        try:
            if chat is None:
                tokens = await _thread(text_tokens, loaded.tokenizer, prompt or "", context)
            elif loaded.template is None:
                raise invalid("messages", f"{loaded.template_error}: give a prompt in their place")
            else:
                tokens, thinking = await _thread(
                    chat_prompt,
                    loaded.tokenizer,
                    loaded.template,
                    chat.messages,
                    context,
                    chat.tools,
                    chat.variables,
                )
        except PromptTooLong as error:
            raise parameters.context_exceeded(error.requested, error.most) from None
        except TemplateLimit as error:
            raise failed(str(error)) from None
        except TemplateLacks as error:
            raise invalid(error.parameter, str(error)) from None
        except (TemplateError, TokenizerError) as error:
            raise invalid(given, str(error)) from None
        except RecursionError:  # the arguments of a call, read as an object
            raise invalid(given, "nested too deeply") from None
        if not tokens:
            raise invalid(given, "no tokens")
        return tokens, thinking

    def _submit(self, *what: Any, tier: int, **how: Any) -> Generation:
        from syntrop.runtimed.generation import Tier

        return _admitted(lambda: self._running().submit(*what, tier=Tier(tier), **how))

    def _running(self) -> Engine:
        if self._engine is None:
            from syntrop.runtimed.engine import Engine

            try:
                self._engine = Engine(
                    max_slots=self._settings.slots,
                    max_queue=self._settings.queue_max,
                    chunk=self._settings.prefill_chunk,
                )
            except RuntimeError:
                raise overloaded("the system has no memory for a thread") from None
        return self._engine

    def _failed(self, reason: str) -> VarlinkError:
        if self._daemon.stopping:
            return VarlinkError(parameters.INTERFACE + "Shutdown", reason=reason)
        return failed(reason)

    # --- decisions ------------------------------------------------------------------------------------------

    async def Decide(
        self,
        call: Call,
        model: str,
        prompt: str,
        candidates: list[dict[str, Any]],
        temperature: float = 1.0,
        priority: str = "Interactive",
        keep_prompt: bool = False,
    ) -> dict[str, Any]:
        if not prompt:
            raise invalid("prompt", "empty")
        if not 0 < temperature <= 1e6:
            raise invalid("temperature", f"{temperature} is not more than 0 and at most 1000000")
        given = parameters.candidates(candidates)
        tier = await _tier(call, priority)
        if keep_prompt:
            await _believe(call, "keep_prompt")
        loaded = await self._decoder(model)
        with loaded.use() as adapter:
            kept = self._kept() if keep_prompt and adapter is None else None
            return {"result": await self._decide(loaded, adapter, prompt, given, temperature, tier, kept)}

    async def _decide(
        self,
        loaded: Loaded,
        adapter: Adapter | None,
        prompt: str,
        candidates: list[tuple[str, str]],
        temperature: float,
        tier: int,
        kept: Prefixes | None,
    ) -> dict[str, Any]:
        from syntrop.runtimed import decide
        from syntrop.runtimed.engine import GenerationError, OutOfMemory
        from syntrop.runtimed.generation import Tier
        from syntrop.runtimed.scoring import Scoring

        context = loaded.model.context
        texts = [text for _, text in candidates]
        # A text that is too long by far is not counted out.
        least = loaded.tokenizer.at_least(len(prompt) + max(map(len, texts)))
        if least > context:
            raise parameters.context_exceeded(least, context)
        try:
            shared, paths = await _thread(decide.continuations, loaded.tokenizer, prompt, texts)
        except decide.Unscorable as error:
            raise invalid(f"candidates[{error.index}].token", str(error)) from None
        tokens = len(shared) + max(map(len, paths))
        if tokens > context:
            raise parameters.context_exceeded(tokens, context)
        known = kept is None or await _thread(kept.restore, loaded, shared)
        engine = self._running()
        scoring = Scoring(engine, loaded, shared, paths, adapter, Tier(tier))
        _admitted(lambda: engine.enqueue(scoring))
        try:
            with scoring:
                while await scoring.next() is not None:
                    pass
        except OutOfMemory as error:
            raise overloaded(str(error)) from None
        except GenerationError as error:
            raise self._failed(str(error)) from None
        if kept is not None and not known:
            await _thread(kept.keep, loaded, shared)
        return decide.decision(candidates, paths, scoring.totals, temperature)

    def _kept(self) -> Prefixes | None:
        """The texts that are kept on disk; None where the daemon has no folder for them."""
        folder = paths.cache()
        if self._prefixes is None and folder is not None:
            from syntrop.runtimed.prefixes import Prefixes

            self._prefixes = Prefixes(folder)
        return self._prefixes

    # --- embeddings -----------------------------------------------------------------------------------------

    async def Embed(
        self,
        call: Call,
        model: str,
        text: str | None = None,
        texts: list[str] | None = None,
        tokens: list[dict[str, Any]] | None = None,
        pooling: str | None = None,
        leased_bytes: int = 0,
    ) -> dict[str, Any]:
        given, inputs = parameters.texts(text, texts, tokens)
        how = parameters.pooling(pooling)
        lent = await self._lent(call, leased_bytes)
        loaded = await self._model(model)
        with loaded.use() as adapter:
            if len(inputs) * loaded.model.dimensions > _NUMBERS_MAX:
                most = _NUMBERS_MAX // loaded.model.dimensions
                raise invalid(given, f"{len(inputs)}, at most {most} in one call")
            read = await _thread(_to_embed, loaded, given, inputs)
            with lent:
                vectors = await self._embed(loaded, read, how, adapter)
        result: dict[str, Any] = {"embedding": vectors[0], "prompt_tokens": sum(map(len, read))}
        if given != "text":
            result["embeddings"] = [
                {"vector": vector, "tokens": len(one)} for vector, one in zip(vectors, read, strict=True)
            ]
        return result

    async def _embed(
        self, loaded: Loaded, texts: list[list[int]], pooling: str | None, adapter: Adapter | None
    ) -> list[list[float]]:
        from syntrop.runtimed.embedding import Crowded, Embedder
        from syntrop.runtimed.model.errors import ModelError, OverBudget

        if self._embedder is None:
            self._embedder = Embedder(self._settings.queue_max)
        try:
            vectors = await self._embedder.embed(loaded.model, texts, pooling, adapter)
        except (Crowded, OverBudget) as error:
            raise overloaded(str(error)) from None
        except ModelError as error:
            raise self._failed(str(error)) from None
        except MemoryError:
            raise _no_memory() from None
        # As many digits as a 32-bit float has: the reply is half as long.
        return [[round(number, 9) for number in vector] for vector in vectors]

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
            raise overloaded(f"{found.users} calls are using {found.name}")
        return {"freed_bytes": await self._library.unload(found)}

    async def LoadModel(self, call: Call, model: str, keep_sec: float | None = None) -> dict[str, Any]:
        if keep_sec is not None and keep_sec != _FOREVER and not 0 <= keep_sec <= _KEEP_MAX:
            raise invalid("keep_sec", f"{keep_sec:g} is neither {_FOREVER} nor from 0 to {_KEEP_MAX}")
        if keep_sec == 0:
            there = await self._if_loaded(model)
            gone = there is None or await self._library.let_go(there)
            return {} if there is None or gone else {"model": there.describe()}
        loaded = await self._model(model)
        if keep_sec is not None:
            self._library.keep(loaded, None if keep_sec == _FOREVER else keep_sec)
        return {"model": loaded.describe()}

    async def AttachLora(
        self, call: Call, model: str, lora: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority

        details = {"model": model[:256], "lora": lora[:256]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        if not lora:
            raise invalid("lora", "empty")
        loaded = await self._decoder(model)
        try:
            tensors = await _found(lora, self._library.attach(loaded, lora))
        except NoAdapter as error:
            raise invalid("lora", str(error)) from None
        return {"fused_tensors": list(tensors)}

    async def DetachLora(
        self, call: Call, model: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority

        interactive = allowInteractiveAuthentication
        await authority.authorize(call, interactive=interactive, details={"model": model[:256]})
        found = await self._if_loaded(model)
        if found is not None:
            self._library.detach(found)
        return {}

    async def GetLoad(self, call: Call) -> dict[str, Any]:
        slots = self._settings.slots
        taken = 0 if self._engine is None else self._engine.active + self._engine.waiting
        models = [one.describe() for one in self._library.loaded()]
        return {
            "available_slots": max(0, slots - taken),
            "max_slots": slots,
            "used_bytes": sum(one["memory_bytes"] for one in models) + self._library.cache_bytes,
            "models": models,
        }

    async def CompactKvCache(
        self, call: Call, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        from syntrop.common import authority

        await authority.authorize(call, interactive=allowInteractiveAuthentication)
        return {"freed_bytes": self._library.compact()}

    def _named(self, model: str) -> str:
        name: str = model or self._settings.default_model
        if not name:
            raise invalid("model", "empty, and no default is set")
        return name

    async def _if_loaded(self, model: str) -> Loaded | None:
        name = self._named(model)
        found = self._library.find(name)
        return found or await _found(name, self._library.resolve(name))

    async def _model(self, model: str) -> Loaded:
        name = self._named(model)
        return await _found(name, self._library.get(name))

    async def _decoder(self, model: str) -> Loaded:
        """A model that generates text."""
        loaded = await self._model(model)
        if not loaded.generates:
            raise invalid("model", f"{loaded.name} is an encoder: it embeds texts, and generates none")
        return loaded


async def _tier(call: Call, priority: str) -> int:
    """The engine's tier of that name, if the caller may have it."""
    tier = parameters.priority(priority)
    if priority == "EmergencyTriage":
        from syntrop.common import authority
        from syntrop.common.varlink.errors import PermissionDenied

        if not await authority.supervises(call):
            raise PermissionDenied
    return tier


async def _believe(call: Call, parameter: str) -> None:
    """Raise for what only some callers may say of themselves."""
    from syntrop.common import authority

    if not await authority.trusts(call):
        raise invalid(parameter, "only the suite's own daemons and its operators are believed this")


def _warm_templates() -> None:
    """jinja2 comes with the first conversation, while its model is loaded."""
    from syntrop.runtimed import chat_template

    if not chat_template.is_warm():
        loop.thread(chat_template.warm)


async def _thread(function: Callable[..., T], *arguments: Any) -> T:
    """As loop.thread; the system's refusal in the interface's terms."""
    try:
        return await loop.thread(function, *arguments)
    except MemoryError:
        raise _no_memory() from None


def _no_memory() -> VarlinkError:
    return failed("memory ran out: the system gives no more")


async def _found(name: str, work: Coroutine[Any, Any, T]) -> T:
    """What the library gives for a name; its refusals in the interface's terms."""
    try:
        return await work
    except NoSuchModel:
        raise not_found(name) from None
    except CannotLoad as error:
        raise failed(str(error)) from None
    except NoRoom as error:
        raise overloaded(str(error)) from None


def _checked_ids(loaded: Loaded, tokens: list[int]) -> list[int]:
    context, vocabulary = loaded.model.context, len(loaded.tokenizer)
    if len(tokens) >= context:
        raise parameters.context_exceeded(len(tokens) + 1, context)
    wrong = next((i for i, token in enumerate(tokens) if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise invalid(f"prompt_ids[{wrong}]", f"{tokens[wrong]} is not in the vocabulary of {vocabulary}")
    return tokens


def _admitted(submit: Callable[[], T]) -> T:
    """What `submit` gives; the engine's refusal in the interface's terms."""
    from syntrop.runtimed.engine import Overloaded

    try:
        return submit()
    except Overloaded as error:
        raise overloaded(str(error)) from None


def _to_embed(loaded: Loaded, given: str, inputs: Sequence[str | list[int]]) -> list[list[int]]:
    """The tokens of each text, all within the model's context and vocabulary."""
    from syntrop.runtimed.prompt import PromptTooLong, text_tokens

    context, vocabulary = loaded.model.context, len(loaded.tokenizer)
    result = []
    for index, one in enumerate(inputs):
        if isinstance(one, str):
            try:
                tokens = text_tokens(loaded.tokenizer, one, context + 1)
            except PromptTooLong as error:
                raise parameters.context_exceeded(error.requested - 1, context) from None
            if not tokens:
                raise invalid(parameters.member(given, index), "no tokens")
        else:
            tokens = one
            if len(tokens) > context:
                raise parameters.context_exceeded(len(tokens), context)
            wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
            if wrong is not None:
                reason = f"{wrong} is not in the vocabulary of {vocabulary}"
                raise invalid(parameters.member(given, index), reason)
        result.append(tokens)
    return result


def _result(result: Result, tokenizer: Tokenizer) -> dict[str, Any]:
    told: dict[str, Any] = {
        "text": result.text,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "finish_reason": result.finish_reason,
        "duration_ms": round(result.duration * 1000),
        "seed": result.seed,
    }
    if result.stop_string is not None:
        told["stop_string"] = result.stop_string
    if result.logprobs is not None:
        told["logprobs"] = _logprobs(result.logprobs, tokenizer)
    return told


def _logprobs(notes: list[Logprobs], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    from syntrop.runtimed.decide import finite

    def choice(token: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.piece(token)
        # A control token stands for no text: then its name tells which one it is.
        text = piece.decode("utf-8", "replace") if piece else tokenizer.texts[token]
        return {"token": token, "text": text, "bytes": list(piece), "logprob": finite(logprob)}

    return [
        {**choice(note.token, note.logprob), "top": [choice(token, logprob) for token, logprob in note.top]}
        for note in notes
    ]
