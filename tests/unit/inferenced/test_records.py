# SPDX-License-Identifier: Apache-2.0
"""The log of leases: what it tells is what was written, whatever became of its end."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.inferenced import records
from syntrop.inferenced.lease import Holder, Lease, Slice, State
from syntrop.inferenced.records import Log, Past, decode, encode, replay
from syntrop.inferenced.tier import Tier

BOOT = "00000000-0000-4000-8000-000000000000"

SECONDS = st.none() | st.floats(0, 1e9) | st.integers(0, 10**9)
SLICES = st.builds(Slice, st.text(max_size=9), st.text(max_size=9), st.integers(0, 1 << 60), st.text(max_size=9))
LEASES = st.builds(
    Lease,
    id=st.text(min_size=1, max_size=20),
    tier=st.sampled_from(Tier),
    holder=st.builds(
        Holder,
        st.integers(0, 1 << 32),
        st.none() | st.integers(1, 1 << 22),
        st.none() | st.integers(0, 1 << 62),
        st.none() | st.text(max_size=20),
        st.text(max_size=40),
    ),
    slices=st.lists(SLICES, min_size=1, max_size=3).map(tuple),
    order=st.integers(0, 1 << 50),
    state=st.sampled_from(State),
    policy=st.none() | st.text(max_size=9),
    lifetime=SECONDS,
    deadline=SECONDS,
    signal=st.none() | st.text(max_size=9),
    bound=st.booleans(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
KINDS = ("log", "lease", "state", "size", "end", "freeze", "thaw", "loose", "limit", "unlimit")


def lease(name: str = "l-1", size: int = 5) -> Lease:
    return Lease(name, Tier.BATCH, Holder(1, 7, 9, None, "a.service"), (Slice("cpu0", "cpu0", size),), 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "inferenced" / "leases.log")


@pytest.fixture
def log(path: str) -> Iterator[Log]:
    log = Log(path, BOOT)
    log.start([], [])
    yield log
    log.close()


@given(LEASES)
def test_a_lease_comes_back_as_it_was(one: Lease) -> None:
    again = decode(json.loads(json.dumps(encode(one))))
    assert encode(again) == encode(one)
    assert (again.holder, again.slices, again.tier) == (one.holder, one.slices, one.tier)


def test_what_happened_is_what_is_told(log: Log, path: str) -> None:
    first, second, third = lease("l-1"), lease("l-2"), lease("l-3")
    for one in (first, second, third):
        log.lease(one)
    first.state, first.deadline = State.FROZEN, 4.5
    log.state(first)
    second.state = State.RELEASED
    log.state(second)
    third.slices[0].size = 3
    log.size(third)
    log.freeze("a.service", "l-9")
    log.freeze("b.service", "l-9")
    log.freeze("a.service", "operator")
    log.thaw("b.service")
    log.limit("a.service", None)
    log.limit("b.service", 77)
    log.unlimit("b.service")
    past, wrong = replay(path, BOOT)
    assert wrong == 0
    assert {name: encode(one) for name, one in past.leases.items()} == {"l-1": encode(first), "l-3": encode(third)}
    assert (past.frozen, past.limits, past.loose) == (
        {"a.service": {"l-9", "operator"}},
        {"a.service": None},
        set(),
    )


@given(st.integers(0, 400))
@settings(deadline=None)
def test_a_line_without_its_end_did_not_happen(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = str(tmp_path_factory.mktemp("log") / "leases.log")
    log = Log(path, BOOT)
    log.start([], [])
    ends = [os.path.getsize(path)]
    for number in range(3):
        log.freeze(f"{number}.service", "l-1")
        ends.append(os.path.getsize(path))
    log.close()
    cut = min(cut, ends[-1])
    os.truncate(path, cut)
    past, wrong = replay(path, BOOT)
    assert wrong == 0
    assert list(past.frozen) == [f"{number}.service" for number in range(3) if ends[number + 1] <= cut]
    # What comes after a torn line, as the aftermath writes it, is read all the same.
    if cut >= ends[0]:
        with open(path, "ab") as file:
            file.write(b'\n["loose","9.service"]\n')
        past, wrong = replay(path, BOOT)
        assert past.loose == {"9.service"}
        assert wrong <= (cut not in ends)


def test_another_boot_another_version_or_no_log_at_all_tell_nothing(log: Log, path: str) -> None:
    log.lease(lease())
    assert replay(path, "another")[0].leases == {}
    assert replay(path, "another")[1] == 0
    assert replay(path + ".none", BOOT)[1] == 0
    text = Path(path).read_text()
    for head in ("", "7\n", "{}\n", "[]\n", "x\n", "[" * 100_000 + "\n"):
        Path(path).write_text(head + text[text.index("\n") + 1 :])
        past, wrong = replay(path, BOOT)
        assert (past.leases, past.frozen) == ({}, {})
        assert wrong > 0


@given(st.lists(st.lists(st.sampled_from(KINDS) | JSON, max_size=4) | JSON, max_size=12))
def test_no_garbage_is_more_than_a_line_that_makes_no_sense(lines: list[object]) -> None:
    past = Past()
    for line in lines:
        try:
            past.apply(line)  # type: ignore[arg-type]
        except (LookupError, TypeError, ValueError):
            continue
    for one in past.leases.values():
        assert decode(encode(one))
    for target in [*past.frozen, *past.limits, *past.loose]:
        assert isinstance(target, str)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_no_bytes_are_more_than_a_log_that_makes_no_sense(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "leases.log"
    path.write_bytes(json.dumps(["log", records.VERSION, BOOT]).encode() + b"\n" + data)
    past, _ = replay(str(path), BOOT)
    assert past.leases == {}


def test_compaction_keeps_what_there_is_and_what_happens_meanwhile(log: Log, path: str) -> None:
    leases = [lease(f"l-{number}") for number in range(3 * records.STEP)]
    for one in leases:
        log.lease(one)
    log.freeze("a.service", "l-0")
    log.begin(leases, [("a.service", ["l-0"])], [("a.service", 9)])
    leases[0].state = State.RELEASED
    log.state(leases[0])
    log.thaw("a.service")
    while not log.go_on():
        pass
    past, wrong = replay(path, BOOT)
    assert wrong == 0
    assert set(past.leases) == {one.id for one in leases[1:]}
    assert (past.frozen, past.limits) == ({}, {"a.service": 9})
    assert os.listdir(os.path.dirname(path)) == ["leases.log"]


def test_nothing_is_left_where_there_is_nothing_to_remember(log: Log, path: str) -> None:
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    log.discard()
    log.discard()
    log.lease(lease())  # a log that was not started keeps nothing
    assert os.listdir(os.path.dirname(path)) == []


@contextmanager
def full() -> Iterator[None]:
    """No file of ours may become larger: what a full disk does, without being root. Within a test's body only:
    pytest itself writes to files between."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_takes_no_line_in_part(log: Log, path: str) -> None:
    kept = 0
    with full(), pytest.raises(OSError) as refused:
        for kept in range(1000):
            log.lease(lease(f"l-{kept}"))
    assert refused.value.errno == errno.EFBIG
    past, wrong = replay(path, BOOT)
    assert (len(past.leases), wrong) == (kept, 0)
    # There is no room for another log beside it either: then the old one stays, and nothing is left of the new.
    with full(), pytest.raises(OSError):
        log.start([lease(f"l-{number}") for number in range(100)], [])
    assert log.started
    assert os.listdir(os.path.dirname(path)) == ["leases.log"]
    assert len(replay(path, BOOT)[0].leases) == kept
