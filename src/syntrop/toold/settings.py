# SPDX-License-Identifier: Apache-2.0
"""Settings of toold."""

from __future__ import annotations

from syntrop.common import protected
from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = (
    *protected.SETTINGS,
    Setting(
        "files_allow",
        list,
        ["/etc/*"],
        "Files that may be restored, as globs over whole paths. Accounts, passwords, keys, PAM, polkit and the "
        "like are never among them.",
        section="policy",
    ),
    Setting(
        "files_deny", list, [], "Files that may not be restored, as globs. Stronger than allow.", section="policy"
    ),
    Setting(
        "looks_per_minute",
        int,
        240,
        "Calls of safe tools that one user may make in a minute; root is not counted.",
        section="rates",
        minimum=1,
        maximum=100000,
    ),
    Setting(
        "changes_per_minute",
        int,
        10,
        "Changes that all callers together may make in a minute.",
        section="rates",
        minimum=0,
        maximum=10000,
    ),
    Setting(
        "changes_per_unit_per_minute",
        int,
        4,
        "Changes of one unit in a minute.",
        section="rates",
        minimum=0,
        maximum=10000,
    ),
    Setting(
        "namespaces",
        str,
        "always",
        "Whether commands run in namespaces of their own (users, mounts, processes, network, IPC, host name): "
        "always (or they do not run), or auto, those that the machine allows.",
        section="sandbox",
        choices=("always", "auto"),
    ),
    Setting(
        "bubblewrap",
        str,
        "auto",
        "Whether commands see only the files that their tool declares: where bubblewrap "
        "works, always (or they do not run), or never.",
        section="sandbox",
        choices=("auto", "always", "never"),
    ),
    Setting(
        "rollback_count",
        int,
        500,
        "Changes that can be taken back; the oldest are forgotten first.",
        section="rollback",
        minimum=1,
        maximum=100000,
    ),
    Setting(
        "rollback_bytes",
        int,
        512 << 20,
        "Space that they may take on disk.",
        section="rollback",
        unit="bytes",
        minimum=1 << 20,
    ),
    Setting(
        "rollback_days",
        float,
        30.0,
        "Age at which they are forgotten.",
        section="rollback",
        unit="days",
        minimum=0.01,
        maximum=3650.0,
    ),
    Setting(
        "preimage_bytes",
        int,
        128 << 20,
        "What one change may need to keep; a change that would need more is refused.",
        section="rollback",
        unit="bytes",
        minimum=1 << 16,
    ),
)
