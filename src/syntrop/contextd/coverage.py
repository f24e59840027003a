# SPDX-License-Identifier: Apache-2.0
"""Which files are watched: the folders of the settings without what is excluded, and files that units name.

It also keeps what of that could not be looked at, for whoever is told what was found.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GAPS_MAX = 1000
_SHOWN = 200  # characters of a path


class Coverage:
    """The watched part of the tree."""

    def __init__(self, roots: Sequence[str], exclude: Sequence[str]) -> None:
        self.roots = tuple(root.rstrip("/") for root in roots if root.startswith("/"))
        whole = [fnmatch.translate(one) for one in exclude if one.startswith("/")]
        names = [fnmatch.translate(one) for one in exclude if not one.startswith("/")]
        self._paths = re.compile("|".join(whole)) if whole else None
        self.missed = False
        """Whether something could not be looked at that is not merely forbidden or gone: the disk failed."""
        self.unfollowed: str | None = None
        """Why changes in some folders are found at the next start only, if that is so."""
        self._gaps: dict[str, str] = {}  # what could not be looked at, and why
        self._names = re.compile("|".join(names)) if names else None

    def begin(self) -> None:
        """Everything is looked at anew."""
        self.missed = False
        self._gaps.clear()

    def note(self, path: str, error: OSError) -> None:
        """Note why something could not be looked at. What is gone leaves no gap."""
        self.missed |= error.errno == errno.EIO
        if error.errno not in (errno.ENOENT, errno.ENOTDIR) and len(self._gaps) < _GAPS_MAX:
            self._gaps[path] = error.strerror or str(error)

    def looked(self, path: str) -> None:
        """Note that something could be looked at, this time."""
        if self._gaps:
            self._gaps.pop(path, None)

    def gaps(self, *, names: bool) -> list[str]:
        """What is not known of the watched part, in sentences; `names` for who may learn what there is."""
        by_reason: dict[str, list[str]] = {}
        for path, reason in list(self._gaps.items()):
            by_reason.setdefault(reason, []).append(path)
        told = []
        for reason, found in by_reason.items():
            count = f"{len(found)}{' or more' if len(self._gaps) >= _GAPS_MAX else ''}"
            among = f", {_shortened(min(found))} among them" if names else ""
            told.append(f"Not looked at: {count} {'path' if count == '1' else 'paths'}{among} ({reason}).")
        if self.unfollowed:
            told.append(f"In some folders a change is found at the next start only: {self.unfollowed}.")
        return told

    def excluded(self, path: str) -> bool:
        if self._names is not None and self._names.match(os.path.basename(path)):
            return True
        return self._paths is not None and self._paths.match(path) is not None

    def root_of(self, path: str) -> str | None:
        """The watched folder that a path is in."""
        for root in self.roots:
            if path == root or path.startswith(root + "/"):
                return root
        return None

    def covers(self, path: str) -> bool:
        return self.root_of(path) is not None and not self.excluded(path)

    def folders(self, top: str) -> Iterator[str]:
        """A folder and all below it, however deep, links not followed. What cannot be listed is noted."""
        todo = [top]
        seen: set[tuple[int, int]] = set()
        while todo:
            folder = todo.pop()
            try:
                status = os.stat(paths.host(folder), follow_symlinks=False)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(paths.host(folder)) as entries:
                    below = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError as error:
                self.note(folder, error)
                continue
            self.looked(folder)
            yield folder
            todo += [path for name in below if not self.excluded(path := f"{folder}/{name}")]


def _shortened(path: str) -> str:
    return path if len(path) <= _SHOWN else f"{path[: _SHOWN // 2]}…{path[-_SHOWN // 2 :]}"
