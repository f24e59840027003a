# SPDX-License-Identifier: Apache-2.0
"""How this machine is built: its planes and the ways between them, read from sysfs and procfs.

Distances are costs of neighbourhood for placement: 0 within one memory, else the NUMA distance between the two
ends (10 within a node, as ACPI's SLIT has it) plus one for each PCI bridge passed. Two devices with a link of
their own (xGMI, NVLink) are 10 apart, wherever they sit.

Latencies are classes, made for comparing ways with each other, not measured here:

| way                        | nanoseconds                                                         |
| -------------------------- | ------------------------------------------------------------------- |
| within one memory          | 100                                                                 |
| between processors' nodes  | 10 × NUMA distance, so 100 for a distance of 10                     |
| xGMI, NVLink               | 300                                                                 |
| PCI Express                | 500 + 150 for each bridge + 10 × what the NUMA distance has over 10 |

What may be mapped of the host's memory (`Plane.total` of a plane with `host`) is `mem_info_gtt_total` for amdgpu,
a half for xe (which limits itself to that; later versions to nothing) and all of it for the rest, which have no
limit.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from syntrop.common import drm, paths
from syntrop.inferenced import pcie, processor
from syntrop.inferenced.plane import Link, Plane, Topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from syntrop.inferenced.nvml import Library

MEMORY_NANOS = 100
DIRECT_NANOS = 300
PCIE_NANOS = 500
BRIDGE_NANOS = 150
DIRECT_DISTANCE = 10

_NAMES = {"amd": "AMD", "intel": "Intel", "nvidia": "NVIDIA", "qualcomm": "Qualcomm", "rockchip": "Rockchip"}
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,63}", re.ASCII)
_NODES = 1024  # the most that a kernel is built for
_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI of the kernel's kfd_crat.h


@dataclass(frozen=True, slots=True)
class _Place:
    """A plane with what the ways from it need."""

    plane: Plane
    node: int | None
    chain: tuple[str, ...] = ()
    """PCI functions from the root to the device; none for a processor, and for what computes in its memory."""
    hive: int | None = None
    """xGMI hive: its members reach each other directly."""


@dataclass(frozen=True, slots=True)
class _Compute:
    """What the kernel's compute driver of AMD (kfd) tells of a device."""

    feature: str
    links: dict[int, int]
    """Bytes a second over xGMI by the render minor at the other end."""


def read() -> Topology:
    """The machine as it is now. Blocks: up to some ten milliseconds, and longer where NVML has to wake a GPU."""
    devices = drm.devices()
    library = None
    try:
        library = library_for(devices)
        return survey(devices, library)
    finally:
        for device in devices:
            device.close()
        if library is not None:
            library.close()


def library_for(devices: Iterable[drm.Device]) -> Library | None:
    """NVML, where there is a device of NVIDIA's driver and the library loads. The caller closes it."""
    if not any(device.driver == "nvidia" for device in devices) and not _nvidia_slots():
        return None
    from syntrop.inferenced import nvml

    try:
        return nvml.Library()
    except nvml.Unavailable:
        return None


def survey(devices: Sequence[drm.Device], library: Library | None = None) -> Topology:
    """The same from devices that are open already."""
    nodes = processor.nodes()
    places = _processors(nodes)
    minors: dict[str, int] = {}
    compute = _compute() if any(device.driver == "amdgpu" for device in devices) else {}
    for device in devices:
        place = _device(device, nodes, places, library, compute)
        places.append(place)
        if device.name.startswith("renderD"):
            minors[place.plane.id] = int(device.name.removeprefix("renderD"))
    places += [
        _bare(slot, library) for slot in _nvidia_slots() if not any(one.plane.slot == slot for one in places)
    ]
    ways = _Ways(nodes, minors, compute, _nvlinks(places, library))
    links = [ways.between(a, b) for place, a in enumerate(places) for b in places[place + 1 :]]
    return Topology([place.plane for place in places], links)


def gone(old: Topology, new: Topology) -> tuple[str, ...]:
    """Planes of the old topology that the new one has no more, or has another device in the place of."""
    return tuple(
        id
        for id, plane in old.planes.items()
        if (now := new.planes.get(id)) is None or (now.name, now.driver) != (plane.name, plane.driver)
    )


def stated(topology: Topology, memory: dict[str, int]) -> Topology:
    """The same with the memory of planes for which the kernel tells none, but the operator (`plane_memory`)
    does."""
    planes = [
        replace(plane, total=memory[id]) if plane.total is None and id in memory else plane
        for id, plane in topology.planes.items()
    ]
    links = [link for a in topology.planes for b, link in topology.links(a) if a == link.a]
    return Topology(planes, links)


# --- planes --------------------------------------------------------------------------------------------------


def _processors(nodes: Sequence[processor.Node]) -> list[_Place]:
    text = processor.cpuinfo()
    name = processor.model(text) or "processor"
    features = processor.features(text)
    found = []
    for node in nodes:
        title = name if len(nodes) == 1 else f"{name}, node {node.number}"
        plane = Plane(
            f"cpu{node.number}",
            title,
            "cpu",
            node.total,
            numa_node=node.number,
            features=features,
            cores=node.cores,
        )
        found.append(_Place(plane, node.number))
    return found


def _device(
    device: drm.Device,
    nodes: Sequence[processor.Node],
    places: Sequence[_Place],
    library: Library | None,
    compute: dict[int, _Compute],
) -> _Place:
    chain = pcie.chain(device.path)
    function = chain[-1] if chain else device.path
    slot = os.path.basename(function) if chain else None
    node = _node(device, function)
    known = slot or os.path.basename(device.path)
    id = f"{device.kind}-{known if _PLAIN.fullmatch(known) else device.name}"
    if any(place.plane.id == id for place in places):
        id += f"-{device.name}"
    folder = "dri" if device.name.startswith("renderD") else "accel"
    total, host = device.memory_total, None
    if device.unified:
        host = _host(node, nodes)
        memory = next(place.plane.total for place in places if place.plane.id == host)
        total = device.mapped_total if device.driver == "amdgpu" else memory
        if device.driver == "xe" and total is not None:
            total //= 2
    elif device.driver == "nvidia" and library is not None and slot is not None:
        told = library.memory(slot)
        total = told[0] if told is not None else None
    minor = int(device.name.removeprefix("renderD")) if folder == "dri" else -1
    plane = Plane(
        id,
        _name(device, function, slot),
        "gpu" if device.kind == "gpu" else "npu",
        total,
        vendor=device.vendor,
        driver=_driver(device),
        device=f"{folder}/{device.name}",
        slot=slot,
        numa_node=node,
        host=host,
        features=(compute[minor].feature,) if minor in compute else (),
    )
    hive = (
        _count(os.path.join(device.path, "xgmi_hive_info", "xgmi_hive_id")) if device.driver == "amdgpu" else None
    )
    return _Place(plane, node, () if host else chain, hive or None)


def _bare(slot: str, library: Library | None) -> _Place:
    """A device of NVIDIA's driver without a DRM node (`nvidia-drm` is not loaded, or without modesetting)."""
    facts = _nvidia(slot)
    told = library.memory(slot) if library is not None else None
    minor = facts.get("Device Minor", "")
    chain = pcie.chain(os.path.realpath(paths.sys("bus", "pci", "devices", slot)))
    node = _numa_node(chain[-1]) if chain else None
    plane = Plane(
        f"gpu-{slot}",
        facts.get("Model") or f"NVIDIA GPU {slot}",
        "gpu",
        told[0] if told is not None else None,
        vendor="nvidia",
        driver="nvidia",
        device=f"nvidia{minor}" if re.fullmatch(r"\d{1,4}", minor, re.ASCII) else None,
        slot=slot,
        numa_node=node,
    )
    return _Place(plane, node, chain)


def _node(device: drm.Device, function: str) -> int | None:
    """NUMA node of a device; a virtio device has none itself, but what carries it has."""
    node = device.numa_node if device.numa_node is not None else _numa_node(function)
    return node if node is not None and node < _NODES else None


def _numa_node(function: str) -> int | None:
    node = _count(os.path.join(function, "numa_node"))
    return node if node is not None and node < _NODES else None


def _host(node: int | None, nodes: Sequence[processor.Node]) -> str:
    numbers = [one.number for one in nodes]
    return f"cpu{node if node in numbers else numbers[0]}"


def _driver(device: drm.Device) -> str:
    return device.driver if _PLAIN.fullmatch(device.driver) else "unknown"


def _name(device: drm.Device, function: str, slot: str | None) -> str:
    if device.driver == "nvidia" and slot is not None:
        model = _nvidia(slot).get("Model")
        if model:
            return model
    product = pcie.read(os.path.join(function, "product_name"))
    if device.driver == "amdgpu" and product and product.isprintable():
        return product[:128]
    title = f"{_NAMES.get(device.vendor, _driver(device))} {device.kind.upper()}"
    words = [pcie.read(os.path.join(function, name)) or "" for name in ("vendor", "device")]
    if all(re.fullmatch(r"0x[0-9a-f]{4}", word) for word in words):
        title += f" {words[0][2:]}:{words[1][2:]}"
    return title


def _nvidia_slots() -> list[str]:
    try:
        return sorted(name for name in os.listdir(paths.proc("driver", "nvidia", "gpus")) if pcie.is_address(name))
    except OSError:
        return []


def _nvidia(slot: str) -> dict[str, str]:
    """What NVIDIA's driver says of a device: `Model`, `Device Minor`, `Bus Location` and others."""
    text = pcie.read(paths.proc("driver", "nvidia", "gpus", slot, "information"), 4096) or ""
    facts = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        value = value.strip()[:128]
        if value and value.isprintable() and not value.startswith(("Unknown", "N/A", "?")):
            facts[name.strip()] = value
    return facts


def _compute() -> dict[int, _Compute]:
    """What kfd tells, by render minor: the instruction set, and xGMI links with their bandwidth."""
    folder = paths.sys("class", "kfd", "kfd", "topology", "nodes")
    found: dict[int, _Compute] = {}
    minors: dict[str, int] = {}
    try:
        numbers = sorted(name for name in os.listdir(folder) if re.fullmatch(r"\d{1,4}", name, re.ASCII))
    except OSError:
        return {}
    for number in numbers:
        facts = _properties(os.path.join(folder, number, "properties"))
        minor, version = facts.get("drm_render_minor", 0), facts.get("gfx_target_version", 0)
        if minor and 0 < version < 1_000_000:
            name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            minors[number] = minor
            found[minor] = _Compute(name, {})
    for number, minor in minors.items():
        for kind in ("io_links", "p2p_links"):
            top = os.path.join(folder, number, kind)
            try:
                names = os.listdir(top)
            except OSError:
                continue
            for name in names[:256]:
                facts = _properties(os.path.join(top, name, "properties"))
                other = minors.get(str(facts.get("node_to")))
                speed = facts.get("max_bandwidth", 0)
                if facts.get("type") == _XGMI and other is not None and 0 < speed < 1 << 32:
                    found[minor].links[other] = speed * 1_000_000
    return found


def _properties(path: str) -> dict[str, int]:
    text = pcie.read(path, 4096) or ""
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d{1,19})$", text, re.MULTILINE | re.ASCII)}


def _count(path: str) -> int | None:
    """A number of sysfs that is not negative."""
    text = pcie.read(path) or ""
    return int(text) if re.fullmatch(r"\d{1,20}", text, re.ASCII) else None


# --- ways ----------------------------------------------------------------------------------------------------


def _nvlinks(places: Sequence[_Place], library: Library | None) -> dict[tuple[str, str], int | None]:
    """Bytes a second between NVIDIA's devices that NVLink joins, both by their slots; None: not told."""
    if library is None:
        return {}
    slots = [place.plane.slot for place in places if place.plane.driver == "nvidia" and place.plane.slot]
    told = {slot: library.links(slot) for slot in slots}
    found: dict[tuple[str, str], int | None] = {}
    for place, a in enumerate(slots):
        for b in slots[place + 1 :]:
            count = told[a][0].get(b, 0) or told[b][0].get(a, 0) or min(told[a][1], told[b][1])
            speeds = [one for one in (told[a][2], told[b][2]) if one is not None]
            if count:
                found[a, b] = count * min(speeds) if speeds else None
    return found


class _Ways:
    """Makes the links; what it has read once it keeps."""

    def __init__(
        self,
        nodes: Sequence[processor.Node],
        minors: dict[str, int],
        compute: dict[int, _Compute],
        nvlinks: dict[tuple[str, str], int | None],
    ) -> None:
        self._nodes = nodes
        self._minors = minors
        self._compute = compute
        self._nvlinks = nvlinks

    def between(self, a: _Place, b: _Place) -> Link:
        one, other = a.plane, b.plane
        if (one.host or one.id) == (other.host or other.id):
            return Link(one.id, other.id, "memory", None, MEMORY_NANOS, 0)
        numa = processor.distance(self._nodes, self._place(a), self._place(b))
        if not a.chain and not b.chain:
            return Link(one.id, other.id, "memory", None, numa * MEMORY_NANOS // 10, numa)
        if a.hive is not None and a.hive == b.hive:
            speed = self._xgmi(one.id, other.id)
            return Link(one.id, other.id, "xgmi", speed, DIRECT_NANOS, DIRECT_DISTANCE)
        slots = (one.slot or "", other.slot or "")
        if slots in self._nvlinks:
            return Link(one.id, other.id, "nvlink", self._nvlinks[slots], DIRECT_NANOS, DIRECT_DISTANCE)
        bridges = pcie.bridges(a.chain, b.chain)
        latency = PCIE_NANOS + bridges * BRIDGE_NANOS + (numa - 10) * MEMORY_NANOS // 10
        return Link(one.id, other.id, "pcie", _carried(a.chain, b.chain), latency, numa + bridges)

    def _place(self, place: _Place) -> int | None:
        """The node that a place's memory is reached at."""
        if place.plane.host is not None:
            return int(place.plane.host.removeprefix("cpu"))
        if place.node is None and len(self._nodes) == 1:
            return self._nodes[0].number
        return place.node

    def _xgmi(self, a: str, b: str) -> int | None:
        one, other = self._minors.get(a, -1), self._minors.get(b, -1)
        for here, there in ((one, other), (other, one)):
            if here in self._compute and there in self._compute[here].links:
                return self._compute[here].links[there]
        return None


def _carried(a: Sequence[str], b: Sequence[str]) -> int | None:
    """Bytes a second over PCI Express; None unless each end that is on it tells its links."""
    shared = pcie.common(a, b)
    found = [pcie.slowest(chain, shared) for chain in (a, b) if chain]
    known = [one for one in found if one is not None]
    return min(known) if len(known) == len(found) else None
