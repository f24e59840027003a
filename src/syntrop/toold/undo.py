# SPDX-License-Identifier: Apache-2.0
"""The rollback journal: plain functions on a root folder. Before the first write of a change, a record of all that
it will touch is on disk; what is acknowledged can be taken back, and what was cut short is.

    ROOT/rollbacks/ID.open     a change that is under way: at the next start it is rolled back
    ROOT/rollbacks/ID.done     a change that was made
    ROOT/rollbacks/ID.failed   one that could not be rolled back: an operator has to look
    ROOT/rollbacks/ID.blobs/   contents that are too large for the record

A record appears whole (rename(2)), after the blobs that it names; it becomes done by being renamed; each step is
synced before the next. Steps are lists of (path, before, after) in the order in which they are made.
"""

from __future__ import annotations

import errno
import json
import os
import re

from syntrop.common import atomic
from syntrop.toold import image as images
from syntrop.toold.image import FOLDER, INLINE_MAX, Image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

FOLDER_NAME = "rollbacks"
OPEN, DONE, FAILED = ".open", ".done", ".failed"
_BLOBS = ".blobs"
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_ID = re.compile(r"rb-([0-9]{1,17})-([0-9a-f]{8})")


class UndoError(Exception):
    """The journal cannot do what is asked."""


class NoSuchRecord(UndoError):
    """There is no change of this id that could be taken back."""


class Damaged(UndoError):
    """A record does not read as it was written."""


def readable(text: str) -> str:
    """A text with what is not UTF-8 in the name of a file written out, so that it can be told and kept."""
    return text.encode("utf-8", "backslashreplace").decode()


class Step:
    """One path of a change, as it was and as it will be; None where somebody else (the manager) writes it."""

    __slots__ = ("after", "before", "path")

    def __init__(self, path: str, before: Image, after: Image | None) -> None:
        self.path, self.before, self.after = path, before, after


class UnitState:
    """A unit that a change starts or stops."""

    __slots__ = ("active_after", "active_before", "unit")

    def __init__(self, unit: str, *, active_before: bool, active_after: bool) -> None:
        self.unit, self.active_before, self.active_after = unit, active_before, active_after


class Record:
    """A change, complete: who asked for what, what it touches, and how each of it was before."""

    __slots__ = (
        "caller",
        "id",
        "reload",
        "state",
        "steps",
        "summary",
        "target_path",
        "target_unit",
        "timestamp_us",
        "tool",
        "undoes",
    )

    def __init__(
        self,
        *,
        tool: str,
        summary: str,
        steps: Iterable[Step] = (),
        state: UnitState | None = None,
        reload: bool = False,
        target_path: str | None = None,
        target_unit: str | None = None,
        caller: dict[str, Any] | None = None,
        undoes: str | None = None,
    ) -> None:
        self.id = ""
        self.timestamp_us = 0
        self.tool, self.summary = tool, readable(summary)
        self.steps = list(steps)
        self.state = state
        self.reload = reload
        """Whether the manager has to read its units again after these files changed."""
        self.target_path = None if target_path is None else readable(target_path)
        """For people; the steps have the paths as they are."""
        self.target_unit = target_unit
        self.caller = caller or {}
        self.undoes = undoes

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "id": self.id,
            "timestamp_us": self.timestamp_us,
            "tool": self.tool,
            "summary": self.summary,
            "target_path": self.target_path,
            "target_unit": self.target_unit,
            "caller": self.caller,
            "undoes": self.undoes,
            "reload": self.reload,
            "state": None
            if self.state is None
            else {
                "unit": self.state.unit,
                "active_before": self.state.active_before,
                "active_after": self.state.active_after,
            },
            "steps": [
                {
                    "path": os.fsencode(step.path).hex(),
                    "before": step.before.to_json(),
                    "after": step.after and step.after.to_json(),
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], blobs: str) -> Record:
        """Raises KeyError, TypeError, ValueError."""
        if value["version"] != 1:
            raise ValueError(f"version {value['version']}")
        state = value["state"]
        record = cls(
            tool=value["tool"],
            summary=value["summary"],
            steps=[
                Step(
                    os.fsdecode(bytes.fromhex(step["path"])),
                    Image.from_json(step["before"], blobs),
                    None if step["after"] is None else Image.from_json(step["after"], blobs),
                )
                for step in value["steps"]
            ],
            state=state
            and UnitState(state["unit"], active_before=state["active_before"], active_after=state["active_after"]),
            reload=value["reload"],
            target_path=value["target_path"],
            target_unit=value["target_unit"],
            caller=value["caller"],
            undoes=value["undoes"],
        )
        record.id, record.timestamp_us = value["id"], value["timestamp_us"]
        return record


def prepare(root: str, record: Record) -> Record:
    """Put a record on disk, with an id and the time. A crash from here on rolls the change back. OSError."""
    import time

    folder = _folder(root)
    _sync(root)  # every time: whoever made the folder may have been stopped before it came to that
    record.timestamp_us = time.time_ns() // 1000
    # Ids are in the order of the changes, also where the clock went back: the oldest are forgotten by them.
    known = [_when(one)[0] for ending in (OPEN, DONE, FAILED) for one in _ids(root, ending)]
    record.id = f"rb-{max([record.timestamp_us, *(one + 1 for one in known)])}-{os.urandom(4).hex()}"
    path = os.path.join(folder, record.id + OPEN)
    try:
        _write_blobs(folder, os.path.join(folder, record.id + _BLOBS), record)
        atomic.write_json(path, record.to_json(), mode=0o600)
    except BaseException:
        abandon(root, record)
        raise
    return record


def carry_out(record: Record) -> None:
    """Make every step of a prepared record, and look whether it came out. Raises ImageError and OSError."""
    for index, step in enumerate(record.steps):
        if step.after is not None:
            images.restore(step.after, step.path, _temporary(record, index))
    for step in record.steps:
        if step.after is not None:
            images.verify(step.after, step.path)


def commit(root: str, record: Record) -> None:
    """A change is made: from here on only `Rollback` takes it back. Raises OSError."""
    _rename(root, record.id, OPEN, DONE)


def put_back(record: Record) -> None:
    """Undo whatever was done of the record's steps, and verify. Doing it twice does no harm."""
    # Folders first, outermost first, so that there is something to put files into; then all, last step first, so
    # that what was made is gone before the folder it was made in.
    for step in reversed(record.steps):
        if step.before.kind == FOLDER:
            images.make_folder(step.path)
    for index, step in reversed(list(enumerate(record.steps))):
        images.restore(step.before, step.path, _temporary(record, index))
    for step in record.steps:
        images.verify(step.before, step.path)


def abandon(root: str, record: Record) -> None:
    """Forget an open record whose steps were put back, or were never begun."""
    folder = _folder(root)
    path = os.path.join(folder, record.id + OPEN)
    if os.path.exists(path):
        os.unlink(path)
    _sync(folder)  # the record before its blobs: a record never names what is not there
    _remove_blobs(os.path.join(folder, record.id + _BLOBS))


def fail(root: str, record_id: str) -> None:
    """Set aside an open record that could not be put back."""
    _rename(root, record_id, OPEN, FAILED)


def reverse(
    record: Record,
    caller: dict[str, Any] | None = None,
    *,
    bytes_max: int = 1 << 30,
    only_unchanged: bool = False,
) -> Record:
    """The change that takes a change back: a record of its own, with the present as its pre-image.

    Raises ImageError and OSError; with `only_unchanged` UndoError where a file is not as the change left it.
    """
    # Made in the opposite order, but folders that have to be there again come before what is in them.
    order = list(reversed(record.steps))
    order.sort(key=lambda step: step.before.kind != FOLDER)  # keeps the order within each kind
    steps = []
    for step in order:
        now = images.capture(step.path, bytes_max=bytes_max)
        bytes_max -= now.size
        # As it was before: somebody has taken it back already, and there is nothing to lose.
        if only_unchanged and step.after is not None and not (now.same(step.after) or now.same(step.before)):
            raise UndoError(f"{readable(step.path)} was changed since: it is {images.describe(now)} by now")
        steps.append(Step(step.path, now, step.before))
    state = record.state
    if state is not None:
        state = UnitState(state.unit, active_before=state.active_after, active_after=state.active_before)
    return Record(
        tool="rollback",
        summary=f"Took back: {record.summary}",
        steps=steps,
        state=state,
        reload=record.reload,
        target_path=record.target_path,
        target_unit=record.target_unit,
        caller=caller,
        undoes=record.id,
    )


def find(root: str, record_id: str) -> Record:
    """A change that can be taken back. Raises NoSuchRecord and Damaged."""
    if not _ID.fullmatch(record_id):
        raise NoSuchRecord(record_id)
    return _read(_folder(root), record_id + DONE)


def listing(root: str, *, since_us: int = 0, limit: int = 50) -> list[Record]:
    """Changes that were made since then, newest first. Damaged records are left out."""
    found: list[Record] = []
    for record_id in sorted(_ids(root, DONE), key=_when, reverse=True):
        if len(found) >= limit or _when(record_id)[0] < since_us:
            break  # an id is never of before its change
        try:
            record = _read(_folder(root), record_id + DONE)
        except (NoSuchRecord, Damaged):
            continue
        if record.timestamp_us >= since_us:
            found.append(record)
    return found


def unfinished(root: str) -> list[Record]:
    """Records of changes that were cut short, newest first: the order to put them back in.

    Raises Damaged only for what cannot happen by a crash. Removes what a crash left that no record names.
    """
    folder = _folder(root)
    _sync(folder)  # what is seen may not be on disk yet, and is now built upon
    ids = sorted(_ids(root, OPEN), key=_when, reverse=True)
    records = [_read(folder, record_id + OPEN) for record_id in ids]
    _sweep(folder)
    return records


def retire(root: str, *, count: int, total_bytes: int, age_sec: float, now_us: int) -> int:
    """Forget the oldest changes beyond a count, a number of bytes and an age; how many were forgotten.

    The newest is kept whatever it takes: what has just been acknowledged can be taken back.
    """
    folder = _folder(root)
    kept, size, gone = 0, 0, 0
    for record_id in sorted(_ids(root, DONE), key=_when, reverse=True):
        size += _size(folder, record_id)
        kept += 1
        if kept == 1 or (
            kept <= count and size <= total_bytes and now_us - _made_us(folder, record_id) <= age_sec * 1_000_000
        ):
            continue
        os.unlink(os.path.join(folder, record_id + DONE))
        _sync(folder)  # the record before its blobs: a record never names what is not there
        _remove_blobs(os.path.join(folder, record_id + _BLOBS))
        gone += 1
    return gone


def folders(record: Record) -> list[str]:
    """The folders that its steps write in."""
    return sorted({os.path.dirname(step.path) for step in record.steps})


# --- inside --------------------------------------------------------------------------------------------------


def _folder(root: str) -> str:
    folder = os.path.join(root, FOLDER_NAME)
    if not os.path.isdir(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _temporary(record: Record, index: int) -> str:
    return f".{record.id}-{index}.tmp"


def _read(folder: str, name: str) -> Record:
    try:
        with open(os.path.join(folder, name), "rb") as file:
            value = json.load(file)
        return Record.from_json(value, os.path.join(folder, name.rpartition(".")[0] + _BLOBS))
    except FileNotFoundError:
        raise NoSuchRecord(name.rpartition(".")[0]) from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"{name}: {error!r}") from None


def _ids(root: str, ending: str) -> list[str]:
    names = os.listdir(_folder(root))
    stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
    return [stem for stem in stems if _ID.fullmatch(stem)]


def _when(record_id: str) -> tuple[int, str]:
    match = _ID.fullmatch(record_id)
    assert match is not None
    return int(match[1]), match[2]


def _rename(root: str, record_id: str, old: str, new: str) -> None:
    folder = _folder(root)
    os.rename(os.path.join(folder, record_id + old), os.path.join(folder, record_id + new))
    _sync(folder)


def _write_blobs(folder: str, blobs: str, record: Record) -> None:
    large = [
        image
        for step in record.steps
        for image in (step.before, step.after)
        if image is not None
        and (image.blob is not None or (image.content is not None and len(image.content) > INLINE_MAX))
    ]
    if not large:
        return
    os.mkdir(blobs, 0o700)
    for number, image in enumerate(large):
        path = os.path.join(blobs, str(number))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(image.data())  # a reversed record's own contents lie in another's blobs
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        image.blob, image.content = path, None
    _sync(blobs)
    _sync(folder)


def _remove_blobs(blobs: str) -> None:
    try:
        names = os.listdir(blobs)
    except FileNotFoundError:
        return
    for name in names:
        os.unlink(os.path.join(blobs, name))
    os.rmdir(blobs)


def _sweep(folder: str) -> None:
    """Blobs without a record, and half-written records."""
    names = set(os.listdir(folder))
    for name in names:
        if name.endswith(_BLOBS):
            stem = name.removesuffix(_BLOBS)
            if not any(stem + ending in names for ending in (OPEN, DONE, FAILED)):
                _remove_blobs(os.path.join(folder, name))
        elif name.startswith(".") and name.endswith(".tmp"):
            os.unlink(os.path.join(folder, name))


def _made_us(folder: str, record_id: str) -> int:
    """When a change was made: its id tells, unless it is of a clock that went back."""
    return min(_when(record_id)[0], os.stat(os.path.join(folder, record_id + DONE)).st_mtime_ns // 1000)


def _size(folder: str, record_id: str) -> int:
    size = os.stat(os.path.join(folder, record_id + DONE)).st_size
    blobs = os.path.join(folder, record_id + _BLOBS)
    if os.path.isdir(blobs):
        size += sum(entry.stat().st_size for entry in os.scandir(blobs))
    return size


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_passing(error: Exception) -> bool:
    """Whether what kept a change from being put back may have passed when it is tried again: a full disk, say."""
    return isinstance(error, OSError) and error.errno in _PASSING


def recover(root: str) -> list[tuple[Record, str]]:
    """Put back every change that was cut short, newest first; what became of each: `""`, or why it could not be.

    Raises OSError for what may work another time; the records stay open until then.

    For callers without a manager to tell; `changes.Changer.recover` does the same step by step.
    """
    outcomes = []
    for record in unfinished(root):
        try:
            put_back(record)
        except (images.ImageError, OSError) as error:
            if is_passing(error):
                raise
            fail(root, record.id)
            outcomes.append((record, str(error)))
        else:
            abandon(root, record)
            outcomes.append((record, ""))
    return outcomes
