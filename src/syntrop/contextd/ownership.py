# SPDX-License-Identifier: Apache-2.0
"""Which packages have to do with a unit: those that own its program, its files, or a library that it loads.

Only packages that changed are looked at, by their own list of files, so the cost is theirs and not the machine's.
"""

from __future__ import annotations

import os

from syntrop.common import paths
from syntrop.contextd import plainfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.contextd.chronology import Event
    from syntrop.contextd.elf import Libraries
    from syntrop.contextd.unitfiles import Unit

_DPKG = "/var/lib/dpkg/info"
_PACMAN = "/var/lib/pacman/local"
_LIST_MAX = 4 << 20
_CACHED = 400


class Owners:
    """Lists of files of packages, read once each."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._lists: dict[tuple[str, str, str], frozenset[str]] = {}

    def files(self, name: str, architecture: str, version: str) -> frozenset[str]:
        """Paths of an installed package, none when it is not known; merged-/usr names are in their new form."""
        key = (name, architecture, version)
        found = self._lists.get(key)
        if found is None:
            if len(self._lists) >= _CACHED:
                self._lists.clear()
            found = self._lists[key] = frozenset(_read(name, architecture, version))
        return found

    def relation(self, unit: Unit, event: Event) -> tuple[float, str] | None:
        """How close a package's change is to a unit; None when the package has no file of its."""
        extra = event.extra
        files = self.files(extra.get("n", ""), extra.get("r", ""), extra.get("v", ""))
        if not files:
            return None
        for program in unit.programs:
            if (
                _merged(os.path.realpath(paths.host(program)).removeprefix(paths.host(""))) in files
                or _merged(program) in files
            ):
                return 0.85, f"package of {program}, the program of {unit.name}"
        for path in (*unit.files, *unit.named):
            if _merged(path) in files:
                return 0.8, f"package of {path}, which {unit.name} reads"
        names = {os.path.basename(path) for path in files if "/lib" in path or "/bin/" in path}
        for program in unit.programs:
            used = self._libraries.of(program) & names
            if used:
                return 0.75, f"package of {min(used)}, which {program} loads"
        return None


def _merged(path: str) -> str:
    return "/usr" + path if path.startswith(("/bin/", "/sbin/", "/lib/", "/lib64/")) else path


def _read(name: str, architecture: str, version: str) -> list[str]:
    if not name or "/" in name or name.startswith("."):
        return []
    for stem in (f"{name}:{architecture}", name):
        text = _text(f"{_DPKG}/{stem}.list")
        if text:
            return [_merged(line) for line in text.split("\n")]
    text = _text(f"{_PACMAN}/{name}-{version}/files") if "/" not in version else ""
    return [f"/{line}" for line in text.split("\n") if line and not line.startswith("%")]


def _text(path: str) -> str:
    try:
        return plainfile.read(paths.host(path), _LIST_MAX).decode("utf-8", "replace")
    except OSError:
        return ""
