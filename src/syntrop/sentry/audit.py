# SPDX-License-Identifier: Apache-2.0
"""Incidents on disk: one file each, written whole. Open ones lie apart from closed ones, so that a start finds
what was under way without reading what is over.

`open/ID.json` and `closed/ID.json`; the identifier begins with the time, so names are in its order. What a crash
leaves in both folders is closed. `guards.json` has the breakers and the budget.
"""

from __future__ import annotations

import os

from syntrop.common import atomic, journal
from syntrop.sentry.incident import CLOSED, Incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

OPEN_FOLDER, CLOSED_FOLDER, GUARDS = "open", "closed", "guards.json"
_DAY_US = 86_400_000_000
BYTES_MAX = 1 << 20  # of a record that is read


def identifier(time_us: int) -> str:
    """A new incident's."""
    return f"in-{time_us:016d}-{os.urandom(4).hex()}"


def _time_us(id: str) -> int:
    """When an incident was, by its identifier; -1 where it is none."""
    parts = id.split("-")
    good = (
        len(parts) == 3 and parts[0] == "in" and parts[1].isascii() and parts[1].isdigit() and parts[2].isalnum()
    )
    return int(parts[1]) if good and len(id) < 64 else -1


class Audit:
    """The folder of incidents. The blocking calls are small: one file each; `listing` is for a worker thread."""

    def __init__(self, folder: str, *, keep: int, keep_days: float) -> None:
        self._folder = folder
        self._made = False
        self.retune(keep=keep, keep_days=keep_days)

    def retune(self, *, keep: int, keep_days: float) -> None:
        """How many closed incidents are kept, and for how many days."""
        self._keep, self._keep_us = keep, int(keep_days * _DAY_US)

    def open(self) -> list[Incident]:
        """The incidents that are not closed, oldest first."""
        closed = set(self._names(CLOSED_FOLDER))
        found = []
        for id in self._names(OPEN_FOLDER):
            if id in closed:
                self._remove(OPEN_FOLDER, id)
            elif (one := self._read(OPEN_FOLDER, id)) is not None:
                found.append(one)
        return found

    def write(self, incident: Incident, *, sync: bool = False) -> None:
        """Keep an incident as it stands. Without `sync` it survives our end, with it the machine's too.

        Raises OSError.
        """
        self._make()
        over = incident.status in CLOSED
        folder = CLOSED_FOLDER if over else OPEN_FOLDER
        atomic.write_json(self._path(folder, incident.id), incident.dump(), mode=0o600, sync=sync)
        if over:
            self._remove(OPEN_FOLDER, incident.id)

    def get(self, id: str) -> Incident:
        """Raises KeyError."""
        if _time_us(id) >= 0:
            for folder in (OPEN_FOLDER, CLOSED_FOLDER, OPEN_FOLDER):  # it may be on its way from one to the other
                found = self._read(folder, id)
                if found is not None:
                    return found
        raise KeyError(id)

    def listing(self, *, unit: str | None, status: str | None, since_us: int, limit: int) -> list[dict[str, Any]]:
        """In the interface's form, newest first."""
        found: list[dict[str, Any]] = []
        for id in self._newest():
            if _time_us(id) < since_us or len(found) >= limit:
                break
            try:
                one = self.get(id)
            except KeyError:
                continue
            if unit in (None, one.unit) and status in (None, one.status):
                found.append(one.wire())
        return found

    def has(self, unit: str, invocation: str) -> bool:
        """Whether there is a record of this failure. It looks into all of them: for a worker thread."""
        wanted = invocation.encode()
        for folder in (OPEN_FOLDER, CLOSED_FOLDER):
            for id in reversed(self._names(folder)):
                try:
                    with open(self._path(folder, id), "rb") as file:
                        likely = wanted in file.read(BYTES_MAX)
                except OSError:
                    continue  # it went meanwhile, or is no file: `get` tells of those
                found = self._read(folder, id) if likely else None
                if found is not None and (found.unit, found.invocation) == (unit, invocation):
                    return True
        return False

    def retire(self, now_us: int) -> int:
        """Forget what is over and too old, or too much; how many."""
        names = sorted(self._names(CLOSED_FOLDER), reverse=True)
        old = [
            id for number, id in enumerate(names) if number >= self._keep or _time_us(id) < now_us - self._keep_us
        ]
        for id in old:
            self._remove(CLOSED_FOLDER, id)
        return len(old)

    def write_guards(self, kept: dict[str, Any]) -> None:
        """Raises OSError."""
        self._make()
        atomic.write_json(os.path.join(self._folder, GUARDS), kept, mode=0o600, sync=False)

    def guards(self) -> dict[str, Any]:
        """What `write_guards` kept; empty where there is nothing that can be read."""
        kept = self._load(os.path.join(self._folder, GUARDS), dict)
        return kept if isinstance(kept, dict) else {}

    def awake_until(self) -> int | None:
        """UTC microseconds of the newest thing that was written here: what failed later, nobody heard of. None
        where nothing is written yet."""
        names = [GUARDS, *(os.path.join(folder, f"{id}.json") for folder, id in self._latest())]
        times = []
        for name in names:
            try:
                times.append(os.stat(os.path.join(self._folder, name)).st_mtime_ns // 1000)
            except OSError:
                pass
        return max(times, default=None)

    def _latest(self) -> list[tuple[str, str]]:
        return [(folder, names[-1]) for folder in (OPEN_FOLDER, CLOSED_FOLDER) if (names := self._names(folder))]

    def _newest(self) -> Iterator[str]:
        both = {*self._names(OPEN_FOLDER), *self._names(CLOSED_FOLDER)}
        return iter(sorted(both, reverse=True))

    def _names(self, folder: str) -> list[str]:
        try:
            names = os.listdir(os.path.join(self._folder, folder))
        except FileNotFoundError:
            return []
        ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(id for id in ids if _time_us(id) >= 0)

    def _read(self, folder: str, id: str) -> Incident | None:
        found = self._load(self._path(folder, id), Incident.load)
        return found if isinstance(found, Incident) else None

    def _load(self, path: str, form: Callable[[dict[str, Any]], Any]) -> Any:
        import json

        try:
            with open(path, "rb") as file:
                return form(json.loads(file.read(BYTES_MAX)))
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            journal.warning(f"{path} cannot be read, and is passed over: {type(error).__name__} {error}")
            return None

    def _path(self, folder: str, id: str) -> str:
        return os.path.join(self._folder, folder, f"{id}.json")

    def _remove(self, folder: str, id: str) -> None:
        try:
            os.unlink(self._path(folder, id))
        except FileNotFoundError:
            pass

    def _make(self) -> None:
        if not self._made:
            for folder in (OPEN_FOLDER, CLOSED_FOLDER):
                os.makedirs(os.path.join(self._folder, folder), mode=0o700, exist_ok=True)
            self._made = True
