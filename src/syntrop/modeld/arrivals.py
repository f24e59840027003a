# SPDX-License-Identifier: Apache-2.0
"""Files on their way here by modeld-pull, which alone can reach the network: each once, whoever waits for it.

Models share files, and one may be in a model twice. The puller is not trusted: it gets the writing end of a pipe;
what comes out at this end is hashed as it is written, and is of use only under the digest that was asked for, or
under its own.
"""

from __future__ import annotations

import fcntl
import os
from time import monotonic

from syntrop.common import journal, loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import InvalidReply, VarlinkError
from syntrop.modeld import folder, naming
from syntrop.modeld.bucket import Bucket
from syntrop.modeld.faults import DigestMismatch, InUse
from syntrop.modeld.incoming import Incoming
from syntrop.modeld.pieces import Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from syntrop.common.varlink.client import Client
    from syntrop.modeld.room import Promise
    from syntrop.modeld.store import Store

    T = TypeVar("T")

ENDPOINT = "io.syntrop.Fetch1"
PIPE_BYTES = 1 << 20
ROOM_BYTES = 64 << 20  # of a file of unknown size: how far ahead room is made for it
TURNS = 3  # how often a file is begun anew when its content changes


class PullFailed(Exception):
    """The model could not be fetched; the text says why."""


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

    @property
    def source(self) -> str:
        """What two files have in common that are one."""
        return naming.digest_id(self.digest) if self.digest else self.url


class Arrival:
    """A file on its way, or here but not stored yet, and how many wait for it or use it."""

    def __init__(self, arrivals: Arrivals, remote: Remote) -> None:
        self.remote = remote
        self.phase = "verifying"
        self.received = 0
        self.total: int | None = None
        self.askers = 0
        self.wanted = True
        self.useless = False
        self.incoming: Incoming | None = None
        self.promise: Promise | None = None
        self.over: loop.Future[None] = loop.Future()
        self.task = loop.spawn(arrivals.run(self), f"fetch {remote.source}")


class Arrivals:
    """All that is on its way to a store. `rate` in bytes a second, 0 for no limit, holds for all together."""

    def __init__(self, store: Store, rate: int) -> None:
        self._store = store
        self._bucket = Bucket(rate)
        self._present: dict[str, Arrival] = {}

    async def join(self, remote: Remote) -> Arrival:
        """The arrival of a file, which is begun if nobody waits for it yet. Who joins leaves (`leave`)."""
        while (present := self._present.get(remote.source)) is not None:
            if present.askers:
                break
            await present.over
        else:
            present = self._present[remote.source] = Arrival(self, remote)
        present.askers += 1
        return present

    async def leave(self, arrival: Arrival, *, useless: bool = False) -> None:
        """The last one who leaves ends it. What has arrived is kept for another time, unless it is of no use."""
        arrival.askers -= 1
        arrival.useless |= useless
        if arrival.askers:
            return
        try:
            if not arrival.task.done:
                arrival.wanted = False
                await loop.stop(arrival.task)
        finally:
            if arrival.promise is not None:
                self._store.release(arrival.promise)
            incoming, arrival.incoming = arrival.incoming, None
            try:
                if incoming is not None:
                    await whole(incoming.discard if arrival.useless else incoming.close)
            except OSError as error:
                journal.info(f"What has arrived of {arrival.remote.source} cannot be kept: {error}")
            finally:
                self._forget(arrival)
                arrival.over.set_result(None)

    async def run(self, arrival: Arrival) -> Piece:
        """Have the file: a piece of a model, open for as long as somebody uses it. Raises what a caller should."""
        try:
            return await self._fetch(arrival)
        except BaseException:
            self._forget(arrival)  # whoever comes now has it begun anew
            raise

    def _forget(self, arrival: Arrival) -> None:
        if self._present.get(arrival.remote.source) is arrival:
            del self._present[arrival.remote.source]

    async def _fetch(self, arrival: Arrival) -> Piece:
        remote = arrival.remote
        incoming = arrival.incoming = await _opened(self._store.incoming, remote.source)
        await whole(incoming.resume, lambda: arrival.wanted)
        for turn in range(1, TURNS + 1):
            resumed = arrival.received = incoming.size
            arrival.phase = "downloading"
            if not (remote.digest and incoming.size == remote.size):
                client = await varlink.connect(paths.endpoint(ENDPOINT))
                try:
                    await self._stream(client, arrival, incoming)
                except VarlinkError as error:
                    if error.error != f"{ENDPOINT}.Changed" or turn == TURNS:
                        raise
                    await whole(incoming.restart)
                    continue
                finally:
                    client.close()
            digest = incoming.digest()
            if remote.digest in (None, digest):
                return Piece("", incoming.handle, incoming.path, digest, incoming.size)
            # Nothing of it can be used: neither of what came now, nor of what was there before.
            await whole(incoming.restart)
            if not resumed or turn == TURNS:
                raise DigestMismatch(naming.digest_id(remote.digest or ""), naming.digest_id(digest))
        raise AssertionError("the last turn ends one way or the other")

    async def _stream(self, client: Client, arrival: Arrival, incoming: Incoming) -> None:
        """Let the bytes of a file come in, from where it is."""
        file = arrival.remote
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
                await whole(incoming.restart)
                arrival.received = 0
            incoming.validator, incoming.total = head.get("validator"), total
            limit = file.size if file.size is not None else total
            arrival.total = total
            await self._promise(arrival, incoming, limit)
            ending = loop.spawn(_exhaust(replies), "end of a file")
            await self._drain(reading, arrival, incoming, limit)
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

    async def _promise(self, arrival: Arrival, incoming: Incoming, limit: int | None) -> None:
        """Have room for the file kept, as far as its size is known."""
        if arrival.promise is not None:
            self._store.release(arrival.promise)  # of a turn before this one
        there = incoming.size

        def promise() -> None:
            arrival.promise = self._store.promise(max(there, limit or 0), there)

        await whole(promise)

    async def _drain(self, pipe: int, arrival: Arrival, incoming: Incoming, limit: int | None) -> None:
        """Write what comes out of the pipe, no faster than it may come, until its other end is closed."""
        promise = arrival.promise
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
            if promise is not None and limit is None and promise.left < len(data):
                await whole(self._store.enlarge, promise, max(len(data), min(incoming.size, ROOM_BYTES)))
            await whole(incoming.append, data)
            if promise is not None:
                promise.came(len(data))
            arrival.received = incoming.size
            delay = self._bucket.take(len(data), monotonic())
            if delay:
                await loop.sleep(delay)


async def _exhaust(replies: Any) -> None:
    async for _ in replies:
        pass


async def whole(function: Callable[..., T], *arguments: Any) -> T:
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
