# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Model1`: the store, as others call it. Whatever touches the disk runs in a worker thread."""

from __future__ import annotations

import os

from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.modeld import naming, opening
from syntrop.modeld.catalogue import Entry
from syntrop.modeld.faults import DigestMismatch, NoSuchModel, OutOfSpace, Unsuitable
from syntrop.modeld.keeping import Keeping
from syntrop.modeld.rows import Listing, row
from syntrop.modeld.sealed import Cache, cut
from syntrop.modeld.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.modeld.fsck import Report
    from syntrop.modeld.pulls import Pulls

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Model1."
PROGRESS_SEC = 0.25  # between two replies that tell how far it is


class Model1:
    """Handler of the interface."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        settings = daemon.settings
        self._store = Store(
            settings.storage_path or paths.state("modeld"),
            quota=settings.quota_bytes,
            floor=settings.free_floor_bytes,
        )
        self._sealed = Cache(settings.sealed_cache_bytes)
        self._sealing: dict[tuple[str, int, int], _Sealing] = {}
        self._pulls: Pulls | None = None
        self._listing = Listing(self._store)
        self._keeping = Keeping(daemon, self._listing)

    async def List(self, call: Call) -> dict[str, Any]:
        return await self._in_store(self._listing.answer)

    async def Inspect(self, call: Call, id: str) -> dict[str, Any]:
        identifier = _parse(id)
        entry = await self._in_store(self._store.find, identifier)
        return await self._described(entry, "info")

    async def Open(self, call: Call, id: str, file: str | None = None) -> dict[str, Any]:
        handle, size, digest = await self._opened(id, file)
        return {"fd": call.give_fd(handle), "size": size, "digest": naming.digest_id(digest)}

    async def OpenSealed(
        self,
        call: Call,
        id: str,
        offset: int,
        length: int,
        file: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        # The memory is ours until the last holder closes it: not for everybody to have as much of as they like.
        await _authorize(call, id, allowInteractiveAuthentication)
        if offset < 0:
            raise _invalid("offset", "before the start")
        largest = self._daemon.settings.sealed_max_bytes
        if not 0 < length <= largest:
            raise _invalid("length", f"{length} bytes; from 1 to {largest} can be had in one piece")
        source, size, digest = await self._opened(id, file)
        try:
            if offset + length > size:
                raise _invalid("length", f"{offset} + {length} bytes of a file of {size}")
            handle = await self._part((digest, offset, length), source)
        finally:
            os.close(source)
        return {"fd": call.give_fd(handle), "size": length, "digest": naming.digest_id(digest)}

    async def Import(
        self,
        call: Call,
        id: str,
        files: list[dict[str, Any]] | None = None,
        fd: int | None = None,
        path: str | None = None,
        digest: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        await _authorize(call, id, allowInteractiveAuthentication)
        name, tag, expected = _destination(id, None, digest)
        if [files, fd, path].count(None) != 2:
            raise _invalid("path", "exactly one of files, fd and path is to be given")
        copy = _Copy(self._store, name, tag, expected)
        parameter = "files" if files is not None else "fd" if fd is not None else "path"
        try:
            if files is not None:
                for one in files:
                    copy.add(_file_path(one["path"]), call.take_fd(one["fd"]))
            elif fd is not None:
                copy.add("", call.take_fd(fd))
            else:
                opened = await self._in_store(
                    opening.tree, _absolute(path or ""), parameter="path", dispose=opening.close
                )
                for place, handle in opened.items():
                    copy.add(place, handle)
        except BaseException:
            copy.close()
            raise
        with self._daemon.busy():
            try:
                future = loop.thread(copy.run)
                await _report(call, future, copy.progress)
                entry = await self._told(future, parameter)
            finally:
                copy.wanted = False
        return {**copy.progress(), **await self._described(entry, "entry")}

    async def Pull(
        self,
        call: Call,
        reference: str,
        id: str | None = None,
        format: str | None = None,
        quantization: str | None = None,
        digest: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        await _authorize(call, id or reference, allowInteractiveAuthentication)
        if not self._daemon.settings.allow_pulls:
            raise VarlinkError(_INTERFACE + "PullFailed", reference=reference, reason="allow_pulls is off")
        if format not in (None, "gguf", "safetensors"):
            raise _invalid("format", "neither gguf nor safetensors")
        name, tag, expected = _destination(id, None, digest) if id is not None else (None, None, _digest(digest))
        from syntrop.modeld.arrivals import PullFailed
        from syntrop.modeld.pulls import Pulls

        if self._pulls is None:
            self._pulls = Pulls(self._store, self._daemon, self._daemon.settings.bandwidth_bytes_per_sec)
        download = await self._pulls.join((reference, format, quantization, expected))
        try:
            await _report(call, download.task, lambda: download.state)
            entry: Entry = await self._told(download.task)
        except PullFailed as error:
            raise VarlinkError(_INTERFACE + "PullFailed", reference=reference, reason=str(error)) from None
        finally:
            await download.leave()
        if id is None:
            name, tag = download.name, download.tag
        if name is not None and tag is not None:
            entry = await self._in_store(self._store.tag, entry.digest, name, tag)
        return {**download.state, "entry": row(entry)}

    async def Register(
        self,
        call: Call,
        id: str,
        tag: str | None = None,
        digest: str | None = None,
        fd: int | None = None,
        path: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        await _authorize(call, id, allowInteractiveAuthentication)
        name, tag, expected = _destination(id, tag, digest)
        if fd is not None and path is not None:
            raise _invalid("path", "given beside a descriptor")
        if fd is None and path is None:
            return await self._described(await self._tag_stored(id, name, tag, expected), "entry")
        parameter = "fd" if fd is not None else "path"
        handle = call.take_fd(fd) if fd is not None else await _open(path or "")
        copy = _Copy(self._store, name, tag, expected)
        copy.add("", handle)
        try:
            with self._daemon.busy():
                entry = await self._in_store(copy.run, parameter=parameter)
        finally:
            copy.wanted = False
        return await self._described(entry, "entry")

    async def Pin(self, call: Call, id: str, allowInteractiveAuthentication: bool | None = None) -> dict[str, Any]:
        await _authorize(call, id, allowInteractiveAuthentication)
        await self._in_store(self._store.pin, _parse(id))
        return {}

    async def Unpin(
        self, call: Call, id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        await _authorize(call, id, allowInteractiveAuthentication)
        await self._in_store(self._store.unpin, _parse(id))
        return {}

    async def Prune(
        self, call: Call, max_bytes: int, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        await _authorize(call, None, allowInteractiveAuthentication)
        if max_bytes < 0:
            raise _invalid("max_bytes", "less than nothing")
        reclaimed, removed = await self._in_store(self._store.prune_entries, max_bytes)
        await self._keeping.now()  # of all that went, nothing is looked for by who asks next
        _tell_removed(removed)
        return {
            "reclaimed_bytes": reclaimed,
            "removed": [naming.digest_id(one.digest) for one in removed],
            "entries": [row(one) for one in removed],
        }

    async def Check(self, call: Call, allowInteractiveAuthentication: bool | None = None) -> dict[str, Any]:
        await _authorize(call, None, allowInteractiveAuthentication)
        from syntrop.modeld import fsck

        state: dict[str, Any] = {"checked_bytes": 0, "total_bytes": 0, "damaged": []}
        wanted = [True]

        def progress(report: Report) -> None:
            state["checked_bytes"], state["total_bytes"] = report.checked, report.total
            state["damaged"] = [naming.digest_id(one) for one in report.models]

        with self._daemon.busy():
            try:
                future = loop.thread(fsck.check, self._store, lambda: wanted[0], progress)
                await _report(call, future, lambda: dict(state))
                report = await self._told(future)
            finally:
                wanted[0] = False
        progress(report)
        await self._keeping.now()
        for digest in report.files:
            journal.error(f"Put a damaged file into quarantine: {naming.digest_id(digest)}", DIGEST=digest)
        return state

    async def GetStorageStats(self, call: Call) -> dict[str, Any]:
        total, models, pinned = await self._in_store(self._store.stats)
        return {
            "total_bytes": total,
            "model_count": models,
            "pinned_count": pinned,
            "quota_bytes": self._store.quota or None,
            "free_bytes": await self._in_store(self._store.free),
            "floor_bytes": self._store.floor,
        }

    async def _opened(self, id: str, file: str | None) -> tuple[int, int, str]:
        return await self._in_store(self._store.open, _parse(id), _file_path(file), dispose=_close_first)

    async def _part(self, part: tuple[str, int, int], source: int) -> int:
        """A descriptor of a part, copied once for all who ask for it, even at once."""
        handle = self._sealed.get(part)
        if handle is not None:
            return handle
        sealing = self._sealing.get(part)
        if sealing is None:
            sealing = self._sealing[part] = _Sealing(loop.thread(cut, os.dup(source), *part[1:]))
        sealing.askers += 1
        try:
            shared = await self._told(sealing.future)
            self._sealed.put(part, shared)
            return os.dup(shared)
        finally:
            sealing.askers -= 1
            if not sealing.askers:
                del self._sealing[part]
                sealing.future.when_done(lambda done: _dispose(done, os.close))

    async def _tag_stored(self, id: str, name: str | None, tag: str | None, digest: str | None) -> Entry:
        """Name a model that is in the store already."""
        if digest is None:
            try:
                return await self._in_store(self._store.find, naming.Identifier(name=name or "", tag=tag))
            except VarlinkError:
                raise _invalid("fd", f"needed: {id} is not in the store") from None
        if name is None or tag is None:
            return await self._in_store(self._store.find, naming.Identifier(digest=digest))
        return await self._in_store(self._store.tag, digest, name, tag)

    async def _described(self, entry: Entry, field: str) -> dict[str, Any]:
        import json

        metadata = await self._in_store(self._store.metadata, entry.digest)
        return {field: row(entry), "metadata": json.dumps(metadata, ensure_ascii=False)}

    async def _in_store(
        self,
        function: Callable[..., T],
        *arguments: Any,
        parameter: str = "fd",
        dispose: Callable[[T], object] | None = None,
    ) -> T:
        """Run a function of the store in a thread, its errors in the interface's terms."""
        return await self._told(_in_thread(function, *arguments, dispose=dispose), parameter)

    async def _told(self, result: Awaitable[T], parameter: str = "fd") -> T:
        """A result of the store, its errors in the interface's terms."""
        try:
            told = await result
            self._keeping.soon()
            return told
        except NoSuchModel as error:
            raise VarlinkError(_INTERFACE + "NoSuchModel", id=error.identifier) from None
        except Unsuitable as error:
            raise _invalid(parameter, str(error)) from None
        except DigestMismatch as error:
            raise VarlinkError(
                _INTERFACE + "DigestMismatch", expected=error.expected, actual=error.actual
            ) from None
        except OutOfSpace as error:
            raise VarlinkError(
                _INTERFACE + "OutOfSpace",
                requested_bytes=error.requested,
                available_bytes=error.available,
                removable_bytes=error.removable,
                pinned_bytes=error.pinned,
                open_bytes=error.in_use,
                promised_bytes=error.promised or None,
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            journal.error(f"The store failed: {error}", ERRNO=error.errno)
            raise VarlinkError(_INTERFACE + "OperationFailed", reason=reason) from None


class _Sealing:
    """A part that is being copied, and how many wait for it."""

    __slots__ = ("askers", "future")

    def __init__(self, future: loop.Future[int]) -> None:
        self.future = future
        self.askers = 0


class _Copy:
    """A registration in a worker thread, which owns the descriptors: an asker who hangs up cannot close them."""

    def __init__(self, store: Store, name: str | None, tag: str | None, expected: str | None) -> None:
        self.wanted = True
        self._store = store
        self._files: dict[str, int] = {}
        self._arguments = (name, tag, expected)
        self._done = 0
        self._total = 0

    def add(self, path: str, handle: int) -> None:
        """Take a file over; an empty path is that of a single file."""
        if path in self._files:
            os.close(handle)
            raise _invalid("files", f"{path} is there twice")
        self._files[path] = handle
        self._total += os.fstat(handle).st_size

    def close(self) -> None:
        for handle in self._files.values():
            os.close(handle)
        self._files = {}

    def progress(self) -> dict[str, Any]:
        return {"done_bytes": self._done, "total_bytes": max(self._done, self._total)}

    def run(self) -> Entry:
        """Raises what the store raises; Stopped only when there is nobody left to see it."""
        try:
            if "" in self._files:
                return self._store.register(self._files[""], *self._arguments, lambda: self.wanted, self._copied)
            return self._store.register_folder(self._files, *self._arguments, lambda: self.wanted, self._copied)
        finally:
            self.close()

    def _copied(self, count: int) -> None:
        self._done += count


async def _report(call: Call, future: loop.Future[Any], state: Callable[[], dict[str, Any]]) -> None:
    """Tell a caller who asked for it how far it is, until it is done, well or not."""
    told: dict[str, Any] | None = None
    settled: loop.Future[None] = loop.Future()
    future.when_done(lambda _done: settled.set_result(None))
    while not settled.done:
        now = state()
        if call.more and now != told:
            await call.send(now)
            told = dict(now)
        try:
            with loop.deadline(PROGRESS_SEC if call.more else None):
                await settled
        except TimeoutError:
            pass  # time for the next report


async def _in_thread(
    function: Callable[..., T], *arguments: Any, dispose: Callable[[T], object] | None = None
) -> T:
    """Run in a worker thread; when the caller goes away meanwhile, `dispose` gets what comes of it."""
    future = loop.thread(function, *arguments)
    try:
        return await future
    except loop.Cancelled:
        if dispose is not None:
            future.when_done(lambda done: _dispose(done, dispose))
        raise


def _dispose(future: loop.Future[T], dispose: Callable[[T], object]) -> None:
    try:
        result = future.result()
    except Exception:
        return  # nothing came of it
    dispose(result)


def _close_first(opened: tuple[int, int, str]) -> None:
    os.close(opened[0])


def _destination(id: str, tag: str | None, digest: str | None) -> tuple[str | None, str | None, str | None]:
    """Name and tag to give, and digest to demand, of a registration."""
    identifier = _parse(id)
    expected = _digest(digest)
    if identifier.digest is not None:
        if tag is not None:
            raise _invalid("tag", "a digest takes none; give the name as id and the digest as digest")
        if expected not in (None, identifier.digest):
            raise _invalid("digest", "another one than the id")
        return None, None, identifier.digest
    if tag is not None:
        if not naming.is_tag(tag):
            raise VarlinkError(_INTERFACE + "InvalidIdentifier", id=tag)
        if identifier.tag not in (None, tag):
            raise _invalid("tag", "another one than in the id")
    return identifier.name, tag or identifier.tag or naming.LATEST, expected


def _digest(text: str | None) -> str | None:
    try:
        return naming.parse_digest(text) if text is not None else None
    except naming.InvalidIdentifier:
        raise _invalid("digest", "not sha256: and 64 hexadecimal digits") from None


def _file_path(text: T) -> T:
    """The path of a file of a model, or None, as it is."""
    try:
        if isinstance(text, str):
            naming.parse_path(text)
    except naming.InvalidIdentifier as error:
        raise VarlinkError(_INTERFACE + "InvalidIdentifier", id=error.identifier) from None
    return text


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise _invalid("path", "not an absolute path")
    return path


async def _open(path: str) -> int:
    """A file by path, as far as the daemon itself may read it."""
    _absolute(path)
    try:
        return await _in_thread(opening.file, path, dispose=os.close)
    except OSError as error:
        raise _invalid("path", error.strerror or str(error)) from None


async def _authorize(call: Call, id: str | None, interactive: bool | None) -> None:
    from syntrop.common import authority

    details = {"model": id[:256]} if id else {}
    await authority.authorize(call, interactive=interactive, details=details)


def _parse(id: str) -> naming.Identifier:
    try:
        return naming.parse(id)
    except naming.InvalidIdentifier:
        raise VarlinkError(_INTERFACE + "InvalidIdentifier", id=id) from None


def _invalid(parameter: str, reason: str) -> VarlinkError:
    return VarlinkError(_INTERFACE + "InvalidParameter", parameter=parameter, reason=reason)


def _tell_removed(entries: list[Entry]) -> None:
    for entry in entries:
        journal.notice(f"Removed {entry.id}, {entry.size} bytes", DIGEST=entry.digest)
