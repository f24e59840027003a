# SPDX-License-Identifier: Apache-2.0
"""One causal timeline: how likely each event is to have brought a unit down, and why that is thought.

An event's score is its structural closeness (what it has to do with the unit, 0 to 1) times its temporal one. The
latter falls with the logarithm of the time before the failure (1 at once, a half after a minute, a seventh after
an hour), and never below a third: what touched the unit yesterday is likelier than what touched another one just
now. What came after the failure is no cause, and is kept as a consequence.
"""

from __future__ import annotations

import os
from math import log2

from syntrop.contextd import unitfiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from syntrop.contextd.chronology import Event
    from syntrop.contextd.unitfiles import Unit

_FLOOR = 0.35
_AFTER = 0.25
_UNSEEN = 0.7  # of a change that nobody saw: all that is known is the file's time
_LEAST = 0.05  # below this an event has nothing to do with the unit
_STREAK_US = 600_000_000  # failures no further apart are one breakdown: what began it is looked for before all
_ROLES = {
    unitfiles.DROP_IN: 1.0,
    unitfiles.FRAGMENT: 0.95,
    unitfiles.ENVIRONMENT: 0.95,
    unitfiles.CONFIGURATION: 0.9,
    unitfiles.PROGRAM: 0.9,
    unitfiles.LINK: 0.5,
}
_BASE_PACKAGES = ("linux-", "libc6", "glibc", "systemd", "kernel", "libsystemd", "dbus")
_MACHINE = {"oom": 0.4, "gpu": 0.45, "io": 0.5, "hardware": 0.5, "hang": 0.35, "crash": 0.15}
_MACHINE_WORDS = {
    "oom": "the machine ran out of memory",
    "gpu": "a GPU was reset",
    "io": "a device or file system failed",
    "hardware": "the hardware reported an error",
    "hang": "the kernel was stuck",
    "crash": "another program crashed",
}


class Item:
    """An event of a timeline."""

    __slots__ = ("event", "reason", "score")

    def __init__(self, event: Event, score: float, reason: str) -> None:
        self.event = event
        self.score = score
        self.reason = reason


def failure_time(unit: str, events: Iterable[Event]) -> int | None:
    """When the breakdown began that is the unit's latest; None when it has not failed."""
    times = sorted(
        (
            e.time_us
            for e in events
            if e.unit == unit and e.extra.get("k") in ("failed", "oom", "coredump", "exited")
        ),
        reverse=True,
    )
    if not times:
        return None
    began = times[0]
    for time_us in times[1:]:
        if began - time_us > _STREAK_US:
            break
        began = time_us
    return began


class Surroundings:
    """What a unit is near to: itself, the units it depends on, and what `relation` tells of a package.

    `relation(package, name)` gives the closeness and a phrase for a package that has files of the unit's, or None.
    """

    def __init__(
        self,
        unit: Unit,
        dependencies: Mapping[str, Unit],
        relation: Callable[[Event], tuple[float, str] | None],
    ) -> None:
        self.unit = unit
        self._dependencies = dependencies
        self._relation = relation
        self._stem = unit.name.rpartition(".")[0].partition("@")[0]
        folders = {os.path.dirname(path) for path, role in unit.named.items() if role != unitfiles.PROGRAM}
        self._folders = {one for one in folders if one.count("/") > 1}
        self._foreign: dict[str, tuple[str, str]] = {}
        for name, other in dependencies.items():
            for path, role in (*other.files.items(), *other.named.items()):
                self._foreign.setdefault(path, (name, role))

    def closeness(self, event: Event) -> tuple[float, str]:
        """Structural closeness of an event, and what it is in relation to the unit."""
        kind = event.source
        if kind == "file":
            return self._file(event.extra.get("path", ""))
        if kind == "package":
            return self._package(event)
        if event.unit in self.unit.aliases:
            return self._own(event)
        if event.unit in self._dependencies:
            relation = self.unit.dependencies.get(event.unit or "", "is near to")
            weight = 0.75 if event.extra.get("k") in ("failed", "oom", "coredump", "stopped", "exited") else 0.3
            return weight, f"{self.unit.name} {relation} {event.unit}"
        if kind == "kernel":
            what = event.extra.get("k", "")
            return _MACHINE.get(what, 0.2), _MACHINE_WORDS.get(what, "the kernel reported it")
        if kind == "machine":
            return 0.3, "the machine as a whole"
        if event.unit is None and kind not in ("unit", "coredump"):
            return 0.2, "recorded for the whole machine"
        return 0.0, ""

    def _own(self, event: Event) -> tuple[float, str]:
        kind = event.extra.get("k")
        if event.source == "kernel" or kind == "oom":
            return 0.95, f"the kernel acted on {self.unit.name}"
        if kind == "coredump":
            return 0.6, f"a process of {self.unit.name} crashed"
        if kind == "failed":
            return 0.5, "the failure itself"
        if event.source == "unit":
            return 0.3, f"state of {self.unit.name}"
        return 0.5, f"recorded for {self.unit.name}"

    def _file(self, path: str) -> tuple[float, str]:
        unit = self.unit
        role = unit.files.get(path) or unit.named.get(path)
        if role is not None:
            return _ROLES[role], f"{role} of {unit.name}"
        foreign = self._foreign.get(path)
        folder = os.path.dirname(path)
        if any(f"/{alias}.d" in path for alias in unit.aliases):
            return 1.0, f"drop-in of {unit.name}"
        if folder in self._folders:
            return 0.7, f"beside the configuration of {unit.name}"
        if self._stem and self._stem in path.split("/"):
            return 0.7, f"in a folder named like {unit.name}"
        if foreign is not None:
            return 0.55 * _ROLES[
                foreign[1]
            ], f"{foreign[1]} of {foreign[0]}, which {unit.name} {self._how(foreign[0])}"
        if self._stem and os.path.basename(path).partition(".")[0] == self._stem:
            return 0.6, f"named like {unit.name}"
        if path.startswith(("/etc/systemd/", "/run/systemd/", "/usr/lib/systemd/")):
            return 0.08, "another unit's file"
        return 0.12, "configuration of the machine"

    def _how(self, name: str) -> str:
        return self.unit.dependencies.get(name, "is near to")

    def _package(self, event: Event) -> tuple[float, str]:
        name = event.extra.get("n", "")
        related = self._relation(event)
        if related is not None:
            return related
        if self._stem and (name == self._stem or name.startswith((f"{self._stem}-", f"python3-{self._stem}"))):
            return 0.7, f"package named like {self.unit.name}"
        if name.startswith(_BASE_PACKAGES):
            return 0.3, "package that everything builds on"
        return 0.1, "package without known relation"


def temporal(before_us: int) -> float:
    """Temporal closeness of something that came so long before a failure."""
    return 1 / (1 + log2(1 + before_us / 60e6))


def rank(
    around: Surroundings, events: Iterable[Event], failed_us: int | None, now_us: int, limit: int
) -> list[Item]:
    """The events that may have to do with the unit, likeliest cause first."""
    anchor = now_us if failed_us is None else failed_us
    items = []
    for event in events:
        structural, relation = around.closeness(event)
        if structural < _LEAST:
            continue
        before = anchor - event.time_us
        if before >= 0 or event.extra.get("k") == "failed":
            score = structural * (_FLOOR + (1 - _FLOOR) * temporal(max(0, before)))
        else:
            score = structural * _AFTER
        if event.extra.get("unwatched"):
            score *= _UNSEEN
        items.append(Item(event, score, f"{relation}, {_when(before, failed_us is not None)}"))
    items.sort(key=lambda item: (item.score, item.event.time_us), reverse=True)
    return items[:limit]


def _when(before_us: int, failed: bool) -> str:
    span = duration(abs(before_us))
    if not failed:
        return f"{span} ago"
    return f"{span} before it failed" if before_us >= 0 else f"{span} after it failed"


def duration(us: int) -> str:
    """A span of time for people."""
    seconds = us / 1e6
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.001 else "no time"
