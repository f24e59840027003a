# SPDX-License-Identifier: Apache-2.0
"""The audit log: only ever added to, and whoever changes it is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syntrop.toold import audit
from syntrop.toold.audit import BrokenChain, Log


def filled(root: Path, count: int = 5) -> list[dict[str, object]]:
    log = Log(str(root))
    entries = [
        log.append("look", {"number": number, "text": "é\n"}, sync=number % 2 == 0) for number in range(count)
    ]
    log.close()
    return entries


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = filled(tmp_path)
    second = filled(tmp_path)
    assert list(audit.read(str(tmp_path))) == first + second
    assert [one["seq"] for one in first + second] == list(range(1, 11))
    assert (tmp_path / audit.NAME).stat().st_mode & 0o777 == 0o600


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_seen(tmp_path: Path, at: int, byte: int) -> None:
    path = tmp_path / audit.NAME
    path.unlink(missing_ok=True)
    filled(tmp_path)
    data = bytearray(path.read_bytes())
    at %= len(data)
    if data[at] == byte:
        return
    before = [json.loads(line) for line in bytes(data).splitlines()]
    data[at] = byte
    path.write_bytes(data)
    try:
        after = list(audit.read(str(tmp_path)))
    except BrokenChain:
        return
    assert after == before, "only a change that means nothing (white space) may pass"


def test_lines_that_are_taken_out_put_in_or_moved_are_seen(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / audit.NAME
    lines = path.read_bytes().splitlines(True)
    for forged in (
        [*lines[:2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
        [*lines, lines[-1]],
        [lines[0], *lines],
    ):
        path.write_bytes(b"".join(forged))
        with pytest.raises(BrokenChain):
            list(audit.read(str(tmp_path)))


def test_a_line_that_a_crash_cut_off_is_taken_away(tmp_path: Path) -> None:
    entries = filled(tmp_path)
    path = tmp_path / audit.NAME
    with path.open("ab") as file:
        file.write(b'{"seq": 6, "half')
    log = Log(str(tmp_path))
    entries.append(log.append("look", {}, sync=True))
    assert list(audit.read(str(tmp_path))) == entries


def test_nothing_is_added_to_a_log_that_was_changed(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / audit.NAME
    path.write_bytes(path.read_bytes().replace(b'"number": 4', b'"number": 5'))
    with pytest.raises(BrokenChain):
        Log(str(tmp_path))


def test_old_files_are_forgotten_and_the_chain_runs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_MAX", 1000)
    monkeypatch.setattr(audit, "FILES_MAX", 3)
    filled(tmp_path, 40)
    filled(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        audit.NAME,
        *(f"{audit.NAME}.{n}" for n in (1, 2, 3)),
    ]
    kept = list(audit.read(str(tmp_path)))
    assert kept[-1]["seq"] == 41
    assert 8 < len(kept) < 41


def test_a_log_right_after_it_was_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 3)
    (tmp_path / audit.NAME).rename(tmp_path / f"{audit.NAME}.1")
    log = Log(str(tmp_path))
    assert log.append("look", {}, sync=False)["seq"] == 4


def test_what_was_done_lately(tmp_path: Path) -> None:
    entries = filled(tmp_path)
    log = Log(str(tmp_path))
    assert log.recent(int(str(entries[2]["time_us"]))) == entries[2:]
    assert log.recent(0) == entries
    assert log.recent(2**60) == []
