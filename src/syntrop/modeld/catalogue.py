# SPDX-License-Identifier: Apache-2.0
"""What is in the store: looking, which changes nothing but what it knows. Everything here blocks."""

from __future__ import annotations

import os
import stat

from syntrop.common import atomic
from syntrop.modeld import disk, listing, manifest, naming, pieces
from syntrop.modeld.faults import NoSuchModel, Unsuitable
from syntrop.modeld.manifest import Manifest
from syntrop.modeld.pieces import Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from syntrop.modeld.listing import Kept


UNKNOWN = "unknown"
"""The format of a model that cannot be read."""

NEWEST = "newest"
"""The marker of the newest use of all: the clock may have been put back while nobody was awake."""

_SETTLED_NS = 1_000_000_000
_FORMAT = b'{"format": "'  # as `atomic.write_json` begins a note
_FORMAT_MAX = 64  # bytes


class Entry:
    """A model under one of its names; without name and tag where it has none."""

    __slots__ = ("digest", "format", "name", "pinned", "size", "tag")

    def __init__(
        self, digest: str, name: str | None, tag: str | None, size: int, pinned: bool, format: str
    ) -> None:
        self.digest = digest
        self.name = name
        self.tag = tag
        self.size = size
        self.pinned = pinned
        self.format = format

    @property
    def id(self) -> str:
        return naming.digest_id(self.digest) if self.name is None else f"{self.name}:{self.tag}"

    def under(self, name: str, tag: str) -> Entry:
        """The same model under another of its names."""
        return Entry(self.digest, name, tag, self.size, self.pinned, self.format)


class Index:
    """All that is in the store, as it was at one count of changes."""

    __slots__ = ("loose", "models", "names", "orphans", "parts", "pins", "sizes", "stamp", "tags")

    def __init__(self, stamp: object) -> None:
        self.stamp = stamp
        self.sizes: dict[str, int] = {}
        """Bytes of every blob."""
        self.models: dict[str, int] = {}
        """Bytes of every model."""
        self.parts: dict[str, set[str]] = {}
        """Blobs of every model, and of every orphan."""
        self.orphans: set[str] = set()
        """Blobs that no model has: a crash came before anybody was told of them."""
        self.tags: list[tuple[str, str, str]] = []
        """Name, tag and digest, in the order of names."""
        self.names: dict[str, tuple[str, str]] = {}
        """The first name of a digest."""
        self.loose: list[str] = []
        """Names of what is not there."""
        self.pins: set[str] = set()


class Catalogue:
    """The models below one folder. The folders are those of `store.py`."""

    def __init__(self, root: str, free: Callable[[str], int]) -> None:
        self.root = root
        self.blobs = os.path.join(root, "blobs", naming.ALGORITHM)
        self.manifests = os.path.join(root, "manifests")
        self.notes = os.path.join(root, "notes")
        self.tags = os.path.join(root, "tags")
        self.pins = os.path.join(root, "pins")
        self.uses = os.path.join(root, "uses")
        self.incoming = os.path.join(root, "incoming")
        self.quarantine = os.path.join(root, "quarantine")
        self.listing = os.path.join(root, "listing")
        self.lock = os.path.join(root, "lock")
        self._free = free
        # None of these changes once it is there.
        self._known_notes: dict[str, dict[str, Any]] = {}
        self._known_formats: dict[str, str] = {}
        self._known_manifests: dict[str, Manifest] = {}
        self._known_tags: dict[str, tuple[int, list[tuple[str, str]]]] = {}
        self._index: Index | None = None
        self._last_use = 0

    def entries(self, index: Index | None = None) -> list[Entry]:
        """All models by identifier, one entry for each tag."""
        index = index or self.index()
        found = [
            self._entry(digest, name, tag, index.models[digest], digest in index.pins)
            for name, tag, digest in index.tags
        ]
        unnamed = index.models.keys() - index.names.keys()
        found += [self._entry(one, None, None, index.models[one], one in index.pins) for one in unnamed]
        return sorted(found, key=lambda entry: entry.id)

    def look(self, digest: str, names: Collection[str]) -> list[Entry]:
        """The entries of one model as it is now, if it is there; `names` are all that it has."""
        size = self._model_size(digest, bool(names))
        if size is None:
            return []
        pinned = os.path.exists(os.path.join(self.pins, digest))
        unnamed = self._entry(digest, None, None, size, pinned)
        return [unnamed.under(*one.split(":")) for one in names] or [unnamed]

    def know(self, formats: Mapping[str, str]) -> None:
        """The formats of models, which never change, as they were once found."""
        self._known_formats |= {digest: kind for digest, kind in formats.items() if kind != UNKNOWN}

    def named(self, name: str) -> str:
        """The digest that `name:tag` names, whether it is there or not; or nothing."""
        name, _, tag = name.partition(":")
        return self._tagged(name, tag) if naming.is_name(name) else ""

    def find(self, identifier: naming.Identifier) -> Entry:
        """The model of an identifier. Raises NoSuchModel."""
        digest, size = self._locate(identifier)
        name: str | None = identifier.name
        tag = identifier.tag
        if identifier.digest is not None:
            name, tag = self.index().names.get(digest, (None, None))
        elif tag is None:
            tag = self._bare(identifier.name)
        return self._entry(digest, name, tag, size, os.path.exists(os.path.join(self.pins, digest)))

    def metadata(self, digest: str) -> dict[str, Any]:
        """What the model says of itself."""
        metadata: dict[str, Any] = self._note(digest)["metadata"]
        return metadata

    def open(self, identifier: naming.Identifier, file: str | None = None) -> tuple[int, int, str]:
        """A descriptor for reading, which the caller owns, the size and the digest of what it is of.

        Of a model of several files that is `file`, or the manifest when none is named. Raises NoSuchModel.
        """
        model, _ = self._locate(identifier)
        path, digest = self._blob(model), model
        several = self._manifest(model)
        if several is not None and file is None:
            path = self._manifest_path(model)
        elif several is not None:
            member = several.members.get(file or "")
            if member is None:
                raise NoSuchModel(f"{identifier}/{file}")
            path, digest = self._blob(member.digest), member.digest
        elif file is not None:
            raise NoSuchModel(f"{identifier}/{file}")
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NoSuchModel(str(identifier)) from None
        try:
            status = os.fstat(handle)
            # Whoever prunes lets us wait until it is done: then it is too late.
            if not status.st_nlink or (several is not None and not os.path.exists(self._manifest_path(model))):
                raise NoSuchModel(str(identifier))
            self._used(model)
            return handle, status.st_size, digest
        except BaseException:
            os.close(handle)
            raise

    def stats(self) -> tuple[int, int, int]:
        """Bytes, models, pinned models."""
        index = self.index()
        return sum(index.sizes.values()), len(index.models), len(index.models.keys() & index.pins)

    def free(self) -> int:
        """Bytes that the file system has left."""
        return self._free(self.root)

    def index(self) -> Index:
        """All that is there. What is known is kept for as long as nobody changed anything."""
        stamp = self.stamp()
        index = self._index
        if index is None or index.stamp != stamp:
            index = self._read(stamp)
            if self.stamp() == stamp:
                self._index = index
        return index

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever somebody changes something, in whatever process; by hand, mostly."""
        found = [disk.changes(self.lock)]
        for path in (self.blobs, self.manifests, self.tags, self.pins):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                found += (0, 0)
            else:
                found += (status.st_ino, status.st_ctime_ns)
        return tuple(found)

    def kept(self, since: Kept | None = None) -> Kept | None:
        """What is kept of the answer to `List`; of the file of `since`, what was added to it."""
        return listing.read(self.listing, since)

    def changing(self) -> bool:
        """Whether somebody is at a change now."""
        return disk.is_locked(self.lock)

    # --- inside ---

    def _blob(self, digest: str) -> str:
        return os.path.join(self.blobs, digest)

    def _manifest_path(self, digest: str) -> str:
        return os.path.join(self.manifests, digest)

    def _note_path(self, digest: str) -> str:
        return f"{self.notes}/{digest}.json"

    def _read(self, stamp: object) -> Index:
        index = Index(stamp)
        try:
            known = self._index.sizes if self._index is not None else {}
            with os.scandir(self.blobs) as found:
                for one in found:
                    # What is no file was made by hand: to open a FIFO would hold us up.
                    if naming.is_hex(one.name) and one.is_file(follow_symlinks=False):
                        # A blob that is there does not change.
                        size = known.get(one.name)
                        index.sizes[one.name] = one.stat(follow_symlinks=False).st_size if size is None else size
        except FileNotFoundError:
            return index
        used: set[str] = set()
        for digest in filter(naming.is_hex, disk.names(self.manifests)):
            several = self._manifest(digest)
            if several is not None and several.digests <= index.sizes.keys():
                index.models[digest] = several.size
                index.parts[digest] = several.digests
                used |= several.digests
        noted = {name.removesuffix(".json") for name in disk.names(self.notes)}
        tagged = set()
        for name in sorted(filter(naming.is_name, disk.names(self.tags))):
            for tag, digest in self._tags_of(name):
                tagged.add(digest)
                index.tags.append((name, tag, digest))
        index.pins = set(disk.names(self.pins))
        for digest, size in index.sizes.items():
            # A file that came as part of a model is none of its own, unless somebody gave it as one too.
            if digest in noted or digest in tagged:
                index.models[digest] = size
            elif digest not in used:
                index.orphans.add(digest)
            else:
                continue
            index.parts[digest] = {digest}
        index.loose = [f"{name}:{tag}" for name, tag, digest in index.tags if digest not in index.models]
        index.tags = [row for row in index.tags if row[2] in index.models]
        for name, tag, digest in index.tags:
            index.names.setdefault(digest, (name, tag))
        return index

    def _locate(self, identifier: naming.Identifier) -> tuple[str, int]:
        """Digest and size of a model. Raises NoSuchModel."""
        if identifier.digest is not None:
            if os.path.exists(self._note_path(identifier.digest)):
                size = self._size(identifier.digest)
            else:
                # By the index: a file that is only part of a model is none.
                size = self.index().models.get(identifier.digest)
            if size is None:
                raise NoSuchModel(str(identifier))
            return identifier.digest, size
        tag = identifier.tag if identifier.tag is not None else self._bare(identifier.name)
        digest = self._tagged(identifier.name, tag) if tag is not None else ""
        size = self._size(digest) if digest else None
        if size is None:
            raise NoSuchModel(str(identifier))
        return digest, size

    def _size(self, digest: str) -> int | None:
        """Bytes of a file, or of all files of a manifest that are there."""
        try:
            status = os.stat(self._blob(digest), follow_symlinks=False)
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        except FileNotFoundError:
            pass
        several = self._manifest(digest)
        if several is not None and all(map(os.path.exists, map(self._blob, several.digests))):
            return several.size
        return None

    def _model_size(self, digest: str, is_tagged: bool) -> int | None:
        """Bytes of a model, if this is one: a file that came as part of one is none of its own."""
        if is_tagged or os.path.exists(self._note_path(digest)):
            return self._size(digest)
        several = self._manifest(digest)
        return self._size(digest) if several is not None else None

    def _exists(self, digest: str) -> bool:
        try:
            self._locate(naming.Identifier(digest=digest))
        except NoSuchModel:
            return False
        return True

    def _manifest(self, digest: str) -> Manifest | None:
        """The manifest of this digest, if there is a whole one."""
        known = self._known_manifests.get(digest)
        if known is None or not os.path.exists(self._manifest_path(digest)):
            try:
                if not stat.S_ISREG(os.stat(self._manifest_path(digest), follow_symlinks=False).st_mode):
                    return None
                with open(self._manifest_path(digest), "rb") as file:
                    data = file.read(manifest.BYTES_MAX + 1)
                if pieces.sha256(data) != digest:
                    return None
                known = self._known_manifests[digest] = manifest.decode(data)
            except (FileNotFoundError, manifest.InvalidManifest):
                self._known_manifests.pop(digest, None)
                return None
        return known

    def _bare(self, name: str) -> str | None:
        """The tag that a bare name means."""
        return naming.choose_tag([t for t in disk.names(os.path.join(self.tags, name)) if naming.is_tag(t)])

    def _tags_of(self, name: str) -> list[tuple[str, str]]:
        """Tags and digests of a name. What is known of its folder holds for as long as that has not changed."""
        place = f"{self.tags}/{name}"
        try:
            changed = os.stat(place).st_mtime_ns
        except FileNotFoundError:
            return []
        known = self._known_tags.get(name)
        if known is not None and known[0] == changed:
            return known[1]
        from time import time_ns

        now = time_ns()
        found = [(tag, self._tagged(name, tag)) for tag in sorted(disk.names(place))]
        found = [(tag, digest) for tag, digest in found if digest]
        if now - changed > _SETTLED_NS:  # two changes in one tick of the clock would look like one
            self._known_tags[name] = changed, found
        return found

    def _tagged(self, name: str, tag: str) -> str:
        """The digest that a tag names, or nothing."""
        if not naming.is_tag(tag):
            return ""
        try:
            digest = os.readlink(f"{self.tags}/{name}/{tag}").rpartition("/")[2]
        except OSError:
            return ""
        return digest if naming.is_hex(digest) else ""

    def _entry(self, digest: str, name: str | None, tag: str | None, size: int, pinned: bool) -> Entry:
        return Entry(digest, name, tag, size, pinned, self._format(digest))

    def _format(self, digest: str) -> str:
        from sys import intern

        known = self._known_formats.get(digest)
        if known is None:
            note = self._known_notes.get(digest)
            known = intern(note["format"] if note is not None else self._noted_format(digest))
            # What cannot be read now may be another time.
            if known != UNKNOWN:
                self._known_formats[digest] = known
        return known

    def _noted_format(self, digest: str) -> str:
        """A note begins with the format: of ten thousand, to read and parse the rest is half of a list's time."""
        try:
            handle = os.open(self._note_path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            head = b""
        else:
            try:
                head = os.read(handle, _FORMAT_MAX)
            finally:
                os.close(handle)
        begins = head.startswith(_FORMAT)
        value, quote, _ = head[len(_FORMAT) :].partition(b'"')
        if begins and quote and value.isalnum():
            return value.decode()
        note = self._read_note(digest) or self._make_note(digest)
        found: str = note["format"]
        return found

    def _note(self, digest: str) -> dict[str, Any]:
        note = self._known_notes.get(digest)
        if note is None:
            note = self._known_notes[digest] = self._read_note(digest) or self._make_note(digest)
        return note

    def _read_note(self, digest: str) -> dict[str, Any] | None:
        import json

        try:
            with open(self._note_path(digest), "rb") as file:
                note = json.loads(file.read())
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        whole = isinstance(note, dict) and isinstance(note.get("metadata"), dict)
        return note if whole and isinstance(note.get("format"), str) else None

    def _make_note(self, digest: str) -> dict[str, Any]:
        """A crash came between a model and its note, or somebody removed it."""
        several = self._manifest(digest)
        members = [(one.path, one.digest) for one in several.members.values()] if several else [("", digest)]
        opened: list[Piece] = []
        try:
            for path, blob in members:
                handle = os.open(self._blob(blob), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                opened.append(Piece(path, handle, None, blob, os.fstat(handle).st_size))
            kind = several.format if several else pieces.examine(opened[0].handle)[1]
            note = {"format": kind, "metadata": pieces.describe(opened, kind)}
        except (Unsuitable, FileNotFoundError) as error:
            return {"format": UNKNOWN, "metadata": {"fault": str(error)}}
        finally:
            pieces.dispose(opened)
        disk.make_folders(self.notes)
        atomic.write_json(self._note_path(digest), note)
        return note

    def _used(self, digest: str) -> None:
        """Note that a model is used now. Every use is later than the one before, whatever the clock does."""
        from time import time_ns

        newest = os.path.join(self.uses, NEWEST)
        if not self._last_use:
            try:
                self._last_use = os.stat(newest).st_mtime_ns
            except OSError:
                pass  # the first use of all, or of a store of before
        self._last_use = now = max(time_ns(), self._last_use + 1)
        for path in (os.path.join(self.uses, digest), newest):
            try:
                os.utime(path, ns=(now, now))
            except FileNotFoundError:
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    os.utime(path, ns=(now, now))
                except OSError:
                    pass  # a full disk, or a store of before: the model may be opened all the same
            except OSError:
                pass  # a file system that is read-only: the descriptor is good all the same
