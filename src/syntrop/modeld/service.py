# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Model1`: the store, as others call it. Whatever touches the disk runs in a worker thread."""

from __future__ import annotations

import os

from syntrop.common import loop, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.modeld import naming
from syntrop.modeld.store import DigestMismatch, Entry, NoSuchModel, Store, Unsuitable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Model1."


class Model1:
    """Handler of the interface."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._store = Store(daemon.settings.storage_path or paths.state("modeld"))

    async def List(self, call: Call) -> dict[str, Any]:
        entries = await self._in_store(self._store.entries)
        return {"models": [_entry(entry) for entry in entries]}

    async def Inspect(self, call: Call, id: str) -> dict[str, Any]:
        identifier = _parse(id)
        entry = await self._in_store(self._store.find, identifier)
        return await self._described(entry, "info")

    async def Open(self, call: Call, id: str) -> dict[str, Any]:
        handle, size, digest = await self._in_store(self._store.open, _parse(id), dispose=_close_first)
        return {"fd": call.give_fd(handle), "size": size, "digest": naming.digest_id(digest)}

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
        copy = _Copy(self._store, handle, name, tag, expected)
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
        reclaimed, removed = await self._in_store(self._store.prune, max_bytes)
        return {"reclaimed_bytes": reclaimed, "removed": [naming.digest_id(one) for one in removed]}

    async def GetStorageStats(self, call: Call) -> dict[str, Any]:
        total, models, pinned = await self._in_store(self._store.stats)
        return {"total_bytes": total, "model_count": models, "pinned_count": pinned}

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
        return {field: _entry(entry), "metadata": json.dumps(metadata, ensure_ascii=False)}

    async def _in_store(
        self,
        function: Callable[..., T],
        *arguments: Any,
        parameter: str = "fd",
        dispose: Callable[[T], object] | None = None,
    ) -> T:
        """Run a function of the store in a thread, its errors in the interface's terms."""
        try:
            return await _in_thread(function, *arguments, dispose=dispose)
        except NoSuchModel as error:
            raise VarlinkError(_INTERFACE + "NoSuchModel", id=error.identifier) from None
        except Unsuitable as error:
            raise _invalid(parameter, str(error)) from None
        except DigestMismatch as error:
            raise VarlinkError(
                _INTERFACE + "DigestMismatch", expected=error.expected, actual=error.actual
            ) from None
        except OSError as error:
            from syntrop.common import journal

            reason = error.strerror or str(error)
            journal.error(f"The store failed: {error}", ERRNO=error.errno)
            raise VarlinkError(_INTERFACE + "OperationFailed", reason=reason) from None


class _Copy:
    """A registration in a worker thread, which owns the descriptor: an asker who hangs up cannot close it."""

    def __init__(self, store: Store, handle: int, name: str | None, tag: str | None, expected: str | None) -> None:
        self.wanted = True
        self._store = store
        self._handle = handle
        self._arguments = (name, tag, expected)

    def run(self) -> Entry:
        """Raises what the store raises; Stopped only when there is nobody left to see it."""
        try:
            return self._store.register(self._handle, *self._arguments, lambda: self.wanted)
        finally:
            os.close(self._handle)


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
    try:
        expected = naming.parse_digest(digest) if digest is not None else None
    except naming.InvalidIdentifier:
        raise _invalid("digest", "not sha256: and 64 hexadecimal digits") from None
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


async def _open(path: str) -> int:
    """A file by path, as far as the daemon itself may read it."""
    if not path.startswith("/") or "\0" in path:
        raise _invalid("path", "not an absolute path")
    try:
        # Neither a FIFO nor a device may hold us up; both are refused once they are open.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return await _in_thread(os.open, path, flags, dispose=os.close)
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


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "digest": naming.digest_id(entry.digest),
        "name": entry.name,
        "tag": entry.tag,
        "size_bytes": entry.size,
        "pinned": entry.pinned,
        "format": entry.format,
    }
