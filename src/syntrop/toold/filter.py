# SPDX-License-Identifier: Apache-2.0
"""The system call filter of the sandbox: classic BPF (seccomp(2)), assembled without I/O.

It is an allow list. What is not on it fails with ENOSYS, as on a kernel that never had it, so that the C library
takes its older ways; what is on it with conditions fails with the error that the condition names. Nothing on it
connects to anybody, signals or traces anybody, leaves its session or makes a namespace. A tool that says so may
fork, or make files below its own folder.
"""

from __future__ import annotations

import errno
import struct

from syntrop.toold.syscalls import ARCHITECTURES, NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
# Instruction codes of linux/bpf_common.h that are needed: load a word, compare, mask, return.
_LOAD, _JEQ, _JSET, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_PROT_WRITE, _PROT_EXEC = 2, 4
_CLONE_NAMESPACES = 0x7E020080  # every CLONE_NEW…
_TCGETS, _TIOCGWINSZ, _FIONREAD = 0x5401, 0x5413, 0x541B
_PR_SET_PDEATHSIG = 1
_PRCTL = (
    3,
    15,
    16,
    23,
    39,
    0x53564D41,
)  # GET_DUMPABLE, SET_NAME, GET_NAME, CAPBSET_READ, GET_NO_NEW_PRIVS, SET_VMA

CONDITIONAL = ("open", "openat", "mmap", "mprotect", "ioctl", "prctl", "prlimit64", "socket", "clone", "clone3")
FILE_CALLS = (
    "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "symlinkat", "ftruncate",
    "fchmod", "fchmodat", "utimensat", "fsync", "fdatasync",
)  # fmt: skip
# Of the calls on sockets those that reach nobody: sendto(2) would, by its address, even from a pair of sockets.
PROCESS_CALLS = ("vfork", "wait4", "waitid", "socketpair", "setsockopt", "getsockopt", "recvmsg")
PLAIN = tuple(name for name in NUMBERS if name not in (*CONDITIONAL, *FILE_CALLS, *PROCESS_CALLS))

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, operand."""


class Unsupported(Exception):
    """The filter is not known for this architecture; nothing may run there."""


def build(machine: str, *, files: bool = False, processes: bool = False) -> bytes:
    """The filter for `os.uname().machine`. Raises Unsupported.

    `files` lets it make and remove files (where Landlock does), `processes` lets it fork.
    """
    return pack(assemble(machine, files=files, processes=processes))


def pack(program: list[Instruction]) -> bytes:
    """As an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *one) for one in program)


def assemble(machine: str, *, files: bool = False, processes: bool = False) -> list[Instruction]:
    """The instructions of the filter. Raises Unsupported."""
    if machine not in ARCHITECTURES:
        raise Unsupported(f"no system call filter for {machine}; there is one for {', '.join(ARCHITECTURES)}")
    arch, column = ARCHITECTURES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, arch),  # a call in another architecture's numbers is an attack
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
    ]
    checks = {
        # Landlock before version 3 lets open(2) truncate what may only be read.
        "open": _unless_truncating(1),
        "openat": _unless_truncating(2),
        "mmap": _unless_both(2, _PROT_WRITE | _PROT_EXEC, errno.EACCES),
        "mprotect": _unless_both(2, _PROT_WRITE | _PROT_EXEC, errno.EACCES),
        "ioctl": _if_one_of(1, (_TCGETS, _TIOCGWINSZ, _FIONREAD), errno.ENOTTY),
        # Its death signal is ours to choose: a change is told to have worked, and does nothing.
        "prctl": [
            _load(0),
            (_JEQ, 0, 1, _PR_SET_PDEATHSIG),
            (_RETURN, 0, 0, _ERRNO),
            *_if_one_of(0, _PRCTL, errno.EPERM),
        ],
        # Its own limits (pid 0), and only to look (no new ones).
        "prlimit64": [
            *_argument(0, 0, errno.EPERM),
            *_argument(2, 0, errno.EPERM),
            *_argument(2, 0, errno.EPERM, high=True),
            (_RETURN, 0, 0, _ALLOW),
        ],
        "socket": [(_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)],
        # clone3(2) keeps its flags where a filter cannot look: "no such call" makes the C library use clone(2).
        "clone3": [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)],
        "clone": _unless_any(0, _CLONE_NAMESPACES) if processes else [(_RETURN, 0, 0, _ERRNO | errno.EPERM)],
    }
    allowed = PLAIN + (FILE_CALLS if files else ())
    for name in dict.fromkeys(allowed + (PROCESS_CALLS if processes else ())):
        number = NUMBERS[name][column]
        if number is not None:
            program += [(_JEQ, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, check in checks.items():
        number = NUMBERS[name][column]
        if number is not None:
            program += [(_JEQ, 0, len(check), number), *check]
    program.append((_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    return program


def _load(argument: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + (4 if high else 0))  # both architectures are little-endian


def _argument(argument: int, value: int, otherwise: int, *, high: bool = False) -> list[Instruction]:
    """Go on if half an argument has a value, else fail."""
    return [_load(argument, high=high), (_JEQ, 1, 0, value), (_RETURN, 0, 0, _ERRNO | otherwise)]


def _if_one_of(argument: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    # The kernel itself looks only at the lower half of these (they are `int` and `unsigned int`).
    out = [_load(argument)]
    for value in values:
        out += [(_JEQ, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*out, (_RETURN, 0, 0, _ERRNO | otherwise)]


def _unless_both(argument: int, bits: int, otherwise: int) -> list[Instruction]:
    return [
        _load(argument),
        (_AND, 0, 0, bits),
        (_JEQ, 0, 1, bits),
        (_RETURN, 0, 0, _ERRNO | otherwise),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _unless_any(argument: int, bits: int) -> list[Instruction]:
    return [_load(argument), (_JSET, 0, 1, bits), (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _unless_truncating(argument: int) -> list[Instruction]:
    return [
        _load(argument),
        (_AND, 0, 0, _O_ACCMODE | _O_TRUNC),
        (_JEQ, 0, 1, _O_TRUNC),  # O_RDONLY is 0
        (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]
