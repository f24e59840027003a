# SPDX-License-Identifier: Apache-2.0
"""Planes: what computes and has memory, and the ways between them. Values only; `topology.py` reads them.

Bytes that the kernel does not tell are None, and stay None: nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from typing import Literal

    Kind = Literal["cpu", "gpu", "npu"]
    LinkType = Literal["pcie", "nvlink", "xgmi", "memory"]


@dataclass(frozen=True, slots=True)
class Plane:
    """A processor's node, a GPU or an NPU."""

    id: str
    """Stable over reboots: `cpu0` (NUMA node 0), `gpu-0000:03:00.0`, `npu-0000:00:0b.0`, `gpu-vgem`."""
    name: str
    """For people."""
    kind: Kind
    total: int | None
    """Bytes of memory that it has; of a plane with `host`, bytes of the host's that it may map. None: not told."""
    vendor: str = ""
    driver: str = ""
    device: str | None = None
    """Name in /dev: `dri/renderD128`, `accel/accel0`. None for a processor."""
    slot: str | None = None
    """PCI address, such as `0000:03:00.0`."""
    numa_node: int | None = None
    host: str | None = None
    """Plane whose memory this one uses (unified memory): what is leased here is leased there too."""
    features: tuple[str, ...] = ()
    cores: int | None = None
    """Of a processor's node: cores, not threads."""


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two planes, the same in both directions."""

    a: str
    b: str
    type: LinkType
    bandwidth: int | None
    """Bytes a second; None where link speed or width are not told."""
    latency: int
    """Nanoseconds; by the kind of way and the bridges passed, see `topology.py`."""
    distance: int
    """Cost of neighbourhood: 0 within one memory, else NUMA distance plus bridges passed (docs/inferenced.md)."""


class Topology:
    """Planes by identifier and the ways between any two of them."""

    __slots__ = ("_links", "planes")

    def __init__(self, planes: Iterable[Plane], links: Iterable[Link] = ()) -> None:
        self.planes: Mapping[str, Plane] = {plane.id: plane for plane in planes}
        self._links: dict[tuple[str, str], Link] = {}
        for link in links:
            self._links[link.a, link.b] = self._links[link.b, link.a] = link

    def link(self, a: str, b: str) -> Link | None:
        """The way between two planes; None where nothing is known of it."""
        return self._links.get((a, b))

    def links(self, plane: str) -> Iterator[tuple[str, Link]]:
        """The ways from one plane, each with the plane at its other end."""
        for (a, b), link in self._links.items():
            if a == plane:
                yield b, link

    def memory(self, plane: str) -> str:
        """The plane whose memory a lease on `plane` takes: itself, or its host's. Raises KeyError."""
        return self.planes[plane].host or plane

    def only(self, names: Collection[str]) -> Topology:
        """The same with these planes alone."""
        kept = [plane for name, plane in self.planes.items() if name in names]
        return Topology(
            kept, {id(one): one for one in self._links.values() if {one.a, one.b} <= set(names)}.values()
        )
