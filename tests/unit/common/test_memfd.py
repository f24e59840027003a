# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import mmap
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.common import memfd


@given(st.binary(min_size=1, max_size=20_000))
def test_what_was_sealed_is_what_is_mapped(data: bytes) -> None:
    handle = memfd.create("test", data)
    mapped = memfd.map_readonly(handle, len(data))
    os.close(handle)
    with mapped:
        assert mapped[:] == data


def test_a_sealed_file_cannot_be_changed() -> None:
    handle = memfd.create("test", b"abc")
    try:
        for change in (
            lambda: os.pwrite(handle, b"x", 0),
            lambda: os.truncate(handle, 1),
            lambda: os.truncate(handle, 9),
            lambda: fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
            lambda: mmap.mmap(handle, 3),
        ):
            with pytest.raises(PermissionError):
                change()
        with memfd.map_readonly(handle) as mapped, pytest.raises(TypeError):
            mapped[0] = 1
        assert os.get_inheritable(handle) is False
    finally:
        os.close(handle)


def test_sealing_twice_is_harmless() -> None:
    handle = memfd.create("test", b"abc")
    memfd.seal(handle)
    assert memfd.verify(handle) == 3
    os.close(handle)


@pytest.mark.parametrize("kept", [1, 2, 4, 8])
def test_every_missing_seal_is_named(kept: int) -> None:
    handle = memfd.allocate("test", 10)
    try:
        with pytest.raises(memfd.NotSealed) as caught:
            memfd.verify(handle)
        assert caught.value.missing == ("SHRINK", "GROW", "WRITE", "SEAL")
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, memfd.SEALS & ~kept)
        with pytest.raises(memfd.NotSealed) as caught:
            memfd.map_readonly(handle)
        assert len(caught.value.missing) == 1
    finally:
        os.close(handle)


def test_another_size_than_told_is_refused() -> None:
    handle = memfd.create("test", b"abc")
    with pytest.raises(memfd.WrongSize) as caught:
        memfd.map_readonly(handle, 4)
    assert (caught.value.expected, caught.value.actual) == (4, 3)
    os.close(handle)


def test_an_empty_file_verifies_and_does_not_map() -> None:
    handle = memfd.create("test", b"")
    assert memfd.verify(handle, 0) == 0
    with pytest.raises(memfd.WrongSize):
        memfd.map_readonly(handle)
    os.close(handle)


def test_a_writable_mapping_prevents_sealing() -> None:
    handle = memfd.allocate("test", 4096)
    with mmap.mmap(handle, 4096), pytest.raises(memfd.StillMapped):
        memfd.seal(handle)
    memfd.seal(handle)
    os.close(handle)


def test_other_kinds_of_descriptors_are_refused(tmp_path: object) -> None:
    handles = [os.open("/etc/hostname", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY), *os.pipe()]
    with socket.socket() as stream:
        for handle in [*handles, stream.fileno()]:
            with pytest.raises(memfd.NotMemfd):
                memfd.map_readonly(handle)
            with pytest.raises(memfd.NotMemfd):
                memfd.seal(handle)
    for handle in handles:
        os.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        memfd.verify(handles[0])


def test_no_descriptor_is_left_after_errors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"File name too long|Invalid argument"):
        memfd.create("x" * 300, b"abc")
    with pytest.raises(TypeError):
        memfd.create("test", "text")  # type: ignore[arg-type]
    with pytest.raises((OSError, OverflowError)):
        memfd.allocate("test", 1 << 63)
    assert len(os.listdir("/proc/self/fd")) == before
