# SPDX-License-Identifier: Apache-2.0
"""Which of several failing units is to be treated: the root of a chain, and its victims not at all. Pure.

`needs` maps a unit to the units without which it cannot run (`Requires=`, `Requisite=`, `BindsTo=`, and what a
socket or a path starts). A unit is a root when nothing that it needs, directly or through units that are well,
fails. Units that need each other in a circle have one root together: the one that failed first.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEPTH_MAX = 4096  # units that are looked at for one


def roots(failed: Mapping[str, int], needs: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each failed unit (with the time of its failure) the root that is treated for it, which may be itself."""
    upstream = {unit: _failing_below(unit, failed, needs) for unit in failed}
    chosen: dict[str, str] = {}
    for unit in failed:
        # A unit above which nothing fails but what needs it as well is a root, or in a circle of roots.
        candidates = [
            other
            for other in (unit, *upstream[unit])
            if all(other in upstream[above] for above in upstream[other])
        ]
        chosen[unit] = min(candidates, key=lambda one: (failed[one], one)) if candidates else unit
    return chosen


def chains(failed: Mapping[str, int], needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Each root with its victims, both in the order in which they failed."""
    grouped: dict[str, list[str]] = {}
    for unit, root in sorted(roots(failed, needs).items(), key=lambda pair: (failed[pair[0]], pair[0])):
        victims = grouped.setdefault(root, [])
        if unit != root:
            victims.append(unit)
    ordered = sorted(grouped, key=lambda root: (failed[root], root))
    return {root: tuple(grouped[root]) for root in ordered}


def _failing_below(unit: str, failed: Mapping[str, int], needs: Mapping[str, Sequence[str]]) -> set[str]:
    """The failed units that a unit needs, however indirectly; itself is among them only if it is not counted."""
    seen = {unit}
    waiting = list(needs.get(unit, ()))
    found = set()
    while waiting and len(seen) < DEPTH_MAX:
        other = waiting.pop()
        if other in seen:
            continue
        seen.add(other)
        if other in failed:
            found.add(other)
        waiting.extend(needs.get(other, ()))
    return found
