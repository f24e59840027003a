# SPDX-License-Identifier: Apache-2.0
"""Units that nothing of the suite ever acts on, by globs, and the settings that protect more. Pure."""

from __future__ import annotations

from syntrop.common.settings import Setting

# Without these a host cannot log, authenticate, be reached or be repaired; and we are no judge in our own cause.
# 50-syntrop.rules says the same to polkit, which holds even where toold is deceived.
UNITS_NEVER = (
    "init.scope",
    "-.*",
    "*.slice",
    "*.scope",
    "*.target",
    "*.device",
    "user@*",
    "user-runtime-dir@*",
    "systemd-*",
    "dbus*",
    "polkit*",
    "udev*",
    "ssh.*",
    "sshd*",
    "ssh@*",
    "getty@*",
    "serial-getty@*",
    "autovt@*",
    "console-getty.*",
    "emergency.*",
    "rescue.*",
    "debug-shell.*",
    "container-shell@*",
    "container-getty@*",
    "initrd-*",
    "syntrop*",
    "routerd*",
    "inferenced*",
    "modeld*",
    "contextd*",
    "toold*",
    "runtimed*",
)

SETTINGS = (
    Setting(
        "units_allow",
        list,
        ["*"],
        "Units that may be acted on, as globs. PID 1, journald, logind, the bus, udev, sshd and the suite itself "
        "are never among them.",
        section="policy",
    ),
    Setting(
        "units_deny", list, [], "Units that may not be acted on, as globs. Stronger than allow.", section="policy"
    ),
)
