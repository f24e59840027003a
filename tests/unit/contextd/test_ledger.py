# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.contextd import ledger

payloads = st.lists(st.binary(min_size=1, max_size=60), max_size=8)


def contents(data: bytes) -> list[bytes]:
    return [payload for _, payload in ledger.records(data)]


@given(payloads)
def test_what_is_framed_is_found(given: list[bytes]) -> None:
    data = b"".join(map(ledger.frame, given))
    assert contents(data) == given
    assert ledger.end(data) == len(data)


@given(payloads, st.integers(0, 400), st.sampled_from([b"", b"\0" * 50, b"\xa5SL\x01" * 5, b"junk"]))
def test_a_torn_end_costs_only_what_it_tore(given: list[bytes], cut: int, rest: bytes) -> None:
    frames = [ledger.frame(payload) for payload in given]
    data = b"".join(frames)
    torn = data[: max(0, len(data) - cut)]
    whole = 0
    while whole < len(frames) and len(b"".join(frames[: whole + 1])) <= len(torn):
        whole += 1
    assert contents(torn + rest)[:whole] == given[:whole]
    assert ledger.end(torn) == len(b"".join(frames[:whole]))


@given(payloads.filter(lambda one: len(one) > 2), st.data())
def test_damage_in_the_middle_costs_one_record(given: list[bytes], data: st.DataObject) -> None:
    frames = [bytearray(ledger.frame(payload)) for payload in given]
    victim = data.draw(st.integers(0, len(frames) - 1))
    at = data.draw(st.integers(0, len(frames[victim]) - 1))
    frames[victim][at] ^= 0xFF
    found = contents(b"".join(frames))
    kept = given[:victim] + given[victim + 1 :]
    assert [one for one in found if one in kept] == [one for one in kept if one in found]
    assert found[:victim] == given[:victim]
    assert found[len(found) - (len(given) - victim - 1) :] == given[victim + 1 :]


@given(st.binary(max_size=300))
def test_anything_can_be_read(data: bytes) -> None:
    assert all(contents(data))
    assert 0 <= ledger.end(data) <= len(data)


def test_append_and_read_one(tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    first = ledger.append(path, [b"a", b"bb"], 0)
    size = ledger.end(ledger.read(path))
    second = ledger.append(path, [b"ccc"], size)
    assert [ledger.read_record(path, at) for at in (*first, *second)] == [b"a", b"bb", b"ccc"]
    assert ledger.read_record(path, 1) is None
    assert ledger.read_record(path, 10**6) is None
    assert ledger.read_record(str(tmp_path / "none"), 0) is None
    assert ledger.read(str(tmp_path / "none")) == b""


def test_what_follows_the_last_whole_record_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "one"
    ledger.append(str(path), [b"a"], 0)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + ledger.frame(b"torn")[:-1])
    ledger.append(str(path), [b"b"], size)
    assert contents(path.read_bytes()) == [b"a", b"b"]
    assert path.stat().st_size == 2 * size


def test_an_append_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one"
    ledger.append(str(path), [b"a"], 0)
    before = path.read_bytes()
    real = os.pwrite
    calls = []

    def full(handle: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) == 1:
            return real(handle, bytes(data)[:5], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        ledger.append(str(path), [b"lost"], len(before))
    monkeypatch.undo()
    assert path.read_bytes() == before


@pytest.mark.parametrize("payload", [b"", b"x" * (ledger.RECORD_MAX + 1)])
def test_what_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        ledger.frame(payload)


def test_folders_are_made_whole(tmp_path: Path) -> None:
    ledger.make_folder(str(tmp_path / "a/b/c"))
    ledger.make_folder(str(tmp_path / "a/b/c"))
    assert (tmp_path / "a/b/c").stat().st_mode & 0o777 == 0o700
