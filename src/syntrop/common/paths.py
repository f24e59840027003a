# SPDX-License-Identifier: Apache-2.0
"""Every root that the suite reads or writes, each movable by one variable.

Captured trees of other machines (tests) and the embedded activator's runtime folder take the place of
`/run`, `/proc` and `/sys` this way; nothing else in the suite spells them.
"""

from __future__ import annotations

import os


def _under(variable: str, default: str, parts: tuple[str, ...]) -> str:
    return os.path.join(os.environ.get(variable) or default, *parts)


def run(*parts: str) -> str:
    """Path below the runtime root, `/run` by default."""
    return _under("SYNTROP_RUN_ROOT", "/run", parts)


def endpoint(name: str) -> str:
    """Path of one of the suite's Unix sockets, named by its file name.

    `sentry.sock` alone is inferenced's triage socket; the supervisor's own is `systemd-sentry/sentry.sock`.
    """
    if "/" in name:
        return run(name)
    return run("syntrop", name)


def proc(*parts: str) -> str:
    return _under("SYNTROP_PROC_ROOT", "/proc", parts)


def sys(*parts: str) -> str:
    return _under("SYNTROP_SYS_ROOT", "/sys", parts)


def cgroup(*parts: str) -> str:
    """Path below the unified (v2) hierarchy."""
    return sys("fs", "cgroup", *parts)


def host(path: str) -> str:
    """Where the watched machine's absolute `path` is found: below `/`, or below a captured tree."""
    root = os.environ.get("SYNTROP_HOST_ROOT")
    return root.rstrip("/") + path if root else path


def state(daemon: str) -> str:
    """The daemon's own state folder: systemd's `STATE_DIRECTORY` (its first entry), else below `/var/lib`."""
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return given.split(":", 1)[0]
    return _under("SYNTROP_STATE_ROOT", "/var/lib", ("syntrop", daemon))


def cache() -> str | None:
    """The daemon's own folder for what may vanish: systemd's `CACHE_DIRECTORY` (its first entry), if it was given
    one."""
    return os.environ.get("CACHE_DIRECTORY", "").split(":", 1)[0] or None


def config_dirs() -> tuple[str, ...]:
    """Configuration folders, strongest first (file-hierarchy(7): /etc over /run over /usr/lib)."""
    moved = os.environ.get("SYNTROP_CONFIG_ROOT")
    if moved:
        return (moved,)
    return ("/etc/syntrop", run("syntrop", "conf"), "/usr/lib/syntrop/conf")


def credential(name: str) -> str | None:
    """Path of a systemd credential, or None when the unit was given no credentials."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return os.path.join(folder, name) if folder else None
