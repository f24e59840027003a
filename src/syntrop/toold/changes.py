# SPDX-License-Identifier: Apache-2.0
"""The tools that change something: each is planned as a record, carried out, and rolled back if any part fails.

Files are changed in a thread that Landlock confines to the journal and the folders of the record's own steps;
units are changed by the manager, over D-Bus. A record is on disk before either begins.
"""

from __future__ import annotations

import os

from syntrop.common import loop, paths
from syntrop.toold import image as images
from syntrop.toold import undo
from syntrop.toold.catalog import property_value
from syntrop.toold.image import ABSENT, FILE, FOLDER, Image
from syntrop.toold.manager import Manager, ManagerError, names
from syntrop.toold.undo import Record, Step, UnitState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from syntrop.toold.catalog import Call
    from syntrop.toold.policy import Policy

COMPANY_MAX = 200  # units that one may take along when it stops
_COMPANY = ("RequiredBy", "BoundBy", "RequisiteOf", "ConsistsOf", "PropagatesStopTo")
_STOPPING = ("unit_stop", "unit_restart")
ENTRIES_MAX = 2000  # files and folders that one change may remove; each is synced on its own


class ChangeError(Exception):
    """The change cannot be made, and was not; or it was begun, failed, and is rolled back."""


class Site:
    """Where things are. Tests move it."""

    __slots__ = ("cache", "control", "drop_ins", "root")

    def __init__(
        self,
        root: str,
        *,
        drop_ins: tuple[str, ...] | None = None,
        control: str | None = None,
        cache: str = "/var/cache",
    ) -> None:
        self.root = root
        self.drop_ins = drop_ins or ("/etc/systemd/system", paths.run("systemd", "system"))
        self.control = control or paths.run("systemd", "system.control")
        self.cache = cache


class Changer:
    """Makes changes, one at a time (the caller sees to that)."""

    def __init__(self, site: Site, policy: Policy, *, bytes_max: int) -> None:
        self.site = site
        self._policy = policy
        self._bytes_max = bytes_max

    async def run(self, call: Call, caller: dict[str, Any], timeout: float) -> tuple[str, Record | None]:
        """What was done, for people, and the record to take it back by.

        Raises ChangeError, Refused, ManagerError, ImageError, SandboxError, OSError, TimeoutError.
        """
        if call.tool.name == "restore_file":
            self._policy.check_file(call.text("path"))
            record = await loop.thread(_plan_restore, call, self.site, self._policy, self._bytes_max)
            record.caller = caller
            await self._make(record, None, timeout)
            return f"restored {call.text('path')}\n", record
        async with Manager() as manager:
            with loop.deadline(timeout):
                properties = await self._permitted(manager, call.unit) if call.unit else {}
                if call.tool.name in _STOPPING:
                    await self._permit_company(manager, properties)
            if call.tool.name in _DIRECT:
                with loop.deadline(timeout):
                    return await _DIRECT[call.tool.name](manager, call), None
            record = await self._plan(manager, call, properties, timeout)
            record.caller = caller
            await self._make(record, manager, timeout, call)
            return f"{record.summary}\n", record

    async def take_back(
        self, record: Record, caller: dict[str, Any], timeout: float, *, only_unchanged: bool = False
    ) -> Record:
        """Take a change back; the record of doing so. Raises as `run` does, and UndoError."""
        draft = await loop.thread(
            lambda: undo.reverse(record, caller, bytes_max=self._bytes_max, only_unchanged=only_unchanged)
        )
        for step in draft.steps:
            if record.tool == "restore_file" or record.target_unit is None:
                self._policy.check_file(step.path)
        if not (draft.reload or draft.state is not None or record.target_unit is not None):
            await self._make(draft, None, timeout)
            return draft
        async with Manager() as manager:
            if record.target_unit is not None:
                with loop.deadline(timeout):
                    properties = await self._permitted(manager, record.target_unit)
                    if draft.state is not None and not draft.state.active_after:
                        await self._permit_company(manager, properties)
            await self._make(draft, manager, timeout)
        return draft

    async def recover(self, timeout: float = 60.0) -> list[tuple[Record, str]]:
        """Roll back what a crash cut short; what became of each. Raises Damaged, OSError, SandboxError."""
        records = await loop.thread(undo.unfinished, self.site.root)
        outcomes = []
        for record in records:
            failure = ""
            try:
                await loop.thread(_confined, undo.put_back, self.site.root, record)
            except (images.ImageError, OSError) as error:
                if undo.is_passing(error):
                    raise
                failure = str(error)
                await loop.thread(undo.fail, self.site.root, record.id)
            else:
                failure = await self._settle(record, timeout)
                # Even where the manager would not listen: the files are as they were, and a record that stays open
                # would put them back again under whatever is changed from now on.
                await loop.thread(undo.abandon, self.site.root, record)
            outcomes.append((record, failure))
        return outcomes

    async def _settle(self, record: Record, timeout: float) -> str:
        if not record.reload and record.state is None:
            return ""
        try:
            with loop.deadline(timeout):
                async with Manager() as manager:
                    await _settle_manager(manager, record)
        except (ManagerError, TimeoutError) as error:
            return str(error) or "the service manager did not answer in time"
        return ""

    # --- inside ----------------------------------------------------------------------------------------------

    async def _permitted(self, manager: Manager, unit: str) -> dict[str, Any]:
        """Properties of a unit that may be changed, under whichever of its names it was asked for."""
        self._policy.check_unit(unit)
        properties = await manager.properties(unit)
        for name in names(properties):
            self._policy.check_unit(name)
        if properties.get("LoadState") == "not-found":
            raise ChangeError(f"there is no unit {unit}")
        return properties

    async def _permit_company(self, manager: Manager, properties: dict[str, Any]) -> None:
        """Raises Refused if a unit that is never changed would stop with this one; ChangeError for too many."""
        unit = str(properties["Id"])
        seen, waiting = {unit}, [properties]
        while waiting:
            found = waiting.pop()
            for other in (other for kind in _COMPANY for other in found.get(kind, ())):
                if other in seen:
                    continue
                if len(seen) > COMPANY_MAX:
                    raise ChangeError(f"more than {COMPANY_MAX} units would stop with {unit}")
                seen.add(other)
                further = await manager.properties(other)
                for name in names(further):
                    self._policy.check_company(unit, name)
                waiting.append(further)

    async def _plan(self, manager: Manager, call: Call, properties: dict[str, Any], timeout: float) -> Record:
        unit = str(properties["Id"])
        if call.tool.name == "unit_stop":
            active = properties.get("ActiveState") in ("active", "activating", "reloading", "refreshing")
            state = UnitState(unit, active_before=active, active_after=False)
            return Record(tool="unit_stop", summary=f"Stopped {unit}", state=state, target_unit=unit)
        if call.tool.name == "revert_dropin":
            name, path = call.text("name"), call.text("path")
            record = await loop.thread(
                _plan_revert, self.site, names(properties), unit, name, path, self._bytes_max
            )
            _check_unchanged(record, call.text("digest"))
            return record
        if call.tool.name == "set_unit_property":
            name, value = call.text("property"), call.text("value")
            path = os.path.join(self.site.control, f"{unit}.d", f"50-{name}.conf")
            before = await loop.thread(images.capture, path)
            return Record(
                tool="set_unit_property",
                summary=f"Set {name}={value} of {unit}",
                steps=[Step(path, before, None)],  # the manager writes it
                reload=True,
                target_unit=unit,
                target_path=path,
            )
        if not unit.endswith(".service"):
            raise ChangeError(f"{unit} is no service, and declares no cache")
        with loop.deadline(timeout):
            service = await manager.properties(unit, "Service")
        folders = [os.path.join(self.site.cache, name) for name in service.get("CacheDirectory", ())]
        if not folders:
            raise ChangeError(f"{unit} declares no cache (CacheDirectory=)")
        return await loop.thread(_plan_clear, unit, folders, self._bytes_max)

    async def _make(
        self, record: Record, manager: Manager | None, timeout: float, call: Call | None = None
    ) -> None:
        root = self.site.root
        await loop.thread(undo.prepare, root, record)
        try:
            if record.steps:
                await loop.thread(_confined, undo.carry_out, root, record)
            if manager is not None:
                with loop.deadline(timeout):
                    await _tell_manager(manager, record, call)
        except Exception as error:
            try:
                await self._roll_back(record)
            except (images.ImageError, ManagerError, OSError) as second:
                raise ChangeError(f"{error}; and it could not be rolled back yet: {second}") from None
            raise
        await loop.thread(undo.commit, root, record)

    async def _roll_back(self, record: Record) -> None:
        """Undo a change that failed on its way. If that fails too, the record stays for the next start."""
        root = self.site.root
        await loop.thread(_confined, undo.put_back, root, record)
        if record.reload or record.state is not None:
            with loop.deadline(30.0):
                async with Manager() as manager:
                    await _settle_manager(manager, record)
        await loop.thread(undo.abandon, root, record)


async def _tell_manager(manager: Manager, record: Record, call: Call | None) -> None:
    """The manager's part of a change whose files are in place."""
    if call is not None and call.tool.name == "set_unit_property":
        name, signature, value = property_value(call.text("property"), call.text("value"))
        await manager.set_property(record.target_unit or "", name, signature, value)
    elif record.reload:
        await manager.reload()
    if record.state is not None and record.state.active_before != record.state.active_after:
        await _bring(manager, record.state.unit, active=record.state.active_after)


async def _settle_manager(manager: Manager, record: Record) -> None:
    """The manager's part of undoing a change."""
    if record.reload:
        await manager.reload()
    if record.state is not None:
        properties = await manager.properties(record.state.unit)
        active = properties.get("ActiveState") in ("active", "activating", "reloading", "refreshing")
        if active != record.state.active_before:
            await _bring(manager, record.state.unit, active=record.state.active_before)


async def _bring(manager: Manager, unit: str, *, active: bool) -> None:
    result = await manager.job("StartUnit" if active else "StopUnit", unit)
    if result not in ("done", "skipped"):
        raise ManagerError(f"{unit} could not be {'started' if active else 'stopped'}: the job ended as {result}")


async def _restart(manager: Manager, call: Call) -> str:
    result = await manager.job("RestartUnit", call.unit or "")
    if result != "done":
        raise ManagerError(f"{call.unit} did not start again: the job ended as {result}")
    return f"restarted {call.unit}\n"


async def _reset_failed(manager: Manager, call: Call) -> str:
    await manager.reset_failed(call.unit or "")
    return f"{call.unit} no longer counts as failed\n"


async def _reload(manager: Manager, _call: Call) -> str:
    await manager.reload()
    return "the service manager has read its units again\n"


_DIRECT: dict[str, Callable[[Manager, Call], Any]] = {
    "unit_restart": _restart,
    "unit_reset_failed": _reset_failed,
    "daemon_reload": _reload,
}


# --- in threads ----------------------------------------------------------------------------------------------


def _confined(function: Callable[[Record], None], root: str, record: Record) -> None:
    """Run a function of the journal in this thread, which can from now on change nothing else."""
    import sys

    from syntrop.toold.confinement import CHANGE, Rule, confine_thread

    rules = [Rule(root, CHANGE, optional=False)]
    rules += [Rule(folder, CHANGE) for folder in undo.folders(record)]
    # What Python may still have to import, and how links are named by descriptor.
    rules += [Rule(path) for path in {*sys.path, sys.prefix, sys.base_prefix, "/proc/self"} if path]
    confine_thread(rules)
    function(record)


def _plan_revert(site: Site, units: tuple[str, ...], unit: str, name: str, path: str, bytes_max: int) -> Record:
    found = []
    if path:  # named so plainly, it may be that of all instances
        units = (*units, *(f"{one.partition('@')[0]}@.{one.rpartition('.')[2]}" for one in units if "@" in one))
    for folder in (os.path.join(root, f"{one}.d") for one in dict.fromkeys(units) for root in site.drop_ins):
        try:
            entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".conf")]
        except (FileNotFoundError, NotADirectoryError):
            continue
        found += [
            (entry.stat(follow_symlinks=False).st_mtime_ns, os.path.join(folder, entry.name))
            for entry in entries
            if name in ("", entry.name) and path in ("", os.path.join(folder, entry.name))
        ]
    if not found:
        raise ChangeError(f"{unit} has no drop-in {name}".rstrip() + f" in {' or '.join(site.drop_ins)}")
    path = max(found)[1]
    before = images.capture(path, bytes_max=bytes_max)
    return Record(
        tool="revert_dropin",
        summary=f"Removed the drop-in {path}",
        steps=[Step(path, before, Image())],
        reload=True,
        target_path=path,
        target_unit=unit,
    )


def _plan_restore(call: Call, site: Site, policy: Policy, bytes_max: int) -> Record:
    path, source = call.text("path"), call.text("source")
    before = images.capture(path, bytes_max=bytes_max)
    if before.kind not in (FILE, ABSENT):
        raise ChangeError(f"{path} is {images.describe(before)}, not a file")
    if source and not source.startswith("rb-"):
        after, origin = _beside(path, source, before, policy, bytes_max), source
    else:
        after, origin = _kept(site.root, path, source)
    if after.same(before):
        raise ChangeError(f"{path} is already as it was")
    record = Record(
        tool="restore_file",
        summary=f"Restored {path} from {origin}",
        steps=[Step(path, before, after)],
        target_path=path,
    )
    _check_unchanged(record, call.text("digest"))
    return record


def _check_unchanged(record: Record, digest: str) -> None:
    """Raises ChangeError where a file is not what the caller saw: `digest` of its content, or ABSENT; empty for
    callers who did not look. The record's image is what was captured, so nothing can come in between."""
    before = record.steps[0].before
    if digest not in ("", before.kind if before.kind == ABSENT else before.digest):
        raise ChangeError(f"{record.target_path} was changed since: it is not what was to be undone")


def _beside(path: str, source: str, before: Image, policy: Policy, bytes_max: int) -> Image:
    folder, name = os.path.split(path)
    if not source.startswith(name) or source == name:
        raise ChangeError(f"{source} is no copy of {name}: its name has to begin with that")
    policy.check_file(os.path.join(folder, source))
    copy = images.capture(os.path.join(folder, source), bytes_max=bytes_max)
    if copy.kind != FILE:
        raise ChangeError(f"{os.path.join(folder, source)} is {images.describe(copy)}, not a file")
    return images.of_content(copy.data(), before if before.kind == FILE else copy)


def _kept(root: str, path: str, source: str) -> tuple[Image, str]:
    records = [undo.find(root, source)] if source else undo.listing(root, limit=1000)
    for record in records:
        for step in record.steps:
            if step.path == path and step.before.kind == FILE:
                return step.before, record.id
    raise ChangeError(f"no earlier content of {path} is kept")


def _plan_clear(unit: str, folders: list[str], bytes_max: int) -> Record:
    steps: list[Step] = []
    left = bytes_max
    for top in folders:
        for path in _below(top):
            if len(steps) >= ENTRIES_MAX:
                raise ChangeError(f"{top} holds more than {ENTRIES_MAX} files and folders; nothing was removed")
            before = images.capture(path, bytes_max=left)
            left -= before.size
            if left < 0:
                raise ChangeError(
                    f"{top} holds more than the {bytes_max} bytes that can be kept; nothing was removed"
                )
            if before.kind != ABSENT:
                steps.append(Step(path, before, Image()))
    if not steps:
        raise ChangeError(f"{' and '.join(folders)}: nothing to remove")
    size = bytes_max - left
    return Record(
        tool="clear_cache",
        summary=f"Removed {len(steps)} files and folders ({size} bytes) of {' and '.join(folders)}",
        steps=steps,
        target_path=folders[0],
        target_unit=unit,
    )


def _below(top: str) -> Iterator[str]:
    """Everything in a folder, what is in a folder before the folder; never through a link, nor the top."""
    if images.capture(top).kind != FOLDER:
        return
    for folder, _, files in os.walk(top, topdown=False, followlinks=False):
        for name in sorted(files):
            yield os.path.join(folder, name)
        # os.walk lists links to folders among the folders: they are to go like files
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_symlink() and entry.is_dir():
                yield entry.path
        if folder != top:
            yield folder
