# SPDX-License-Identifier: Apache-2.0
"""What a confined process or thread may reach, and starting one. Fail-closed: a layer that is missing is an error.

The layers, all needed: closed descriptors, namespaces of its own (unless a setting lets go of them), a session of
its own that dies with us, resource limits, no capabilities, no-new-privileges, Landlock (`LANDLOCK_MIN` or newer)
and our system call filter. Wanted, and used where the machine allows them: a view of the declared files only (see
`view`), and a control group (see `runner`).

Landlock 2 (Linux 5.19) is enough because the filter closes what later versions cover: it has no truncate(2), no
Internet or Unix sockets, no signals to others, no ioctl(2) on devices. Newer versions are used where they are.
"""

from __future__ import annotations

import os
import resource

from syntrop.toold import filter as bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LANDLOCK_MIN = 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
CHANGE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
_NET_BOTH, _SCOPE_BOTH = 3, 3  # TCP bind and connect; abstract Unix sockets and signals

FDS, LIMITS, CAPS, NNP, LANDLOCK, SECCOMP, SESSION = 1, 2, 4, 8, 16, 32, 64
ALL_LAYERS = FDS | LIMITS | CAPS | NNP | LANDLOCK | SECCOMP | SESSION

ALWAYS, AUTO, NEVER = "always", "auto", "never"  # whether there have to be namespaces
# CLONE_NEW… of linux/sched.h, and what /proc/PID/ns calls them.
NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
_STAGES = (
    "",
    "pipe",
    "fork",
    "session",
    "control group",
    "descriptors",
    "limits",
    "capabilities",
    "no-new-privileges",
    "Landlock ruleset",
    "Landlock rule",
    "Landlock",
    "system call filter",
    "exec",
    "private /tmp",
    "view",
    "namespace",
)


class SandboxError(Exception):
    """The sandbox cannot be set up, so nothing was run."""


class Rule:
    """A path and what may be done at and below it; an optional one may be missing."""

    __slots__ = ("access", "optional", "path")

    def __init__(self, path: str, access: int = READ, *, optional: bool = True) -> None:
        self.path = path
        self.access = access
        self.optional = optional


def landlock_abi() -> int:
    """Version of Landlock that the kernel has; 0 for none."""
    return int(_library().lib.syn_landlock_abi())


def handled(abi: int) -> tuple[int, int, int]:
    """What a ruleset restricts with this version: file, network and scope rights. Raises SandboxError."""
    if abi < LANDLOCK_MIN:
        have = f"the kernel has version {abi}" if abi else "the kernel has none, or it is switched off (lsm=)"
        raise SandboxError(f"tools need Landlock {LANDLOCK_MIN} (Linux 5.19) or newer; {have}")
    files = (1 << 14) - 1
    files |= (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    return files, _NET_BOTH if abi >= 4 else 0, _SCOPE_BOTH if abi >= 6 else 0


class Limits:
    """Resource limits: seconds of CPU, bytes of address space, descriptors, bytes of a file, processes."""

    __slots__ = ("address_space", "cpu", "descriptors", "file_size", "processes")

    def __init__(
        self,
        *,
        cpu: int,
        address_space: int = 2 << 30,
        descriptors: int = 256,
        file_size: int = 0,
        processes: int = 128,
    ) -> None:
        self.cpu = cpu
        self.address_space = address_space
        self.descriptors = descriptors
        self.file_size = file_size
        self.processes = processes

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return (
            (resource.RLIMIT_CPU, self.cpu),
            (resource.RLIMIT_AS, self.address_space),
            (resource.RLIMIT_NOFILE, self.descriptors),
            (resource.RLIMIT_FSIZE, self.file_size),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_NICE, 0),
            (resource.RLIMIT_RTPRIO, 0),
        )


def start(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    rules: Sequence[Rule],
    limits: Limits,
    out: int,
    err: int,
    files: bool = False,
    processes: bool = False,
    group: int = -1,
    scratch: str | None = None,
    view: Sequence[int] = (),
    layers: int = ALL_LAYERS,
    namespaces: str = ALWAYS,
) -> tuple[int, tuple[str, ...]]:
    """Start a program in the sandbox: its pid, and the namespaces it has for itself. Blocks until it runs.

    `out` and `err` stay the caller's. `group` is a descriptor of the folder of a control group, `scratch` a folder
    that is to be its /tmp, `view` namespaces that it enters (see `view`). The rules say what it may reach; what it
    takes to run it at all is added. `namespaces`: `always` or it does not run, `auto` those that can be had,
    `never`. Only tests leave out layers. Raises SandboxError and OSError; then nothing runs.
    """
    library = _library()
    ffi, lib = library.ffi, library.lib
    kept: list[Any] = []
    handled_fs, handled_net, scoped = handled(int(lib.syn_landlock_abi()))
    spec = ffi.new("struct syn_spawn *")
    spec.program = _text(ffi, kept, argv[0])
    spec.argv = _array(ffi, kept, argv)
    spec.envp = _array(ffi, kept, [f"{name}={value}" for name, value in environment.items()])
    spec.out, spec.err, spec.cgroup, spec.layers = out, err, group, layers
    if namespaces != NEVER:
        spec.namespaces = sum(NAMESPACES.values())
        spec.required = spec.namespaces if namespaces == ALWAYS else 0
    spec.view = [*view, *[-1] * (3 - len(view))]
    if scratch is not None:
        spec.scratch = _text(ffi, kept, scratch)
    spec.landlock.handled_fs, spec.landlock.handled_net = handled_fs, handled_net
    spec.landlock.scoped = scoped
    _put_rules(ffi, kept, spec.landlock, [*rules, *to_run(argv[0])])
    pairs = limits.pairs()
    limit_array = ffi.new("struct syn_limit[]", len(pairs))
    for index, (kind, value) in enumerate(pairs):
        limit_array[index].resource = kind
        limit_array[index].value = value
    spec.limits, spec.limit_count = limit_array, len(pairs)
    try:
        code = bpf.build(os.uname().machine, files=files, processes=processes)
    except bpf.Unsupported as error:
        raise SandboxError(str(error)) from None
    buffer = ffi.new("char[]", code)
    spec.filter, spec.filter_length = buffer, len(code) // 8
    fault, entered = ffi.new("struct syn_fault *"), ffi.new("int *")
    pid = int(lib.syn_start(spec, fault, entered))
    if pid < 0:
        raise _error(fault, argv[0], rules)
    return pid, tuple(name for name, flag in NAMESPACES.items() if entered[0] & flag)


def confine_thread(rules: Sequence[Rule]) -> None:
    """Take from the calling thread, for good, every file that no rule names. Raises SandboxError."""
    library = _library()
    ffi, lib = library.ffi, library.lib
    kept: list[Any] = []
    landlock = ffi.new("struct syn_landlock *")
    files, _net, _scoped = handled(int(lib.syn_landlock_abi()))
    landlock.handled_fs = files
    _put_rules(ffi, kept, landlock, rules)
    fault = ffi.new("struct syn_fault *")
    if lib.syn_confine_thread(landlock, fault) != 0:
        raise _error(fault, "a change", rules)


def _library() -> Any:
    try:
        import syntrop.toold._confine as _confine
    except ImportError as error:
        raise SandboxError(f"this installation has no sandbox: {error}") from None
    return _confine


def _error(fault: Any, what: str, rules: Sequence[Rule]) -> SandboxError:
    stage = _STAGES[fault.stage]
    if stage == "Landlock rule" and fault.index < len(rules):
        stage += f" for {rules[fault.index].path}"
    if stage == "namespace":
        name = next(name for name, flag in NAMESPACES.items() if flag == fault.index)
        why = os.strerror(fault.number)
        return SandboxError(
            f"{what} was not run: it could have no {name} namespace of its own ({why}); "
            'toold.toml takes `namespaces = "auto"` in [sandbox] to run without'
        )
    return SandboxError(f"{what} was not run: {stage}: {os.strerror(fault.number)}")


def _text(ffi: Any, kept: list[Any], text: str) -> Any:
    kept.append(ffi.new("char[]", os.fsencode(text)))
    return kept[-1]


def _array(ffi: Any, kept: list[Any], texts: Sequence[str]) -> Any:
    kept.append(ffi.new("char *[]", [*(_text(ffi, kept, text) for text in texts), ffi.NULL]))
    return ffi.cast("char *const *", kept[-1])


def _put_rules(ffi: Any, kept: list[Any], landlock: Any, rules: Sequence[Rule]) -> None:
    array = ffi.new("struct syn_rule[]", max(len(rules), 1))
    kept.append(array)
    for index, rule in enumerate(rules):
        # The kernel refuses rights of folders on what is a file.
        access = (
            rule.access
            if os.path.isdir(rule.path)
            else rule.access & (EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE)
        )
        array[index].path = _text(ffi, kept, rule.path)
        array[index].access = access
        array[index].optional = rule.optional
    landlock.rules, landlock.count = array, len(rules)


# Libraries and what they read as they start. Nothing here is a secret, and only two files may be executed: the
# program and the loader that its header names. There is no shell to run.
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/localtime")
_SHARED = ("/usr/share/zoneinfo", "/usr/share/locale")


def to_run(program: str) -> list[Rule]:
    """What it takes to run a program at all. Raises SandboxError."""
    execute = EXECUTE | READ_FILE
    rules = [Rule(program, execute, optional=False)]
    loader = interpreter(program)
    if loader:
        rules.append(Rule(loader, execute, optional=False))
    rules += [Rule(path) for path in (*_LIBRARIES, *_SHARED)]
    return [*rules, Rule("/dev/null", READ_FILE | WRITE_FILE)]


def interpreter(program: str) -> str | None:
    """The loader that a 64-bit ELF program asks for (PT_INTERP); None for a static one. Raises SandboxError."""
    import struct

    try:
        with open(program, "rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                raise SandboxError(f"{program} is no 64-bit ELF program")
            offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            file.seek(offset)
            table = file.read(size * count)
            for index in range(count):
                kind, _flags, at, _virtual, _physical, length = struct.unpack_from("<IIQQQQ", table, index * size)
                if kind == 3:
                    file.seek(at)
                    return os.fsdecode(file.read(length).rstrip(b"\0"))
    except OSError as error:
        raise SandboxError(f"{program}: {error.strerror}") from None
    except struct.error:
        raise SandboxError(f"{program} is no sound ELF program") from None
    return None
