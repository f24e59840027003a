# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own library, where it is installed: memory, processes and NVLink, which its driver keeps out of sysfs.

`libnvidia-ml.so.1` is loaded through ctypes, and only this module imports that; who finds no NVIDIA device imports
neither. Whatever the library lacks or refuses is None. Numbers and structures are those of NVIDIA's `nvml.h`.

Loading and initialising may take long (the driver wakes the GPU), so `Library` is made in a worker thread.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "libnvidia-ml.so.1"
_SUCCESS = 0
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_LARGEST = 2**63 - 1
_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_PROCESSES = 1024
_SPEED_COMMON = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("identity", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("address", ctypes.c_char * 32),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


class _Field(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


class Unavailable(Exception):
    """There is no such library, or no driver that it could talk to."""


class Library:
    """The library, initialised. `close()` it."""

    def __init__(self, name: str | None = None) -> None:
        """Raises Unavailable."""
        name = name or NAME
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise Unavailable(str(error)) from None
        if self._call("nvmlInit_v2") is None:
            raise Unavailable(f"{name} does not initialise")
        self._handles: dict[str, ctypes.c_void_p | None] = {}

    def close(self) -> None:
        self._handles.clear()
        self._call("nvmlShutdown")

    def memory(self, slot: str) -> tuple[int, int] | None:
        """Bytes of a device's memory, and how many are in use (what the driver itself keeps is among them)."""
        found = _Memory()
        if self._of(slot, "nvmlDeviceGetMemoryInfo", ctypes.byref(found)) is None:
            return None
        total, used = int(found.total), int(found.used)
        return (total, used) if used <= total <= _LARGEST else None

    def processes(self, slot: str) -> dict[int, int | None] | None:
        """Bytes by process. None for one whose use is not told (in a container, or another's without root), and
        None altogether where the processes are not told."""
        whole: dict[int, int | None] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
            count = ctypes.c_uint(_PROCESSES)
            table = (_Process * _PROCESSES)()
            if self._of(slot, name, ctypes.byref(count), table) is None:
                return None
            for one in table[: min(count.value, _PROCESSES)]:
                used = int(one.used)
                # One that draws and computes is in both lists, with all of its use in each.
                known = used if used <= _LARGEST and used != _UNKNOWN else None
                before = whole.get(one.pid, 0)
                whole[one.pid] = None if known is None or before is None else max(before, known)
        return whole

    def links(self, slot: str) -> tuple[dict[str, int], int, int | None]:
        """NVLinks that are up: how many lead to each other device by its PCI address, how many to a switch, and
        bytes a second of each in one direction (None: not told)."""
        devices: dict[str, int] = {}
        switched = 0
        for number in range(_LINKS):
            state = ctypes.c_uint()
            if self._of(slot, "nvmlDeviceGetNvLinkState", ctypes.c_uint(number), ctypes.byref(state)) is None:
                break  # there are no more of them
            if state.value != 1:
                continue
            kind, remote = ctypes.c_uint(), _Pci()
            self._of(slot, "nvmlDeviceGetNvLinkRemoteDeviceType", ctypes.c_uint(number), ctypes.byref(kind))
            if kind.value == _SWITCH:
                switched += 1
                continue
            name = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
            if self._of(slot, name, ctypes.c_uint(number), ctypes.byref(remote)) is not None:
                other = f"{remote.domain:04x}:{remote.bus & 255:02x}:{remote.device & 31:02x}.0"
                devices[other] = devices.get(other, 0) + 1
        return devices, switched, self._speed(slot) if devices or switched else None

    def _speed(self, slot: str) -> int | None:
        field = _Field(field=_SPEED_COMMON)
        if self._of(slot, "nvmlDeviceGetFieldValues", ctypes.c_int(1), ctypes.byref(field)) is None:
            return None
        if field.result != _SUCCESS or field.type != _UNSIGNED_INT:
            return None
        return int(field.value & 0xFFFFFFFF) * 1_000_000 or None

    def _of(self, slot: str, name: str, *arguments: Any) -> bool | None:
        """Call a function of a device; None where it fails."""
        if slot not in self._handles:
            handle = ctypes.c_void_p()
            known = self._call("nvmlDeviceGetHandleByPciBusId_v2", slot.encode(), ctypes.byref(handle))
            self._handles[slot] = handle if known else None
        handle_or_none = self._handles[slot]
        return None if handle_or_none is None else self._call(name, handle_or_none, *arguments)

    def _call(self, name: str, *arguments: Any) -> bool | None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return None  # a driver older than the function
        function.restype = ctypes.c_int
        return True if function(*arguments) == _SUCCESS else None
