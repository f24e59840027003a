# SPDX-License-Identifier: Apache-2.0
"""The table of published memory: sums, bounds, and who counts how often."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from syntrop.inferenced.descriptors import Crowded, NoSuchDescriptor, Publication, Table

COUNT, BYTES = 5, 100
PEERS = st.tuples(st.integers(1, 4), st.just(7))
CONNECTIONS = st.integers(0, 5)


def published(id: str, size: int = 10, peer: tuple[int, int] = (1, 7), connection: object = 0) -> Publication:
    return Publication(id, size, "", peer, connection, 3)


def test_a_publication_is_fetched_and_counted_by_peer() -> None:
    table = Table(COUNT, BYTES)
    table.publish(published("d-1"))
    for peer in ((2, 7), (2, 7), (3, 7)):
        table.fetch("d-1", peer)
    assert table.get("d-1").fetched == {(2, 7): 2, (3, 7): 1}
    assert table.get("d-1").references == 3
    assert table.ended((2, 7)) == []
    assert table.get("d-1").fetched == {(3, 7): 1}
    assert table.peers() == {(1, 7), (3, 7)}


def test_only_its_publisher_takes_it_back() -> None:
    table = Table(COUNT, BYTES)
    table.publish(published("d-1"))
    table.fetch("d-1", (2, 7))
    with pytest.raises(NoSuchDescriptor):
        table.release("d-1", (2, 7))
    assert table.release("d-1", (1, 7)).id == "d-1"
    with pytest.raises(NoSuchDescriptor):
        table.fetch("d-1", (2, 7))


def test_bounds_say_what_they_bound() -> None:
    table = Table(2, BYTES)
    table.publish(published("d-1", BYTES))
    with pytest.raises(Crowded) as crowded:
        table.publish(published("d-2", 1))
    assert (crowded.value.resource, crowded.value.requested, crowded.value.limit) == (
        "bytes of descriptors",
        BYTES + 1,
        BYTES,
    )
    table.release("d-1", (1, 7))
    table.publish(published("d-3", 1))
    table.publish(published("d-4", 1))
    with pytest.raises(Crowded) as crowded:
        table.publish(published("d-5", 1))
    assert (crowded.value.resource, crowded.value.requested) == ("descriptors", 3)


class Traffic(RuleBasedStateMachine):
    """Any order of events against a list of what there should be."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(COUNT, BYTES)
        self.model: dict[str, Publication] = {}
        self.number = 0

    @rule(target=ids, size=st.integers(1, 60), peer=PEERS, connection=CONNECTIONS)
    def publish(self, size: int, peer: tuple[int, int], connection: int) -> str:
        self.number += 1
        one = published(f"d-{self.number}", size, peer, connection)
        full = len(self.model) >= COUNT or sum(x.size for x in self.model.values()) + size > BYTES
        if full:
            with pytest.raises(Crowded):
                self.table.publish(one)
        else:
            self.table.publish(one)
            self.model[one.id] = one
        return one.id

    @rule(id=ids, peer=PEERS)
    def fetch(self, id: str, peer: tuple[int, int]) -> None:
        if id in self.model:
            before = self.model[id].references
            assert self.table.fetch(id, peer).references == before + 1
        else:
            with pytest.raises(NoSuchDescriptor):
                self.table.fetch(id, peer)

    @rule(id=ids, peer=PEERS)
    def release(self, id: str, peer: tuple[int, int]) -> None:
        if id in self.model and self.model[id].publisher == peer:
            assert self.table.release(id, peer) is self.model.pop(id)
        else:
            with pytest.raises(NoSuchDescriptor):
                self.table.release(id, peer)

    @rule(connection=CONNECTIONS)
    def disconnect(self, connection: int) -> None:
        gone = {one.id for one in self.table.disconnected(connection)}
        assert gone == {id for id, one in self.model.items() if one.connection == connection}
        self.model = {id: one for id, one in self.model.items() if id not in gone}

    @rule(peer=PEERS)
    def end(self, peer: tuple[int, int]) -> None:
        gone = {one.id for one in self.table.ended(peer)}
        assert gone == {id for id, one in self.model.items() if one.publisher == peer}
        self.model = {id: one for id, one in self.model.items() if id not in gone}
        assert peer not in self.table.peers()

    @invariant()
    def the_sums_are_right(self) -> None:
        assert self.table.publications == self.model
        assert self.table.bytes == sum(one.size for one in self.model.values()) <= BYTES


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=30)
