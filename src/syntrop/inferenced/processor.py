# SPDX-License-Identifier: Apache-2.0
"""The processor: its nodes, what it can do, and how much memory can be had. Parsers, and their readers below.

The kernel tells what can be had (`MemAvailable`) for the machine as a whole only. A node's share of it goes by
what the node has free or could drop (its free pages, its file cache and its reclaimable slabs), so that the nodes'
shares add up to the kernel's figure; on a machine with one node it is that figure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from syntrop.common import paths
from syntrop.inferenced import pcie

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What planes say that they can do, by the kernel's name of it (x86's `flags`, Arm's `Features`), in this order.
_FEATURES = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512_vnni": "vnni",
    "avx512_bf16": "bf16",
    "avx512_fp16": "fp16",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
_LARGEST = 2**63 - 1
_MOST = 4096
"""Processors or nodes: the most that a kernel is built for is 8192 and 1024."""
_LINE = re.compile(r"^(?:Node +\d+ +)?([A-Za-z_()]+): +(\d{1,19}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node that computes."""

    number: int
    cores: int
    """Cores, not threads."""
    total: int | None
    """Bytes of its memory."""
    distances: Mapping[int, int] = field(default_factory=dict)
    """To the nodes that are online by their numbers; 10 is its own (ACPI's SLIT)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of host memory."""

    total: int | None
    available: int | None
    by_node: Mapping[int, int | None]
    """Bytes that can be had on each node."""


# --- parsers -------------------------------------------------------------------------------------------------


def features(cpuinfo: str) -> tuple[str, ...]:
    """What the first processor of /proc/cpuinfo can do. The kernel runs a task on any of them, so it shows none a
    flag that the others lack."""
    block = cpuinfo.partition("\n\n")[0]
    flags = re.search(r"^(?:flags|Features)[ \t]*:(.*)$", block, re.MULTILINE)
    words = set(flags[1].split()) if flags else set()
    return tuple(dict.fromkeys(name for flag, name in _FEATURES.items() if flag in words))


def model(cpuinfo: str) -> str:
    """The processor's name for people; empty where the kernel has none (Arm)."""
    found = re.search(r"^model name[ \t]*:(.*)$", cpuinfo.partition("\n\n")[0], re.MULTILINE)
    return " ".join(found[1].split())[:128] if found else ""


def numbers(text: str) -> list[int]:
    """A list as the kernel writes it: `0-3,8` is [0, 1, 2, 3, 8]. What is none is empty."""
    found: list[int] = []
    for part in text.strip().split(",")[:_MOST]:
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(found) + last - first >= _MOST:
            return []
        found.extend(range(first, last + 1))
    return found


def meminfo(text: str) -> dict[str, int]:
    """Bytes by name, of /proc/meminfo or a node's; lines of other forms are left out."""
    values = {match[1]: int(match[2]) << 10 for match in _LINE.finditer(text)}
    return {name: value for name, value in values.items() if value <= _LARGEST}


def slit(text: str, numbers: Sequence[int]) -> dict[int, int]:
    """A node's distances, which the kernel writes in the order of the nodes' numbers. 10 is the least there is."""
    words = text.split()
    if len(words) != len(numbers) or not all(re.fullmatch(r"\d{1,5}", one, re.ASCII) for one in words):
        return {}
    return {number: max(int(one), 10) for number, one in zip(numbers, words, strict=True)}


def shares(available: int | None, nodes: Mapping[int, Mapping[str, int]]) -> dict[int, int | None]:
    """The machine's available bytes, shared out to its nodes by what each has free or could drop."""
    if available is None or len(nodes) < 2:
        return dict.fromkeys(nodes, available)
    parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    weights = {node: sum(facts.get(part, 0) for part in parts) for node, facts in nodes.items()}
    if any("MemFree" not in facts for facts in nodes.values()) or not sum(weights.values()):
        return dict.fromkeys(nodes)
    whole = sum(weights.values())
    return {
        node: min(available * weight // whole, nodes[node].get("MemTotal", _LARGEST))
        for node, weight in weights.items()
    }


def distance(nodes: Sequence[Node], a: int | None, b: int | None) -> int:
    """Between two nodes by their numbers, 10 for one's own. Where the kernel does not tell it is the greatest that
    it tells of any two, and 10 on a machine with one node: being far is what placement must not overlook."""
    if len(nodes) < 2 or (a is not None and a == b):
        return 10
    for one in nodes:
        if one.number == a and b is not None and b in one.distances:
            return one.distances[b]
    return max((each for one in nodes for each in one.distances.values()), default=20)


# --- readers -------------------------------------------------------------------------------------------------


def cpuinfo() -> str:
    """The start of /proc/cpuinfo: its first processor. All of it takes long on a machine with hundreds."""
    return pcie.read(paths.proc("cpuinfo"), 16384) or ""


def nodes() -> list[Node]:
    """The nodes that have processors, in the order of their numbers. A machine that tells of no nodes is one."""
    total = _machine().get("MemTotal")
    online = _online()
    numbered = _numbered()
    found = []
    for number in numbered:
        folder = _folder(number)
        processors = set(numbers(_text(os.path.join(folder, "cpulist"))))
        processors = processors & online if online else processors
        if processors:
            memory = meminfo(_text(os.path.join(folder, "meminfo"))).get("MemTotal")
            distances = slit(_text(os.path.join(folder, "distance")), numbered)
            found.append(Node(number, _cores(processors), memory, distances))
    if not found:
        return [Node(0, _cores(online) if online else (os.cpu_count() or 1), total)]
    if len(numbered) == 1 and len(found) == 1:
        # Both name the same memory, but a balloon or hot-plug may be in the one figure and not in the other.
        return [Node(found[0].number, found[0].cores, total if total is not None else found[0].total)]
    return found


def memory() -> Memory:
    """Host memory as it is now."""
    machine = _machine()
    available = machine.get("MemAvailable")
    # A node without processors (memory on CXL) has its part in what the machine has.
    facts = {number: meminfo(_text(os.path.join(_folder(number), "meminfo"))) for number in _numbered()}
    return Memory(machine.get("MemTotal"), available, shares(available, facts or {0: {}}))


def _machine() -> dict[str, int]:
    return meminfo(_text(paths.proc("meminfo")))


def _text(path: str) -> str:
    return pcie.read(path, 16384) or ""


def _folder(number: int) -> str:
    return paths.sys("devices", "system", "node", f"node{number}")


def _numbered() -> list[int]:
    try:
        names = os.listdir(paths.sys("devices", "system", "node"))
    except OSError:
        return []
    return sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d{1,4}", name, re.ASCII))


def _online() -> set[int]:
    return set(numbers(_text(paths.sys("devices", "system", "cpu", "online"))))


def _cores(processors: set[int]) -> int:
    """Cores among these processors: threads of one core name each other. Where one says nothing it is a core."""
    seen = set()
    for number in processors:
        folder = paths.sys("devices", "system", "cpu", f"cpu{number}", "topology")
        threads = numbers(_text(os.path.join(folder, "thread_siblings_list")))
        seen.add(min(threads) if number in threads else number)
    return len(seen)
