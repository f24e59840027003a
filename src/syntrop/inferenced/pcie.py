# SPDX-License-Identifier: Apache-2.0
"""Where a device hangs in the PCI tree, and how much its way to the root carries. Pure but for the two readers.

Power management lets a link's speed fall while nobody computes (`current_link_speed` of an idle GPU is often
2.5 GT/s), so the speed that counts is what both ends can do (`max_link_speed`, else the current one); the width is
the one that was negotiated, since a slot of four lanes stays one. The way carries what its slowest link carries.

A card with a switch of its own shows it as two bridges of the card's vendor above the device. The links inside
the card are left out: Arc's say 2.5 GT/s × 1 whatever they do.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s")
_LANES = (1, 2, 4, 8, 12, 16, 32)
_DEEPEST = 32
"""Bridges: a bus number has 8 bits, and real trees have a handful."""


def is_address(text: str) -> bool:
    """Whether it is a PCI address such as `0000:03:00.0`."""
    return _ADDRESS.fullmatch(text) is not None


def chain(path: str) -> tuple[str, ...]:
    """The folders of the PCI functions that a device's resolved folder in sysfs passes, from the root on, the
    device itself last; empty where it is on no PCI bus. A virtio device counts as the function that carries it."""
    parts = path.split("/")
    found = [place for place, name in enumerate(parts) if is_address(name)]
    return tuple("/".join(parts[: place + 1]) for place in found[-_DEEPEST:])


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """How many functions two chains share from the root on."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


def bridges(a: Sequence[str], b: Sequence[str]) -> int:
    """Bridges between two devices of one machine: those to the switch or host bridge where their ways meet. An
    empty chain stands for the processor. A switch on the way counts each of its ports that is passed."""
    shared = common(a, b)
    return max(len(a) - 1 - shared, 0) + max(len(b) - 1 - shared, 0)


def bandwidth(speed: str, width: str) -> int | None:
    """Bytes a second in one direction, less the encoding: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, and
    242 of 256 bytes of a flit above. None where the kernel does not know (`Unknown`, width 0) or it is no link."""
    rate = _SPEED.match(speed.strip())
    if rate is None or not width.strip().isascii() or not width.strip().isdecimal() or len(width) > 8:
        return None
    lanes, giga = int(width), float(rate[1])
    if lanes not in _LANES or not 2.5 <= giga <= 128:
        return None
    share = 8 / 10 if giga <= 5 else 128 / 130 if giga <= 32 else 242 / 256
    return int(giga * 1e9 / 8 * share) * lanes


def outside(vendors: Sequence[str | None]) -> int:
    """How many links of a chain lie outside the card, given the vendor of each function from the root on: all,
    unless the two bridges above the device are the card's own switch. The root's port is never a card's."""
    if len(vendors) >= 4 and vendors[-1] is not None and vendors[-3] == vendors[-2] == vendors[-1]:
        return len(vendors) - 2
    return len(vendors)


def slowest(functions: Sequence[str], shared: int = 0) -> int | None:
    """Bytes a second of the slowest link of a chain, without the first `shared` functions, which its way does not
    leave. None where not one of them is told."""
    vendors = [read(os.path.join(function, "vendor")) for function in functions]
    passed = functions[shared : outside(vendors)] or functions[shared:]
    known = [one for one in map(link, passed) if one is not None]
    return min(known) if known else None


def link(function: str) -> int | None:
    """Bytes a second of the link that a function in sysfs is on; None where it has none (a function inside the
    processor) or does not know."""
    width = read(os.path.join(function, "current_link_width"))
    for name in ("max_link_speed", "current_link_speed"):
        speed = read(os.path.join(function, name))
        if speed is not None and width is not None:
            found = bandwidth(speed, width)
            if found is not None:
                return found
    return None


def read(path: str, most: int = 256) -> str | None:
    """The start of a small file of sysfs or procfs, without the blanks around; None whenever that fails. Never
    waits: a pipe or a device in its place reads as nothing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(handle, most)
    except OSError:
        return None
    finally:
        os.close(handle)
    return data.decode("utf-8", "replace").replace("\0", "").strip()
