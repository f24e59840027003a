# SPDX-License-Identifier: Apache-2.0
"""What befell an accelerator, from the kernel's log; and which of a gang's is faulty. Pure.

Told apart are a bus error, an uncorrectable memory error, a failed transfer between peers, a hang of the driver
or its engine, memory that ran out, and a fault of the program that ran on it. Each line is a `Fault` of one
device; a gang (the planes of one composite lease) has one verdict: which plane to quarantine, whose lease to
release, and which planes are healthy and can be offered again.

What follows from another fault is no fault of its own: channels that are torn down (Xid 45), resets that begin,
and what is "caused by previous". Corrected errors and soft recoveries are none at all.
"""

from __future__ import annotations

import re

from syntrop.common.patterns import late
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BUS_ERROR, ECC, PEER_DMA, DRIVER_HANG = "bus_error", "ecc", "peer_dma_timeout", "driver_hang"
MEMORY_EXHAUSTED, PROGRAM = "memory_exhausted", "program"
# The graver explains the lesser when one device shows both.
CATEGORIES = (BUS_ERROR, ECC, PEER_DMA, DRIVER_HANG, MEMORY_EXHAUSTED, PROGRAM)
CRITICAL, HIGH, MEDIUM = "critical", "high", "medium"
_SEVERITY = {BUS_ERROR: CRITICAL, ECC: CRITICAL, PEER_DMA: HIGH, DRIVER_HANG: HIGH, MEMORY_EXHAUSTED: MEDIUM,
             PROGRAM: MEDIUM}  # fmt: skip

QUARANTINE, BACK_OFF, SHRINK, RESTART, NOTHING = "quarantine", "back_off", "shrink", "restart", "nothing"

# Xid Errors (NVIDIA's document of that name, r580): the numbers by what they mean for the device.
_XID = {
    **dict.fromkeys((79, 18), BUS_ERROR),
    **dict.fromkeys((48, 64, 95, 140), ECC),
    **dict.fromkeys((74, 71, 121, 137, 144, 145, 146, 147, 148, 149, 150, 155, 156), PEER_DMA),
    **dict.fromkeys((8, 16, 38, 61, 62, 109, 119, 120), DRIVER_HANG),
    **dict.fromkeys((13, 31, 32, 43, 68, 69, 94), PROGRAM),
}
_XID_LINE = late(
    r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?\): "
    r"(?P<xid>\d{1,4}),? ?(?P<rest>.{0,400})"
)
_CAUSED = late(r"caused by previous Xid")
_DEVICE = late(
    r"(?P<driver>amdgpu|i915|xe|nvidia|nouveau"
    r"|pcieport) (?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
)
_GPU_ID = late(r"\[nvidia-drm\] \[GPU ID 0x(?P<id>[0-9a-fA-F]{8})\]")
_DMAR = late(
    r"DMAR: \[DMA (?:Read"
    r"|Write)[^\]]{0,16}\] Request device \[(?:0x)?(?P<bus>[0-9a-f]{2}):(?:0x)?(?P<slot>[0-9a-f]{2}\.[0-7])\]"
)
_DUMP = late(r"(?P<path>/sys/class/drm/card\d{1,4}/(?:device/devcoredump/data|error))")
_TIME = late(r"\A(?:<\d{1,3}>)?\s{0,4}\[\s{0,12}\d{1,10}\.\d{6}\]\s?")

# Text, driver that says it ("" where the line tells), category; recovered: the device came back by itself.
_TEXTS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    (BUS_ERROR, "", late(r"AER: (?:can't recover|device recovery failed)|PCIe Bus Error: severity=Uncorrect")),
    (BUS_ERROR, "amdgpu", late(r"PCI error: detected callback|device lost from bus")),
    (BUS_ERROR, "nvidia", late(r"NVRM: .{0,80}GPU (?:at .{0,40})?has fallen off the bus|NV_ERR_GPU_IS_LOST")),
    (PEER_DMA, "amdgpu", late(r"(?<![\w.])[1-9]\d{0,12}(?: new)? uncorrectable hardware errors detected in"
        r"(?: total in)? xgmi_wafl")),
    (ECC, "amdgpu", late(r"(?<![\w.])[1-9]\d{0,12}(?: new)? uncorrectable hardware errors detected in"
        r"|Poison is created|RAS poison consumption")),
    (PEER_DMA, "", late(r"AMD-Vi: Event logged \[IO_PAGE_FAULT |DMAR: \[DMA (?:Read|Write)")),
    (PEER_DMA, "amdgpu", late(r"ring (?:page\d|sdma)\S{0,8} timeout, signaled seq=")),
    (DRIVER_HANG, "amdgpu", late(r"ring \S{1,32} timeout, signaled seq=|GPU reset begin!"
        r"|MES (?:failed to respond|might be in unrecoverable state)|qcm fence wait loop timeout"
        r"|GPU reset end with ret = -|GPU reset\(\d+\) failed")),
    (DRIVER_HANG, "i915", late(r"GPU HANG: ecode|Resetting (?:chip|[a-z]{3}\d{1,2}) for "
        r"|GPU recovery timed out|Engine reset failed|Failed to reset chip|reset request timed out")),
    (DRIVER_HANG, "xe", late(r"Engine reset: engine_class=|Timedout job: |GT\d{1,2}: reset failed"
        r"|declared device \S{1,20} as wedged")),
    (DRIVER_HANG, "nvidia", late(r"NVRM: .{0,40}(?:GSP Timeout|GPU is probably locked)")),
    (DRIVER_HANG, "nouveau", late(r"fifo: (?:SCHED_ERROR|fault)|channel \d+ killed")),
    (MEMORY_EXHAUSTED, "amdgpu", late(r"Not enough memory for command submission"
        r"|amdgpu_vm_validate\w{0,16}\(\) failed")),
    (MEMORY_EXHAUSTED, "xe", late(r"VM worker error: -12\b")),
    (MEMORY_EXHAUSTED, "nvidia", late(r"\[NV_ERR_NO_MEMORY\]|Failed to allocate NVKMS (?:video )?memory")),
    (PROGRAM, "amdgpu", late(r"\[gfxhub\d?\] (?:retry |no-retry )?page fault|VM_L2_PROTECTION_FAULT_STATUS"
        r"|Illegal (?:register|opcode) access in command stream")),
    (PROGRAM, "xe", late(r"Engine memory CAT error|Fault response: Unsuccessful")),
)  # fmt: skip
_NO_FAULT = late(
    r"but soft recovered|severity=Correct|AER: (?:Multiple )?Correct(?:ed|able)|\bno uncorrectable"
    r"|(?<![\d.])0 uncorrectable"
)
_CAME_BACK = late(
    r"GPU reset(?:\(\d+\))? succeeded|Ring \S{1,32} reset succeeded|device wedged, but recovered through reset"
    # i915 loads its firmware anew after a reset; xe tells of an engine's reset when it is over.
    r"|reset done\b|i915 .{0,40}(?:GuC firmware|HuC authenticated|GUC: submission enabled)"
    r"|Engine reset: engine_class="
)
_STAYED_AWAY = late(
    r"GPU reset(?:\(\d+\))? failed|GPU reset end with ret = -|as wedged|GPU recovery timed out"
    r"|Failed to reset chip|needs recovery|reset failed, no further|GPU is lost"
)
_STOOD_STILL = late(r"ring \S{1,32} timeout, signaled|GPU HANG: ecode|Timedout job: ")
HANGS_MAX = 3  # so many in what was read, and that it came back each time counts no more


class Fault(Record):
    """A line that tells of a fault: its number in what was read, the device (as PCI writes it; empty where the
    line does not tell), driver, category, Xid (0 where there is none), and the line.
    """

    __slots__ = ("category", "device", "driver", "line", "number", "xid")

    def __init__(self, number: int, device: str, driver: str, category: str, line: str, xid: int = 0) -> None:
        self.number, self.device, self.driver, self.category = number, device, driver, category
        self.line, self.xid = line, xid


class GangVerdict(Record):
    """What befell a gang. `faulty` is empty where no device is to be blamed; `evidence` are numbers of lines."""

    __slots__ = (
        "action", "category", "dump", "evidence", "explanation", "faulty", "healthy", "recovered", "severity",
    )  # fmt: skip

    def __init__(
        self,
        category: str,
        faulty: str,
        healthy: Sequence[str],
        *,
        severity: str,
        action: str,
        explanation: str,
        evidence: Sequence[int],
        recovered: bool = False,
        dump: str = "",
    ) -> None:
        self.category, self.faulty, self.healthy = category, faulty, tuple(healthy)
        self.severity, self.action, self.explanation = severity, action, explanation
        self.evidence, self.recovered, self.dump = tuple(evidence), recovered, dump


def address(text: str) -> str:
    """A PCI address in one form: `0000:65:00.0`, in lower case; a domain of eight digits loses its zeros."""
    domain, bus, slot = text.lower().split(":")
    return f"{domain[-4:]}:{bus}:{slot}" + ("" if "." in slot else ".0")


def read(lines: Iterable[str]) -> list[Fault]:
    """The faults that lines of the kernel's log tell of. Lines that name no device get the one that the same
    driver names next, or named last.
    """
    found: list[Fault] = []
    devices: dict[str, str] = {}  # the device that a driver named last
    unplaced: list[Fault] = []
    for number, raw in enumerate(lines):
        line = _TIME.sub("", raw[:1024]).rstrip()
        device, driver = _where(line)
        if device and driver:
            devices[driver] = device
            for fault in unplaced:
                if fault.driver == driver:
                    fault.device = device
            unplaced = [fault for fault in unplaced if fault.driver != driver]
        told = _what(line, driver)
        if told is None:
            continue
        category, driver, xid = told
        fault = Fault(number, device, driver, category, line, xid)
        found.append(fault)
        if not device and driver:
            unplaced.append(fault)
    for fault in unplaced:
        fault.device = devices.get(fault.driver, "")
    return found


def _where(line: str) -> tuple[str, str]:
    """Device and driver that a line names."""
    match = _XID_LINE.search(line)
    if match is not None:
        return address(match["device"]), "nvidia"
    match = _DMAR.search(line)
    if match is not None:
        return f"0000:{match['bus']}:{match['slot']}", ""
    match = _DEVICE.search(line)
    if match is not None:
        return address(match["device"]), match["driver"]
    match = _GPU_ID.search(line)
    if match is not None:
        number = int(match["id"], 16)
        return f"0000:{number >> 8 & 0xFF:02x}:{number >> 3 & 0x1F:02x}.0", "nvidia"
    for driver, marks in (("amdgpu", ("amdgpu",)), ("nvidia", ("NVRM:", "nvidia-"))):
        if any(mark in line for mark in marks):
            return "", driver
    return "", "amdgpu" if line.startswith("[drm] PCI error") else ""


def _what(line: str, driver: str) -> tuple[str, str, int] | None:
    """Category, driver and Xid of a line; None where it tells of no fault."""
    if _NO_FAULT.search(line):
        return None
    match = _XID_LINE.search(line)
    if match is not None:
        xid = int(match["xid"])
        category = _XID.get(xid)
        if category is None or _CAUSED.search(match["rest"]):
            return None
        return category, "nvidia", xid
    for category, whose, pattern in _TEXTS:
        if (not whose or whose == driver) and pattern.search(line):
            return category, driver, 0
    return None


def triage(
    lines: Sequence[str], members: Sequence[str], *, behind: Mapping[str, Sequence[str]] | None = None
) -> GangVerdict:
    """What befell a gang of devices (PCI addresses), from the kernel's log since it ran.

    `behind` tells which devices are behind a bridge: errors of a port are those of the one member behind it.
    """
    gang = [address(member) for member in members]
    ports = {address(port): [address(one) for one in ones] for port, ones in (behind or {}).items()}
    faults = []
    for fault in read(lines):
        device = fault.device
        below = [one for one in ports.get(device, ()) if one in gang]
        if device not in gang and len(below) == 1:
            device = below[0]
        if device in gang or (not device and len(gang) == 1):
            faults.append(
                Fault(fault.number, device or gang[0], fault.driver, fault.category, fault.line, fault.xid)
            )
    texts = [_TIME.sub("", line[:1024]) for line in lines]
    if not faults:
        words = "the kernel tells of no fault of its devices"
        return GangVerdict("none", "", gang, severity=MEDIUM, action=NOTHING, explanation=words, evidence=())
    if len(gang) == 1:
        # Alone a device has no peer: a transfer that stands still is its own engine's.
        for fault in faults:
            if fault.category == PEER_DMA and "timeout" in fault.line and not fault.xid:
                fault.category = DRIVER_HANG
    first = min(faults, key=lambda fault: (CATEGORIES.index(fault.category), fault.number))
    own = [fault for fault in faults if fault.device == first.device and fault.category == first.category]
    recovered = _came_back(texts, first.device)
    often = sum(_STOOD_STILL.search(fault.line) is not None for fault in own) >= HANGS_MAX
    action, blamed = _remedy(first, recovered and not often)
    peers = sorted({f.device for f in faults if f.category == first.category and f.device != first.device})
    words = _WORDS[first.category].format(device=first.device)
    if first.xid:
        words += f" (Xid {first.xid})"
    if recovered and first.category == DRIVER_HANG:
        words += "; it came back by its driver's reset" + (", and stood still again" if often else "")
    if peers:
        words += f"; {', '.join(peers)} told of it too, later"
    dumps = [match["path"] for text in texts if (match := _DUMP.search(text))]
    return GangVerdict(
        first.category,
        first.device if blamed else "",
        [one for one in gang if not blamed or one != first.device],
        severity=_SEVERITY[first.category],
        action=action,
        explanation=words,
        evidence=[fault.number for fault in own[:8]],
        recovered=recovered,
        dump=dumps[-1] if dumps else "",
    )


def _remedy(fault: Fault, recovered: bool) -> tuple[str, bool]:
    """What is to be done, and whether the device is to be blamed."""
    if fault.category in (BUS_ERROR, ECC, PEER_DMA):
        return QUARANTINE, True
    if fault.category == DRIVER_HANG:
        return (BACK_OFF, False) if recovered else (QUARANTINE, True)
    return (SHRINK, False) if fault.category == MEMORY_EXHAUSTED else (RESTART, False)


def _came_back(lines: Sequence[str], device: str) -> bool:
    """Whether the last that is told of a device's reset is that it succeeded."""
    back = False
    for line in lines:
        where, _ = _where(line)
        if where not in ("", device):
            continue
        if _STAYED_AWAY.search(line):
            back = False
        elif _CAME_BACK.search(line):
            back = True
    return back


_WORDS = {
    BUS_ERROR: "{device} cannot be reached over its bus any more",
    ECC: "{device} has uncorrectable errors in its memory",
    PEER_DMA: "a transfer between {device} and a peer failed",
    DRIVER_HANG: "{device} stood still",
    MEMORY_EXHAUSTED: "the memory of {device} was exhausted",
    PROGRAM: "a program made an error on {device}",
}
