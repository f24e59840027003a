# SPDX-License-Identifier: Apache-2.0
"""How much is leased."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from syntrop.runtimed import ration

BYTES = st.integers(0, 1 << 44)


@given(BYTES, BYTES)
def test_what_is_wanted_covers_the_need_and_little_more(need: int, ceiling: int) -> None:
    size = ration.wanted(need, ceiling)
    assert size >= need
    assert size <= max(need, ceiling)
    assert size - need <= 2 * ration.STEP
    assert (size == 0) == (need == 0)
    if size < ceiling and need:
        assert size % ration.STEP == 0 and size - need >= ration.STEP


@given(st.lists(st.tuples(st.sampled_from(["take", "give"]), st.integers(0, 1 << 24)), max_size=200), BYTES)
def test_what_grows_in_small_pieces_asks_once_a_step(moves: list[tuple[str, int]], ceiling: int) -> None:
    used = peak = leased = asked = 0
    for kind, size in moves:
        if kind == "give":
            used = max(0, used - size)
            continue
        size = min(size, max(0, ceiling - used))
        if used + size + ration.LOW > leased and leased < ceiling:
            leased, asked = max(leased, ration.wanted(used + size, ceiling)), asked + 1
        used += size
        assert used <= leased or not used
        peak = max(peak, used)
    assert asked <= peak // ration.LOW + 2


@given(BYTES, BYTES, BYTES, BYTES)
def test_instead_of_what_was_refused_there_is_what_can_be_had(
    need: int, more: int, has: int, available: int
) -> None:
    size = has + more
    less = ration.instead(need, size, has, available)
    if less is not None:
        assert need <= less < size and less <= has + available
    elif size > need:
        assert has + available < need


def test_the_host_plane_is_the_one_with_most_room() -> None:
    planes: list[dict[str, object]] = [
        {"id": "gpu-0", "kind": "gpu", "available_memory": 99},
        {"id": "cpu0", "kind": "cpu", "available_memory": 3},
        {"id": "cpu1", "kind": "cpu", "available_memory": 5, "is_quarantined": False},
        {"id": "cpu2", "kind": "cpu", "available_memory": 9, "is_quarantined": True},
        {"id": "cpu3", "kind": "cpu"},
    ]
    assert ration.host_plane(planes) == ("cpu1", 3)
    assert ration.host_plane(planes[:1]) == (None, 0)
