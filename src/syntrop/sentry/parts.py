# SPDX-License-Identifier: Apache-2.0
"""What a course asks of its parts, each of which is a small class of its own: a test stands in for any of them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Protocol

    from syntrop.sentry.causes import Cause
    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.policy import Occasion
    from syntrop.sentry.verdict import Answer

    class Watch(Protocol):
        """The manager tells when something of a unit changes. Made before the first look, so nothing is missed."""

        async def changed(self) -> None:
            """Returns when something changed since the last return; also after the bus was lost and is back."""

        def close(self) -> None: ...

    class Manager(Protocol):
        """The service manager. Every wait is the caller's deadline; OSError and dbus.DBusError where it fails."""

        async def unit(self, name: str) -> dict[str, Any]:
            """Plain properties of Unit and (for services) Service, by their D-Bus names; InvocationID as hex.
            `LoadState` is "not-found" for units that are not there."""

        async def units(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
            """The same of several."""

        async def states(self, names: Sequence[str]) -> dict[str, str]:
            """`ActiveState` of several, by their own names, in one small question."""

        async def occasion(self, name: str, properties: Mapping[str, Any]) -> Occasion:
            """What goes on around a unit: its waiting job, whether its last job was a stop, the machine's
            leaving."""

        async def watch(self, name: str) -> Watch: ...

    class Slice(Protocol):
        """What was read of a failure: the keyword arguments of `Evidence` that are not contextd's; and the unit's
        properties."""

        @property
        def properties(self) -> Mapping[str, Any]: ...

        def arguments(self) -> dict[str, Any]: ...

    class Slicer(Protocol):
        async def __call__(self, manager: Any, unit: str, key: bytes, *, invocation: str) -> Slice: ...

    class Adviser(Protocol):
        """The model. Never raises but Cancelled; `deadline` is on the monotonic clock, in microseconds."""

        def wanted(self, evidence: Evidence, causes: Sequence[Cause]) -> bool:
            """Whether there is anything for it to choose."""

        async def choose(self, evidence: Evidence, causes: Sequence[Cause], *, deadline: int) -> Answer | str:
            """Its choice, or why there is none."""

        async def sentence(self, evidence: Evidence, cause: Cause, *, deadline: int) -> str:
            """One sentence for people; empty where there is none."""

        def rest(self) -> None:
            """Do nothing more in the background."""
