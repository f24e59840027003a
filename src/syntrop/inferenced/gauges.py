# SPDX-License-Identifier: Apache-2.0
"""How full the planes are, and how much of each leases may have.

The devices' files are opened once and read again and again (`common/drm.py`); NVIDIA's figures come from NVML
where it loads. A plane's use is that of everybody, leases or not. What others use is what is left of it without
our leases' holders; where the kernel tells no use at all, it is what other processes' files of the device add up
to (`fdinfo.py`), which is all of it only if all processes could be looked into.
"""

from __future__ import annotations

from dataclasses import dataclass

from syntrop.common import drm
from syntrop.inferenced import processor, topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Self

    from syntrop.inferenced.fdinfo import Usage
    from syntrop.inferenced.nvml import Library
    from syntrop.inferenced.plane import Plane, Topology


@dataclass(frozen=True, slots=True)
class Fill:
    """Bytes of a plane's memory."""

    total: int | None
    used: int | None
    """By anybody, as the kernel tells. None: it does not."""
    lendable: int | None
    """What all leases together may have. None: its memory is unknown."""
    exact: bool
    """Whether `lendable` is what can really be had. False: some use by others was not seen, so it may be less."""


def fill(total: int | None, used: int | None, own: int, others: int | None, complete: bool) -> Fill:
    """Pure: what leases may have of `total` bytes. `used` are everybody's, `own` those of our leases' holders,
    `others` those of other processes as far as they were seen, all of them if `complete`."""
    if total is None:
        return Fill(None, used, None, False)
    if used is not None:
        return Fill(total, used, max(0, total - max(0, used - own)), True)
    return Fill(total, None, max(0, total - (others or 0)), others is not None and complete)


def within(device: Fill, host: Fill, *, limited: bool) -> Fill:
    """Pure: the same for a device in the host's memory, which lends no more than its host does. What others have
    mapped is in the host's use already, so not to know it matters only where the device is `limited` to a part."""
    if device.lendable is None or host.lendable is None:
        return Fill(device.total, device.used, None, False)
    if not limited:
        return Fill(device.total, device.used, host.lendable, host.exact)
    lendable = min(device.lendable, host.lendable)
    return Fill(device.total, device.used, lendable, device.exact and host.exact)


class Gauges:
    """Open devices of one topology. Owns them: `close()` it."""

    def __init__(self) -> None:
        """Opens the devices and reads the topology. Blocks, see `topology.read()`."""
        self._devices = drm.devices()
        self._library: Library | None = None
        self._memory: processor.Memory | None = None
        try:
            self._library = topology.library_for(self._devices)
            self.topology: Topology = topology.survey(self._devices, self._library)
        except BaseException:
            self.close()
            raise
        nodes = {
            f"dri/{one.name}" if one.name.startswith("renderD") else f"accel/{one.name}": one
            for one in self._devices
        }
        self._by_plane = {
            plane.id: nodes[plane.device] for plane in self.topology.planes.values() if plane.device in nodes
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for device in self._devices:
            device.close()
        if self._library is not None:
            self._library.close()
            self._library = None

    def sample(self) -> None:
        """Read the devices' figures: some microseconds each, nothing kept, no device woken."""
        for device in self._devices:
            device.sample()

    def look(self) -> None:
        """Read the host's figures: some hundred microseconds."""
        self._memory = processor.memory()

    @property
    def memory(self) -> processor.Memory:
        """The host's memory as of the last `look()`."""
        if self._memory is None:
            self.look()
        assert self._memory is not None
        return self._memory

    def used(self, plane: Plane) -> int | None:
        """Bytes in use by anybody, as of the last `sample()` and `look()`; of a plane with `host`, of the host's
        that it has mapped. None: not told."""
        if plane.kind == "cpu":
            available = self.memory.by_node.get(int(plane.id.removeprefix("cpu")))
            if available is None or plane.total is None:
                return None
            return max(0, plane.total - available)
        device = self._by_plane.get(plane.id)
        if device is not None and device.driver != "nvidia":
            mapped = plane.host is not None and device.driver == "amdgpu"
            return device.mapped_used if mapped else device.memory_used
        if self._library is not None and plane.slot is not None:
            told = self._library.memory(plane.slot)
            return told[1] if told is not None else None
        return None

    def fill(self, plane: Plane, usage: Usage | None = None, pids: Collection[int] = (), own: int = 0) -> Fill:
        """What leases may have of a plane. `pids` are our leases' processes, `usage` a look at all processes (or
        at ours), `own` the bytes that ours have in use of host memory (a processor's plane)."""
        used = self.used(plane)
        slot, host = plane.slot, plane.host
        if plane.kind == "cpu" or usage is None or slot is None:
            found = fill(plane.total, used, own, None, False)
        else:
            ours = usage.of(slot, pids, host=host is not None)
            others = usage.others(slot, pids, host=host is not None)
            found = fill(plane.total, used, ours, others, usage.complete(slot))
        if host is None:
            return found
        memory = self.topology.planes[host]
        return within(found, self.fill(memory, own=own), limited=plane.total != memory.total)

    def processes(self, plane: Plane) -> dict[int, int | None] | None:
        """Bytes by process of an NVIDIA plane (its driver writes none to fdinfo). None: not told."""
        if plane.driver != "nvidia" or self._library is None or plane.slot is None:
            return None
        return self._library.processes(plane.slot)
