# SPDX-License-Identifier: Apache-2.0
"""Settings of contextd."""

from __future__ import annotations

from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = (
    Setting(
        "watch_paths",
        list,
        ["/etc", "/run/systemd/system", "/run/systemd/system.control", "/run/systemd/generator",
         "/usr/lib/systemd", "/usr/local/lib/systemd"],
        "Folders whose files are watched. Files that units name are watched wherever they are.",
        section="watch",
    ),
    Setting(
        "exclude",
        list,
        ["*~", "*.sw?", ".#*", "#*#", "4913", "*.lock", ".*.tmp", "*.dpkg-tmp", "*.dpkg-new", "*.ucf-tmp",
         "/etc/ld.so.cache", "/etc/mtab", "/etc/adjtime", "/etc/.pwd.lock", "/etc/cups/subscriptions.conf*",
         "/etc/syntrop/cache/*", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.git/*",
         "/etc/lvm/archive/*", "/etc/lvm/backup/*", "/usr/lib/systemd/catalog/*"],
        "Patterns of files that are not: of whole paths where they begin with a slash, else of names.",
        section="watch",
    ),
    Setting(
        "fanotify", bool, True, "Use fanotify where capabilities allow, to tell who changed a file.",
        section="watch",
    ),
    Setting(
        "events_max", int, 10_000, "Most events that are remembered.", section="chronology", minimum=100,
        maximum=1_000_000,
    ),
    Setting(
        "events_bytes_max", int, 32 << 20, "Most bytes that they take on the disk.", section="chronology",
        unit="bytes", minimum=1 << 20,
    ),
    Setting(
        "contents_bytes_max", int, 256 << 20,
        "Most bytes that contents of files take on the disk. Beyond it, changes are told by digest.",
        section="chronology", unit="bytes", minimum=1 << 20,
    ),
    Setting(
        "retention_days", int, 30, "Days after which events are forgotten. 0 keeps them while there is room.",
        section="chronology", unit="days", minimum=0, maximum=3650,
    ),
)  # fmt: skip
