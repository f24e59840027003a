# SPDX-License-Identifier: Apache-2.0
"""ptrace(2) and seccomp(2) through ctypes, x86-64: a child that stops at chosen system calls, and only there.

The filter answers SECCOMP_RET_TRACE, so that all other calls run at full speed, and calls from C libraries
(SQLite, libsystemd) stop like those from Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

assert platform.machine() == "x86_64", "registers and call numbers of other machines are not written down yet"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

_TRACEME, _CONT, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 7, 12, 13, 24, 0x4200
_SYSGOOD, _FORK, _VFORK, _CLONE, _EXEC, _SECCOMP, _EXITKILL = 1, 2, 4, 8, 16, 0x80, 0x100000
EVENT_SECCOMP = 7
WALL = 0x40000000  # __WALL: threads and processes
SYSCALL_STOP = 0x85  # SIGTRAP with PTRACE_O_TRACESYSGOOD

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 1, 38, 22, 2
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _TRACE = 0x7FFF0000, 0x7FF00000

Condition = tuple[int, int, int | None]


class Registers(ctypes.Structure):
    """struct user_regs_struct."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi"),
            *("rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    ]

    ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")

    def argument(self, index: int) -> int:
        value: int = getattr(self, self.ARGUMENTS[index])
        return value

    def signed(self, index: int) -> int:
        """An int argument, which may be negative (AT_FDCWD)."""
        return ctypes.c_int(self.argument(index) & 0xFFFFFFFF).value

    @property
    def result(self) -> int:
        return ctypes.c_longlong(self.rax).value


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _ptrace(request: int, pid: int, data: object = None) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)


def trace_me() -> None:
    _ptrace(_TRACEME, 0)


def follow(pid: int) -> None:
    """Take a child that has stopped itself under our wing, with all its threads and children."""
    _ptrace(_SETOPTIONS, pid, _SYSGOOD | _FORK | _VFORK | _CLONE | _EXEC | _SECCOMP | _EXITKILL)


def proceed(pid: int, *, to_exit: bool = False, signal: int = 0) -> None:
    """Let it run to the next traced call, or to the end of the present one. One that was killed is left alone."""
    try:
        _ptrace(_SYSCALL if to_exit else _CONT, pid, signal)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise


def registers(pid: int) -> Registers:
    found = Registers()
    _ptrace(_GETREGS, pid, ctypes.addressof(found))
    return found


def set_registers(pid: int, values: Registers) -> None:
    _ptrace(_SETREGS, pid, ctypes.addressof(values))


def stop_at(calls: dict[int, Condition | None]) -> None:
    """From here on, this process stops for its tracer at these calls.

    A call's condition is (index of an argument, mask, value of the masked low word or None for any bit of it), or
    None for always.
    """
    code = b""
    for number, condition in calls.items():
        if condition is None:
            code += struct.pack("HBBI", _LOAD, 0, 0, 0)
            code += struct.pack("HBBI", _EQUAL, 0, 1, number)
            code += struct.pack("HBBI", _RETURN, 0, 0, _TRACE)
        else:
            index, mask, value = condition
            code += struct.pack("HBBI", _LOAD, 0, 0, 0)
            code += struct.pack("HBBI", _EQUAL, 0, 4, number)
            code += struct.pack("HBBI", _LOAD, 0, 0, 16 + 8 * index)
            code += struct.pack("HBBI", _AND, 0, 0, mask)
            if value is None:
                code += struct.pack("HBBI", _EQUAL, 1, 0, 0)
            else:
                code += struct.pack("HBBI", _EQUAL, 0, 1, value)
            code += struct.pack("HBBI", _RETURN, 0, 0, _TRACE)
    code += struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read(pid: int, address: int, length: int) -> bytes:
    handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(handle, length, address)
    finally:
        os.close(handle)


def read_string(pid: int, address: int) -> str:
    """A path. Read to the end of its page first, since the next one may not be there."""
    found = b""
    while b"\0" not in found:
        at = address + len(found)
        found += read(pid, at, 4096 - at % 4096)
    return os.fsdecode(found[: found.index(b"\0")])
