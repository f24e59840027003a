# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from syntrop.common import caps, journal, peer


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(journal, "warning", lambda message, **_: seen.append(message))
    return seen


def test_one_user_cannot_take_what_is_there_for_all(lines: list[str]) -> None:
    count = caps.Caps(5, 3)
    assert [count.admit(1000) for _ in range(4)] == [True, True, True, False]
    assert count.admit(1001)
    count.release(1000)
    assert count.admit(1000)
    assert [count.admit(1002) for _ in range(2)] == [True, False]
    assert count.held == 5


def test_peers_without_a_name_share_the_total_only(lines: list[str]) -> None:
    count = caps.Caps(5, 2)
    assert [count.admit(peer.UNKNOWN) for _ in range(6)] == [True] * 5 + [False]


def test_refusals_do_not_fill_the_journal(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(caps, "monotonic", lambda: now)
    count = caps.Caps(1, 1)
    assert count.admit(0)
    for _ in range(1000):
        assert not count.admit(0)
    assert len(lines) == 1
    now += 11
    assert not count.admit(0)
    assert len(lines) == 2 and lines[1].startswith("Refused 1000 connections, the last of uid 0")
