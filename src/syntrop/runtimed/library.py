# SPDX-License-Identifier: Apache-2.0
"""The models in memory: found at modeld by name, loaded once however many ask, kept until told otherwise.

Weights count against the budget that they share with the caches: where there is no room for those of another
model, the idle model that was used longest ago goes, and never one that is at work. A model with an adapter stays,
and holds the daemon: what was attached is not lost silently.

A name is resolved by modeld. What it resolved to is remembered while that model is loaded, and checked again
beside a call that comes after some time: a name that has moved on is resolved anew for the next call, and no call
waits for the check.
"""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.runtimed.leases import Leases, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from typing import Any

    from syntrop.common.varlink.client import Client
    from syntrop.runtimed.loading import Attached, How, Loaded
    from syntrop.runtimed.model.kv import Budget
    from syntrop.runtimed.model.lora import Adapter

MODEL = "io.syntrop.Model1"
CHECK_AFTER = 10.0  # seconds after which a remembered name is checked


class NoSuchModel(Exception):
    """The store has no model of this name."""


class CannotLoad(Exception):
    """The model is there but cannot be loaded, or the store cannot be reached; the text says why."""


class NoRoom(Exception):
    """All models that could make room are at work; the text has the numbers."""


class NoAdapter(Exception):
    """The file is no adapter of the model; the text says why."""


class Kept:
    """Holds the daemon for a model, until `close()` or for `seconds`; `function` is called at their end."""

    __slots__ = ("_hold", "_timer")

    def __init__(
        self, hold: AbstractContextManager[Any], seconds: float | None, function: Callable[[], None]
    ) -> None:
        self._hold = hold
        self._hold.__enter__()
        self._timer = None if seconds is None else loop.call_later(seconds, function)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._hold.__exit__(None, None, None)


class Library:
    """Names and models. `busy` holds the daemon while a model is being loaded.

    `threads` 0 is one a core, `memory_max` and `prefixes_max` (bytes) 0 is what memory.py makes of this machine.
    """

    def __init__(
        self,
        busy: Callable[[], AbstractContextManager[Any]],
        *,
        threads: int,
        level: str = "auto",
        models_max: int,
        context_max: int,
        timeout: float,
        memory_max: int = 0,
        prefixes_max: int = 0,
        kv_type: str = "f16",
        lease_wait: float = 0.3,
        pressure_wait: float = 30.0,
    ) -> None:
        self._busy = busy
        self._threads = threads
        self._level = level
        self._models_max = models_max
        self._context_max = context_max
        self._timeout = timeout
        self._memory_max = memory_max
        self._prefixes_max = prefixes_max
        self._kv_type = kv_type
        self._budget: Budget | None = None
        self._weights: dict[str, int] = {}  # bytes counted, by digest
        self._adapted: dict[Attached, AbstractContextManager[Any]] = {}  # holds the daemon
        self._kept: dict[str, Kept] = {}  # by digest
        self.leases = Leases(lease_wait, pressure_wait)
        self._loaded: dict[str, Loaded] = {}  # by digest, the least recently used first
        self._resolving: dict[str, loop.Task[Loaded]] = {}  # by name, which may be a digest
        self._loading: dict[str, loop.Task[Loaded]] = {}  # by digest
        self._names: dict[str, tuple[str, float]] = {}  # name -> digest, when it was checked
        self._checking: set[str] = set()

    def loaded(self) -> list[Loaded]:
        return list(self._loaded.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values, those included that are kept of earlier work."""
        return 0 if self._budget is None else self._budget.used - self._budget.weights

    @property
    def used_bytes(self) -> int:
        """Bytes of weights, keys and values."""
        return 0 if self._budget is None else self._budget.used

    def compact(self, size: int = 0) -> int:
        """Give up what is kept of earlier work, until no more than `size` bytes are used; its bytes."""
        return 0 if self._budget is None else self._budget.compact(size)

    async def shrink(self, size: int) -> None:
        """Unload idle models, the one used longest ago first, until no more than `size` bytes are used."""
        while self.used_bytes > size and (idle := self._idle()) is not None:
            await self.unload(idle)

    async def set_threads(self, threads: int) -> None:
        """From the next step on, for all models, those too that are being loaded."""
        self._threads = threads
        for model in self.loaded():
            await self._follow_threads(model)

    async def _follow_threads(self, model: Loaded) -> None:
        from syntrop.runtimed.processors import cores

        try:
            # The step that is running is waited for.
            await loop.thread(model.model.set_threads, self._threads or cores())
        except (ValueError, MemoryError) as error:
            journal.warning(f"{model.name} keeps the threads that it has: {error}")

    def find(self, name: str) -> Loaded | None:
        """The loaded model that a name is known to mean."""
        known = self._names.get(name)
        return self._loaded.get(known[0] if known else name)

    async def get(self, name: str) -> Loaded:
        """The model, loaded if need be. Raises NoSuchModel, CannotLoad and NoRoom."""
        found = self.find(name)
        if found is not None:
            self._touch(found)
            self._check_later(name)
            return found
        while True:
            found = await self._once(self._resolving, name, self._resolve_and_load(name))
            # It may have gone again before this caller got to run.
            if self._loaded.get(found.digest) is found:
                return found

    async def resolve(self, name: str) -> Loaded | None:
        """The loaded model that the store says a name means, or None. Raises NoSuchModel and CannotLoad."""
        digest, *_ = await self._inspect(name)
        if digest in self._loaded:
            self._names[name] = (digest, monotonic())
        return self._loaded.get(digest)

    async def unload(self, model: Loaded) -> int:
        """Take a model out of memory; the bytes it had, its caches among them. Only where it has no users."""
        pool = getattr(model.model, "kv", None)
        freed: int = model.model.memory_bytes + (0 if pool is None else pool.blocks * pool.block_bytes)
        del self._loaded[model.digest]
        self._release(model.digest)
        self.detach(model)
        for name in [name for name, (digest, _) in self._names.items() if digest == model.digest]:
            del self._names[name]
        # A step for a caller who has just hung up may still be running, and is waited for.
        await loop.thread(model.close)
        if self._budget is not None:
            self._budget.give_weights(self._weights.pop(model.digest, 0))
        self.leases.settle_soon()
        return freed

    # --- models that are to stay ----------------------------------------------------------------------------

    def keep(self, model: Loaded, seconds: float | None) -> None:
        """Hold the daemon so long (None: while it runs) for a model, which goes where others need its room."""
        self._release(model.digest)
        if self._loaded.get(model.digest) is model:
            self._kept[model.digest] = Kept(self._busy(), seconds, lambda: self._release(model.digest))

    async def let_go(self, model: Loaded) -> bool:
        """Nobody wants it kept: whether it is out of memory now, as it is where no call uses it."""
        self._release(model.digest)
        if model.users or model.attached is not None or self._loaded.get(model.digest) is not model:
            return self._loaded.get(model.digest) is not model
        await self.unload(model)
        return True

    def _release(self, digest: str) -> None:
        kept = self._kept.pop(digest, None)
        if kept is not None:
            kept.close()

    # --- adapters -------------------------------------------------------------------------------------------

    async def attach(self, model: Loaded, name: str) -> tuple[str, ...]:
        """Have calls go with the adapter of this name from now on; the names of the tensors that it changes.

        It goes on when the caller leaves. Raises NoSuchModel, CannotLoad, NoRoom and NoAdapter.
        """
        model.users += 1
        task = loop.spawn(self._attach(model, name), f"attach {name}")
        task.when_done(_told)
        return await task

    def detach(self, model: Loaded) -> None:
        """Have calls go without an adapter from now on."""
        attached, model.attached = model.attached, None
        if attached is not None:
            self._adapted.pop(attached).__exit__(None, None, None)
            attached.let_go()

    async def _attach(self, model: Loaded, name: str) -> tuple[str, ...]:
        from syntrop.runtimed import loading
        from syntrop.runtimed.model.errors import NoMemory

        try:
            with self._busy():
                digest, identifier, _ = await self._inspect(name)
                handle, size = await self._file({"id": digest})
                try:
                    await self._make_room(identifier, size, place=False)
                except BaseException:
                    os.close(handle)
                    raise
                try:
                    adapter = await loop.thread(loading.load_adapter, handle, size, identifier, model.model)
                except loading.LoadError as error:
                    raise NoAdapter(str(error)) from None
                except (NoMemory, MemoryError) as error:
                    raise CannotLoad(f"{identifier} cannot be attached, memory ran out: {error}") from None
                finally:
                    self.budget.give_weights(size)
                try:
                    await self._make_room(identifier, adapter.memory_bytes, place=False)
                except BaseException:
                    await loop.thread(model.model.detach, adapter)
                    raise
                self._weights[model.digest] += adapter.memory_bytes
                self.detach(model)
                hold = self._busy()
                hold.__enter__()
                model.attached = loading.Attached(
                    identifier, adapter, lambda gone: loop.spawn(self._forget(model, gone), f"forget {identifier}")
                )
                self._adapted[model.attached] = hold
                return adapter.tensors
        finally:
            model.users -= 1

    async def _forget(self, model: Loaded, adapter: Adapter) -> None:
        # A step for a caller who has just hung up may still be running, and is waited for.
        await loop.thread(model.model.detach, adapter)
        if self._loaded.get(model.digest) is model:
            self._weights[model.digest] -= adapter.memory_bytes
            self.budget.give_weights(adapter.memory_bytes)

    # --- loading --------------------------------------------------------------------------------------------

    @staticmethod
    async def _once(tasks: dict[str, loop.Task[Loaded]], key: str, load: Coroutine[Any, Any, Loaded]) -> Loaded:
        """One task for all who ask for the same; it goes on when they leave."""

        def ended(task: loop.Future[Loaded]) -> None:
            tasks.pop(key, None)
            _told(task)

        task = tasks.get(key)
        if task is None:
            task = tasks[key] = loop.spawn(load, f"load {key}")
            task.when_done(ended)
        else:
            load.close()
        return await task

    async def _resolve_and_load(self, name: str) -> Loaded:
        with self._busy():
            try:
                # Imports take as long as an answer of a modeld or an inferenced that is asleep: do all at once.
                imports = loop.thread(_warm)
                self.leases.wake()
                digest, identifier, size = await self._inspect(name)
                await imports
                found = self._loaded.get(digest)
                if found is None:
                    if digest not in self._loading and self.budget.held + size <= self.budget.ceiling:
                        self.leases.ahead(size)
                    found = await self._once(self._loading, digest, self._load(identifier, digest))
            except MemoryError as error:
                reason = str(error) or "the system gives no more"
                raise CannotLoad(f"{name} cannot be loaded, memory ran out: {reason}") from None
            except BaseException:
                self.leases.settle_soon()
                raise
            finally:
                self.leases.rest()
            self._names[name] = (digest, monotonic())
            self._touch(found)
            return found

    async def _load(self, identifier: str, digest: str) -> Loaded:
        from syntrop.runtimed import loading
        from syntrop.runtimed.processors import cores

        threads = self._threads or cores()
        files = await self._open(digest)
        size = sum(size for _, size in files.values())
        try:
            await self._make_room(identifier, size)
        except BaseException:
            for handle, _ in files.values():
                os.close(handle)
            raise
        started = monotonic()
        try:
            how = loading.How(threads, self._level, self._context_max, self._kv_type)
            model = await loop.thread(_load, files, identifier, digest, how)
        except loading.LoadError as error:
            self.budget.give_weights(size)
            raise CannotLoad(str(error)) from None
        except BaseException:
            self.budget.give_weights(size)
            raise
        await self._account(model, size)
        self._loaded[digest] = model
        if threads != (self._threads or cores()):
            await self._follow_threads(model)
        journal.info(
            f"Loaded {identifier}: {model.model.memory_bytes} bytes, {model.model.level}, "
            f"{threads} threads, in {monotonic() - started:.3f} s"
        )
        return model

    @property
    def budget(self) -> Budget:
        if self._budget is None:
            from syntrop.runtimed import memory
            from syntrop.runtimed.model.kv import UNLIMITED, Budget

            limit = self._memory_max
            if not limit:
                available = memory.available()
                limit = UNLIMITED if available is None else int(available * memory.SHARE)
            self._budget = Budget(limit, self._prefixes_max or int(limit * memory.PREFIX_SHARE))
            self.leases.budget = self._budget
        return self._budget

    async def _make_room(self, name: str, size: int, *, place: bool = True) -> None:
        """Room for so many bytes, which are leased and taken, and (place) for one more model. Raises NoRoom."""
        from syntrop.runtimed.model.errors import OverBudget

        while True:
            # Those that are being loaded besides this one count too.
            there = len(self._loaded) + len(self._loading) - 1
            if there < self._models_max or not place:
                try:
                    if self.budget.held + size > self.budget.ceiling:
                        raise OverBudget(size, self.budget.held, self.budget.limit)
                    await self.leases.cover(size)
                    self.budget.take_weights(size)
                    return
                except OverBudget as error:
                    reason = f"{name} does not fit beside the models and caches that are at work: {error.reason}"
                except Refused as error:
                    reason = f"{name} does not fit: {error}"
                    if error.pressed:
                        raise NoRoom(reason) from None
            else:
                reason = f"{there} of {self._models_max} models are loaded, and all are at work or have adapters"
            idle = self._idle()
            if idle is None:
                raise NoRoom(reason)
            await self.unload(idle)

    def _idle(self) -> Loaded | None:
        """Of the models that nobody uses the one that was used longest ago."""
        return next((one for one in self._loaded.values() if not one.users and one.attached is None), None)

    async def _account(self, model: Loaded, size: int) -> None:
        """Count what the model takes in place of its file's size. Raises NoRoom, when the model is gone again."""
        self.budget.give_weights(size)
        actual: int = model.model.memory_bytes
        try:
            await self._make_room(model.name, actual)
        except BaseException:
            await loop.thread(model.close)
            raise
        self._weights[model.digest] = actual
        pool = getattr(model.model, "kv", None)
        if pool is not None:
            pool.join(self.budget)

    def _touch(self, model: Loaded) -> None:
        if model.digest in self._loaded:
            self._loaded[model.digest] = self._loaded.pop(model.digest)

    def _check_later(self, name: str) -> None:
        known = self._names.get(name)
        if known is not None and monotonic() - known[1] > CHECK_AFTER and name not in self._checking:
            self._checking.add(name)
            loop.spawn(self._check(name), f"check {name}")

    async def _check(self, name: str) -> None:
        try:
            digest, *_ = await self._inspect(name)
            if name in self._names:
                self._names[name] = (digest, monotonic())
        except NoSuchModel:
            self._names.pop(name, None)
        except CannotLoad as error:
            journal.warning(f"Could not check what {name} means: {error}")
        finally:
            self._checking.discard(name)

    # --- modeld ---------------------------------------------------------------------------------------------

    async def _open(self, digest: str) -> dict[str, tuple[int, int]]:
        """Path to descriptor and size, of the files that a model needs; the path of a single file is empty."""
        whole = await self._file({"id": digest})
        if os.pread(whole[0], 1, 0) != b"{":
            return {"": whole}
        from syntrop.runtimed import folder

        paths = await loop.thread(folder.manifest, *whole)
        if paths is None:
            return {"": whole}
        os.close(whole[0])
        opened: dict[str, tuple[int, int]] = {}
        try:
            for path in folder.needed(paths):
                opened[path] = await self._file({"id": digest, "file": path})
        except BaseException:
            for handle, _ in opened.values():
                os.close(handle)
            raise
        return opened

    async def _file(self, parameters: dict[str, Any]) -> tuple[int, int]:
        with await self._call("Open", parameters) as reply:
            size: int = reply.parameters["size"]
            return reply.take_fd(reply.parameters["fd"]), size

    async def _inspect(self, name: str) -> tuple[str, str, int]:
        """Digest, identifier and bytes of what a name means."""
        with await self._call("Inspect", {"id": name}) as reply:
            info = reply.parameters["info"]
            return info["digest"], info["id"], info["size_bytes"]

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        from syntrop.common.varlink.client import connect

        client: Client | None = None
        try:
            client = await connect(paths.endpoint(MODEL), timeout=self._timeout)
            return await client.call(f"{MODEL}.{method}", parameters, timeout=self._timeout)
        except VarlinkError as error:
            if error.name in ("NoSuchModel", "InvalidIdentifier"):
                raise NoSuchModel(parameters["id"]) from None
            raise CannotLoad(f"the model store failed: {error}") from None
        except (OSError, TimeoutError, ConnectionLost, InvalidReply) as error:
            raise CannotLoad(f"the model store cannot be reached: {error}") from None
        finally:
            if client is not None:
                client.close()


def _told(task: loop.Future[Any]) -> None:
    """A refusal goes to those who wait for the task; where all have left, it is no fault of ours to be logged."""
    task.forgive(NoSuchModel, CannotLoad, NoRoom, NoAdapter, MemoryError)


def _warm() -> None:
    from syntrop.runtimed import loading

    loading.warm()


def _load(files: dict[str, tuple[int, int]], identifier: str, digest: str, how: How) -> Loaded:
    from syntrop.runtimed import loading

    if "" in files:
        return loading.load(*files[""], name=identifier, digest=digest, how=how)
    return loading.load_folder(files, name=identifier, digest=digest, how=how)
