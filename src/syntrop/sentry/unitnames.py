# SPDX-License-Identifier: Apache-2.0
"""Names of units as D-Bus paths, and what kinds of units there are. Pure."""

from __future__ import annotations

UNITS = "/org/freedesktop/systemd1/unit/"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_NAME = _PLAIN | frozenset(":-_.\\@")
NAME_MAX = 255  # unit-name.h: UNIT_NAME_MAX
# What can fail, with the interface that tells how. Nothing of slices, scopes, targets and devices can be mended.
INTERFACES = {
    "service": "Service",
    "socket": "Socket",
    "mount": "Mount",
    "automount": "Automount",
    "swap": "Swap",
    "path": "Path",
    "timer": "Timer",
}
_KINDS = frozenset((*INTERFACES, "target", "device", "slice", "scope"))


def is_name(name: str) -> bool:
    """Whether this is a name of a unit that can be there: no template, no path."""
    stem, dot, kind = name.rpartition(".")
    return (
        bool(dot and stem)
        and kind in _KINDS
        and len(name) <= NAME_MAX
        and set(name) <= _NAME
        and not stem.endswith("@")
        and not name.startswith((".", "@"))
    )


def is_pattern(text: str) -> bool:
    """Whether this may be a glob of units' names, or a name."""
    return 0 < len(text) <= NAME_MAX and set(text) <= _NAME | frozenset("*?[]!")


def path(unit: str) -> str:
    """The object of a unit (sd_bus_path_encode(3)): the manager loads the unit when it is asked about it."""
    if not unit:
        return UNITS + "_"
    return UNITS + "".join(
        chr(byte) if chr(byte) in _PLAIN and not (place == 0 and 48 <= byte <= 57) else f"_{byte:02x}"
        for place, byte in enumerate(unit.encode())
    )


def unit(path: str) -> str:
    """The unit of an object; empty where it is none."""
    if not path.startswith(UNITS):
        return ""
    label = path[len(UNITS) :]
    name = bytearray()
    at = 0
    while at < len(label):
        if label[at] != "_":
            name += label[at].encode()
            at += 1
            continue
        try:
            name.append(int(label[at + 1 : at + 3], 16))
        except ValueError:
            return ""
        at += 3
    return name.decode("utf-8", "replace")


def kind(unit: str) -> str:
    """The interface that tells of units of this kind; empty where there is nothing that fails."""
    return INTERFACES.get(unit.rpartition(".")[2], "")
