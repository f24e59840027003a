# SPDX-License-Identifier: Apache-2.0
"""Reads what package managers left since last time, by the place where each file was read up to."""

from __future__ import annotations

import os
import stat

from syntrop.common import journal, paths
from syntrop.contextd import packages, plainfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from syntrop.contextd.packages import Transaction

DPKG = "/var/log/dpkg.log"
APT = "/var/log/apt/history.log"
DNF_LOG = "/var/log/dnf.rpm.log"
PACMAN = "/var/log/pacman.log"
ZYPPER = "/var/log/zypp/history"
DNF_HISTORY = (
    "/usr/lib/sysimage/libdnf5/transaction_history.sqlite",
    "/var/lib/dnf/history.sqlite",
)
SNAP = "/var/lib/snapd/state.json"
WATCHED = (DPKG, APT, DNF_LOG, PACMAN, ZYPPER, *DNF_HISTORY, SNAP)
_FIRST_MAX = 1 << 20  # bytes of a log's end that are read the first time
_READ_MAX = 16 << 20
_SNAP_MAX = 32 << 20
_TOLD_MAX = 64

_DNF4_QUERY = (
    "SELECT t.id, coalesce(t.dt_end, t.dt_begin), i.action, r.name, r.epoch, r.version, r.release, r.arch"
    " FROM trans t JOIN trans_item i ON i.trans_id = t.id JOIN rpm r ON r.item_id = i.item_id"
    " WHERE t.id > ? AND t.id <= ? AND i.state <> 2 AND (t.dt_end IS NOT NULL OR i.state = 1) ORDER BY t.id, i.id"
)
_DNF5_QUERY = (
    "SELECT t.id, coalesce(t.dt_end, t.dt_begin), a.name, n.name, r.epoch, r.version, r.release, h.name"
    " FROM trans t JOIN trans_item i ON i.trans_id = t.id JOIN rpm r ON r.item_id = i.item_id"
    " JOIN trans_item_action a ON a.id = i.action_id JOIN {names} n ON n.id = r.name_id"
    " JOIN {archs} h ON h.id = r.arch_id"
    " WHERE t.id > ? AND t.id <= ? AND i.state_id <> 3 AND (t.dt_end IS NOT NULL OR i.state_id = 2)"
    " ORDER BY t.id, i.id"
)
# Of one that has not ended, nothing is certain yet; of one that was killed, only what is marked as done.
_DNF_ENDED = "SELECT coalesce(max(id), 0) FROM trans WHERE dt_end IS NOT NULL"
_DNF_SIZES = (
    "SELECT trans_id, count(*) FROM trans_item WHERE trans_id > ? AND trans_id <= ?"
    " GROUP BY trans_id ORDER BY trans_id DESC LIMIT 200"
)
_DNF_ITEMS_MAX = 10_000  # of the newest transactions: more events than that are not kept anyway


_told: set[str] = set()  # what this process has complained of already


def complain(text: str) -> None:
    """Warn of something once in a process: it is looked at with every call."""
    if text not in _told:
        if len(_told) >= _TOLD_MAX:
            _told.clear()
        _told.add(text)
        journal.warning(text)


def _status(path: str) -> os.stat_result | None:
    """A source, if there is one. What is no regular file is none: a FIFO would hold us up. Raises OSError."""
    try:
        status = os.stat(paths.host(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no regular file")
    return status


class PackageLogs:
    """`cursors` is where each source was read up to: plain data that the caller keeps."""

    def __init__(self, cursors: dict[str, Any]) -> None:
        self.cursors = cursors

    def read(self) -> list[Transaction]:
        """What is new, oldest first. A source that cannot be read is told of and passed over."""
        found: list[Transaction] = []
        for read in (self._debian, self._rpm, self._pacman, self._zypper, self._snap):
            try:
                found += read()
            except OSError as error:
                complain(f"Cannot read a package manager's records: {error}")
        found.sort(key=lambda one: one.time_us)
        return found

    def _debian(self) -> list[Transaction]:
        if os.path.exists(paths.host(DPKG)):
            return self._lines(DPKG, packages.dpkg)
        return self._lines(APT, lambda lines: (one for one, _ in packages.apt(lines)))

    def _rpm(self) -> list[Transaction]:
        for path in DNF_HISTORY:
            if os.path.exists(paths.host(path)):
                return self._history(path)
        return self._lines(DNF_LOG, packages.dnf_log)

    def _pacman(self) -> list[Transaction]:
        return self._lines(PACMAN, packages.pacman)

    def _zypper(self) -> list[Transaction]:
        installed: dict[str, str] = self.cursors.setdefault("zypper-installed", {})
        return self._lines(ZYPPER, lambda lines: packages.zypper(lines, installed), first=_READ_MAX)

    def _lines(
        self,
        path: str,
        parse: Callable[[Iterable[str]], Iterable[Transaction]],
        first: int = _FIRST_MAX,
    ) -> list[Transaction]:
        """New whole lines of a log, beginning with the rest of the one that was rotated away."""
        host = paths.host(path)
        status = _status(path)
        if status is None:
            return []
        known = self.cursors.get(path)
        if known == [status.st_ino, status.st_size]:
            return []
        data = b""
        if known is None:
            offset = max(0, status.st_size - first)
        elif known[0] != status.st_ino:
            data, _ = _tail(_rotated(host, known[0]), known[1], known[0])
            offset = 0
        else:
            offset = known[1] if known[1] <= status.st_size else 0
        new, offset = _tail(host, offset, status.st_ino)
        if known is None and offset > first:
            new = new.partition(b"\n")[2]  # the first line may be cut
        self.cursors[path] = [status.st_ino, offset]
        return list(parse((data + new).decode("utf-8", "replace").split("\n")))

    def _history(self, path: str) -> list[Transaction]:
        """The transactions of a history database that are not known yet. It is opened for reading only."""
        host = paths.host(path)
        status = _status(path)
        if status is None:
            return []  # gone in this moment
        stamp = [status.st_ino, status.st_mtime_ns, status.st_size]
        known = self.cursors.get(path) or {"stamp": None, "last": 0}
        if known["stamp"] == stamp:
            return []
        import sqlite3

        try:
            # Immutable: neither a lock nor a journal file of ours in a folder that is not ours.
            database = sqlite3.connect(f"file:{host}?mode=ro&immutable=1", uri=True)
            try:
                tables = {
                    row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                }
                query = _DNF4_QUERY
                if "trans_item_action" in tables:
                    names = "pkg_name" if "pkg_name" in tables else "pkg_names"
                    query = _DNF5_QUERY.format(names=names, archs="arch" if "arch" in tables else "archs")
                newest = max(known["last"], database.execute(_DNF_ENDED).fetchone()[0])
                first, items = newest + 1, 0
                for number, size in database.execute(_DNF_SIZES, (known["last"], newest)):
                    items += size
                    if items > _DNF_ITEMS_MAX and first <= newest:
                        break
                    first = number
                rows = database.execute(query, (first - 1, newest)).fetchall()
            finally:
                database.close()
        except sqlite3.Error as error:
            raise OSError(f"{path}: {error}") from None
        self.cursors[path] = {"stamp": stamp, "last": newest}
        return list(packages.dnf_history(rows))

    def _snap(self) -> list[Transaction]:
        try:
            status = _status(SNAP)
        except PermissionError:
            return []
        if status is None:
            return []
        stamp = [status.st_ino, status.st_mtime_ns]
        if self.cursors.get(SNAP) == stamp or status.st_size > _SNAP_MAX:
            return []
        import json

        try:
            state = json.loads(plainfile.read(paths.host(SNAP), _SNAP_MAX))
        except PermissionError:
            return []
        except (ValueError, RecursionError) as error:
            raise OSError(f"{SNAP}: {error}") from None
        self.cursors[SNAP] = stamp
        return list(packages.snap(state))


def _rotated(path: str, inode: int) -> str:
    """Where a log is that was rotated away, `.1` or a date behind its name; itself where it is not found."""
    folder, name = os.path.split(path)
    try:
        with os.scandir(folder) as found:
            return next((one.path for one in found if one.name.startswith(name) and one.inode() == inode), path)
    except OSError:
        return path


def _tail(path: str, offset: int, inode: int) -> tuple[bytes, int]:
    """Whole lines of a file from an offset on, if it is that file; and where they end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return b"", 0
    try:
        status = os.fstat(handle)
        if status.st_ino != inode or not stat.S_ISREG(status.st_mode):
            return b"", 0
        pieces = []
        at = offset
        while at - offset < _READ_MAX and (piece := os.pread(handle, 1 << 20, at)):
            pieces.append(piece)
            at += len(piece)
    finally:
        os.close(handle)
    data = b"".join(pieces)
    data = data[: data.rfind(b"\n") + 1]
    return data, offset + len(data)
