# SPDX-License-Identifier: Apache-2.0
"""Downloads: one for all who ask for the same, by way of modeld-pull, which alone can reach the network.

The puller is not trusted. It gets the writing end of a pipe; what comes out at this end is hashed as it is
written, and becomes a model only under the digest that was asked for, or under its own.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic

from syntrop.common import journal, loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.modeld import folder, manifest, naming
from syntrop.modeld.bucket import Bucket
from syntrop.modeld.faults import DigestMismatch, InUse
from syntrop.modeld.incoming import Incoming
from syntrop.modeld.pieces import Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.client import Client
    from syntrop.modeld.catalogue import Entry
    from syntrop.modeld.store import Store

    T = TypeVar("T")

ENDPOINT = "io.syntrop.Fetch1"
RESOLVE_SEC = 600.0  # a source may be tried several times
PIPE_BYTES = 1 << 20
ROOM_BYTES = 64 << 20  # of a file of unknown size: how often it is looked whether there still is room
TURNS = 3  # how often a file is begun anew when its content changes

Key = tuple[str, str | None, str | None, str | None]
"""Reference, format, quantization, expected digest."""


class PullFailed(Exception):
    """The model could not be fetched; the text says why."""


class Download:
    """One download and those who wait for it."""

    def __init__(self, pulls: Pulls, key: Key) -> None:
        self.key = key
        self.phase = "resolving"
        self.received = 0
        self.total: int | None = None
        self.name: str | None = None
        self.tag: str | None = None
        self.askers = 0
        self.wanted = True
        self.task = loop.spawn(pulls.run(self), f"pull {key[0]}")

    @property
    def state(self) -> dict[str, Any]:
        return {"phase": self.phase, "received_bytes": self.received, "total_bytes": self.total}

    def join(self) -> Download:
        self.askers += 1
        return self

    async def leave(self) -> None:
        """The last one who leaves a download that still runs ends it; what has arrived is kept."""
        self.askers -= 1
        if not self.askers and not self.task.done:
            self.wanted = False
            await loop.stop(self.task)


class Remote:
    """A file as the puller told of it, looked over."""

    __slots__ = ("digest", "path", "size", "url")

    def __init__(self, row: dict[str, Any]) -> None:
        self.path = naming.parse_path(row["path"])
        self.url: str = row["url"]
        self.digest = naming.parse_digest(row["digest"]) if row.get("digest") else None
        self.size: int | None = row.get("size")
        if not folder.is_wanted(self.path) or (self.size is not None and self.size < 0):
            raise naming.InvalidIdentifier(self.path)


class Pulls:
    """All downloads of a store."""

    def __init__(self, store: Store, daemon: Daemon, rate: int) -> None:
        self._store = store
        self._daemon = daemon
        self._bucket = Bucket(rate)
        self._running: dict[Key, Download] = {}

    async def join(self, key: Key) -> Download:
        """The download of this, which is begun if nobody asked for it yet. Who joins leaves (`leave`)."""
        while (present := self._running.get(key)) is not None:
            if present.askers:
                return present.join()
            await loop.stop(present.task)  # nobody wants it any more, and it is about to end
        self._running[key] = download = Download(self, key)
        return download.join()

    async def run(self, download: Download) -> Entry:
        """The whole of a download. Raises PullFailed and what the store raises."""
        reference = download.key[0]
        try:
            with self._daemon.busy():
                return await self._run(download)
        except VarlinkError as error:
            where = f"{error.parameters['url']}: " if error.parameters.get("url") else ""
            raise PullFailed(where + str(error.parameters.get("reason", error))) from None
        except (ConnectionLost, InvalidReply, TimeoutError) as error:
            raise PullFailed(f"modeld-pull failed: {error}") from None
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise PullFailed(f"modeld-pull.socket is not there: {error}") from None
        except InUse:
            raise PullFailed("another process downloads the same") from None
        finally:
            if self._running.get(download.key) is download:
                del self._running[download.key]
            journal.debug(f"The download of {reference} has ended")

    async def _run(self, download: Download) -> Entry:
        reference, format, quantization, expected = download.key
        client = await varlink.connect(paths.endpoint(ENDPOINT))
        pieces: list[Piece] = []
        arrived: list[Incoming] = []
        useless = False  # what has arrived: because it is stored, or cannot be
        try:
            asked = {"reference": reference, "format": format, "quantization": quantization}
            with await client.call(f"{ENDPOINT}.Resolve", asked, timeout=RESOLVE_SEC) as reply:
                files = _remotes(reply.parameters["files"])
                download.name = naming.derive(reply.parameters["name"], "model")
                download.tag = naming.derive(reply.parameters["tag"], naming.LATEST)
            alone = len(files) == 1 and files[0].path.endswith((".gguf", ".safetensors"))
            if alone:
                files[0].path = ""
                if expected is not None and files[0].digest not in (None, expected):
                    raise DigestMismatch(naming.digest_id(expected), naming.digest_id(files[0].digest or ""))
                files[0].digest = expected or files[0].digest
            if all(one.size is not None for one in files):
                download.total = sum(one.size or 0 for one in files)
            await _whole(self._store.prepare)
            for file in files:
                piece = await _whole(self._stored, file)
                if piece is None:
                    await self._fetch(client, file, download, pieces, arrived)
                else:
                    pieces.append(piece)
                    download.received += piece.size
            download.phase = "verifying"
            useless = True
            entry = await _whole(self._store.store, pieces, None, None, None, expected)
            download.phase = "done"
            return entry
        except OSError:
            useless = False  # it was the disk: what has arrived is good for another time
            raise
        finally:
            client.close()
            handles = {one.handle for one in arrived}
            for one in arrived:
                await loop.thread(one.discard if useless else one.close)
            for piece in pieces:
                # A piece that arrived is its download's to close, which has just happened.
                if piece.temporary is None and piece.handle not in handles:
                    os.close(piece.handle)

    def _stored(self, file: Remote) -> Piece | None:
        """A file that the store has already; open, so that nobody removes it meanwhile."""
        if file.digest is None:
            return None
        try:
            path = os.path.join(self._store.blobs, file.digest)
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        status = os.fstat(handle)
        if not status.st_nlink:  # pruned while we waited for it
            os.close(handle)
            return None
        return Piece(file.path, handle, None, file.digest, status.st_size)

    async def _fetch(
        self, client: Client, file: Remote, download: Download, pieces: list[Piece], arrived: list[Incoming]
    ) -> None:
        """Have one file. It is entered into `arrived` at once, so that it is closed whatever happens."""
        source = naming.digest_id(file.digest) if file.digest else file.url
        incoming = await _opened(self._store.incoming, source)
        arrived.append(incoming)
        download.phase = "verifying"
        before = download.received
        await _whole(incoming.resume, lambda: download.wanted)
        for turn in range(1, TURNS + 1):
            resumed = incoming.size
            download.received = before + incoming.size
            download.phase = "downloading"
            if not (file.digest and incoming.size == file.size):
                try:
                    await self._stream(client, file, incoming, download, before)
                except VarlinkError as error:
                    if error.error != f"{ENDPOINT}.Changed" or turn == TURNS:
                        raise
                    await _whole(incoming.restart)
                    continue
            digest = incoming.digest()
            if file.digest in (None, digest):
                pieces.append(Piece(file.path, incoming.handle, incoming.path, digest, incoming.size))
                return
            # Nothing of it can be used: neither of what came now, nor of what was there before.
            await _whole(incoming.restart)
            if not resumed or turn == TURNS:
                raise DigestMismatch(naming.digest_id(file.digest or ""), naming.digest_id(digest))

    async def _stream(
        self, client: Client, file: Remote, incoming: Incoming, download: Download, before: int
    ) -> None:
        """Let the bytes of a file come in, from where it is."""
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        parameters = {
            "url": file.url,
            "fd": 0,
            "offset": incoming.size,
            "validator": incoming.validator,
            "verified": file.digest is not None,
        }
        try:
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # more than this user may have: a smaller one is slower, no more
        replies = client.stream(f"{ENDPOINT}.Fetch", parameters, fds=[writing], timeout=None)
        ending: loop.Task[None] | None = None
        try:
            try:
                head = (await anext(replies)).parameters
            finally:
                os.close(writing)
            offset, total = head.get("offset"), head.get("total_bytes")
            if offset not in (0, incoming.size):
                raise InvalidReply("modeld-pull began at another byte than it was asked for")
            if offset == 0 and incoming.size:
                await _whole(incoming.restart)
                download.received = before
            incoming.validator, incoming.total = head.get("validator"), total
            limit = file.size if file.size is not None else total
            if download.total is None and total is not None:
                download.total = before + total
            await _whole(self._store.make_room, max(0, (limit or 0) - incoming.size))
            ending = loop.spawn(_exhaust(replies), "end of a file")
            await self._drain(reading, incoming, download, limit)
            await ending
        except BaseException:
            if ending is None:
                client.close()
            raise
        finally:
            loop.forget(reading)
            os.close(reading)
            if ending is not None and not ending.done:
                client.close()
                await loop.stop(ending)

    async def _drain(self, pipe: int, incoming: Incoming, download: Download, limit: int | None) -> None:
        """Write what comes out of the pipe, no faster than it may come, until its other end is closed."""
        unchecked = 0
        while True:
            try:
                data = os.read(pipe, PIPE_BYTES)
            except BlockingIOError:
                await loop.readable(pipe)
                continue
            if not data:
                return
            if limit is not None and incoming.size + len(data) > limit:
                raise PullFailed(f"more came than the {limit} bytes that the source had told")
            unchecked += len(data)
            if limit is None and unchecked > ROOM_BYTES:
                await _whole(self._store.make_room, ROOM_BYTES)
                unchecked = 0
            await _whole(incoming.append, data)
            download.received += len(data)
            delay = self._bucket.take(len(data), monotonic())
            if delay:
                await loop.sleep(delay)


async def _exhaust(replies: Any) -> None:
    async for _ in replies:
        pass


async def _whole(function: Callable[..., T], *arguments: Any) -> T:
    """Run in a worker thread, and let it end even when we are told to go: what it uses is closed afterwards."""
    future = loop.thread(function, *arguments)
    try:
        return await future
    except loop.Cancelled:
        if not future.done:
            ended: loop.Future[None] = loop.Future()
            future.when_done(lambda _done: ended.set_result(None))
            await ended
        raise


async def _opened(place: str, source: str) -> Incoming:
    """An open download; one that its last owner is about to leave is waited for. Raises InUse."""
    deadline = monotonic() + 5.0
    while True:
        opening = loop.thread(Incoming, place, source)
        try:
            return await opening
        except loop.Cancelled:
            opening.when_done(_close)
            raise
        except InUse:
            if monotonic() > deadline:
                raise
            await loop.sleep(0.05)


def _close(opened: loop.Future[Incoming]) -> None:
    try:
        opened.result().close()
    except (OSError, InUse):
        pass  # nothing came of it


def _remotes(rows: list[dict[str, Any]]) -> list[Remote]:
    """Raises PullFailed."""
    try:
        files = [Remote(row) for row in rows]
    except naming.InvalidIdentifier as error:
        raise PullFailed(f"the source has a file that no model has: {error.identifier[:200]!r}") from None
    if not 0 < len(files) <= manifest.FILES_MAX or len({one.path for one in files}) < len(files):
        raise PullFailed(f"the source has {len(files)} files, or one twice")
    return files
