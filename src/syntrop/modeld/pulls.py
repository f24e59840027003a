# SPDX-License-Identifier: Apache-2.0
"""Downloads: one for all who ask for the same. A model consists of files, which `arrivals` has come, each once."""

from __future__ import annotations

import os

from syntrop.common import journal, loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.modeld import incoming, manifest, naming
from syntrop.modeld.arrivals import ENDPOINT, Arrival, Arrivals, PullFailed, Remote, whole
from syntrop.modeld.faults import DigestMismatch, InUse
from syntrop.modeld.pieces import Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.modeld.catalogue import Entry
    from syntrop.modeld.store import Store

RESOLVE_SEC = 600.0  # a source may be tried several times

Key = tuple[str, str | None, str | None, str | None]
"""Reference, format, quantization, expected digest."""


class Download:
    """One download and those who wait for it."""

    def __init__(self, pulls: Pulls, key: Key) -> None:
        self.key = key
        self.name: str | None = None
        self.tag: str | None = None
        self.askers = 0
        self.files: list[Remote] = []
        self.stored = 0
        """Bytes of files that the store had already."""
        self.arrivals: list[Arrival] = []
        self.phase = "resolving"
        self.task = loop.spawn(pulls.run(self), f"pull {key[0]}")

    @property
    def state(self) -> dict[str, Any]:
        told = {one.remote.source: one.total for one in self.arrivals}
        sizes = [one.size if one.size is not None else told.get(one.source) for one in self.files]
        known = [size for size in sizes if size is not None]
        return {
            "phase": self.arrivals[-1].phase if self.arrivals and self.phase == "downloading" else self.phase,
            "received_bytes": self.stored + sum(one.received for one in self.arrivals),
            "total_bytes": sum(known) if sizes and len(known) == len(sizes) else None,
        }

    def join(self) -> Download:
        self.askers += 1
        return self

    async def leave(self) -> None:
        """The last one who leaves a download that still runs ends it; what has arrived is kept."""
        self.askers -= 1
        if not self.askers and not self.task.done:
            await loop.stop(self.task)


class Pulls:
    """All downloads of a store. `rate` in bytes a second holds for all together."""

    def __init__(self, store: Store, daemon: Daemon, rate: int) -> None:
        self._store = store
        self._daemon = daemon
        self._arrivals = Arrivals(store, rate)
        self._running: dict[Key, Download] = {}

    async def join(self, key: Key) -> Download:
        """The download of this, which is begun if nobody asked for it yet. Who joins leaves (`leave`)."""
        while (present := self._running.get(key)) is not None:
            if present.askers:
                return present.join()
            # Nobody wants it any more, and it is about to end.
            ended: loop.Future[None] = loop.Future()
            present.task.when_done(lambda _done, ended=ended: ended.set_result(None))  # type: ignore[misc]
            await ended
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
        from time import time

        await self._resolve(download)
        expected = download.key[3]
        await whole(self._store.prepare)
        await whole(incoming.sweep, self._store.incoming, time())
        pieces: list[Piece] = []
        useless = False  # what has arrived: because it is stored, or cannot be
        try:
            for file in download.files:
                piece = await whole(self._stored, file)
                if piece is not None:
                    download.stored += piece.size
                else:
                    piece = await self._arrived(download, file)
                pieces.append(piece)
            download.phase = "verifying"
            useless = True
            promises = [one.promise for one in download.arrivals if one.promise is not None]
            entry = await whole(self._store.store, pieces, None, None, None, expected, promises)
            download.phase = "done"
            return entry
        except OSError:
            useless = False  # it was the disk: what has arrived is good for another time
            raise
        finally:
            for piece in pieces:
                if piece.temporary is None:
                    os.close(piece.handle)
            for arrival in download.arrivals:
                await self._arrivals.leave(arrival, useless=useless)

    async def _resolve(self, download: Download) -> None:
        """Find out which files it consists of, and what it may be called."""
        reference, format, quantization, expected = download.key
        asked = {"reference": reference, "format": format, "quantization": quantization}
        client = await varlink.connect(paths.endpoint(ENDPOINT))
        try:
            with await client.call(f"{ENDPOINT}.Resolve", asked, timeout=RESOLVE_SEC) as reply:
                files = _remotes(reply.parameters["files"])
                download.name = naming.derive(reply.parameters["name"], "model")
                download.tag = naming.derive(reply.parameters["tag"], naming.LATEST)
        finally:
            client.close()
        if len(files) == 1 and files[0].path.endswith((".gguf", ".safetensors")):
            files[0].path = ""
            if expected is not None and files[0].digest not in (None, expected):
                raise DigestMismatch(naming.digest_id(expected), naming.digest_id(files[0].digest or ""))
            files[0].digest = expected or files[0].digest
        download.files = files

    async def _arrived(self, download: Download, file: Remote) -> Piece:
        """Have one file come, or wait for the one that somebody else has come already."""
        while True:
            arrival = await self._arrivals.join(file)
            download.arrivals.append(arrival)
            download.phase = "downloading"
            try:
                return (await arrival.task).at(file.path)
            except (VarlinkError, DigestMismatch):
                if arrival.remote.url == file.url:
                    raise
            # Theirs came from elsewhere; ours may be better.
            download.arrivals.remove(arrival)
            await self._arrivals.leave(arrival)

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


def _remotes(rows: list[dict[str, Any]]) -> list[Remote]:
    """Raises PullFailed."""
    try:
        files = [Remote(row) for row in rows]
    except naming.InvalidIdentifier as error:
        raise PullFailed(f"the source has a file that no model has: {error.identifier[:200]!r}") from None
    if not 0 < len(files) <= manifest.FILES_MAX or len({one.path for one in files}) < len(files):
        raise PullFailed(f"the source has {len(files)} files, or one twice")
    return files
