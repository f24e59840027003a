# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a gang go: the cheapest placement there is, found by branch and bound. No I/O.

The cost of a placement, which docs/inferenced.md explains with an example:

    Σ over parts    fitness(role, plane) + 10 × how full the plane is (0 to 1)
  + Σ over pairs    traffic(role, role) × (distance + 16 GB/s ÷ bandwidth of the way)

all in hundredths, as integers, so that no rounding decides. A pair on one plane costs nothing. Policies:

| BestEffort     | the least cost                                              |
| StrictAffinity | the least cost with all parts on planes of one NUMA node    |
| Pack           | the fewest planes, then the least cost                      |
| Spread         | the most planes, then the least cost                        |

The same question always gets the same answer: planes are tried in the order of cost, then of identifiers.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Final

    from syntrop.inferenced.plane import Plane, Topology

POLICIES: Final = ("BestEffort", "StrictAffinity", "Pack", "Spread")
PARTS_MAX: Final = 16
"""Parts that a gang may have."""

_UNIT = 100
_TIER = 10**9  # above any cost: the number of planes comes first with Pack and Spread
_REFERENCE = 16_000_000_000  # bytes a second of a PCIe 4.0 ×8 slot
_NO_LINK = 64 * _UNIT  # no way is known between two planes: through the host, and slow
_FARTHEST = 64 * _UNIT
_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a gang: bytes for a role, on a plane of its own choice if it names one."""

    role: str
    size: int
    plane: str | None = None


class NoPlacement(Exception):
    """There is none. `part` cannot be placed whatever the others do, None if their sum is too much."""

    def __init__(self, reason: str, part: Part | None = None) -> None:
        super().__init__(reason)
        self.part = part


def place(
    parts: Sequence[Part],
    topology: Topology,
    room: Mapping[str, int],
    policy: str = "BestEffort",
    fullness: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """The plane of each part, in order.

    `room`: bytes that can be had by plane of memory, only of planes that may be used. `fullness`: share of each
    plane's memory that is taken, 0 to 1. Raises NoPlacement.
    """
    usable = sorted(name for name in topology.planes if topology.memory(name) in room)
    search = _Search(parts, topology, room, policy, fullness or {})
    best: tuple[int, tuple[int, ...]] | None = None
    for group in _groups([topology.planes[name] for name in usable], policy):
        found = search.run(group, best)
        if found is not None:
            best = found
    if best is None:
        raise _reason(parts, topology, room, usable, policy)
    return tuple(search.names[at] for at in best[1])


def stage(role: str) -> int | None:
    """The number of a stage's role, such as `stage2`; None for other roles."""
    tail = role.removeprefix("stage").lstrip("-_ ")
    return int(tail) if role.startswith("stage") and tail.isdecimal() and len(tail) < 6 else None


def fitness(role: str, plane: Plane) -> int:
    """How badly a plane suits a role: 0 is best."""
    if role == "draft":
        if plane.kind == "cpu":
            return 0 if any(feature.startswith("amx") for feature in plane.features) else 10
        return 20 if plane.kind == "npu" else 30
    if plane.kind == "gpu":
        return 0
    return 25 if plane.kind == "npu" else 50


def traffic(a: str, b: str) -> int:
    """How much two roles have to say to each other: neighbours in a row of stages most."""
    first, second = stage(a), stage(b)
    if first is not None and second is not None:
        return 4 if abs(first - second) == 1 else 1
    return 2


def _groups(planes: list[Plane], policy: str) -> Iterator[list[Plane]]:
    """Sets of planes to search: all, or those of one NUMA node after the other."""
    if policy != "StrictAffinity":
        yield planes
        return
    for node in sorted({plane.numa_node or 0 for plane in planes}):
        yield [plane for plane in planes if (plane.numa_node or 0) == node]


def _reason(
    parts: Sequence[Part], topology: Topology, room: Mapping[str, int], usable: list[str], policy: str
) -> NoPlacement:
    for part in sorted(parts, key=lambda one: -one.size):
        names = usable if part.plane is None else [name for name in usable if name == part.plane]
        if not any(room[topology.memory(name)] >= part.size for name in names):
            return NoPlacement(f"no plane has {part.size} bytes for {part.role or 'a part'}", part)
    where = " of one NUMA node" if policy == "StrictAffinity" else ""
    return NoPlacement(f"the planes{where} have no room for all of the parts together")


class _Search:
    """One problem. Parts are tried largest first, planes cheapest first; a branch ends when what it must cost at
    least is not below the best that is known."""

    def __init__(
        self,
        parts: Sequence[Part],
        topology: Topology,
        room: Mapping[str, int],
        policy: str,
        fullness: Mapping[str, float],
    ) -> None:
        self.names = sorted(topology.planes)
        self._at = {name: at for at, name in enumerate(self.names)}
        self._parts = parts
        self._policy = policy
        planes = [topology.planes[name] for name in self.names]
        self._memory = [topology.memory(name) for name in self.names]
        self._room = dict(room)
        self._alone = [
            [
                _UNIT * fitness(part.role, plane) + round(10 * _UNIT * fullness.get(self._memory[at], 0.0))
                for at, plane in enumerate(planes)
            ]
            for part in parts
        ]
        self._way = [[_way(topology, a, b) for b in self.names] for a in self.names]
        self._traffic = [[traffic(a.role, b.role) for b in parts] for a in parts]

    def run(
        self, planes: list[Plane], best: tuple[int, tuple[int, ...]] | None
    ) -> tuple[int, tuple[int, ...]] | None:
        """The best placement on these planes that beats `best`, with its cost; None if there is none."""
        self._choices = []
        for part in self._parts:
            self._choices.append(
                [
                    at
                    for at in (self._at[plane.id] for plane in planes)
                    if (part.plane is None or self.names[at] == part.plane)
                    and self._room[self._memory[at]] >= part.size
                ]
            )
        if not all(self._choices):
            return None
        parts = self._parts
        # The most constrained first, then the largest: mistakes show early.
        self._order = sorted(range(len(parts)), key=lambda i: (len(self._choices[i]), -parts[i].size, i))
        group = sorted({at for choice in self._choices for at in choice})
        self._near = [sorted((self._way[a][b], b) for b in group if b != a) for a in range(len(self.names))]
        most = max((self._room[self._memory[at]] for at in group), default=0)
        # Any two of these are too much for every plane.
        self._large = [2 * part.size > most for part in parts]
        self._planes = len(planes)
        self._twin = self._twins([self._at[plane.id] for plane in planes])
        self._same = [
            [twin for twin in self._order[: self._order.index(part)] if self._exchangeable(part, twin)]
            for part in range(len(parts))
        ]
        self._best = best
        self._most = len({*best[1]}) if best is not None else 0
        self._beaten = False
        self._placed = [-1] * len(parts)
        self._free = dict(self._room)
        # What each part would cost on each plane, with the parts placed so far.
        self._cost = [list(row) for row in self._alone]
        self._descend(0, 0, 0)
        return self._best if self._beaten else None

    def _twins(self, planes: Sequence[int]) -> list[int]:
        """For each plane the set, as bits, of those before it that could stand in for it in every respect."""
        twins = [0] * len(self.names)
        for a in planes:
            for b in planes:
                if (
                    b < a
                    and self._memory[a] == self.names[a]
                    and self._memory[b] == self.names[b]
                    and self._memory.count(self.names[a]) == self._memory.count(self.names[b]) == 1
                    and self._room[self.names[a]] == self._room[self.names[b]]
                    and all(row[a] == row[b] for row in self._alone)
                    and all((a in row) == (b in row) for row in self._choices)
                    and all(self._way[a][c] == self._way[b][c] for c in planes if c not in (a, b))
                ):
                    twins[a] |= 1 << b
        return twins

    def _exchangeable(self, a: int, b: int) -> bool:
        """Whether two parts are the same but for their place in the list."""
        return (
            self._parts[a].size == self._parts[b].size
            and self._parts[a].plane == self._parts[b].plane
            and self._alone[a] == self._alone[b]
            and all(self._traffic[a][c] == self._traffic[b][c] for c in range(len(self._parts)) if c not in (a, b))
        )

    def _whole(self, placed: Sequence[int]) -> int:
        """What a placement costs."""
        total = self._rank(len(set(placed)), len(set(placed)))
        for part, at in enumerate(placed):
            total += self._alone[part][at]
            weights, way = self._traffic[part], self._way[at]
            for other in range(part):
                total += weights[other] * way[placed[other]]
        return total

    def _improved(self, cost: int, placed: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The best that moving one part, or exchanging two, again and again makes of a placement: a good answer
        early cuts more branches."""
        now = list(placed)
        better = True
        while better:
            better = False
            for part in range(len(now)):
                tries = [(at, -1) for at in self._choices[part] if at != now[part]]
                tries += [(now[other], other) for other in range(part) if now[other] != now[part]]
                for at, other in tries:
                    after = list(now)
                    if other >= 0:
                        if now[part] not in self._choices[other] or at not in self._choices[part]:
                            continue
                        after[other] = now[part]
                    after[part] = at
                    if self._holds(after) and (value := self._whole(after)) < cost:
                        now, cost, better = after, value, True
        return cost, tuple(now)

    def _holds(self, placed: Sequence[int]) -> bool:
        taken: dict[str, int] = {}
        for part, at in enumerate(placed):
            memory = self._memory[at]
            taken[memory] = taken.get(memory, 0) + self._parts[part].size
        return all(size <= self._room[memory] for memory, size in taken.items())

    def _descend(self, depth: int, cost: int, used: int) -> None:
        parts, order = self._parts, self._order
        if depth == len(parts):
            count = used.bit_count()
            whole = cost + self._rank(count, count)
            if self._best is None or whole < self._best[0]:
                self._best = self._improved(whole, self._placed)
                self._most = len(set(self._best[1]))
                self._beaten = True
            return
        rest = order[depth:]
        apart = False
        if self._best is not None:
            count = used.bit_count()
            most = min(self._planes, count + len(rest))
            # Where every part that is left needs a plane of its own to be as good as the best.
            apart = self._policy == "Spread" and count + len(rest) == self._most
            least = cost + self._rank(max(1, count, sum(self._large)), most)
            spare = self._best[0] - least
            if spare <= 0 or self._bound(rest, used if apart else 0, spare, apart=apart) >= spare:
                return
        part = order[depth]
        size = parts[part].size
        row = self._cost[part]
        first = max((self._placed[twin] for twin in self._same[part]), default=0)
        for at in sorted(self._choices[part], key=lambda at: (row[at], at)):
            if at < first:
                continue  # the same with the two parts exchanged
            memory = self._memory[at]
            if self._free[memory] < size or (apart and used >> at & 1) or self._twin[at] & ~used:
                continue  # no room; no plane of its own; or one just like it is free and comes first
            self._free[memory] -= size
            self._placed[part] = at
            saved = []
            way = self._way[at]
            for other in rest[1:]:
                weight = self._traffic[part][other]
                saved.append(self._cost[other])
                self._cost[other] = [have + weight * way[b] for b, have in enumerate(self._cost[other])]
            self._descend(depth + 1, cost + row[at], used | 1 << at)
            for other, before in zip(rest[1:], saved, strict=True):
                self._cost[other] = before
            self._placed[part] = -1
            self._free[memory] += size

    def _bound(self, rest: Sequence[int], barred: int, enough: int, *, apart: bool) -> int:
        """What the parts that are left must cost at least, with what is placed. Looks no closer beyond `enough`.

        Two of them that fit on no plane together pay for a way between two planes, half of it each; several that
        never share a plane go to planes at different distances, the most talkative at best to the nearest (the
        bound of Gilmore and Lawler). With `apart` none of them shares one, nor goes on the planes of `barred`.
        Where that holds for all, not each one's best counts but the best assignment.
        """
        total = 0
        table: list[list[int]] = []
        parts, free, memory, large = self._parts, self._free, self._memory, self._large
        lonely = [part for part in rest if apart or large[part]]
        smallest = min((parts[part].size for part in lonely), default=0)
        each = len(lonely) == len(rest) > 1
        open_to = [
            not barred >> at & 1 and free[name] >= smallest if name in free else False
            for at, name in enumerate(memory)
        ]
        for part in rest:
            size = parts[part].size
            row = self._cost[part]
            weights = self._traffic[part]
            alone = apart or large[part]
            talk = sorted((weights[other] for other in lonely if other != part), reverse=True) if alone else ()
            others = [other for other in rest if other != part and not (alone and (apart or large[other]))]
            least = -1
            costs = [_NEVER] * len(memory)
            for at in self._choices[part]:
                left = -1 if barred >> at & 1 else free[memory[at]] - size
                if left < 0:
                    continue
                value = 2 * row[at]
                if least >= 0 and value >= least and not each:
                    continue
                if talk:
                    ways = iter(self._near[at])
                    for weight in talk:
                        for way, other_plane in ways:
                            if open_to[other_plane]:
                                value += weight * way
                                break
                        else:
                            value = _NEVER  # fewer planes than parts that never share one
                nearest = self._near[at][0][0] if self._near[at] else 0
                for other in others:
                    if parts[other].size > left:
                        value += weights[other] * nearest
                costs[at] = value
                if least < 0 or value < least:
                    least = value
            if least < 0:
                return _NEVER
            total += least
            table.append(costs)
        if each and total // 2 < enough:
            total = _assignment(table)
        return total // 2

    def _rank(self, fewest: int, most: int) -> int:
        if self._policy == "Pack":
            return fewest * _TIER
        if self._policy == "Spread":
            return (PARTS_MAX - most) * _TIER
        return 0


def _way(topology: Topology, a: str, b: str) -> int:
    if a == b:
        return 0
    link = topology.link(a, b)
    if link is None:
        return _NO_LINK
    slow = _FARTHEST if not link.bandwidth else min(_FARTHEST, _UNIT * _REFERENCE // link.bandwidth)
    return _UNIT * link.distance + slow


def _assignment(table: Sequence[Sequence[int]]) -> int:
    """The least sum of one entry a row, each in a column of its own: Kuhn and Munkres, by shortest augmenting
    paths. There are at least as many columns as rows."""
    rows, columns = len(table), len(table[0])
    over, down = [0] * (rows + 1), [0] * (columns + 1)
    owner = [0] * (columns + 1)
    for row in range(1, rows + 1):
        owner[0] = row
        least = [_NEVER * 4] * (columns + 1)
        before = [0] * (columns + 1)
        seen = [False] * (columns + 1)
        column = 0
        while owner[column]:
            seen[column] = True
            at = owner[column]
            costs, price = table[at - 1], over[at]
            step, following = _NEVER * 8, 0
            for other in range(1, columns + 1):
                if not seen[other]:
                    value = costs[other - 1] - price - down[other]
                    if value < least[other]:
                        least[other], before[other] = value, column
                    if least[other] < step:
                        step, following = least[other], other
            for other in range(columns + 1):
                if seen[other]:
                    over[owner[other]] += step
                    down[other] -= step
                else:
                    least[other] -= step
            column = following
        while column:
            owner[column] = owner[before[column]]
            column = before[column]
    return sum(table[owner[column] - 1][column - 1] for column in range(1, columns + 1) if owner[column])
