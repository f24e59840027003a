# SPDX-License-Identifier: Apache-2.0
"""What a system call is about to touch below the root of an experiment.

An action names the directory entries and the files that a call may change; what it did change is found by
looking at them afterwards, so that this table needs to know no call's semantics.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from crashlab import ptrace
from crashlab.ptrace import Condition, Registers

FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_SYMLINK_FOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x400, 0x1000

# number: (name, what kind, …) — the numbers are of arch/x86/entry/syscalls/syscall_64.tbl
DATA = {  # name, argument that is the descriptor, argument that is the length (for torn ones)
    1: ("write", 0, 2),
    18: ("pwrite64", 0, 2),
    20: ("writev", 0, None),
    296: ("pwritev", 0, None),
    328: ("pwritev2", 0, None),
    40: ("sendfile", 0, 3),
    326: ("copy_file_range", 2, 4),
    275: ("splice", 2, 4),
    77: ("ftruncate", 0, None),
    285: ("fallocate", 0, None),
    16: ("ioctl", 0, None),
}
OPEN = {2: ("open", None, 0, 1), 257: ("openat", 0, 1, 2), 85: ("creat", None, 0, None), 437: ("openat2", 0, 1, 2)}
NAMES = {  # name, (folder argument or None, path argument) …
    82: ("rename", (None, 0), (None, 1)),
    264: ("renameat", (0, 1), (2, 3)),
    316: ("renameat2", (0, 1), (2, 3)),
    83: ("mkdir", (None, 0)),
    258: ("mkdirat", (0, 1)),
    84: ("rmdir", (None, 0)),
    87: ("unlink", (None, 0)),
    263: ("unlinkat", (0, 1)),
    86: ("link", (None, 1)),
    265: ("linkat", (2, 3)),
    88: ("symlink", (None, 1)),
    266: ("symlinkat", (1, 2)),
    133: ("mknod", (None, 0)),
    259: ("mknodat", (0, 1)),
}
ATTRIBUTES = {  # name, folder argument, path argument (None: the folder argument is the file), follows links
    76: ("truncate", None, 0, True),
    90: ("chmod", None, 0, True),
    91: ("fchmod", 0, None, True),
    268: ("fchmodat", 0, 1, True),
    452: ("fchmodat2", 0, 1, 3),
    92: ("chown", None, 0, True),
    93: ("fchown", 0, None, True),
    94: ("lchown", None, 0, False),
    260: ("fchownat", 0, 1, 4),
    132: ("utime", None, 0, True),
    235: ("utimes", None, 0, True),
    261: ("futimesat", 0, 1, True),
    280: ("utimensat", 0, 1, 3),
    188: ("setxattr", None, 0, True),
    189: ("lsetxattr", None, 0, False),
    190: ("fsetxattr", 0, None, True),
    197: ("removexattr", None, 0, True),
    198: ("lremovexattr", None, 0, False),
    199: ("fremovexattr", 0, None, True),
}
SYNC = {74: "fsync", 75: "fdatasync", 162: "sync", 306: "syncfs"}
READ = {0: "read", 17: "pread64", 19: "readv", 295: "preadv", 327: "preadv2", 217: "getdents64", 78: "getdents"}
# Changes that happen behind the calls' back: seen, and refused, instead of overlooked.
BLIND = {9: "mmap", 425: "io_uring_setup"}

_MAKES = os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
# Argument, mask, and value of what is left of it (None: anything but zero).
_CONDITIONS = {16: (1, 0xFFFFFFFF, FICLONE), 9: (3, 0x01, 0x01)}
_OPENS = {2: (1, _MAKES, None), 257: (2, _MAKES, None)}
_ADDING = ("mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat", "rename", "renameat", "renameat2")


def traced(*, reads: bool) -> dict[int, Condition | None]:
    """Numbers of the calls to stop at, for ptrace.stop_at(). Opening what is there is reading."""
    numbers = [*DATA, *OPEN, *NAMES, *ATTRIBUTES, *SYNC, *BLIND, *(READ if reads else ())]
    conditions = _CONDITIONS if reads else _CONDITIONS | _OPENS
    return {number: conditions.get(number) for number in numbers}


@dataclass
class Action:
    """One call that concerns the experiment."""

    name: str
    kind: str  # "data", "open", "names", "attributes", "sync", "read"
    pid: int
    entries: list[tuple[str, str]] = field(default_factory=list)
    """Directory entries that may change: real path of the folder, name."""
    existed: list[bool] = field(default_factory=list)
    file: str | None = None
    """A path to the file that may change; it goes through /proc for a descriptor."""
    length: int | None = None
    """Index of the argument that says how many bytes are written."""
    unnamed: bool = False
    """Makes a file without a name (O_TMPFILE): its path is that of the descriptor returned."""
    synchronous: bool = False
    where: str = ""
    """What is shown for the file, where its path goes through /proc."""

    @property
    def fills(self) -> bool:
        """Whether it needs room on the disk."""
        if self.kind == "names":
            return self.name in _ADDING
        return self.kind in ("data", "open") or "setxattr" in self.name

    def __str__(self) -> str:
        return f"{self.name} {self.where}"


def decode(pid: int, values: Registers, root: str) -> Action | None:
    """What a call in its entry touches below `root`, or None. Raises NotImplementedError for what is blind."""
    action = _decode(pid, values, root)
    if action is not None:
        paths = [os.path.join(*one) for one in action.entries] or [action.file or root]
        shown = [os.readlink(one) if one.startswith("/proc/") else one for one in paths]
        action.where = " ".join(one.removeprefix(root + "/") for one in shown)
    return action


def _decode(pid: int, values: Registers, root: str) -> Action | None:
    number = values.orig_rax
    seen = _Looker(pid, values, root)
    if number in DATA:
        name, descriptor, length = DATA[number]
        file = seen.descriptor(values.signed(descriptor))
        if file is None:
            return None
        flags = _descriptor_flags(pid, values.signed(descriptor))
        synchronous = bool(flags & os.O_DSYNC) and name not in ("ftruncate", "fallocate")
        return Action(name, "data", pid, file=file, length=length, synchronous=synchronous)
    if number in SYNC:
        name = SYNC[number]
        file = None if name == "sync" else seen.descriptor(values.signed(0))
        return Action(name, "sync", pid, file=file) if name == "sync" or file else None
    if number in OPEN:
        return seen.open(*OPEN[number])
    if number in NAMES:
        name, *pairs = NAMES[number]
        entries = [entry for pair in pairs if (entry := seen.entry(*pair))]
        existed = [os.path.lexists(os.path.join(*entry)) for entry in entries]
        return Action(name, "names", pid, entries, existed) if entries else None
    if number in ATTRIBUTES:
        return seen.attributes(*ATTRIBUTES[number])
    if number in READ:
        file = seen.descriptor(values.signed(0))
        return Action(READ[number], "read", pid, file=file) if file else None
    if number == 425 or (number == 9 and values.argument(2) & 2 and seen.descriptor(values.signed(4))):
        raise NotImplementedError(f"{BLIND[number]} changes files unseen")
    return None


class _Looker:
    def __init__(self, pid: int, values: Registers, root: str) -> None:
        self._pid = pid
        self._values = values
        self._root = root

    def _below(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root + "/")

    def descriptor(self, number: int) -> str | None:
        """A path to a regular file or folder that is open below the root."""
        path = f"/proc/{self._pid}/fd/{number}"
        try:
            if not self._below(os.readlink(path)):
                return None
            mode = os.stat(path).st_mode
        except OSError:
            return None
        return path if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None

    def _path(self, folder: int | None, path: int) -> str:
        text = ptrace.read_string(self._pid, self._values.argument(path))
        at = _AT_FDCWD if folder is None else self._values.signed(folder)
        if text.startswith(("/proc/self/", "/proc/thread-self/")):
            text = f"/proc/{self._pid}/{text.split('/', 3)[3]}"
        if text.startswith("/"):
            return text
        base = f"/proc/{self._pid}/cwd" if at == _AT_FDCWD else f"/proc/{self._pid}/fd/{at}"
        try:
            return os.path.join(os.readlink(base), text)
        except OSError:
            return os.path.join("/nonexistent", text)

    def entry(self, folder: int | None, path: int, *, follow: bool = False) -> tuple[str, str] | None:
        whole = self._path(folder, path).rstrip("/")
        if follow and os.path.islink(whole):
            whole = os.path.realpath(whole)
        parent, name = os.path.split(whole)
        parent = os.path.realpath(parent)
        return (parent, name) if self._below(parent) else None

    def open(self, name: str, folder: int | None, path: int, flags_at: int | None) -> Action | None:
        if name == "creat":
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        elif name == "openat2":
            flags = int.from_bytes(ptrace.read(self._pid, self._values.argument(flags_at or 0), 8), "little")
        else:
            flags = self._values.argument(flags_at or 0)
        unnamed = flags & os.O_TMPFILE == os.O_TMPFILE
        nofollow = bool(flags & os.O_NOFOLLOW) or flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        entry = self.entry(folder, path, follow=not nofollow)
        whole = os.path.realpath(self._path(folder, path))
        if unnamed:
            return Action(name, "open", self._pid, unnamed=True) if self._below(whole) else None
        if entry is None:
            return None
        there = os.path.lexists(os.path.join(*entry))
        if flags & os.O_CREAT and not there:
            return Action(name, "open", self._pid, [entry], [False])
        if flags & os.O_TRUNC and flags & os.O_ACCMODE and there:
            return Action(name, "open", self._pid, file=os.path.join(*entry))
        return Action(name, "read", self._pid, file=os.path.join(*entry))

    def attributes(self, name: str, folder: int | None, path: int | None, follow: int | bool) -> Action | None:
        if path is None or not self._values.argument(path):  # utimensat(fd, NULL, …) is futimens(3)
            file = self.descriptor(self._values.signed(folder or 0))
            return Action(name, "attributes", self._pid, file=file) if file else None
        if not isinstance(follow, bool):
            flags = self._values.argument(follow)
            if flags & _AT_EMPTY_PATH and not ptrace.read_string(self._pid, self._values.argument(path)):
                file = self.descriptor(self._values.signed(folder or 0))
                return Action(name, "attributes", self._pid, file=file) if file else None
            follow = not flags & _AT_SYMLINK_NOFOLLOW
        whole = self._path(folder, path)
        if whole.startswith(f"/proc/{self._pid}/fd/"):
            file = self.descriptor(int(whole.rsplit("/", 1)[1]))
            return Action(name, "attributes", self._pid, file=file) if file else None
        entry = self.entry(folder, path, follow=bool(follow))
        return Action(name, "attributes", self._pid, file=os.path.join(*entry)) if entry else None


def _descriptor_flags(pid: int, number: int) -> int:
    try:
        with open(f"/proc/{pid}/fdinfo/{number}") as file:
            for line in file:
                if line.startswith("flags:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return 0
