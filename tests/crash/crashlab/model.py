# SPDX-License-Identifier: Apache-2.0
"""What a power loss may leave. Pure: a tree, a log of changes and syncs, and the states in between.

The model is weaker than any one journalled file system, so that code which holds here holds on all of them:

1. What was there before the log began is safe.
2. A change of one directory entry, or a rename within a folder, is atomic. A rename from one folder into another
   may reach the disk in two steps, the new name first. Changes that touch a common (folder, name) reach the disk
   in order; all others in any order, or not at all.
3. A change of a file's content may be there, absent, torn (its first half there), or there in length only
   (zeros), independently of any other change, and of the file's name. So may each change of mode, owner and each
   extended attribute.
4. fsync of a file makes its content and attributes safe, fdatasync its content, neither its name. fsync of a
   folder makes its entries safe (with what rule 2 puts before them) and the attributes of the links in it, not the
   files that it names. sync and syncfs make everything safe.
5. A file or folder without a safe name is gone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = 0
FULL, ZEROS, TORN, SHORT = "full", "zeros", "torn", "short"


class Node:
    """A file (`data`), link (`target`) or folder (`entries`)."""

    __slots__ = ("data", "entries", "kind", "mode", "owner", "target", "times", "xattrs")

    def __init__(self, kind: str, mode: int = 0o600, owner: tuple[int, int] = (0, 0)) -> None:
        self.kind = kind
        self.mode = mode
        self.owner = owner
        self.data = b""
        self.target = ""
        self.entries: dict[str, int] = {}
        self.xattrs: dict[str, bytes] = {}
        self.times: tuple[int, int] | None = None
        """Of access and modification in nanoseconds; matter only where they were set by hand."""

    def copy(self) -> Node:
        other = Node(self.kind, self.mode, self.owner)
        other.data, other.target, other.times = self.data, self.target, self.times
        other.entries, other.xattrs = dict(self.entries), dict(self.xattrs)
        return other


Tree = dict[int, Node]


@dataclass(frozen=True)
class Names:
    """Directory entries that change at once: (folder, name, what it names from now on)."""

    changes: tuple[tuple[int, str, int | None], ...]
    what: str = ""
    second: bool = False
    """The second step of a rename: never on disk without the event before it."""


@dataclass(frozen=True)
class Data:
    """Bytes at an offset."""

    node: int
    offset: int
    data: bytes
    what: str = ""


@dataclass(frozen=True)
class Size:
    """A file becomes shorter, or longer by zeros."""

    node: int
    size: int
    what: str = ""


@dataclass(frozen=True)
class Attribute:
    """`mode`, `owner`, `times`, or the name of an extended attribute with its value (None: removed)."""

    node: int
    key: str
    value: object
    what: str = ""
    folder: int | None = None
    """Of a link, which cannot be synced itself: the folder that it is in."""


@dataclass(frozen=True)
class Sync:
    """`node` None: everything. `site`: (file, line) of the callers, innermost first."""

    node: int | None
    data_only: bool = False
    site: tuple[tuple[str, int], ...] = ()
    what: str = ""


@dataclass(frozen=True)
class Ack:
    """The operation told its caller that this is done."""

    value: str


Change = Names | Data | Size | Attribute
Event = Change | Sync | Ack


@dataclass
class Log:
    """A recording: the tree before, nodes as they were made, and what happened."""

    base: Tree
    born: Tree = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def without(self, lines: set[tuple[str, int]]) -> Log:
        """The same, had the syncs that were called through any of these lines not been there."""
        kept = [one for one in self.events if not (isinstance(one, Sync) and lines & set(one.site))]
        return Log(self.base, self.born, kept)


def apply(log: Log, chosen: dict[int, str]) -> Tree:
    """The tree with the chosen events on it (index: how much of it)."""
    tree = {**log.born, **log.base}
    ours: set[int] = set()

    def node(number: int) -> Node:
        if number not in ours:
            ours.add(number)
            tree[number] = tree[number].copy()
        return tree[number]

    for index in sorted(chosen):
        event = log.events[index]
        if isinstance(event, Names):
            for folder, name, target in event.changes:
                if target is None:
                    node(folder).entries.pop(name, None)
                else:
                    node(folder).entries[name] = target
        elif isinstance(event, Data):
            changed = node(event.node)
            changed.data = _written(changed.data, event, chosen[index])
        elif isinstance(event, Size):
            changed = node(event.node)
            changed.data = changed.data[: event.size].ljust(event.size, b"\0")
        elif isinstance(event, Attribute):
            changed = node(event.node)
            if event.key in ("mode", "owner", "times"):
                setattr(changed, event.key, event.value)
            elif event.value is None:
                changed.xattrs.pop(event.key, None)
            else:
                changed.xattrs[event.key] = event.value  # type: ignore[assignment]
    return tree


def _written(old: bytes, event: Data, how: str) -> bytes:
    piece = event.data
    end = event.offset + len(piece)
    half = len(piece) // 2
    if how == SHORT:
        piece, end = piece[:half], event.offset + half
    elif how == TORN:
        piece = piece[:half]
    elif how == ZEROS:
        piece = b""
    grown = old.ljust(end, b"\0") if len(old) < end else old
    return grown[: event.offset] + piece + grown[event.offset + len(piece) :]


def fingerprint(tree: Tree) -> object:
    """Equal for trees that nobody can tell apart by what is reachable (times aside)."""
    numbers: dict[int, int] = {}

    def walk(number: int) -> object:
        node = tree[number]
        if node.kind == "dir":
            below = tuple((name, walk(child)) for name, child in sorted(node.entries.items()))
            return ("dir", node.mode, node.owner, tuple(sorted(node.xattrs.items())), below)
        same = numbers.setdefault(number, len(numbers))
        return (node.kind, same, node.mode, node.owner, node.data, node.target, tuple(sorted(node.xattrs.items())))

    return walk(ROOT)


def outcomes(
    log: Log, *, exhaustive: int = 7, samples: int = 24, seed: int = 6
) -> Iterator[tuple[tuple[str, ...], dict[int, str], int]]:
    """Every crash: (what was acknowledged, choice of events for `apply`, index of the event it came before).

    The moments just before each sync, each acknowledgement and the end stand for all others: what is pending only
    grows in between. Where at most `exhaustive` changes are pending, all their legal subsets are given, else all
    beginnings, each change alone, each one missing, and `samples` random subsets; each change of content also
    torn, short and as zeros. The likeliest to hurt come first.
    """
    dice = random.Random(seed)
    needs = _needs(log)
    safe: set[int] = set()
    acked: tuple[str, ...] = ()
    for point in range(len(log.events) + 1):
        event = log.events[point] if point < len(log.events) else None
        if event is None or isinstance(event, Sync | Ack):
            pending = [i for i in range(point) if i not in safe and isinstance(log.events[i], Change)]
            for choice in _subsets(log, pending, needs, exhaustive, samples, dice):
                yield acked, {**dict.fromkeys(safe, FULL), **choice}, point
        if isinstance(event, Ack):
            acked = (*acked, event.value)
        elif isinstance(event, Sync):
            safe |= _made_safe(log, event, point, needs)


def endings(log: Log) -> Iterator[dict[int, str]]:
    """A few crashes after the last event: nothing of what is pending on disk, each change alone, each missing."""
    needs = _needs(log)
    safe: set[int] = set()
    for index, event in enumerate(log.events):
        if isinstance(event, Sync):
            safe |= _made_safe(log, event, index, needs)
    pending = [i for i, one in enumerate(log.events) if i not in safe and isinstance(one, Change)]
    for choice in _subsets(log, pending, needs, 0, 0, random.Random(0)):
        if all(how == FULL for how in choice.values()):
            yield {**dict.fromkeys(safe, FULL), **choice}


def _made_safe(log: Log, sync: Sync, point: int, needs: dict[int, set[int]]) -> set[int]:
    return _closed({index for index in range(point) if _covers(sync, log.events[index])}, needs)


def _covers(sync: Sync, event: Event) -> bool:
    if not isinstance(event, Change):
        return False
    if sync.node is None:
        return True
    if isinstance(event, Names):
        return any(folder == sync.node for folder, _, _ in event.changes)
    if isinstance(event, Attribute) and event.folder is not None:
        return event.folder == sync.node
    return event.node == sync.node and not (sync.data_only and isinstance(event, Attribute))


def _needs(log: Log) -> dict[int, set[int]]:
    """What has to be on disk before a change of names is: the last one that touched the same entry."""
    last: dict[tuple[int, str], int] = {}
    needs: dict[int, set[int]] = {}
    for index, event in enumerate(log.events):
        if isinstance(event, Names):
            keys = [(folder, name) for folder, name, _ in event.changes]
            needs[index] = {last[key] for key in keys if key in last}
            if event.second:
                needs[index].add(index - 1)
            last.update(dict.fromkeys(keys, index))
    return needs


def _closed(wanted: set[int], needs: dict[int, set[int]]) -> set[int]:
    whole, todo = set(wanted), list(wanted)
    while todo:
        for index in needs.get(todo.pop(), ()):
            if index not in whole:
                whole.add(index)
                todo.append(index)
    return whole


def _subsets(
    log: Log, pending: list[int], needs: dict[int, set[int]], exhaustive: int, samples: int, dice: random.Random
) -> Iterator[dict[int, str]]:
    everything = set(pending)
    seen: set[frozenset[int]] = set()

    def fresh(wanted: set[int]) -> Iterator[dict[int, str]]:
        subset = frozenset(_closed(wanted, needs) & everything)
        if subset not in seen:
            seen.add(subset)
            yield dict.fromkeys(subset, FULL)

    yield from fresh(set())
    yield from fresh(everything)
    for index in pending:
        yield from fresh({index})
        yield from fresh({i for i in pending if index not in _closed({i}, needs)})
    if len(pending) <= exhaustive:
        for mask in range(1 << len(pending)):
            yield from fresh({one for bit, one in enumerate(pending) if mask >> bit & 1})
    elif samples:
        for count in range(len(pending)):
            yield from fresh(set(pending[:count]))
        for _ in range(samples):
            share = dice.random()
            yield from fresh({one for one in pending if dice.random() < share})
    names = {i for i in pending if isinstance(log.events[i], Names)}
    for index in pending:
        if isinstance(log.events[index], Data):
            for how in (ZEROS, TORN, SHORT):
                yield {**dict.fromkeys(everything, FULL), index: how}
                yield {**dict.fromkeys(names, FULL), index: how}
