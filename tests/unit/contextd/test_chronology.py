# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.contextd import chronology
from syntrop.contextd.chronology import Chronology, Draft, shorten


def drafts(*numbers: int, size: int = 0) -> list[Draft]:
    return [
        Draft(
            "test", f"number {n}", time_us=1000 + n, unit=f"u{n % 3}.service", details="d" * size or None, boot="b"
        )
        for n in numbers
    ]


def numbers(events: list[chronology.Event]) -> list[int]:
    return [int(event.summary.split()[1]) for event in events]


def test_what_was_recorded_is_there_again(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path / "ring"))
    first = ring.append(
        [Draft("test", "a", unit="a.service", details="more\nlines", private=True, extra={"k": [1]})]
    )
    ring.append(drafts(1, 2))
    again = Chronology(str(tmp_path / "ring"))
    assert [event.id for event in again.events] == ["event-1", "event-2", "event-3"]
    event = again.events[0]
    assert (event.summary, event.unit, event.private, event.extra) == ("a", "a.service", True, {"k": [1]})
    assert (event.boot, event.time_us) == (first[0].boot, first[0].time_us)
    assert again.details(event) == "more\nlines"
    assert again.details(again.events[1]) is None
    assert again.append(drafts(3))[0].id == "event-4"


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 30), max_size=20))
def test_the_ring_keeps_the_newest(tmp_path_factory: pytest.TempPathFactory, batches: list[int]) -> None:
    folder = str(tmp_path_factory.mktemp("ring"))
    ring = Chronology(folder, events_max=50)
    recorded: list[int] = []
    for size in batches:
        batch = list(range(len(recorded), len(recorded) + size))
        ring.append(drafts(*batch))
        recorded += batch
    assert numbers(ring.events) == recorded[-50:]
    again = Chronology(folder, events_max=50)
    assert numbers(again.events) == recorded[-50:]
    kept = sum(one.count for one in again._segments)
    assert kept <= 50 + 2 * 30 + 10


def test_the_ring_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path), bytes_max=200_000)
    for n in range(100):
        ring.append(drafts(n, size=8000))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 200_000 + 30_000
    assert numbers(ring.events)[-1] == 99
    assert 10 < len(ring.events) < 30
    assert numbers(Chronology(str(tmp_path)).events) == numbers(ring.events)
    assert ring.details(ring.events[0]) == "d" * 8000


def test_old_events_are_forgotten(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path), events_max=100, retention_us=60_000_000)
    ring.append(drafts(*range(10)))  # of 1970
    ring.append([Draft("test", f"number {n}") for n in range(10, 25)])
    ring.append([Draft("test", "number 25")])
    assert numbers(ring.events)[0] == 10


def test_a_torn_segment_loses_only_its_end(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path))
    ring.append(drafts(1, 2, 3))
    (segment,) = tmp_path.iterdir()
    segment.write_bytes(segment.read_bytes()[:-3])
    again = Chronology(str(tmp_path))
    assert numbers(again.events) == [1, 2]
    again.append(drafts(4))
    assert numbers(Chronology(str(tmp_path)).events) == [1, 2, 4]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("x")
    (tmp_path / "zzzzzzzzzzzzzzzz.log").write_text("x")
    ring = Chronology(str(tmp_path))
    ring.append(drafts(1))
    assert {"README", "zzzzzzzzzzzzzzzz.log"} < set(os.listdir(tmp_path))


def test_newest_first_by_time_and_then_by_number(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path))
    ring.append(
        [Draft("t", "number 1", time_us=5), Draft("t", "number 2", time_us=9), Draft("t", "number 3", time_us=5)]
    )
    assert numbers(ring.since(5)) == [2, 3, 1]
    assert numbers(ring.since(6)) == [2]
    assert numbers(ring.since(0, lambda event: event.number != 2)) == [3, 1]


def test_a_name_of_any_bytes_comes_back(tmp_path: Path) -> None:
    ring = Chronology(str(tmp_path))
    name = os.fsdecode(b"/etc/\xff\xfe\n")
    ring.append([Draft("file", name, extra={"path": name})])
    assert Chronology(str(tmp_path)).events[0].extra["path"] == name


@given(st.text(max_size=400), st.integers(100, 300))
def test_a_shortened_text_fits_and_keeps_its_ends(text: str, limit: int) -> None:
    short = shorten(text, limit)
    if len(text.encode("utf-8", "replace")) <= limit:
        assert short == text
    else:
        assert len(short.encode("utf-8", "replace")) <= limit
        assert "left out here" in short
