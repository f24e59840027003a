# SPDX-License-Identifier: Apache-2.0
"""Where the activator's suite lives: its runtime folder (ours to remove) and its kept folders.

| systemd says | user | root |
| --- | --- | --- |
| `/run`, `%t` | `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/syntrop`, or a temporary folder | the same |
| `StateDirectory=`, `%S` | `$XDG_STATE_HOME` or `~/.local/state` | `/var/lib` |
| `CacheDirectory=`, `%C` | `$XDG_CACHE_HOME` or `~/.cache` | `/var/cache` |
| `LogsDirectory=`, `%L` | `log` below the state folder | `/var/log` |
| `ConfigurationDirectory=`, `%E` | `$XDG_CONFIG_HOME` or `~/.config` | `/etc` |

`SYNTROP_STATE_ROOT` moves all but the first: state directly below it, the rest in `cache`, `log`, `config`.
"""

from __future__ import annotations

import fcntl
import os

KINDS = {
    "RuntimeDirectory": "RUNTIME_DIRECTORY",
    "StateDirectory": "STATE_DIRECTORY",
    "CacheDirectory": "CACHE_DIRECTORY",
    "LogsDirectory": "LOGS_DIRECTORY",
    "ConfigurationDirectory": "CONFIGURATION_DIRECTORY",
}


class Busy(Exception):
    """Another activator serves this runtime folder."""


class RuntimeFolder:
    """The folder that stands for `/run`, locked against a second activator for as long as we live.

    The lock is an open file description, so it is shared with the forked activator and falls with the last
    of the two processes. `remove()` takes away what we made: the whole folder if it was made by us, else only
    what was put into it and was claimed before the fork, so that either process can do it.
    """

    def __init__(self) -> None:
        self.root, self._ours = _choose_runtime()
        self._claims: list[str] = []
        self._lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Busy(f"another activator already serves {self.root}") from None
        # Sockets of daemons for everybody live here: systemd's tmpfiles make it 0755 as well.
        self.endpoints = os.path.join(self.root, "syntrop")
        self.make(self.endpoints, 0o755)

    def path(self, systemd_path: str) -> str:
        """The path that takes the place of one below `/run`; any other stays."""
        if systemd_path == "/run" or systemd_path.startswith("/run/"):
            return self.root + systemd_path.removeprefix("/run")
        return systemd_path

    def make(self, folder: str, mode: int) -> None:
        """Make a folder and its missing parents, remembering those below the root for `remove()`."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if parent and parent != folder:
            self.make(parent, 0o755)
        os.mkdir(folder)
        os.chmod(folder, mode)  # whatever the umask
        self.claim(folder)

    def claim(self, path: str) -> None:
        """Say that this path below the root, made by us now or by a service later, goes when we go."""
        if path.startswith(self.root + "/"):
            self._claims.append(path)

    def remove(self) -> None:
        """Take away all that the suite left here. Called once, when no process of ours is left."""
        import shutil

        for path in [self.root] if self._ours else self._claims:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                try:
                    os.unlink(path)
                except OSError:
                    pass  # gone already, as it should be
        os.close(self._lock)


def _choose_runtime() -> tuple[str, bool]:
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":", 1)[0]
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if given:
        folder = os.path.abspath(given)
    elif xdg and os.path.isdir(xdg) and os.access(xdg, os.W_OK):
        folder = os.path.join(os.path.abspath(xdg), "syntrop")
    else:
        import tempfile

        folder = tempfile.mkdtemp(prefix="syntrop-")
        if os.geteuid() == 0:
            os.chmod(folder, 0o755)  # root's suite serves every local user, as under systemd
        return folder, True
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        return folder, False
    return folder, True


class KeptFolders:
    """Roots of the folders that outlive the suite."""

    def __init__(self) -> None:
        moved = os.environ.get("SYNTROP_STATE_ROOT")
        if moved:
            moved = os.path.abspath(moved)
            self.state, self.cache = moved, os.path.join(moved, "cache")
            self.logs, self.configuration = os.path.join(moved, "log"), os.path.join(moved, "config")
        elif os.geteuid() == 0:
            self.state, self.cache = "/var/lib", "/var/cache"
            self.logs, self.configuration = "/var/log", "/etc"
        else:
            self.state = _xdg("XDG_STATE_HOME", ".local", "state")
            self.cache = _xdg("XDG_CACHE_HOME", ".cache")
            self.logs = os.path.join(self.state, "log")
            self.configuration = _xdg("XDG_CONFIG_HOME", ".config")

    def root(self, kind: str, runtime: RuntimeFolder) -> str:
        return {
            "RuntimeDirectory": runtime.root,
            "StateDirectory": self.state,
            "CacheDirectory": self.cache,
            "LogsDirectory": self.logs,
            "ConfigurationDirectory": self.configuration,
        }[kind]


def specifiers(run_root: str, kept: KeptFolders) -> dict[str, str]:
    """Specifiers of systemd.unit(5) that name folders and the user."""
    import pwd

    user = pwd.getpwuid(os.geteuid())
    return {
        "t": run_root, "S": kept.state, "C": kept.cache, "L": kept.logs, "E": kept.configuration,
        "h": user.pw_dir, "u": user.pw_name, "U": str(user.pw_uid), "T": "/tmp", "V": "/var/tmp",
        "H": os.uname().nodename,
    }  # fmt: skip


def _xdg(variable: str, *default: str) -> str:
    given = os.environ.get(variable, "")
    # The specification: relative paths in these variables are invalid and are ignored.
    return given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), *default)
