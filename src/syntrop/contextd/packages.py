# SPDX-License-Identifier: Apache-2.0
"""Package managers' own records of what they did, parsed: text in, transactions out. No I/O.

Formats: dpkg(1) and its `log` option, apt's history.log, dnf.rpm.log, pacman(8)'s log, zypper's history
(zypp's HistoryLogData), snapd's state.json, flatpak-history(1)'s journal fields.
"""

from __future__ import annotations

import re
import time

from syntrop.common.patterns import late

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

INSTALL, UPGRADE, DOWNGRADE, REINSTALL, REMOVE = "install", "upgrade", "downgrade", "reinstall", "remove"


class Transaction:
    """One package that changed. `version` is what it has now, or had before a removal; `old` what it had."""

    __slots__ = ("action", "architecture", "manager", "name", "old", "time_us", "version")

    def __init__(
        self,
        manager: str,
        time_us: int,
        action: str,
        name: str,
        version: str,
        old: str | None = None,
        architecture: str = "",
    ) -> None:
        self.manager = manager
        self.time_us = time_us
        self.action = action
        self.name = name
        self.version = version
        self.old = old
        self.architecture = architecture

    @property
    def key(self) -> str:
        """What no other transaction has."""
        parts = (self.manager, self.time_us, self.action, self.name, self.architecture, self.version)
        return "|".join(map(str, parts))

    def summary(self) -> str:
        if self.action in (UPGRADE, DOWNGRADE):
            return f"{self.manager}: {self.action} of {self.name} from {self.old or 'unknown'} to {self.version}"
        return f"{self.manager}: {self.action} of {self.name} {self.version}"

    def __repr__(self) -> str:
        return f"Transaction({self.summary()}, {self.architecture}, {self.time_us})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transaction) and (self.key, self.old) == (other.key, other.old)

    __hash__ = None  # type: ignore[assignment]


def local_us(text: str) -> int:
    """Microseconds of a `YYYY-MM-DD HH:MM:SS` in this machine's time zone. Raises ValueError."""
    parsed = time.strptime(text, "%Y-%m-%d %H:%M:%S")
    try:
        return int(time.mktime(parsed)) * 1_000_000
    except OverflowError as error:
        raise ValueError(text) from error


_OFFSET = late(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:\.\d+)?\s*(Z|[+-]\d\d:?\d\d)?\Z")


def iso_us(text: str) -> int:
    """Microseconds of an ISO 8601 time, with or without seconds and offset. Raises ValueError."""
    match = _OFFSET.match(text.strip())
    if match is None:
        raise ValueError(text)
    day, minute, second, offset = match.groups()
    plain = f"{day} {minute}{second or ':00'}"
    if offset is None:
        return local_us(plain)
    import calendar

    seconds = calendar.timegm(time.strptime(plain, "%Y-%m-%d %H:%M:%S"))
    if offset != "Z":
        digits = offset.replace(":", "")
        away = int(digits[1:3]) * 3600 + int(digits[3:5]) * 60
        seconds += away if digits[0] == "-" else -away
    return seconds * 1_000_000


# --- Debian ------------------------------------------------------------------------------------------------


def dpkg(lines: Iterable[str]) -> Iterator[Transaction]:
    """`date time action package:architecture old new` of dpkg.log."""
    for line in lines:
        words = line.split()
        if len(words) != 6 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        try:
            when = local_us(f"{words[0]} {words[1]}")
        except ValueError:
            continue
        _, _, verb, full, old, new = words
        name, _, architecture = full.partition(":")
        before, after = (None if one == "<none>" else one for one in (old, new))
        if verb == "upgrade" and before and after:
            order = compare_debian(before, after)
            action = UPGRADE if order < 0 else DOWNGRADE if order > 0 else REINSTALL
            yield Transaction("dpkg", when, action, name, after, before, architecture)
        elif verb == "install" and after:
            # What had been removed but for its configuration has an old version, which is not installed.
            yield Transaction("dpkg", when, INSTALL, name, after, None, architecture)
        elif verb == "remove" and before:
            yield Transaction("dpkg", when, REMOVE, name, before, before, architecture)


_APT_ITEM = late(r"([^\s,:()]+)(?::([^\s,()]+))? \(([^)]*)\)")
_APT_ACTIONS = {
    "Install": INSTALL,
    "Upgrade": UPGRADE,
    "Downgrade": DOWNGRADE,
    "Reinstall": REINSTALL,
    "Remove": REMOVE,
    "Purge": REMOVE,
}


def apt(lines: Iterable[str]) -> Iterator[tuple[Transaction, str]]:
    """Transactions of apt's history.log, each with the command that asked for it."""
    when, command = 0, ""
    found: list[Transaction] = []
    for line in [*lines, ""]:
        key, colon, value = line.rstrip("\n").partition(": ")
        if key == "Start-Date" and colon:
            try:
                when = local_us(" ".join(value.split()))
            except ValueError:
                when = 0
        elif key == "Commandline" and colon:
            command = value
        elif key in _APT_ACTIONS and colon and when:
            found += _apt_items(_APT_ACTIONS[key], value, when)
        elif not line.strip():
            yield from ((one, command) for one in found)
            when, command, found = 0, "", []


def _apt_items(action: str, value: str, when: int) -> Iterator[Transaction]:
    for name, architecture, inside in _APT_ITEM.findall(value):
        versions = [word for word in inside.split(", ") if word != "automatic"]
        if not versions:
            continue
        old = versions[0] if action in (UPGRADE, DOWNGRADE) and len(versions) > 1 else None
        if action == REMOVE:
            old = versions[0]
        yield Transaction("apt", when, action, name, versions[-1], old, architecture)


def compare_debian(one: str, other: str) -> int:
    """Order of two Debian versions (deb-version(7)): negative, zero or positive."""
    for left, right in zip(_debian_parts(one), _debian_parts(other), strict=True):
        order = _compare_part(left, right)
        if order:
            return order
    return 0


def _debian_parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, hyphen, revision = rest.rpartition("-")
    return (epoch, upstream, revision) if hyphen else (epoch, rest, "")


def _compare_part(one: str, other: str) -> int:
    def rank(text: str) -> list[int]:
        return [-1 if letter == "~" else ord(letter) + (0 if letter.isalpha() else 256) for letter in text] + [0]

    left, right = re.split(r"(\d+)", one), re.split(r"(\d+)", other)
    for index in range(max(len(left), len(right))):
        a = left[index] if index < len(left) else ""
        b = right[index] if index < len(right) else ""
        x, y = ([int(a or 0)], [int(b or 0)]) if index % 2 else (rank(a), rank(b))
        if x != y:
            return -1 if x < y else 1
    return 0


# --- RPM ---------------------------------------------------------------------------------------------------

_NEVRA = late(r"(?P<name>.+)-(?:(?P<epoch>\d+):)?(?P<version>[^-:]+)-(?P<release>[^-]+)\.(?P<arch>[^.]+)\Z")
_DNF_LINE = late(r"(\S+) \S+ (\w+): (\S+)\s*\Z")
_DNF_ACTIONS = {
    "Installed": INSTALL,
    "Upgraded": "old",
    "Upgrade": UPGRADE,
    "Downgraded": "old",
    "Downgrade": DOWNGRADE,
    "Obsoleted": REMOVE,
    "Erase": REMOVE,
    "Erased": REMOVE,
    "Removed": REMOVE,
    "Reinstalled": "old",
    "Reinstall": REINSTALL,
}


def nevra(text: str) -> tuple[str, str, str] | None:
    """Name, version (with a nonzero epoch) and architecture of `name-[epoch:]version-release.arch`."""
    match = _NEVRA.match(text)
    if match is None:
        return None
    return match["name"], evr(match["epoch"], match["version"], match["release"]), match["arch"]


def evr(epoch: str | int | None, version: str, release: str) -> str:
    """A version as rpm writes it: the epoch only where it is not 0."""
    return f"{epoch}:{version}-{release}" if epoch and int(epoch) else f"{version}-{release}"


def dnf_log(lines: Iterable[str]) -> Iterator[Transaction]:
    """dnf.rpm.log, where there is no history database: the replaced version is told on a line of its own."""
    olds: dict[tuple[str, str], str] = {}
    changes: list[Transaction] = []
    for line in lines:
        match = _DNF_LINE.match(line)
        if match is None:
            continue
        parsed = nevra(match[3])
        action = _DNF_ACTIONS.get(match[2])
        if parsed is None or action is None:
            continue
        name, version, architecture = parsed
        try:
            when = iso_us(match[1])
        except ValueError:
            continue
        if action == "old":
            # It follows its successor, the newest change of that name.
            for change in reversed(changes[-500:]):
                if (change.name, change.architecture) == (name, architecture) and change.old is None:
                    change.old = version
                    break
            else:
                olds[name, architecture] = version
            continue
        old = version if action == REMOVE else olds.pop((name, architecture), None)
        changes.append(Transaction("dnf", when, action, name, version, old, architecture))
    yield from changes


# libdnf's TransactionItemAction; the newer history has names.
_DNF4 = {
    1: INSTALL,
    2: DOWNGRADE,
    3: "old",
    4: INSTALL,
    5: REMOVE,
    6: UPGRADE,
    7: "old",
    8: REMOVE,
    9: REINSTALL,
    10: "old",
}
_DNF5 = {
    "Install": INSTALL,
    "Upgrade": UPGRADE,
    "Downgrade": DOWNGRADE,
    "Reinstall": REINSTALL,
    "Remove": REMOVE,
    "Replaced": "old",
}


def dnf_history(rows: Iterable[tuple[Any, ...]]) -> Iterator[Transaction]:
    """Rows of a history database: transaction, time, action, name, epoch, version, release, architecture."""
    by_transaction: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_transaction.setdefault(row[0], []).append(row)
    for found in by_transaction.values():
        olds: dict[tuple[str, str], str] = {}
        for _, _, action, name, epoch, version, release, architecture in found:
            if _dnf_action(action) == "old":
                olds[name, architecture] = evr(epoch, version, release)
        used = set()
        for _, when, code, name, epoch, version, release, architecture in found:
            action = _dnf_action(code)
            if action in (None, "old"):
                continue
            full = evr(epoch, version, release)
            # A package may change its architecture, to and from noarch, as it is upgraded.
            old = olds.get((name, architecture)) or next((v for (n, _), v in olds.items() if n == name), None)
            used.add(name)
            if action == REMOVE:
                old = full
            yield Transaction("dnf", int(when) * 1_000_000, action, name, full, old, architecture)
        for (name, architecture), version in olds.items():
            if name not in used:  # replaced by a package of another name
                yield Transaction(
                    "dnf", int(found[0][1]) * 1_000_000, REMOVE, name, version, version, architecture
                )


def _dnf_action(code: int | str) -> Any:
    return _DNF5.get(code) if isinstance(code, str) else _DNF4.get(code)


# --- the others --------------------------------------------------------------------------------------------

_PACMAN = late(
    r"\[([^\]]+)\] (?:\[ALPM\] )?(installed|upgraded|downgraded|reinstalled|removed) (\S+) \((.+)\)\s*\Z"
)
_PACMAN_ACTIONS = {
    "installed": INSTALL,
    "upgraded": UPGRADE,
    "downgraded": DOWNGRADE,
    "reinstalled": REINSTALL,
    "removed": REMOVE,
}


def pacman(lines: Iterable[str]) -> Iterator[Transaction]:
    for line in lines:
        match = _PACMAN.match(line)
        if match is None:
            continue
        try:
            when = iso_us(match[1])
        except ValueError:
            continue
        action = _PACMAN_ACTIONS[match[2]]
        before, arrow, after = match[4].partition(" -> ")
        if arrow:
            yield Transaction("pacman", when, action, match[3], after, before)
        else:
            yield Transaction("pacman", when, action, match[3], before, before if action == REMOVE else None)


def zypper(lines: Iterable[str], installed: dict[str, str] | None = None) -> Iterator[Transaction]:
    """`time|action|name|version|architecture|…`; what a package had before is what it was last given."""
    have = {} if installed is None else installed
    for line in lines:
        fields = [field.strip() for field in line.rstrip("\n").split("|")]
        if len(fields) < 5 or fields[1] not in ("install", "remove"):
            continue
        try:
            when = local_us(fields[0])
        except ValueError:
            continue
        name, version, architecture = fields[2:5]
        key = f"{name}.{architecture}"
        old = have.pop(key, None)
        if fields[1] == "remove":
            yield Transaction("zypper", when, REMOVE, name, version, version, architecture)
            continue
        have[key] = version
        action = INSTALL
        if old is not None:
            order = compare_debian(old, version)  # same idea of numbers and letters
            action = UPGRADE if order < 0 else DOWNGRADE if order > 0 else REINSTALL
        yield Transaction("zypper", when, action, name, version, old, architecture)


def flatpak(fields: Mapping[str, str], time_us: int) -> Transaction | None:
    """A journal entry of flatpak's: versions are commits."""
    operation = fields.get("OPERATION", "")
    action = {"deploy install": INSTALL, "deploy update": UPGRADE, "uninstall": REMOVE}.get(operation)
    reference = fields.get("REF", "").split("/")
    if action is None or len(reference) != 4:
        return None
    new, old = fields.get("COMMIT", "")[:12], fields.get("OLD_COMMIT", "")[:12]
    version = f"{reference[3]} {new or old}".strip()
    before = f"{reference[3]} {old}" if old and action != INSTALL else version if action == REMOVE else None
    return Transaction("flatpak", time_us, action, reference[1], version, before, reference[2])


_SNAP_KINDS = {
    "link-snap": INSTALL,
    "unlink-current-snap": "old",
    "unlink-snap": REMOVE,
}


def snap(state: Mapping[str, Any]) -> Iterator[Transaction]:
    """snapd's state.json: revisions of the snaps that finished changes linked or unlinked."""
    tasks = state.get("tasks") or {}
    for change in (state.get("changes") or {}).values():
        kind = str(change.get("kind", ""))
        ready = change.get("ready-time")
        if not ready or ready.startswith("0001"):
            continue
        try:
            when = iso_us(re.sub(r"(\.\d+)", "", ready))
        except ValueError:
            continue
        for number in change.get("task-ids") or ():
            task = tasks.get(number) or {}
            action = _SNAP_KINDS.get(task.get("kind", ""))
            if task.get("status") != 4 or action in (None, "old"):  # 4: done
                continue
            data = task.get("data") or {}
            side = (data.get("snap-setup") or {}).get("side-info") or {}
            if not side.get("name"):
                continue
            revision = str(side.get("revision", ""))
            old = data.get("old-current")
            before = str(old) if old else None
            if action == INSTALL and ("refresh" in kind or before):
                action = UPGRADE
            if action == INSTALL and "revert" in kind:
                action = DOWNGRADE
            if action == REMOVE and "remove" not in kind:
                continue
            yield Transaction(
                "snap", when, action, side["name"], revision, revision if action == REMOVE else before
            )
