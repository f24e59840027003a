# SPDX-License-Identifier: Apache-2.0
"""The store of models: files addressed by their SHA-256, named by tags.

    blobs/sha256/<hex>    the files, read-only, never changed once they are there
    manifests/<hex>       models of several files: their paths and digests, addressed by the manifest's own
    notes/<hex>.json      what a model says of itself; made again from it when missing
    tags/<name>/<tag>     symbolic links to blobs or manifests
    pins/<hex>            markers of models that are not pruned
    uses/<hex>            markers whose time is that of the model's last opening; `newest` is of the last of all
    incoming/             downloads that are not whole yet (`incoming.py`)
    quarantine/           files that fsck found damaged (`fsck.py`)
    listing               the answer to `List`, and what changed since it was written (`listing.py`)
    lock                  held (flock) while names come to stand or fall

A file comes in under no name (O_TMPFILE), is synced, and is linked into place; then its folder is synced, so that
a crash leaves either nothing or a whole file. The order is: files, manifest, note, tag; and in removing: tags,
manifest, files: no tag ever dangles. The functions block: they are for worker threads.
"""

from __future__ import annotations

import _thread
import os

from syntrop.common import atomic
from syntrop.modeld import disk, folder, incoming, listing, naming, pieces, room
from syntrop.modeld.catalogue import UNKNOWN, Catalogue, Entry, Index
from syntrop.modeld.faults import DigestMismatch, OutOfSpace, Stopped, Unsuitable
from syntrop.modeld.manifest import Manifest, Member
from syntrop.modeld.pieces import Piece
from syntrop.modeld.room import Promise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


class Store(Catalogue):
    """The store below one folder, which is made when something is first put there.

    `quota` and `floor` are in bytes (0 for none): what the files may occupy, and what the file system must keep
    free. `free` tells what it has.
    """

    def __init__(
        self, root: str, *, quota: int = 0, floor: int = 0, free: Callable[[str], int] = disk.free_bytes
    ) -> None:
        super().__init__(root, free)
        self.quota, self.floor = quota, floor
        self.overdue = False
        """Whether the answer to `List` should be written anew: there is none, or much was added to it."""
        self._prepared = False
        self._additions: listing.Additions | None = None  # under the lock
        self._promising = _thread.allocate_lock()
        self._promises: set[Promise] = set()

    # --- changing ------------------------------------------------------------------------------------------

    def register(
        self,
        source: int,
        name: str | None,
        tag: str | None,
        expected: str | None,
        wanted: Callable[[], bool],
        progress: Callable[[int], object] | None = None,
    ) -> Entry:
        """Copy the regular file behind a descriptor into the store, and name it.

        `wanted` is asked after each piece; when it says no, Stopped is raised and nothing is left. `progress` is
        told how many bytes more were copied. Raises Unsuitable, DigestMismatch, OutOfSpace and OSError. The
        descriptor's own position is neither used nor moved.
        """
        size, kind = pieces.examine(source)
        promise = self.promise(size if expected is None or not self._exists(expected) else 0)
        taken: list[Piece] = []
        try:
            self.prepare()
            taken.append(self._take_in("", source, size, wanted, _counting(promise, progress)))
            return self.store(taken, kind, name, tag, expected, (promise,))
        finally:
            self.release(promise)
            pieces.dispose(taken)

    def register_folder(
        self,
        sources: Mapping[str, int],
        name: str | None,
        tag: str | None,
        expected: str | None,
        wanted: Callable[[], bool],
        progress: Callable[[int], object] | None = None,
    ) -> Entry:
        """Copy the files of a folder, descriptors by path, into the store as one model. As `register` else."""
        try:
            _, chosen = folder.choose(sources)
        except folder.Incomplete as error:
            raise Unsuitable(str(error)) from None
        sizes = {path: pieces.size_of(sources[path], path) for path in chosen}
        promise = self.promise(sum(sizes.values()) if expected is None or not self._exists(expected) else 0)
        count = _counting(promise, progress)
        taken: list[Piece] = []
        try:
            self.prepare()
            # Not as one expression: what came before a failure is to be disposed of.
            taken.extend(self._take_in(path, sources[path], sizes[path], wanted, count) for path in chosen)
            return self.store(taken, None, name, tag, expected, (promise,))
        finally:
            self.release(promise)
            pieces.dispose(taken)

    def store(
        self,
        parts: Sequence[Piece],
        kind: str | None,
        name: str | None,
        tag: str | None,
        expected: str | None,
        promises: Iterable[Promise] = (),
    ) -> Entry:
        """Make a model of files that are written but not in the store yet, and name it.

        The pieces stay the caller's to close; what they were promised is kept with that. Raises Unsuitable,
        DigestMismatch and OSError.
        """
        several: Manifest | None = None
        if len(parts) == 1 and (not parts[0].path or parts[0].path.endswith(".gguf")):
            digest, size = parts[0].digest, parts[0].size
            if kind is None:
                size, kind = pieces.examine(parts[0].handle)
        else:
            try:
                kind, _ = folder.choose(piece.path for piece in parts)
            except folder.Incomplete as error:
                raise Unsuitable(str(error)) from None
            several = Manifest(kind, [Member(one.path, one.digest, one.size) for one in parts])
            digest, size = pieces.sha256(several.encode()), several.size
        if expected is not None and digest != expected:
            raise DigestMismatch(naming.digest_id(expected), naming.digest_id(digest))
        note = {"format": kind, "metadata": pieces.describe(parts, kind)}
        for piece in parts:
            os.fchmod(piece.handle, 0o440)
            os.fsync(piece.handle)
        with self.locked():
            self._again(digest, *([f"{name}:{tag}"] if name is not None else []))
            for piece in parts:
                disk.link(piece.handle, piece.temporary, self.blobs, piece.digest)
            for promise in promises:
                self.release(promise)  # it counts as stored from here on
            disk.sync(self.blobs)
            if several is not None:
                atomic.write(self._manifest_path(digest), several.encode(), mode=0o440)
            atomic.write_json(self._note_path(digest), note)
            self._known_notes[digest] = note
            if name is not None and tag is not None:
                self._set_tag(name, tag, digest)
            self._used(digest)
        if name is None:
            name, tag = self.index().names.get(digest, (None, None))
        return self._entry(digest, name, tag, size, os.path.exists(os.path.join(self.pins, digest)))

    def tag(self, digest: str, name: str, tag: str) -> Entry:
        """Give a name to a model that is there. Raises NoSuchModel."""
        identifier = naming.Identifier(digest=digest)
        self._locate(identifier)
        with self.locked():
            _, size = self._locate(identifier)
            self._again(digest, f"{name}:{tag}")
            self._set_tag(name, tag, digest)
        return self._entry(digest, name, tag, size, os.path.exists(os.path.join(self.pins, digest)))

    def pin(self, identifier: naming.Identifier) -> None:
        """Keep a model from being pruned. Raises NoSuchModel."""
        self._locate(identifier)
        with self.locked():
            digest, _ = self._locate(identifier)
            self._again(digest)
            path = os.path.join(self.pins, digest)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            disk.sync(self.pins)

    def unpin(self, identifier: naming.Identifier) -> None:
        """Raises NoSuchModel."""
        digest, _ = self._locate(identifier)
        if os.path.isdir(self.pins):
            with self.locked():
                self._again(digest)
                disk.unlink(os.path.join(self.pins, digest))
                disk.sync(self.pins)

    def prune(self, limit: int) -> tuple[int, list[str]]:
        """Remove the models that were used longest ago until `limit` bytes are left; pinned and open ones stay.

        Returns the bytes given back and the digests of what was removed.
        """
        reclaimed, entries = self.prune_entries(limit)
        return reclaimed, [entry.digest for entry in entries]

    def prune_entries(self, limit: int) -> tuple[int, list[Entry]]:
        """As `prune`, and tells what the removed models were called. Downloads that nobody waits for go first."""
        if not os.path.isdir(self.blobs):
            return 0, []
        with self.locked():
            index = self.index()
            excess = sum(index.sizes.values()) + incoming.left(self.incoming) - limit
            cleared = incoming.clear(self.incoming, excess)
            reclaimed, removed = self._evict(index, excess - cleared)
            return cleared + reclaimed, removed

    def promise(self, request: int, there: int = 0) -> Promise:
        """Make room for `request` bytes, of which `there` are on the disk already but not in the store.

        Nobody else is given that room until it is released. What nobody waits for goes first, then what was used
        longest ago, until all that was promised fits quota and floor. When that cannot be, nothing is removed and
        OutOfSpace is raised.
        """
        promise = Promise(request, request - there)
        with self._promising:
            self._make_room(promise)
            self._promises.add(promise)
        return promise

    def enlarge(self, promise: Promise, more: int) -> None:
        """Make room for `more` bytes beside those. Raises OutOfSpace."""
        with self._promising:
            self._make_room(Promise(more, more))
            promise.grow(more)

    def release(self, promise: Promise) -> None:
        """It came to the store, or will not come."""
        self._promises.discard(promise)

    def prepare(self) -> None:
        """Make the folders, durably."""
        folders = (self.blobs, self.manifests, self.notes, self.tags, self.pins, self.uses, self.incoming)
        unsafe = disk.make_folders(*folders)
        if unsafe or not self._prepared:
            self._prepared = False
            # Whoever made them may have been killed before it came to sync them.
            for place in unsafe | {os.path.dirname(self.blobs), self.root, os.path.dirname(self.root)}:
                disk.sync(place)
            self._prepared = True

    def withdraw(self, digest: str) -> list[str]:
        """Take a damaged file out of the store: into quarantine, with every model that it is part of.

        Returns the digests of those models; whoever has them open keeps what they have.
        """
        with self.locked():
            for place in disk.make_folders(self.quarantine):
                disk.sync(place)
            index = self.index()
            models = [one for one in index.models if digest in index.parts[one]]
            self._again(*models, digest)
            self._untag([*models, digest])
            for model in {*models, digest}:
                self._forget(model)
                if os.path.lexists(self._manifest_path(model)):
                    self._isolate(self._manifest_path(model), model)
            disk.sync(self.manifests)
            if os.path.lexists(self._blob(digest)):
                self._isolate(self._blob(digest), digest)
            disk.sync(self.blobs)  # an old name is never gone before the new one is safe
        return models

    # --- inside: changing ----------------------------------------------------------------------------------

    def _take_in(
        self,
        path: str,
        source: int,
        size: int,
        wanted: Callable[[], bool],
        progress: Callable[[int], object] | None,
    ) -> Piece:
        """A copy of a file, under no name."""
        # Not where the models are: on a file system without nameless files, that would look like somebody's doing.
        handle, temporary = disk.create(self.incoming)
        try:
            digest = disk.copy(source, handle, size, wanted, progress)
            if digest is None:
                raise Stopped
        except BaseException as error:
            pieces.dispose([Piece(path, handle, temporary, "", 0)])
            if isinstance(error, disk.ShortSource):
                raise Unsuitable(str(error)) from None
            raise
        return Piece(path, handle, temporary, digest, size)

    def _set_tag(self, name: str, tag: str, digest: str) -> None:
        place = os.path.join(self.tags, name)
        if not os.path.isdir(place):
            os.mkdir(place, 0o700)
        disk.sync(self.tags)  # even if it is there: whoever made it may not have come to sync it
        blob = os.path.exists(self._blob(digest)) and not os.path.exists(self._manifest_path(digest))
        target = os.path.join("blobs", naming.ALGORITHM) if blob else "manifests"
        # A dot starts no tag, so this name is nobody's.
        temporary = os.path.join(place, f".{os.getpid()}-{os.urandom(8).hex()}")
        os.symlink(os.path.join("..", "..", target, digest), temporary)
        try:
            os.rename(temporary, os.path.join(place, tag))
        except BaseException:
            os.unlink(temporary)
            raise
        disk.sync(place)

    def _last_used(self, digest: str) -> int:
        for path in (os.path.join(self.uses, digest), self._blob(digest), self._manifest_path(digest)):
            try:
                return os.stat(path).st_mtime_ns
            except FileNotFoundError:
                continue
        return 0

    def _paths(self, model: str, index: Index) -> list[str]:
        return [*map(self._blob, index.parts[model]), self._manifest_path(model)]

    def _make_room(self, wanted: Promise) -> None:
        request, others = wanted.whole, list(self._promises)
        # What comes to the store between the two is counted twice, which the second look puts right.
        excess = self._missing(others, self.index() if self.quota else None, wanted)
        if excess <= 0:
            return
        if not os.path.isdir(self.blobs):
            raise OutOfSpace(request, max(0, request - excess), 0, 0, 0, sum(one.whole for one in others))
        with self.locked():
            index = self.index()
            others = list(self._promises)
            excess = self._missing(others, index, wanted)
            while excess > 0:
                candidates = index.parts.keys() - index.pins
                busy = {one for one in candidates if self._is_busy(one, index)}
                _, removable = room.choose(1 << 62, candidates - busy, index.parts, index.sizes, lambda _: False)
                removable += incoming.left(self.incoming)
                if removable < excess:
                    pinned = sum(index.models[one] for one in index.models.keys() & index.pins)
                    used = sum(index.models[one] for one in busy & index.models.keys())
                    promised = sum(one.whole for one in others)
                    raise OutOfSpace(request, max(0, request - excess), removable, pinned, used, promised)
                excess -= incoming.clear(self.incoming, excess)
                # Less than that when somebody opened one of them just now.
                excess -= self._evict(index, excess)[0]
                index = self._read(None)

    def _missing(self, promises: Collection[Promise], index: Index | None, wanted: Promise) -> int:
        """Bytes that lack, beside what others were promised; the index is needed for a quota only."""
        if not self.quota and not self.floor:
            return 0
        stored = sum(one.whole for one in promises)
        if index is not None:
            stored += sum(index.sizes.values()) + incoming.left(self.incoming)
        free = wanted.whole + self.floor
        if self.floor:
            # Of what is there already, and of what others are to write.
            free = self._free(self.root) + wanted.whole - wanted.left - sum(one.left for one in promises)
        return room.missing(wanted.whole, stored=stored, quota=self.quota, free=free, floor=self.floor)

    def _is_busy(self, model: str, index: Index) -> bool:
        with disk.Leases() as leases:
            return not leases.take(*self._paths(model, index))

    def _evict(self, index: Index, excess: int) -> tuple[int, list[Entry]]:
        """Remove models, those used longest ago first. The lock is held."""
        reclaimed = 0
        entries: list[Entry] = []
        while reclaimed < excess:
            more, gone, any_gone = self._evict_some(index, excess - reclaimed)
            reclaimed += more
            entries += gone
            if not any_gone:
                break
            index = self._read(None)
        return reclaimed, entries

    def _evict_some(self, index: Index, excess: int) -> tuple[int, list[Entry], bool]:
        """As many as can be held at once: nobody can open them from when they are chosen until they are gone.

        Tells whether there was anything, be it a file of no model.
        """
        order = [*index.orphans, *sorted(index.models.keys() - index.pins, key=self._last_used)]
        with disk.Leases() as leases:
            gone, reclaimed = room.choose(
                excess, order, index.parts, index.sizes, lambda one: not leases.take(*self._paths(one, index))
            )
            entries = []
            for one in gone:
                if one in index.models:
                    # Not by opening it, which would wait for ourselves.
                    note = self._known_notes.get(one) or self._read_note(one) or {}
                    name, tag = index.names.get(one, (None, None))
                    entries.append(Entry(one, name, tag, index.models[one], False, note.get("format", UNKNOWN)))
            self._remove(index, gone)
        return reclaimed, entries, bool(gone)

    def _remove(self, index: Index, models: list[str]) -> None:
        """Names first, then manifests, then files that no other model needs."""
        if not models:
            return
        self._again(*models)
        self._untag(models)
        for model in models:
            self._forget(model)
            disk.unlink(self._manifest_path(model))
        disk.sync(self.manifests)
        disk.sync(self.notes)
        kept = {file for model, files in index.parts.items() if model not in models for file in files}
        for file in {file for model in models for file in index.parts[model]} - kept:
            disk.unlink(self._blob(file))
        disk.sync(self.blobs)

    def _untag(self, models: Iterable[str]) -> None:
        """Remove every tag of these models, also what a crash left half-made."""
        gone = set(models)
        for name in filter(naming.is_name, disk.names(self.tags)):
            place = os.path.join(self.tags, name)
            tags = [tag for tag in disk.names(place) if self._tagged(name, tag) in gone]
            for tag in tags:
                disk.unlink(os.path.join(place, tag))
            if tags:
                disk.sync(place)
                if not os.listdir(place):
                    os.rmdir(place)

    def _forget(self, model: str) -> None:
        self._known_notes.pop(model, None)
        self._known_formats.pop(model, None)
        self._known_manifests.pop(model, None)
        disk.unlink(self._note_path(model))
        disk.unlink(os.path.join(self.uses, model))

    def _isolate(self, path: str, digest: str) -> None:
        target = os.path.join(self.quarantine, f"{digest}-{os.urandom(4).hex()}")
        os.rename(path, target)

    def locked(self) -> disk.Lock:
        """The lock under which everything is changed."""
        return disk.Lock(self.lock, self._before_change, self._after_change)

    def keep(self, answer: bytes, loose: Collection[str] = ()) -> None:
        """Keep an answer to `List`, and the names of what is not there. The lock is held. Raises OSError."""
        if self._additions is not None:
            self._additions.close()
        times = self.stamp()[1:]
        if listing.write(self.listing, answer, loose, times):
            self._additions = listing.Additions(self.listing, times)

    def unlist(self) -> None:
        """Believe no answer that was kept. The lock is held. Raises OSError."""
        if self._additions is not None:
            self._additions.lose()

    def _again(self, *changing: str) -> None:
        """These models and names are about to change: tell whoever is asked for the list. The lock is held."""
        if self._additions is not None:
            self._additions.again(changing)

    def _before_change(self, broken_off: bool) -> None:
        if broken_off:
            self._settle()
        self._additions = listing.Additions(self.listing, self.stamp()[1:])
        if not self._additions.is_kept and self._is_empty():
            # From the first model on, whoever asks for the list has only to look at what changed.
            self.keep(listing.join(()))

    def _after_change(self) -> None:
        additions, self._additions = self._additions, None
        if additions is not None:
            try:
                additions.settle(self.stamp()[1:])
                self.overdue = not additions.is_kept or additions.is_long
            finally:
                additions.close()

    def _is_empty(self) -> bool:
        """Whether there is neither a model nor a name of one; without reading thousands of names."""
        for place in (self.blobs, self.manifests, self.tags):
            if os.path.isdir(place):
                with os.scandir(place) as found:
                    if any(not one.name.startswith(".") for one in found):
                        return False
        return True

    def _settle(self) -> None:
        """Make safe what is there: whoever put it there, or removed something, did not come to sync it."""
        folders = [self.root, self.blobs, self.manifests, self.notes, self.tags, self.pins, self.quarantine]
        for place in folders + [os.path.join(self.tags, name) for name in disk.names(self.tags)]:
            if os.path.isdir(place):
                disk.sync(place)


def _counting(promise: Promise, progress: Callable[[int], object] | None) -> Callable[[int], object]:
    """`progress`, and what is on the disk is promised no more."""

    def count(came: int) -> None:
        promise.came(came)
        if progress is not None:
            progress(came)

    return count
