# SPDX-License-Identifier: Apache-2.0
"""Keeps the store: compares files with the baseline, records what changed, imports what others recorded.

The order of writing makes a crash harmless: events (which hold their diffs), then contents, then the baseline that
names them. After a crash in between the difference is found again, and recognised by the event that is there.

Everything here blocks, and belongs in a worker thread. One lock keeps the store whole; who wants it urgently (a
caller waits) is let in front of a scan in the background.
"""

from __future__ import annotations

import json
import os

from syntrop.common import atomic, journal, paths, redaction
from syntrop.contextd import difference, imports, ledger, snapshot, unitfiles
from syntrop.contextd.baseline import Baseline, shard_of
from syntrop.contextd.chronology import Chronology, Draft, Event
from syntrop.contextd.clock import now_us
from syntrop.contextd.coverage import Coverage
from syntrop.contextd.lock import Lock, claim
from syntrop.contextd.objects import Objects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from syntrop.common.sdjournal import Reader
    from syntrop.contextd.snapshot import Snapshot

BATCH_FILES, BATCH_BYTES = 2048, 4 << 20
_MESSAGE_ID_BASELINE = "5d0b6c1e9f1f4d0c8f2f3f0d6c1b7a55"


class Options:
    """What the settings say of the store."""

    __slots__ = ("bytes_max", "contents_max", "events_max", "exclude", "fanotify", "retention_us", "roots")

    def __init__(
        self,
        roots: Iterable[str] = ("/etc",),
        exclude: Iterable[str] = (),
        *,
        events_max: int = 10_000,
        bytes_max: int = 32 << 20,
        contents_max: int = 256 << 20,
        retention_us: int = 0,
        fanotify: bool = True,
    ) -> None:
        self.roots = tuple(roots)
        self.exclude = tuple(exclude)
        self.events_max = events_max
        self.bytes_max = bytes_max
        self.contents_max = contents_max
        self.retention_us = retention_us
        self.fanotify = fanotify


class Unkept(OSError):
    """What was found could not be recorded. `events` has it, unnumbered, for this once."""

    def __init__(self, error: OSError, events: list[Event]) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.events = events


class _Change:
    __slots__ = ("new", "old", "path", "pid", "text")

    def __init__(
        self, path: str, old: Snapshot | None, new: Snapshot | None, text: bytes | None, pid: int
    ) -> None:
        self.path = path
        self.old = old
        self.new = new
        self.text = text
        self.pid = pid


class Keeper:
    """The store below `folder`, and the view of the machine that it is compared with."""

    def __init__(
        self,
        folder: str,
        options: Options,
        publish: Callable[[list[Event]], object] = lambda events: None,
        *,
        alone: bool = False,
    ) -> None:
        """`publish` is called with recorded events, in whatever thread recorded them. `alone`: no other process
        may have the store as long as this one lives.
        """
        self.folder = folder
        self._alone = alone
        self.options = options
        self.lock = Lock()
        self.coverage = Coverage(options.roots, options.exclude)
        self.index = unitfiles.Index()
        self._publish = publish
        self.unkept: OSError | None = None
        """Why what a look in the background found is not on record, until one at everything succeeds."""
        self.journals = imports.Journals()
        self._opened = False
        self._full = False

    # --- opening -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read what is needed of the store. Raises OSError."""
        if self._opened:
            return
        # The key and the progress that are seen there are built upon.
        # There is no key before the folder's name is safe.
        key = os.path.join(self.folder, "key")
        ledger.settle(self.folder, named=os.path.lexists(key))
        if self._alone:
            claim(self.folder)
            self._alone = False
        self._key, fresh = redaction.load_key(key)
        self.chronology = Chronology(
            os.path.join(self.folder, "chronology"),
            events_max=self.options.events_max,
            bytes_max=self.options.bytes_max,
            retention_us=self.options.retention_us,
        )
        self.objects = Objects(os.path.join(self.folder, "objects"))
        self.baseline = Baseline(os.path.join(self.folder, "baseline"))
        self._progress: dict[str, Any] = self._load_progress()
        if fresh:
            # Digests under a lost key can be compared with nothing: begin again.
            self.baseline.clear()
            self._progress["scanned"], self._progress["since"] = [], 0
        self._unfinished: list[_Change] = []
        self._commits = self._scanned_at = 0
        self._moved = False
        self._states: dict[str, str] = {}  # files whose change may be on record and not in the baseline
        finished = self._progress["finished"]
        self.chronology.trust(finished)
        for event in self.chronology.newest(lambda one: one.number > finished):
            if event.source == "file":
                self._states.setdefault(event.extra.get("path", ""), event.extra.get("to", ""))
        self._full = self.objects.size() >= self.options.contents_max
        self._opened = True

    def _load_progress(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self.folder, "progress.json"), encoding="utf-8") as file:
                found = json.load(file)
        except (FileNotFoundError, ValueError, RecursionError):
            found = None
        progress = found if isinstance(found, dict) else {}
        for name, default in (("scanned", []), ("journal", ""), ("packages", {}), ("finished", 0), ("since", 0)):
            if not isinstance(progress.get(name), type(default)):
                progress[name] = default
        return progress

    def _save_progress(self) -> None:
        if not self._unfinished:
            self._progress["finished"] = self.chronology.last
        atomic.write_json(os.path.join(self.folder, "progress.json"), self._progress, mode=0o600)
        self._moved = False

    @property
    def watched_since_us(self) -> int | None:
        """When the first look at everything ended; None when it has not."""
        return self._progress["since"] or None

    # --- recording -----------------------------------------------------------------------------------------

    def record(self, drafts: list[Draft]) -> list[Event]:
        """Record events durably. The caller holds the lock. Raises OSError."""
        events = self.chronology.append(drafts)
        for event in events:
            if event.source == "file":
                self._states[event.extra.get("path", "")] = event.extra.get("to", "")
        if events:
            self._publish(events)
        return events

    def survey(self, found: Iterable[str], folders: Iterable[str], reader: Reader | None) -> list[Event]:
        """Look at some files, and into some folders, and read what others recorded: for a caller that waits.

        What is new is on the disk when this returns, at the price of one sync; `finish()` does the rest, best when
        the caller has its reply. The caller holds the lock. Raises Unkept where it cannot be: then the next look
        finds it again.
        """
        blocked: OSError | None = None
        try:
            self.finish()
        except OSError as error:
            blocked = error
        changes = {one.path: one for one in self._changes(found)}
        for folder in folders:
            for one in self._folder_changes(folder):
                changes.setdefault(one.path, one)
        drafts = [draft for one in changes.values() if (draft := self._draft(one)) is not None]
        told, read = self._news(reader)
        drafts += told
        if blocked is None:
            try:
                events = self.record(drafts)
            except OSError as error:
                blocked = error
        if blocked is not None:
            raise Unkept(blocked, [draft.unkept() for draft in drafts]) from None
        self._unfinished = list(changes.values())
        self._advance(read, bool(told))
        return events

    def take_in(self, reader: Reader | None) -> list[Event]:
        """Record what others recorded: packages, and the journal where it is given. The caller holds the lock."""
        told, read = self._news(reader)
        events = self.record(told)
        self._advance(read, bool(told))
        self.finish()
        return events

    def _news(self, reader: Reader | None) -> tuple[list[Draft], dict[str, Any]]:
        told, read = imports.news(self._progress, self.chronology, reader, self.options.retention_us)
        return told[-self.options.events_max // 2 :], read

    def _advance(self, read: dict[str, Any], told: bool) -> None:
        # A journal that tells of nothing is noted when we go, not each time.
        self._moved |= told or read["packages"] != self._progress["packages"]
        self._progress.update(read)

    def finish(self) -> None:
        """Keep the contents of what was told of, then the baseline that names them, then how far others were read.

        A crash before it is harmless: the difference is found again, and recognised by its event. The caller holds
        the lock. Raises OSError, and then it is still to be done.
        """
        if not self._opened:
            return
        if self._unfinished:
            changes = self._unfinished
            kept = [one for one in changes if one.new is not None and one.text is not None]
            if not self._full:
                digests = self.objects.put(one.text or b"" for one in kept)
                for one, digest in zip(kept, digests, strict=True):
                    assert one.new is not None
                    one.new.content = digest
            self.baseline.put({one.path: one.new for one in changes})
            self._unfinished = []
            self._commits += 1
        if self._moved:
            self._save_progress()

    # --- files ---------------------------------------------------------------------------------------------

    def look(self, found: Iterable[str], pids: dict[str, int] | None = None) -> list[Event]:
        """Compare some files with what they were, and record what changed. The caller holds the lock."""
        self.finish()
        return self._commit(self._changes(found, pids))

    def look_into(self, folder: str) -> list[Event]:
        """Compare the files of one folder, not of those below it. The caller holds the lock."""
        self.finish()
        return self._commit(self._folder_changes(folder))

    def _changes(self, found: Iterable[str], pids: dict[str, int] | None = None) -> list[_Change]:
        compared = (self._compare(path, self.baseline.get(path), (pids or {}).get(path, 0)) for path in found)
        return [one for one in compared if one is not None]

    def _folder_changes(self, folder: str) -> list[_Change]:
        known = self.baseline.folder(folder)
        changes = []
        try:
            with os.scandir(paths.host(folder)) as entries:
                names = [
                    (entry.name, entry.stat(follow_symlinks=False))
                    for entry in entries
                    if self._stays(folder, entry)
                ]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except PermissionError as error:
            self.coverage.note(folder, error)
            return []
        partly = not self.coverage.covers(folder)
        for name, status in names:
            path = unitfiles.join(folder, name)
            old = known.pop(name, None)
            if (old is not None and old.untouched(status)) or self.coverage.excluded(path):
                continue
            if partly and old is None:
                continue
            change = self._compare(path, old, 0)
            if change is not None:
                changes.append(change)
        for name in known:
            change = self._compare(unitfiles.join(folder, name), known[name], 0)
            if change is not None:
                changes.append(change)
        return changes

    def _stays(self, folder: str, entry: os.DirEntry[str]) -> bool:
        try:
            entry.stat(follow_symlinks=False)
        except OSError as error:
            self.coverage.note(unitfiles.join(folder, entry.name), error)
            return False
        return True

    def _compare(self, path: str, old: Snapshot | None, pid: int) -> _Change | None:
        host = paths.host(path)
        try:
            if old is not None:
                try:
                    if old.untouched(os.lstat(host)):
                        return None
                except (FileNotFoundError, NotADirectoryError):
                    return _Change(path, old, None, None, pid)
            taken = snapshot.take(host, path, self._key)
        except OSError as error:
            self.coverage.note(path, error)
            journal.debug(f"Cannot look at {path}: {error.strerror}")
            return None
        self.coverage.looked(path)
        if taken is None:
            return None if old is None else _Change(path, old, None, None, pid)
        new, text = taken
        return _Change(path, old, new, text, pid)

    def _commit(self, changes: list[_Change]) -> list[Event]:
        """Events, contents, baseline: each on the disk before the next. Returns the events."""
        if not changes:
            return []
        events = self.record([draft for one in changes if (draft := self._draft(one)) is not None])
        self._unfinished = changes
        self.finish()
        return events

    def _draft(self, change: _Change) -> Draft | None:
        old, new, path = change.old, change.new, change.path
        before = old.state() if old is not None else ""
        after = new.state() if new is not None else ""
        if before == after:
            self._states.pop(path, None)
            return None
        if self._states.get(path) == after:
            return None  # recorded already, before a crash
        if old is None and not self._known_before(path):
            return None
        details = difference.full(path, old, new, self._text(old), change.text)
        extra: dict[str, Any] = {"path": path, "from": before, "to": after}
        if change.pid:
            from syntrop.contextd.watches import process_name

            extra["pid"] = change.pid
            details = f"by {process_name(change.pid) or 'a process'} ({change.pid})\n{details}"
        return Draft(
            "file",
            difference.describe(path, old, new),
            time_us=_change_time(path, new),
            unit=_unit_of(path),
            details=details,
            private=not all(self._public(path, one) for one in (old, new) if one is not None),
            extra=extra,
        )

    def _known_before(self, path: str) -> bool:
        """Whether a file that is seen for the first time is new: everything around it had been seen."""
        root = self.coverage.root_of(path)
        return root is not None and root in self._progress["scanned"]

    def _text(self, old: Snapshot | None) -> bytes | None:
        return self.objects.get(old.content) if old is not None and old.content else None

    def _public(self, path: str, one: Snapshot) -> bool:
        """Whether everybody may read a file: its own mode, and those of the folders above it."""
        if not (one.world_readable or one.kind == snapshot.LINK):
            return False
        folder = os.path.dirname(path)
        while len(folder) > 1:
            try:
                if not os.stat(paths.host(folder)).st_mode & 0o001:
                    return False
            except OSError:
                pass  # gone with the file
            folder = os.path.dirname(folder)
        return True

    # --- scanning everything -------------------------------------------------------------------------------

    def scan(self, wanted: Callable[[], bool], watch: Callable[[str, set[str] | None], None]) -> int:
        """Compare everything that is watched, setting watches on the way; the number of events.

        `wanted` is asked between folders; when it says no, what was done stays and the rest is not. `watch` is
        called for a folder (or some names in it) before the folder is looked into, so that nothing falls between.
        """
        self.coverage.begin()
        named = self._named_files(wanted)
        folders: dict[str, set[str] | None] = {}
        for root in self.coverage.roots:
            for folder in self.coverage.folders(root):
                folders[folder] = None
                if not wanted():
                    return 0
        for path in named:
            folders.setdefault(os.path.dirname(path), set())
            names = folders[os.path.dirname(path)]
            if names is not None:
                names.add(os.path.basename(path))
        with self.lock.patient:
            self.finish()
            gone = []
            for folder in self.baseline.folders():
                if folder not in folders:
                    gone.append(folder)
                if not wanted():
                    return 0
        first = not self._progress["scanned"]
        count = files = size = 0
        changes: list[_Change] = []
        # In the order of the ledgers, so that a batch touches few of them.
        for folder in sorted([*folders, *gone], key=lambda one: (shard_of(one), one)):
            if not wanted():
                return count
            names = folders.get(folder, set())
            if folder in folders:
                watch(folder, names)
            with self.lock.patient:
                self.finish()
                if not changes:
                    self._scanned_at = self._commits
                found = self._folder_changes(folder) if names is None else self._file_changes(folder, names)
                changes += found
                size += sum(len(one.text or b"") for one in found)
                if len(changes) >= BATCH_FILES or size > BATCH_BYTES:
                    count += len(self._commit(self._still(changes)))
                    files += len(changes)
                    changes, size = [], 0
        with self.lock.patient:
            self.finish()
            count += len(self._commit(self._still(changes)))
            files += len(changes)
            # What was missed for a failing disk would be told as new when it is there again.
            whole = self._progress["since"] and set(self._progress["scanned"]) == set(self.coverage.roots)
            if not whole and not self.coverage.missed:
                self.baseline.settle()
                self._progress["scanned"] = list(self.coverage.roots)
                self._progress["since"] = self._progress["since"] or now_us()
                self._save_progress()
                if first:
                    journal.info(f"Looked at {files} files for the first time", message_id=_MESSAGE_ID_BASELINE)
            self.unkept = None
            self._sweep()
        return count

    def _still(self, changes: list[_Change]) -> list[_Change]:
        """What is still to be told, where others have looked at the same files since."""
        if self._commits == self._scanned_at:
            return changes
        found = []
        for one in changes:
            known = self.baseline.get(one.path)
            if (None if known is None else known.values()) == (None if one.old is None else one.old.values()):
                found.append(one)
            elif (anew := self._compare(one.path, known, 0)) is not None:
                found.append(anew)
        return found

    def _file_changes(self, folder: str, names: set[str]) -> list[_Change]:
        """Single files of a folder that is not watched as a whole."""
        known = self.baseline.folder(folder)
        changes = []
        for name in names | known.keys():
            change = self._compare(unitfiles.join(folder, name), known.get(name), 0)
            if change is not None:
                changes.append(change)
        return changes

    def _named_files(self, wanted: Callable[[], bool]) -> set[str]:
        """Files outside the watched folders that units name."""
        found: set[str] = set()
        for name in unitfiles.all_names(self.index):
            if not wanted():
                break
            unit = unitfiles.load(name, self.index, links=False)
            found.update(path for path in unit.named if self.wants(path))
        return found

    def wants(self, path: str) -> bool:
        """Whether a path that a unit names is a file to watch on its own."""
        return self.coverage.root_of(path) is None and os.path.isfile(paths.host(path))

    def _sweep(self) -> None:
        """Forget contents that nothing names any more, when there is much of them."""
        size = self.objects.size()
        swept = self._progress.get("swept", 0)
        if size > self.options.contents_max or size > 2 * swept + (8 << 20):
            self.objects.keep_only(self.baseline.contents())
            size = self.objects.size()
            self._progress["swept"] = size
            self._save_progress()
        self._full = size >= self.options.contents_max

    def close(self) -> None:
        """Do what is left to do, and note how far others' records were read. The caller holds the lock."""
        if self._opened:
            self._moved = True
            self.finish()


def _change_time(path: str, new: Snapshot | None) -> int:
    """When a file changed: its change time, which nobody can set; for one that is gone, its folder's."""
    now = now_us()
    if new is not None:
        return min(now, new.ctime_ns // 1000)
    try:
        return min(now, os.stat(paths.host(os.path.dirname(path))).st_ctime_ns // 1000)
    except OSError:
        return now


def _unit_of(path: str) -> str | None:
    """The unit that a unit file or drop-in is of, by its path alone."""
    if "/systemd/" not in path:
        return None
    folder, name = os.path.split(path)
    base = os.path.basename(folder)
    if base.endswith(".d") and unitfiles.is_name(base[:-2]):
        return base[:-2]
    return name if unitfiles.is_name(name) else None
