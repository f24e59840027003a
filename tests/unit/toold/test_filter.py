# SPDX-License-Identifier: Apache-2.0
"""The system call filter, run by an interpreter of classic BPF: what it lets through, on both architectures."""

from __future__ import annotations

import errno
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.toold import filter as bpf
from syntrop.toold.syscalls import ARCHITECTURES, NUMBERS

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def judge(program: list[bpf.Instruction], number: int, *arguments: int, arch: int) -> int:
    """What the kernel would do: an interpreter of the few instructions that are used."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator, at = 0, 0
    while True:
        code, jump_true, jump_false, operand = program[at]
        at += 1
        if code == 0x20:
            assert operand % 4 == 0 and operand + 4 <= len(data)
            accumulator = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x54:
            accumulator &= operand
        elif code in (0x15, 0x45):
            taken = accumulator == operand if code == 0x15 else bool(accumulator & operand)
            at += jump_true if taken else jump_false
        elif code == 0x06:
            return operand
        else:
            raise AssertionError(f"unknown instruction {code:#x}")


@pytest.fixture(params=list(ARCHITECTURES))
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def verdict(machine: str, name: str, *arguments: int, **options: object) -> int:
    arch, column = ARCHITECTURES[machine]
    number = NUMBERS[name][column]
    if number is None:
        return ERRNO | errno.ENOSYS
    program = bpf.assemble(machine, **options)  # type: ignore[arg-type]
    return judge(program, number, *arguments, arch=arch)


def test_what_reads_is_let_through(machine: str) -> None:
    for name in ("read", "close", "mmap", "execve", "exit_group", "openat"):
        assert verdict(machine, name) == ALLOW, name


def test_what_is_not_listed_does_not_exist(machine: str) -> None:
    arch, column = ARCHITECTURES[machine]
    program = bpf.assemble(machine)
    known = {numbers[column] for numbers in NUMBERS.values()}
    for number in range(600):
        if number not in known:
            assert judge(program, number, arch=arch) == ERRNO | errno.ENOSYS, number


def test_another_architecture_is_killed(machine: str) -> None:
    program = bpf.assemble(machine)
    for arch in (0x40000003, 0x40000028, 0):  # i386, arm
        assert judge(program, 1, arch=arch) == KILL


def test_the_x32_numbers_do_not_exist() -> None:
    program = bpf.assemble("x86_64")
    assert judge(program, 0x40000000 | 1, arch=ARCHITECTURES["x86_64"][0]) == ERRNO | errno.ENOSYS


def test_there_are_no_sockets(machine: str) -> None:
    for family in range(50):
        for more in ({}, {"processes": True, "files": True}):
            assert verdict(machine, "socket", family, **more) == ERRNO | errno.EAFNOSUPPORT
    assert not {"bind", "connect", "sendto", "sendmsg", "accept4", "listen"} & set(NUMBERS)


@given(flags=st.integers(0, 2**64 - 1))
def test_opening_never_truncates_what_is_only_read(flags: int) -> None:
    for machine in ARCHITECTURES:
        refused = flags & os.O_ACCMODE == os.O_RDONLY and flags & os.O_TRUNC
        assert (verdict(machine, "openat", 0, 0, flags) != ALLOW) == bool(refused)


@given(protection=st.integers(0, 2**32 - 1))
def test_memory_is_never_writable_and_executable(protection: int) -> None:
    for machine in ARCHITECTURES:
        for name in ("mmap", "mprotect"):
            assert (verdict(machine, name, 0, 0, protection) == ALLOW) == (protection & 6 != 6)


@given(flags=st.integers(0, 2**64 - 1))
def test_forking_is_for_those_who_say_so_and_never_makes_namespaces(flags: int) -> None:
    namespaces = 0x7E020080
    for machine in ARCHITECTURES:
        assert verdict(machine, "clone", flags) == ERRNO | errno.EPERM
        expected = ALLOW if not flags & namespaces else ERRNO | errno.EPERM
        assert verdict(machine, "clone", flags, processes=True) == expected


@given(pid=st.integers(0, 2**32 - 1), new=st.integers(0, 2**64 - 1))
def test_limits_can_only_be_looked_at_and_only_ones_own(pid: int, new: int) -> None:
    for machine in ARCHITECTURES:
        assert (verdict(machine, "prlimit64", pid, 7, new) == ALLOW) == (pid == 0 and new == 0)


def test_a_death_signal_is_kept(machine: str) -> None:
    assert verdict(machine, "prctl", 1, 0) == ERRNO  # "done", and nothing is
    assert verdict(machine, "prctl", 22) == ERRNO | errno.EPERM  # SET_SECCOMP


def test_files_are_made_only_by_those_who_say_so(machine: str) -> None:
    for name in bpf.FILE_CALLS:
        assert verdict(machine, name) == ERRNO | errno.ENOSYS
    assert verdict(machine, "mkdirat", files=True) == ALLOW


def test_jumps_stay_in_the_program(machine: str) -> None:
    program = bpf.assemble(machine, files=True, processes=True)
    assert len(program) <= 4096  # BPF_MAXINSNS
    for at, (code, jump_true, jump_false, _) in enumerate(program):
        if code in (0x15, 0x45):
            assert max(jump_true, jump_false) < 256
            assert at + 1 + max(jump_true, jump_false) < len(program)
    assert program[-1][0] == 0x06
    assert len(bpf.pack(program)) == 8 * len(program)


def test_an_unknown_architecture_runs_nothing() -> None:
    with pytest.raises(bpf.Unsupported):
        bpf.assemble("riscv64")


def test_the_dangerous_are_on_no_list() -> None:
    for name in (
        "ptrace",
        "mount",
        "setns",
        "unshare",
        "bpf",
        "kill",
        "connect",
        "memfd_create",
        "setsid",
        "chown",
    ):
        assert name not in NUMBERS
