# SPDX-License-Identifier: Apache-2.0
"""Control groups, the unified hierarchy (v2) only: find, read, freeze, kill.

The manager owns the tree: units are frozen through its D-Bus interface, and `Group.freeze()` here is for the
subtree that it delegated to us (`Delegate=yes`), where nobody else writes.
"""

from __future__ import annotations

import errno
import os
import re

from syntrop.common import loop, paths, psi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,250}\.(service|slice|scope|socket|mount|swap|timer|path|target)")
# Files that systemd escapes with a leading underscore so that units cannot collide with them.
_RESERVED = ("cgroup.", "cpu.", "cpuset.", "io.", "memory.", "pids.", "misc.", "rdma.", "hugetlb.", "_")
_FOLDERS_MAX = 20_000  # a search for a unit looks at no more of the tree than this


class CgroupError(Exception):
    """A control group cannot be found, read or changed."""


class NotUnified(CgroupError):
    """The machine runs the v1 or the hybrid hierarchy, which the suite does not support."""


class NoSuchGroup(CgroupError):
    """There is no such group (any more), or it lies outside of our cgroup namespace."""


class ControllerUnavailable(CgroupError):
    """The file is missing: its controller is not enabled for this group, or the kernel has none."""


class Malformed(CgroupError):
    """The kernel's file does not read as documented."""


class NotPermitted(CgroupError):
    """The group is not ours to change: it is not delegated."""


class WouldFreezeSelf(CgroupError):
    """The group holds this very process, which could never thaw it."""


class NotInTime(CgroupError):
    """The group did not reach the state before the deadline. A freeze that came too late is undone."""


def root() -> str:
    """Folder of the unified hierarchy. Raises NotUnified."""
    folder = paths.cgroup()
    if not os.path.exists(os.path.join(folder, "cgroup.controllers")):
        raise NotUnified(f"{folder} is no unified hierarchy (boot with systemd.unified_cgroup_hierarchy=1)")
    return folder


def of_pid(pid: int) -> Group:
    """The group of a process, 0 for our own. Raises NoSuchGroup, NotUnified, NotPermitted."""
    try:
        with open(
            paths.proc(str(pid) if pid else "self", "cgroup"), encoding="utf-8", errors="surrogateescape"
        ) as file:
            text = file.read()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            raise NoSuchGroup(f"there is no process {pid}") from error
        raise NotPermitted(f"group of process {pid}: {error.strerror}") from error
    return Group(parse_membership(text))


def parse_membership(text: str) -> str:
    """The unified path in the text of /proc/PID/cgroup, which begins with a slash."""
    for line in text.splitlines():
        if line.startswith("0::"):
            path = line[3:]
            if path.endswith(" (deleted)"):
                raise NoSuchGroup(f"control group {path} was removed")
            if not path.startswith("/"):
                raise Malformed(f"membership line {line[:80]!r} has no path")
            if path.startswith("/.."):
                raise NoSuchGroup(f"control group {path} lies outside of our namespace")
            return path
    raise NotUnified("the process is in no group of the unified hierarchy")


def of_unit(unit: str) -> Group:
    """The group of a system unit by its name. Raises NoSuchGroup.

    Slices nest by name. Everything else is where its `Slice=` says, which only the manager knows for sure, so
    the tree is searched, without what user managers run. A unit that is not running has no group.
    """
    if not _UNIT.fullmatch(unit) or unit.startswith("."):
        raise NoSuchGroup(f"{unit[:80]!r} is no name of a unit with a group")
    top = root()
    if unit.endswith(".slice"):
        group = Group(slice_path(unit))
        if not os.path.isdir(group.folder):
            raise NoSuchGroup(f"unit {unit} has no control group")
        return group
    wanted = _escape(unit)
    near = os.path.join("/system.slice", wanted)
    if os.path.isdir(top + near):
        return Group(near)
    pending, seen = ["/"], 0
    while pending and seen < _FOLDERS_MAX:
        parent = pending.pop(0)
        try:
            names = [entry.name for entry in os.scandir(top + parent) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # removed meanwhile
        seen += len(names)
        if wanted in names:
            return Group(os.path.join(parent, wanted))
        # Units hold processes, slices hold units: only slices are worth descending into.
        pending += [os.path.join(parent, name) for name in sorted(names) if name.endswith(".slice")]
    raise NoSuchGroup(f"unit {unit} has no control group")


def slice_path(unit: str) -> str:
    """`a-b.slice` lies at `/a.slice/a-b.slice`; `-.slice` is the root. Raises NoSuchGroup for a bad name."""
    stem = unit.removesuffix(".slice")
    if stem == "-":
        return "/"
    parts = stem.split("-")
    if not all(parts):
        raise NoSuchGroup(f"{unit} is no name of a slice")
    names = ("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))
    return "/" + "/".join(_escape(name) for name in names)


def unit_of(path: str) -> str | None:
    """The system unit that a path belongs to: its first part below the slices. None outside of units."""
    for part in path.strip("/").split("/"):
        name = part.removeprefix("_")
        if not _UNIT.fullmatch(name):
            return None
        if not name.endswith(".slice"):
            return name
    return None


def _escape(name: str) -> str:
    return "_" + name if name.startswith(_RESERVED) or name in ("tasks", "notify_on_release") else name


class Group:
    """One control group by its path below the root, as /proc/PID/cgroup shows it (`/system.slice/x.service`).

    Holds no descriptor: a group that is removed meanwhile answers NoSuchGroup.
    """

    __slots__ = ("folder", "path")

    def __init__(self, path: str) -> None:
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} is no path of a control group")
        self.path = path
        self.folder = os.path.join(root(), path.strip("/"))

    def __repr__(self) -> str:
        return f"Group({self.path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    # --- reading -----------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return os.path.isdir(self.folder)

    def unit(self) -> str | None:
        return unit_of(self.path)

    def events(self) -> dict[str, int]:
        """`populated` and `frozen`, each 0 or 1."""
        return self._pairs("cgroup.events")

    def is_frozen(self) -> bool:
        """True once every process in it stands still (not merely asked to)."""
        return self.events().get("frozen") == 1

    def is_populated(self) -> bool:
        return self.events().get("populated") == 1

    def pids(self) -> list[int]:
        """Processes of this group itself; 0 stands for one of a foreign PID namespace."""
        return [self._number(word, "cgroup.procs") for word in self._read("cgroup.procs").split()]

    def memory_current(self) -> int:
        """Bytes charged to the group and its children."""
        return self._number(self._read("memory.current"), "memory.current")

    def memory_in_use(self) -> int:
        """The same without what the kernel drops when memory is wanted, and so counts as available (MemAvailable):
        cached files and caches of its own."""
        stat = self.memory_stat()
        cached = sum(stat.get(name, 0) for name in ("active_file", "inactive_file", "slab_reclaimable"))
        return max(0, self.memory_current() - cached)

    def memory_max(self) -> int | None:
        """Hard limit in bytes, None without one."""
        return self._limit("memory.max")

    def memory_high(self) -> int | None:
        return self._limit("memory.high")

    def memory_stat(self) -> dict[str, int]:
        """`anon`, `file`, `slab`, … in bytes, and counters of events."""
        return self._pairs("memory.stat")

    def memory_events(self) -> dict[str, int]:
        """How often `low`, `high`, `max`, `oom`, `oom_kill` happened."""
        return self._pairs("memory.events")

    def cpu_stat(self) -> dict[str, int]:
        """`usage_usec`, `user_usec`, `system_usec`; with the controller also throttling."""
        return self._pairs("cpu.stat")

    def cpu_max(self) -> tuple[int | None, int]:
        """Microseconds of CPU that may be used in each period, None without limit, and the period."""
        words = self._read("cpu.max").split()
        if len(words) != 2:
            raise Malformed(f"{self.path}: cpu.max reads {' '.join(words)[:80]!r}")
        quota = None if words[0] == "max" else self._number(words[0], "cpu.max")
        return quota, self._number(words[1], "cpu.max")

    def io_stat(self) -> dict[str, dict[str, int]]:
        """By device (`major:minor`): `rbytes`, `wbytes`, `rios`, `wios`, `dbytes`, `dios`."""
        devices: dict[str, dict[str, int]] = {}
        for line in self._read("io.stat").splitlines():
            device, *pairs = line.split()
            split = (pair.partition("=") for pair in pairs)
            devices[device] = {key: self._number(value, "io.stat") for key, _, value in split}
        return devices

    def pids_current(self) -> int:
        return self._number(self._read("pids.current"), "pids.current")

    def pids_max(self) -> int | None:
        return self._limit("pids.max")

    def controllers(self) -> list[str]:
        """Controllers that are available to this group."""
        return self._read("cgroup.controllers").split()

    def pressure(self, resource: str) -> psi.Pressure:
        """Raises psi.PressureUnavailable."""
        return psi.read(resource, self.folder)

    # --- changing ----------------------------------------------------------------------------------------

    async def freeze(self, timeout: float = 2.0) -> None:
        """Stop every process below, and wait until all stand still.

        Raises WouldFreezeSelf, NotInTime (then the freeze was taken back), NoSuchGroup, NotPermitted.
        Frozen processes hold their memory, and can neither renew a lease nor answer a watchdog.
        """
        own = of_pid(0).path + "/"
        if own.startswith(self.path.rstrip("/") + "/"):
            raise WouldFreezeSelf(f"control group {self.path} holds this process")
        try:
            await self._change_and_wait("cgroup.freeze", "1", "frozen", 1, timeout)
        except BaseException:
            self._thaw_again()
            raise

    async def thaw(self, timeout: float = 2.0) -> None:
        """Let the processes run again, and wait until they do. Below a frozen parent they never do: NotInTime."""
        await self._change_and_wait("cgroup.freeze", "0", "frozen", 0, timeout)

    async def wait_frozen(self, timeout: float = 2.0) -> None:
        """Wait until all processes below stand still, whoever froze them. Raises NotInTime, NoSuchGroup."""
        await self._change_and_wait("", "", "frozen", 1, timeout)

    async def kill(self, timeout: float = 5.0) -> None:
        """SIGKILL everything below at once (kernel 5.14), forks included, and wait until it is empty."""
        await self._change_and_wait("cgroup.kill", "1", "populated", 0, timeout)

    def reclaim(self, size: int) -> None:
        """Have the kernel take about `size` bytes of memory from the group (kernel 5.19). Blocks while it does.

        Raises ControllerUnavailable, NotPermitted. That less could be had is no error: `memory_current()` tells.
        """
        try:
            self._write("memory.reclaim", str(size))
        except CgroupError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EAGAIN:
                raise

    def add(self, pid: int) -> None:
        """Move a process (0: ourselves) into this group."""
        self._write("cgroup.procs", str(pid))

    def child(self, name: str) -> Group:
        """The group below of this name, made if it is missing."""
        if not re.fullmatch(r"[A-Za-z0-9@:_-][A-Za-z0-9@:_.-]{0,200}", name) or _escape(name) != name:
            raise ValueError(f"{name!r} is no name for a control group")
        group = Group(os.path.join(self.path, name))
        try:
            os.mkdir(group.folder)
        except FileExistsError:
            pass
        except OSError as error:
            self._refuse("", error)
        return group

    def remove(self) -> None:
        """Remove an empty group; one that is gone already is fine. Raises CgroupError while it is in use."""
        try:
            os.rmdir(self.folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise CgroupError(f"control group {self.path} still holds processes or groups") from error
            self._refuse("", error)

    def enable(self, *controllers: str) -> None:
        """Hand controllers on to the children. Raises ControllerUnavailable for what we do not have."""
        missing = sorted(set(controllers) - set(self.controllers()))
        if missing:
            raise ControllerUnavailable(f"control group {self.path} has no controller {', '.join(missing)}")
        if controllers:
            self._write("cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))

    # --- inside ------------------------------------------------------------------------------------------

    async def _change_and_wait(self, file: str, text: str, key: str, wanted: int, timeout: float) -> None:
        try:
            handle = os.open(os.path.join(self.folder, "cgroup.events"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._refuse("cgroup.events", error)
        reached = loop.Event()
        failure: list[OSError] = []

        def look(_events: int = 0) -> None:
            # Reading also ends the signal, which is level-triggered: the loop would spin otherwise.
            try:
                state = _parse_pairs(os.pread(handle, 4096, 0).decode(), self.path)
            except OSError as error:
                failure.append(error)
                loop.forget(handle)
                reached.set()
                return
            if state.get(key) == wanted:
                reached.set()

        try:
            loop.watch(handle, look)
            if file:
                self._write(file, text)
            look()
            with loop.deadline(timeout):
                await reached.wait()
        except TimeoutError:
            raise NotInTime(f"control group {self.path}: no {key} {wanted} within {timeout:g} s") from None
        finally:
            loop.forget(handle)
            os.close(handle)
        if failure and not (key == "populated" and failure[0].errno == errno.ENODEV):
            self._refuse("cgroup.events", failure[0])

    def _thaw_again(self) -> None:
        try:
            self._write("cgroup.freeze", "0")
        except CgroupError:
            pass  # gone, or never ours: nothing is left frozen by us

    def _pairs(self, file: str) -> dict[str, int]:
        return _parse_pairs(self._read(file), f"{self.path}: {file}")

    def _limit(self, file: str) -> int | None:
        text = self._read(file).strip()
        return None if text == "max" else self._number(text, file)

    def _number(self, text: str, file: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise Malformed(f"{self.path}: {file} reads {text[:80]!r}") from None

    def _read(self, file: str) -> str:
        try:
            with open(os.path.join(self.folder, file), "rb", buffering=0) as stream:
                return (stream.read() or b"").decode("utf-8", "surrogateescape")
        except OSError as error:
            self._refuse(file, error)

    def _write(self, file: str, text: str) -> None:
        try:
            handle = os.open(os.path.join(self.folder, file), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, text.encode())
            finally:
                os.close(handle)
        except OSError as error:
            self._refuse(file, error)

    def _refuse(self, file: str, error: OSError) -> NoReturn:
        what = f"control group {self.path}" + (f": {file}" if file else "")
        if error.errno in (errno.ENODEV, errno.ENOENT) and not self.exists():
            raise NoSuchGroup(f"control group {self.path} does not exist") from error
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            raise ControllerUnavailable(f"{what} is not available") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise NotPermitted(f"{what}: {error.strerror}") from error
        raise CgroupError(f"{what}: {error.strerror}") from error


def _parse_pairs(text: str, where: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        try:
            pairs[key] = int(value)
        except ValueError:
            raise Malformed(f"{where} reads {line[:80]!r}") from None
    return pairs


def delegated_subtree(leaf: str = "main", controllers: tuple[str, ...] = ()) -> Group:
    """Our own group, made ready to have children, for a unit with `Delegate=yes`.

    A group with children that share controllers may hold no processes itself (cgroup-v2.rst, "no internal
    process constraint"), so every process of ours is moved into the child `leaf` first. Idempotent.
    Raises NotPermitted where the manager did not delegate, ControllerUnavailable.
    """
    own = of_pid(0)
    if own.path.rsplit("/", 1)[-1] == leaf:
        own = Group(os.path.dirname(own.path))
    home = own.child(leaf)
    for pid in own.pids():
        try:
            home.add(pid)
        except CgroupError as error:
            if not isinstance(error.__cause__, ProcessLookupError):
                raise
    own.enable(*controllers)
    return own
