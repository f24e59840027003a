# SPDX-License-Identifier: Apache-2.0
"""What tools may act on, whoever asks: units and files by globs, and a core that no setting can open. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from syntrop.common.protected import UNITS_NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Files that decide who gets in, or what runs with more rights than its user: never restored by a tool.
FILES_NEVER = (
    "/etc/passwd*",
    "/etc/group*",
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/sub[ug]id*",
    "/etc/sudoers*",
    "/etc/doas*",
    "/etc/ssh/*",
    "/etc/ssl/private/*",
    "/etc/pam*",
    "/etc/security/*",
    "/etc/polkit-1/*",
    "/etc/dbus-1/*",
    "/etc/ld.so*",
    "/etc/cron*",
    "/etc/apt/*",
    "/etc/dpkg/*",
    "/etc/syntrop/*",
    "/etc/credstore*",
    "/etc/machine-id",
    "/etc/fstab",
    "/etc/crypttab",
    "/etc/profile*",
    "/etc/environment",
    "/etc/sysusers.d/*",
    "/etc/tmpfiles.d/*",
    "/etc/udev/*",
    "/etc/modprobe.d/*",
    "/etc/systemd/*",
)
# Folders of drop-ins that an administrator made. Those of packages (/usr/lib) are not ours to change.
DROP_IN_ROOTS = ("/etc/systemd/system", "/run/systemd/system")


class Refused(Exception):
    """The policy of the machine does not allow it; the text says which part of it."""


class Policy:
    """The settings `units_allow`, `units_deny`, `files_allow`, `files_deny` over what is never allowed."""

    __slots__ = ("files_allow", "files_deny", "units_allow", "units_deny")

    def __init__(
        self,
        *,
        units_allow: Sequence[str] = ("*",),
        units_deny: Sequence[str] = (),
        files_allow: Sequence[str] = ("/etc/*",),
        files_deny: Sequence[str] = (),
    ) -> None:
        self.units_allow, self.units_deny = tuple(units_allow), tuple(units_deny)
        self.files_allow, self.files_deny = tuple(files_allow), tuple(files_deny)

    def check_unit(self, unit: str) -> None:
        """Raises Refused unless tools may change this unit. For every name of a unit: aliases count too."""
        _check(f"unit {unit}", unit, UNITS_NEVER, self.units_deny, self.units_allow)

    def check_company(self, unit: str, other: str) -> None:
        """Raises Refused if `other`, which stops when `unit` does, is one that tools never change.

        Targets, slices and scopes may come along: what they stand for is looked at on its own.
        """
        if other.endswith((".target", ".slice", ".scope", ".device")):
            return
        if any(fnmatchcase(other, pattern) for pattern in UNITS_NEVER):
            raise Refused(f"unit {unit} takes {other} along, which is never changed by tools")

    def check_file(self, path: str) -> None:
        """Raises Refused unless tools may restore this file, given in plain form."""
        _check(path, path, FILES_NEVER, self.files_deny, self.files_allow)


def _check(what: str, name: str, never: Sequence[str], deny: Sequence[str], allow: Sequence[str]) -> None:
    if any(fnmatchcase(name, pattern) for pattern in never):
        raise Refused(f"{what} is never changed by tools")
    if any(fnmatchcase(name, pattern) for pattern in deny):
        raise Refused(f"{what} is denied by the settings")
    if not any(fnmatchcase(name, pattern) for pattern in allow):
        raise Refused(f"{what} is not allowed by the settings")
