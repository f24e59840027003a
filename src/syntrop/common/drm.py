# SPDX-License-Identifier: Apache-2.0
"""Accelerators that the kernel shows in sysfs: who made them, and how full their own memory is.

What the kernel does not export is None, never a guess. Sampling reads descriptors that were opened once, into
buffers that exist already; it wakes no sleeping device (only amdgpu's `gpu_busy_percent` would, and it is not
read while `power/runtime_status` says `suspended`).

| driver            | total                                  | used                                   |
| ----------------- | -------------------------------------- | -------------------------------------- |
| amdgpu            | `device/mem_info_vram_total`           | `device/mem_info_vram_used`            |
| i915, xe (lmem)   | `lmem_total_bytes` of the card         | total less `lmem_avail_bytes`          |
| xe (tiles)        | `device/tile*/physical_vram_size_bytes`| `device/tile*/memory/vram0/used`       |
| intel_vpu (accel) | none: it uses host memory              | `device/npu_memory_utilization`        |
| nouveau, nvidia, virtio-gpu, vgem and all others | none            | none                                   |

Some compute in the host's memory (`unified`), and have next to none of their own:

- i915 and xe without local memory, on the processor's own bus (a card sits behind a bridge; where such a one tells
  no local memory, its memory is unknown);
- amdgpu where none of the files is there that the driver makes for cards alone (`mem_busy_percent`, `board_info`,
  `mem_info_vram_vendor`, `pcie_bw`). `mem_info_gtt_total` is what it may map. If the firmware cut more than that
  out of the host's memory, the cut counts as the device's own, as it is not the host's any more;
- NPUs inside a processor (intel_vpu, amdxdna), and GPUs of systems on a chip.
"""

from __future__ import annotations

import errno
import os

from syntrop.common import paths

_VENDORS = {
    "amdgpu": "amd",
    "radeon": "amd",
    "amdxdna": "amd",
    "i915": "intel",
    "xe": "intel",
    "intel_vpu": "intel",
    "habanalabs": "intel",
    "nouveau": "nvidia",
    "nvidia": "nvidia",
    "nova": "nvidia",
    "qaic": "qualcomm",
    "msm": "qualcomm",
    "rocket": "rockchip",
    "virtio-gpu": "virtual",
    "virtio_gpu": "virtual",
    "vgem": "virtual",
    "vkms": "virtual",
}
_CARDS_ALONE = ("mem_busy_percent", "board_info", "mem_info_vram_vendor", "pcie_bw")
_ALWAYS_UNIFIED = frozenset(
    ("intel_vpu", "amdxdna", "rocket", "ethosu", "msm", "panfrost", "panthor", "lima", "v3d", "etnaviv", "asahi")
)
_CLASSES = (("drm", "renderD", "gpu"), ("accel", "accel", "npu"))
_LARGEST = 2**63 - 1
_BLANK = b" " * 32  # the widest 64-bit number has 20 digits; int() ignores the blanks around


class _Number:
    """One number of sysfs behind an open descriptor; None whenever it cannot be read."""

    __slots__ = ("_buffer", "_buffers", "_fd")

    def __init__(self, path: str) -> None:
        """Raises OSError where there is no such file."""
        self._buffer = bytearray(_BLANK)
        self._buffers = [self._buffer]
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> int | None:
        buffer = self._buffer
        buffer[:] = _BLANK
        try:
            os.preadv(self._fd, self._buffers, 0)
            value = int(buffer)
        except (OSError, ValueError):
            return None
        return value if 0 <= value <= _LARGEST else None

    def close(self) -> None:
        os.close(self._fd)


class _Suspended:
    """Whether runtime power management put the device to sleep."""

    __slots__ = ("_buffer", "_buffers", "_fd")

    def __init__(self, path: str) -> None:
        self._buffer = bytearray(1)
        self._buffers = [self._buffer]
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bool:
        try:
            # `suspended` or `suspending`, against `active`, `resuming`, `unsupported`, `error`.
            return os.preadv(self._fd, self._buffers, 0) == 1 and self._buffer[0] == 0x73
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._fd)


class Device:
    """One render node or accelerator. Owns its descriptors: `close()` it.

    `memory_used`, `memory_total` (bytes of its own memory), `mapped_used` (bytes of the host's, of a unified
    amdgpu) and `busy_percent` hold the last `sample()`.
    """

    __slots__ = (
        "_available",
        "_busy",
        "_mapped",
        "_open",
        "_suspended",
        "_used",
        "busy_percent",
        "driver",
        "kind",
        "mapped_total",
        "mapped_used",
        "memory_total",
        "memory_used",
        "name",
        "numa_node",
        "path",
        "slot",
        "unified",
        "vendor",
    )

    def __init__(self, kind: str, folder: str) -> None:
        """`kind` is `gpu` or `npu`; `folder` is the device's in its class. Raises OSError when it is gone."""
        parent = os.path.realpath(os.path.join(folder, "device"), strict=True)
        self.kind = kind
        self.name = os.path.basename(folder)
        self.path = parent  # the device's folder in sysfs, resolved
        self.slot = os.path.basename(parent)  # `0000:03:00.0` on PCI
        self.driver = _driver(parent)
        self.vendor = _VENDORS.get(self.driver, "unknown")
        self.memory_total: int | None = None
        self.memory_used: int | None = None
        self.mapped_total: int | None = None
        self.mapped_used: int | None = None
        self.busy_percent: int | None = None
        self.numa_node = _numa_node(parent)
        self._open: list[_Number | _Suspended] = []
        self._used: list[_Number] = []
        self._available: _Number | None = None
        self._busy: _Number | None = None
        self._mapped: _Number | None = None
        self._suspended: _Suspended | None = None
        try:
            self._open_files(parent)
        except BaseException:
            self.close()
            raise
        self.unified = self._unified()
        if self.unified and self.driver == "amdgpu":
            self.mapped_total = _once(os.path.join(parent, "mem_info_gtt_total"))
            self._mapped = self._number(os.path.join(parent, "mem_info_gtt_used"))
        self.sample()

    def _unified(self) -> bool:
        """Whether it computes in the host's memory; see above."""
        if self.driver == "amdgpu":
            if any(os.path.exists(os.path.join(self.path, name)) for name in _CARDS_ALONE):
                return False
            mapped = _once(os.path.join(self.path, "mem_info_gtt_total"))
            return mapped is not None and mapped >= (self.memory_total or 0)
        if self.driver in ("i915", "xe"):
            above = os.path.basename(os.path.dirname(self.path))
            return self.memory_total is None and above.startswith("pci")
        return self.driver in _ALWAYS_UNIFIED

    def _open_files(self, parent: str) -> None:
        card = _card(parent)
        if self.driver == "amdgpu":
            self.memory_total = _once(os.path.join(parent, "mem_info_vram_total"))
            self._add_used(os.path.join(parent, "mem_info_vram_used"))
            self._busy = self._number(os.path.join(parent, "gpu_busy_percent"))
        elif self.driver in ("i915", "xe") and os.path.exists(os.path.join(card, "lmem_total_bytes")):
            self.memory_total = _once(os.path.join(card, "lmem_total_bytes"))
            self._available = self._number(os.path.join(card, "lmem_avail_bytes"))
        elif self.driver == "xe":
            tiles = sorted(name for name in _names(parent) if name.startswith("tile"))
            sizes = [_once(os.path.join(parent, tile, "physical_vram_size_bytes")) for tile in tiles]
            self.memory_total = _sum(sizes)
            for tile in tiles:
                if not self._add_used(os.path.join(parent, tile, "memory", "vram0", "used")):
                    self._used.clear()  # a part of the tiles is not the device
                    break
        elif self.driver == "intel_vpu":
            self._add_used(os.path.join(parent, "npu_memory_utilization"))
        if self._busy is not None:
            try:
                self._suspended = _Suspended(os.path.join(parent, "power", "runtime_status"))
                self._open.append(self._suspended)
            except OSError:
                pass  # a kernel without runtime power management: the device never sleeps

    def _number(self, path: str) -> _Number | None:
        try:
            number = _Number(path)
        except OSError:
            return None
        self._open.append(number)
        return number

    def _add_used(self, path: str) -> bool:
        number = self._number(path)
        if number is not None:
            self._used.append(number)
        return number is not None

    def sample(self) -> None:
        """Read the present values into the attributes: a few microseconds, no waiting, nothing kept."""
        if self._available is not None:
            available = self._available.read()
            total = self.memory_total
            if available is None or total is None or available > total:
                self.memory_used = None
            else:
                self.memory_used = total - available
        elif self._used:
            self.memory_used = self._sum_used()
        if self._mapped is not None:
            self.mapped_used = self._mapped.read()
        if self._busy is not None:
            asleep = self._suspended is not None and self._suspended.read()
            busy = None if asleep else self._busy.read()
            self.busy_percent = busy if busy is not None and busy <= 100 else None

    def _sum_used(self) -> int | None:
        used = 0
        for number in self._used:
            value = number.read()
            if value is None:
                return None
            used += value
        return used

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
        self._used.clear()
        self._available = self._busy = self._mapped = self._suspended = None

    def __repr__(self) -> str:
        return f"Device({self.name}, {self.driver}, {self.memory_used} of {self.memory_total} bytes)"


def devices() -> list[Device]:
    """Every accelerator, render nodes first, each opened for sampling. The caller closes them."""
    found: list[Device] = []
    try:
        for group, prefix, kind in _CLASSES:
            folder = paths.sys("class", group)
            numbered = [name for name in _names(folder) if name.removeprefix(prefix).isdecimal()]
            for name in sorted(numbered, key=lambda name: int(name.removeprefix(prefix))):
                try:
                    found.append(Device(kind, os.path.join(folder, name)))
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        raise  # that is our trouble, and no reason to call the machine poorer
                    continue  # unplugged between the listing and the opening, or a link that leads nowhere
    except BaseException:
        for device in found:
            device.close()
        raise
    return found


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # a kernel without this class


def _driver(parent: str) -> str:
    try:
        driver = os.path.basename(os.readlink(os.path.join(parent, "driver")))
    except OSError:
        driver = "faux_driver"
    # Virtual devices (vgem) have no driver, or since Linux 6.15 all of them this one: they are named after theirs.
    return os.path.basename(parent) if driver == "faux_driver" else driver


def _card(parent: str) -> str:
    """The primary node beside a render node: it carries i915's files."""
    folder = os.path.join(parent, "drm")
    cards = sorted(name for name in _names(folder) if name.startswith("card") and name[4:].isdecimal())
    return os.path.join(folder, cards[0]) if cards else folder


def _once(path: str) -> int | None:
    try:
        number = _Number(path)
    except OSError:
        return None
    try:
        return number.read()
    finally:
        number.close()


def _numa_node(parent: str) -> int | None:
    return _once(os.path.join(parent, "numa_node"))  # -1 without NUMA, which reads as None


def _sum(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None
