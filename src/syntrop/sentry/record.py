# SPDX-License-Identifier: Apache-2.0
"""Values with named parts: equal when their parts are, shown with their names. `dataclasses` is not paid for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Record:
    """Base of the value types. The parts are the names in `__slots__`, in order."""

    __slots__: tuple[str, ...] = ()

    def parts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Record) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(self.parts())

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({named})"
