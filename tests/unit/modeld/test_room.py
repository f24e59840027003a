# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syntrop.modeld import room
from syntrop.modeld.bucket import Bucket

FILES = "abcdef"
PARTS = st.dictionaries(st.sampled_from("123456"), st.sets(st.sampled_from(FILES), min_size=1))


@pytest.mark.parametrize(
    ("request_", "stored", "quota", "free", "floor", "missing"),
    [
        (10, 50, 100, 1000, 0, -40),
        (60, 50, 100, 1000, 0, 10),
        (60, 50, 0, 100, 50, 10),
        (60, 50, 100, 100, 80, 40),
    ],
)
def test_what_is_missing(request_: int, stored: int, quota: int, free: int, floor: int, missing: int) -> None:
    assert room.missing(request_, stored=stored, quota=quota, free=free, floor=floor) == missing


@given(PARTS, st.sets(st.sampled_from("123456")), st.integers(0, 100), st.data())
def test_what_goes(parts: dict[str, set[str]], busy: set[str], excess: int, data: st.DataObject) -> None:
    sizes = {file: 1 << index for index, file in enumerate(FILES)}
    candidates = data.draw(st.lists(st.sampled_from(sorted(parts)), unique=True) if parts else st.just([]))
    gone, reclaimed = room.choose(excess, candidates, parts, sizes, busy.__contains__)
    assert gone == [one for one in candidates if one in gone]
    assert not set(gone) & busy
    kept = {file for one in parts.keys() - set(gone) for file in parts[one]}
    freed = {file for one in gone for file in parts[one]} - kept
    assert reclaimed == sum(sizes[file] for file in freed)
    # Enough or all that there is; and no more than needed.
    assert reclaimed >= excess or set(gone) == set(candidates) - busy
    if gone:
        shorter, less = room.choose(
            excess, candidates[: candidates.index(gone[-1])], parts, sizes, busy.__contains__
        )
        assert (shorter, less < excess) == (gone[:-1], True)


@given(st.integers(1, 10**6), st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 2)), max_size=50))
def test_a_bucket_never_lets_more_through_than_its_rate(rate: int, takes: list[tuple[int, float]]) -> None:
    bucket = Bucket(rate)
    now = total = 0.0
    for amount, pause in takes:
        now += pause
        total += amount
        now += bucket.take(amount, now)
        assert total <= bucket.burst + now * rate * (1 + 1e-6) + 1


def test_no_limit_is_no_wait() -> None:
    assert Bucket(0).take(1 << 40, 0.0) == 0.0
