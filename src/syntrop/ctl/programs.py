# SPDX-License-Identifier: Apache-2.0
"""From `ExecStart=` to a command of this environment, and the variables it runs with."""

from __future__ import annotations

import os
import sys

from syntrop.ctl import unitfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from syntrop.ctl.units import ServiceUnit

MODULES = {
    "routerd": "syntrop.routerd",
    "inferenced": "syntrop.inferenced",
    "inferenced-aftermath": "syntrop.inferenced.aftermath",
    "inferenced-lookout": "syntrop.inferenced.lookout",
    "modeld": "syntrop.modeld",
    "modeld-pull": "syntrop.modeld.pull",
    "contextd": "syntrop.contextd",
    "toold": "syntrop.toold",
    "runtimed": "syntrop.runtimed",
    "systemd-sentry": "syntrop.sentry",
}
# Like systemd, a service gets a small environment of its own; these are handed through because the machine
# (loader paths, time zone, language) or the suite (SYNTROP_…) means every process by them.
HANDED_THROUGH = (
    "PATH", "LANG", "HOME", "USER", "LOGNAME", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMD_LOG_LEVEL",
    "CREDENTIALS_DIRECTORY",
)  # fmt: skip


def resolve(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command for a unit's words, and variables it needs.

    1. A program of the same base name beside our interpreter is meant: `/usr/lib/syntrop/bin/modeld` is this
       environment's `modeld`.
    2. One of our daemons without such a program runs as a module: isolated, unless the suite itself was found
       through PYTHONPATH, which isolation would ignore.
    3. Anything else is taken by the path that the unit gives.
    """
    name = os.path.basename(words[0])
    beside = os.path.join(os.path.dirname(sys.executable), name)
    if os.access(beside, os.X_OK):
        return [beside, *words[1:]], {}
    if name in MODULES:
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if home in map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))):
            return [sys.executable, "-P", "-s", "-m", MODULES[name], *words[1:]], {"PYTHONPATH": home}
        return [sys.executable, "-I", "-m", MODULES[name], *words[1:]], {}
    return list(words), {}


def environment(unit: ServiceUnit, inherited: Mapping[str, str]) -> dict[str, str]:
    """What is handed through, then `Environment=` and `EnvironmentFile=`, later ones over earlier ones.

    Raises OSError for an environment file that is missing without its `-`.
    """
    out = {
        name: value
        for name, value in inherited.items()
        if name in HANDED_THROUGH or name.startswith(("LC_", "SYNTROP_")) or name in unit.pass_environment
    }
    out.update(unit.environment)
    for path in unit.environment_files:
        try:
            with open(path.removeprefix("-"), encoding="utf-8") as file:
                out.update(unitfile.environment_file(file.read()))
        except FileNotFoundError:
            if not path.startswith("-"):
                raise
    for entry in unit.unset_environment:
        name, equals, value = entry.partition("=")
        if not equals or out.get(name) == value:
            out.pop(name, None)
    return out
