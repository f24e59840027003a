# SPDX-License-Identifier: Apache-2.0
"""What is frozen to stop a process, and what never may be. No I/O."""

from __future__ import annotations

import re

from syntrop.common import cgroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

# Without these nobody could thaw anything, log in or see what happened; units/polkit/rules.d says the same.
_HOST: Final = re.compile(
    r"init\.scope|systemd-[^/]*|dbus(-broker)?(-[^/]*)?\.(service|socket)|polkit[^/]*|sshd?(@[^/]*)?\.(service|socket)"
    r"|getty@.*|serial-getty@.*|autovt@.*|emergency\.service|rescue\.service"
)
_MANAGERS: Final = re.compile(r"user@[^/]*\.service|user-runtime-dir@[^/]*\.service")
_SESSIONS: Final = re.compile(r"session-[^/]*\.scope")
_SUITE: Final = re.compile(
    r"(syntrop[^/]*|routerd|inferenced|inferenced-lookout@[^/]*|modeld|modeld-pull@[^/]*|contextd|toold|runtimed"
    r"|systemd-sentry)\.(service|scope)"
)


def of_group(path: str, delegated: Sequence[str] = ()) -> str:
    """The target of a process in the control group `path`: a group in a tree that is delegated to us by its path,
    else the system unit by its name; empty for what belongs to no unit."""
    for tree in delegated:
        if path.startswith(tree.rstrip("/") + "/"):
            return path
    return cgroup.unit_of(path) or ""


def is_group(target: str) -> bool:
    """Whether a target is a control group of a tree delegated to us, and not a unit."""
    return target.startswith("/")


def objection(target: str) -> str | None:
    """Why a target must not be frozen; None if it may be."""
    if not target:
        return "its processes belong to no system unit"
    if is_group(target):
        return None
    if not target.endswith((".service", ".scope")):
        return f"{target} is no service or scope"
    if _MANAGERS.fullmatch(target):
        return f"{target} is a user's manager, and units of its own are not ours to freeze"
    if _SESSIONS.fullmatch(target):
        return f"{target} is a login session"
    if _SUITE.fullmatch(target):
        return f"{target} belongs to the suite"
    if _HOST.fullmatch(target):
        return f"{target} keeps the host going"
    return None
