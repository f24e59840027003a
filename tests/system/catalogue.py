# SPDX-License-Identifier: Apache-2.0
"""Incidents as folders (`incidents/README.md`): what a folder says, and how one is played on a running machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

from machine import Machine

HERE = Path(__file__).parent
OURS = HERE / "incidents"
FAST, FULL = "fast", "full"
PATIENCE = 240.0  # seconds for a script, on a machine that others keep busy
# Where nothing may be written that an incident does not name.
WATCHED = ("/etc", "/run/systemd/system", "/usr/lib/systemd", "/usr/local")
# What the manager and package managers write themselves.
PASSING = ("/etc/.*", "/run/systemd/system/*.scope*", "/run/systemd/system/session-*")


class FolderError(Exception):
    """A folder that is no incident; the text says why."""


@dataclass(frozen=True)
class Case:
    """What an incident's folder says."""

    folder: Path
    about: str
    unit: str
    cause: tuple[str, ...]
    action: str
    done: str
    tier: str = FAST
    state: str = "failed"
    approve: bool = False
    model: bool = False
    locked: bool = False
    explains: str = ""
    changed: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.folder.name

    def script(self, name: str) -> str | None:
        path = self.folder / f"{name}.sh"
        return path.read_text() if path.is_file() else None


def load(folder: Path) -> Case:
    """Raises FolderError."""
    try:
        told = tomllib.loads((folder / "incident.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FolderError(f"{folder}: {error}") from None
    known = {one.name: one.type for one in fields(Case) if one.name != "folder"}
    for key, value in list(told.items()):
        if key not in known:
            raise FolderError(f"{folder}: incident.toml has no {key}; it has {', '.join(known)}")
        if key == "cause" and isinstance(value, str):
            value = told[key] = [value]
        wanted = list if str(known[key]).startswith("tuple") else bool if known[key] == "bool" else str
        if not isinstance(value, wanted):
            raise FolderError(f"{folder}: {key} is no {wanted.__name__}")
    told = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
    try:
        case = Case(folder=folder, **told)
    except TypeError as error:
        raise FolderError(f"{folder}: {str(error).rpartition('missing ')[2]}") from None
    if case.done not in ("act", "stage", "report") or case.tier not in (FAST, FULL):
        raise FolderError(f"{folder}: done is act, stage or report, and tier is {FAST} or {FULL}")
    if case.script("break") is None:
        raise FolderError(f"{folder}: there is no break.sh")
    return case


def cases(folder: Path = OURS, tier: str = FAST) -> list[Case]:
    """The incidents of a folder, or the one that it is, in the order of their names."""
    if (folder / "incident.toml").is_file():
        found = [load(folder)]
    else:
        found = [load(one.parent) for one in sorted(folder.glob("*/incident.toml"))]
    if not found:
        raise FolderError(f"{folder}: no incident.toml in it, nor in a folder of it")
    return [one for one in found if one.tier == tier]


Snapshot = dict[str, tuple[str, ...]]
"""For each path: kind and mode, owner, when its content changed, and a digest or a link's target."""


def snapshot(machine: Machine, folders: Iterable[str]) -> Snapshot:
    """Everything below these folders, to the byte."""
    found: Snapshot = {}
    for folder in folders:
        top = machine.path(folder)
        for here, names, files in os.walk(top):
            for path in (*(Path(here) / name for name in files), *(Path(here) / name for name in names)):
                inside = f"{folder}/{path.relative_to(top)}"
                if not any(fnmatchcase(inside, pattern) for pattern in PASSING):
                    found[inside] = _what(path)
    return found


def _what(path: Path) -> tuple[str, ...]:
    told = path.lstat()
    owner = f"{told.st_uid}:{told.st_gid}"
    if stat.S_ISLNK(told.st_mode):
        return oct(told.st_mode), owner, os.readlink(path)
    if stat.S_ISREG(told.st_mode):
        attributes = ",".join(f"{name}={os.getxattr(path, name).hex()}" for name in sorted(os.listxattr(path)))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return oct(told.st_mode), owner, str(told.st_mtime_ns), attributes, digest
    return oct(told.st_mode), owner


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Paths that are not what they were."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def place(machine: Machine, wanted: Sequence[Case]) -> None:
    """Copy the incidents' files, and have their services run well. Raises MachineError."""
    for case in wanted:
        files = case.folder / "files"
        if files.is_dir():
            shutil.copytree(files, machine.path("/"), dirs_exist_ok=True, symlinks=True)
    machine.run("systemctl daemon-reload")
    plain = [case.unit for case in wanted if case.script("setup") is None]
    if plain:
        machine.run(["systemctl", "start", *plain], timeout=PATIENCE)
    for case in wanted:
        script(machine, case, "setup")


def script(machine: Machine, case: Case, name: str) -> None:
    """Run one of an incident's scripts, if it has it. Raises MachineError."""
    text = case.script(name)
    if text is not None:
        machine.run(["bash", "-eu", "-c", text], timeout=PATIENCE)


def broken(machine: Machine, case: Case) -> None:
    """Break it, and wait until the manager says what the incident says."""
    script(machine, case, "break")
    machine.wait_property(case.unit, "ActiveState", case.state, timeout=PATIENCE)
    machine.run(["journalctl", "--sync"])


def invocations(machine: Machine, case: Case) -> dict[str, str]:
    """The invocations of the units that are to be left alone."""
    return {unit: machine.property(unit, "InvocationID") for unit in case.alone}


def clean(machine: Machine, case: Case) -> None:
    """Leave the machine so that other incidents are not disturbed."""
    machine.run(["systemctl", "stop", case.unit], check=False)
    try:
        script(machine, case, "clean")
    finally:
        machine.run(["systemctl", "reset-failed"], check=False)
