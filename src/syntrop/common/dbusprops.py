# SPDX-License-Identifier: Apache-2.0
"""Properties in D-Bus messages: those that are asked for, and the others passed over. Pure.

A unit has hundreds of properties, and to unmarshal all of them takes longer than the manager takes to tell them.
"""

from __future__ import annotations

from syntrop.common import dbus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# type -> bytes, of what needs no look at its content to be passed over
_SIZES = {"y": 1, "b": 4, "n": 2, "q": 2, "i": 4, "u": 4, "x": 8, "t": 8, "d": 8, "h": 4}


def pick(message: dbus.Message, names: frozenset[str]) -> tuple[str, dict[str, Any]]:
    """Of a reply of `GetAll`, or of a signal `PropertiesChanged`: the interface that the signal names (else
    nothing), and the values that have one of these names. Raises dbus.Malformed."""
    if message.signature not in ("a{sv}", "sa{sv}as"):
        raise dbus.Malformed(f"properties of signature {message.signature!r}")
    start = message.at_body()
    reader = _Picker(start.data, start.order, start.at)
    interface: str = reader.get("s")[0] if message.signature[0] == "s" else ""
    return interface, reader.pick(names)


class _Picker(dbus.Reader):
    def pick(self, names: frozenset[str]) -> dict[str, Any]:
        end = self._array_end("{")
        found = {}
        while self.at < end:
            self.pad(8)
            name = self._get("s", 0)
            if name in names:
                found[name] = self._get("v", 0)[1]
            else:
                self._skip("v", 0)
        return found

    def _skip(self, kind: str, depth: int) -> None:
        if depth > dbus.DEPTH_MAX:
            raise dbus.Malformed("values nest too deeply")
        first = kind[0]
        if first == "v":
            inner = self._get("g", depth)
            if len(dbus.split(inner)) != 1:
                raise dbus.Malformed(f"a variant of signature {inner!r}")
            self._skip(inner, depth + 1)
        elif first == "g":
            self._take(self._take(1)[0] + 1)
        elif first in "so":
            self._take(self._get("u", depth) + 1)
        elif first == "a":
            self.at = self._array_end(kind[1])
        elif first == "(":
            self.pad(8)
            for field in dbus.split(kind[1:-1]):
                self._skip(field, depth + 1)
        else:
            size = _SIZES[first]
            self.pad(size)
            self._take(size)
