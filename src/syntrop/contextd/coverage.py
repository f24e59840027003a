# SPDX-License-Identifier: Apache-2.0
"""Which files are watched: the folders of the settings without what is excluded, and files that units name."""

from __future__ import annotations

import errno
import fnmatch
import os
import re

from syntrop.common import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEPTH_MAX = 32


class Coverage:
    """The watched part of the tree."""

    def __init__(self, roots: Sequence[str], exclude: Sequence[str]) -> None:
        self.roots = tuple(root.rstrip("/") for root in roots if root.startswith("/"))
        whole = [fnmatch.translate(one) for one in exclude if one.startswith("/")]
        names = [fnmatch.translate(one) for one in exclude if not one.startswith("/")]
        self._paths = re.compile("|".join(whole)) if whole else None
        self.missed = False
        """Whether something could not be looked at that is not merely forbidden or gone: the disk failed."""
        self._names = re.compile("|".join(names)) if names else None

    def note(self, error: OSError) -> None:
        """Note why something could not be looked at."""
        self.missed |= error.errno == errno.EIO

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
        """A folder and all below it, links not followed. What cannot be listed is left out."""
        todo = [(top, 0)]
        seen: set[tuple[int, int]] = set()
        while todo:
            folder, depth = todo.pop()
            try:
                status = os.stat(paths.host(folder), follow_symlinks=False)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                with os.scandir(paths.host(folder)) as entries:
                    below = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError as error:
                self.note(error)
                continue
            yield folder
            if depth < DEPTH_MAX:
                for name in below:
                    path = f"{folder}/{name}"
                    if not self.excluded(path):
                        todo.append((path, depth + 1))
