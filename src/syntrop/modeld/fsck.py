# SPDX-License-Identifier: Apache-2.0
"""Read everything again: what changed goes into quarantine, what a crash left half-made goes.

Files are read side by side, one a processor; one that cannot be read counts as damaged. Everything here blocks.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import stat

from syntrop.modeld import disk, incoming, naming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

    from syntrop.modeld.store import Store

WORKERS_MAX = 8


class Report:
    """What was found. `models` are the digests of those that are no longer there, `files` of the damaged files."""

    __slots__ = ("checked", "files", "leftovers", "models", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.checked = 0
        self.models: list[str] = []
        self.files: list[str] = []
        self.leftovers: list[str] = []
        """Paths that were removed because nothing of them was ever whole, or named."""


def check(
    store: Store,
    wanted: Callable[[], bool],
    progress: Callable[[Report], object],
    workers: int | None = None,
) -> Report:
    """Verify every file of the store against its digest. `progress` is called from this thread only.

    Ends early, with what was found so far, when `wanted` says no. Raises OSError.
    """
    import queue

    sizes = store.index().sizes
    blobs = sorted(filter(naming.is_hex, disk.names(store.blobs)), key=lambda one: -sizes.get(one, 0))
    paths = [os.path.join(store.blobs, one) for one in blobs]
    manifests = [name for name in disk.names(store.manifests) if naming.is_hex(name)]
    paths = [os.path.join(store.manifests, name) for name in manifests] + paths
    report = Report(sum(sizes.values()) + sum(map(_size, paths[: len(manifests)])))
    if not os.path.isdir(store.root):
        return report
    todo: SimpleQueue[str] = queue.SimpleQueue()
    done: SimpleQueue[tuple[str, bool] | int | None] = queue.SimpleQueue()
    for path in paths:
        todo.put(path)
    running = min(workers or len(os.sched_getaffinity(0)), WORKERS_MAX)
    for _ in range(running):
        _thread.start_new_thread(_work, (todo, done, wanted))
    while running:
        found = done.get()
        if found is None:
            running -= 1
        elif isinstance(found, int):
            report.checked += found
            progress(report)
        elif not found[1]:
            digest = os.path.basename(found[0])
            report.files.append(digest)
            for model in store.withdraw(digest) or [digest]:
                if model not in report.models:
                    report.models.append(model)
            progress(report)
    if wanted():
        tidy(store, report)
    return report


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0  # pruned meanwhile


def _work(
    todo: SimpleQueue[str], done: SimpleQueue[tuple[str, bool] | int | None], wanted: Callable[[], bool]
) -> None:
    from queue import Empty

    try:
        while wanted():
            try:
                path = todo.get_nowait()
            except Empty:
                return
            good = _verify(path, wanted, done.put)
            if good is not None:
                done.put((path, good))
    finally:
        done.put(None)


def _verify(path: str, wanted: Callable[[], bool], progress: Callable[[int], object]) -> bool | None:
    """Whether a file has the digest that is its name; None when that was not found out."""
    try:
        if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
            return False  # not ours; to open it might hold us up
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None  # pruned meanwhile
    except OSError:
        return False
    try:
        digest = disk.digest(handle, wanted, progress)
    except OSError:
        return False  # the medium failed
    finally:
        os.close(handle)
    return None if digest is None else digest == os.path.basename(path)


def tidy(store: Store, report: Report) -> None:
    """Remove what a crash left half-made, and what names nothing that is there."""
    from time import time

    with store.locked():
        store.unlist()  # somebody may have changed something by hand where the times of no folder tell it
        index = store.index()
        for digest in index.orphans:
            _drop(os.path.join(store.blobs, digest), report)
        for folder in (store.blobs, store.manifests, store.notes, store.incoming):
            for name in disk.names(folder):
                path = os.path.join(folder, name)
                is_written = folder in (store.blobs, store.incoming) and not _abandoned(path)
                if name.startswith(".") and not is_written:
                    _drop(path, report)
        for name in disk.names(store.notes):
            if name.endswith(".json") and name.removesuffix(".json") not in index.models:
                _drop(os.path.join(store.notes, name), report)
        for name in set(filter(naming.is_hex, disk.names(store.uses))) - index.models.keys():
            _drop(os.path.join(store.uses, name), report)
        kept = {(name, tag) for name, tag, _ in index.tags}
        for name in filter(naming.is_name, disk.names(store.tags)):
            place = os.path.join(store.tags, name)
            for tag in disk.names(place):
                if (name, tag) not in kept and os.path.islink(os.path.join(place, tag)):
                    _drop(os.path.join(place, tag), report)
            if os.path.isdir(place):
                disk.sync(place)
                if not os.listdir(place):
                    os.rmdir(place)
        for folder in (store.blobs, store.manifests, store.notes, store.tags):
            if os.path.isdir(folder):
                disk.sync(folder)
    incoming.sweep(store.incoming, time())


def _abandoned(path: str) -> bool:
    """Whether nobody is writing a file that is to get another name: a writer holds its lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _drop(path: str, report: Report) -> None:
    if disk.unlink(path):
        report.leftovers.append(path)
