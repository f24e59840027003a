# SPDX-License-Identifier: Apache-2.0
"""System calls into a log: what a call changed is found by comparing with a mirror of the tree."""

from __future__ import annotations

import os

from crashlab import trees
from crashlab.calls import Action
from crashlab.model import FULL, Ack, Attribute, Change, Data, Log, Names, Size, Sync, apply, fingerprint

_MAKING = ("mkdir", "mkdirat", "symlink", "symlinkat", "mknod", "mknodat")
_TIMES = ("utime", "utimes", "futimesat", "utimensat")


class Recorder:
    """Fed by the tracer: `done` after each call that succeeded, `ack` at each acknowledgement."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._mirror, self._numbers = trees.snapshot(root)
        self.log = Log({number: node.copy() for number, node in self._mirror.items()})

    def ack(self, value: str) -> None:
        self.log.events.append(Ack(value))

    def done(self, action: Action, result: int, site: tuple[tuple[str, int], ...]) -> None:
        what = str(action)
        if action.kind == "sync":
            node = None if action.name in ("sync", "syncfs") else self._number(action.file or "")
            self.log.events.append(Sync(node, action.name == "fdatasync", site, what))
            return
        if action.unnamed:
            self._born(f"/proc/{action.pid}/fd/{result}")
        elif action.entries:
            self._names(action, what)
        elif action.kind != "read":
            self._file(action, what)
        if action.synchronous:
            self.log.events.append(Sync(self._number(action.file or ""), True, site, what))

    def verify(self) -> None:
        """Whether the log explains everything that is there now; raises AssertionError."""
        found, _ = trees.snapshot(self._root)
        whole = apply(self.log, dict.fromkeys(range(len(self.log.events)), FULL))
        assert fingerprint(found) == fingerprint(whole), "something changed that was not recorded"

    def _number(self, path: str) -> int:
        return self._numbers[os.stat(path).st_ino]

    def _born(self, path: str) -> int:
        node = trees.look(path)
        status = os.stat(path, follow_symlinks=path.startswith("/proc/"))
        number = len(self._mirror)
        # Also when the inode number is one that a removed file had.
        self._numbers[status.st_ino] = number
        self._mirror[number] = node
        born = self.log.born[number] = node.copy()
        born.data = b""
        return number

    def _names(self, action: Action, what: str) -> None:
        changes = []
        making = action.kind == "open" or action.name in _MAKING
        for (parent, name), existed in zip(action.entries, action.existed, strict=True):
            folder = self._number(parent)
            path = os.path.join(parent, name)
            try:
                inode = os.stat(path, follow_symlinks=False).st_ino
            except FileNotFoundError:
                target = None
            else:
                target = self._born(path) if making and not existed else self._numbers[inode]
            entries = self._mirror[folder].entries
            if entries.get(name) != target:
                changes.append((folder, name, target))
                if target is None:
                    del entries[name]
                else:
                    entries[name] = target
        new = [one for one in changes if one[2] is not None]
        old = [one for one in changes if one[2] is None]
        if new and old and new[0][0] != old[0][0]:
            self.log.events += [Names(tuple(new), what), Names(tuple(old), f"{what} (the old name)", second=True)]
        elif changes:
            self.log.events.append(Names(tuple(changes), what))

    def _file(self, action: Action, what: str) -> None:
        path = action.file or ""
        follow = path.startswith("/proc/")
        number = self._numbers[os.stat(path, follow_symlinks=follow).st_ino]
        old, new = self._mirror[number], trees.look(path)
        folder = self._number(os.path.dirname(path)) if new.kind == "link" else None
        events: list[Change] = []
        if new.kind == "file" and new.data != old.data:
            events += _content(number, old.data, new.data, what)
        for key in ("mode", "owner"):
            if getattr(old, key) != getattr(new, key):
                events.append(Attribute(number, key, getattr(new, key), what, folder))
        if action.name in _TIMES and new.times is not None:
            events.append(Attribute(number, "times", new.times, what, folder))
        for name in old.xattrs.keys() | new.xattrs.keys():
            if old.xattrs.get(name) != new.xattrs.get(name):
                events.append(Attribute(number, name, new.xattrs.get(name), what, folder))
        self.log.events += events
        new.entries = old.entries
        self._mirror[number] = new


def _content(number: int, old: bytes, new: bytes, what: str) -> list[Change]:
    events: list[Change] = []
    if len(new) < len(old):
        events.append(Size(number, len(new), what))
        old = old[: len(new)]
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    end = len(new)
    if len(new) == len(old):
        while end > start and old[end - 1] == new[end - 1]:
            end -= 1
    if start < end:
        if start >= len(old) and not new[start:].strip(b"\0"):
            events.append(Size(number, len(new), what))
        else:
            events.append(Data(number, start, new[start:end], what))
    return events
