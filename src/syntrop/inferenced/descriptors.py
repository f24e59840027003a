# SPDX-License-Identifier: Apache-2.0
"""Published memory: who published what, and which peers have fetched it. No I/O: descriptors are their owner's.

A publication ends with its publisher's word, connection or process. What peers have fetched by then stays theirs:
their descriptors keep the memory. Peers are counted one by one, and each by how often it has fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Peer = tuple[int, int]
    """Number of a process and when it started: what no other process of this boot has."""


class NoSuchDescriptor(Exception):
    """Nothing is published under this identifier, or not by this peer."""


class Crowded(Exception):
    """More would be published than may be: `requested` of `resource` (descriptors or bytes) of `limit`."""

    def __init__(self, resource: str, requested: int, limit: int) -> None:
        super().__init__(f"{requested} {resource} of {limit}")
        self.resource = resource
        self.requested = requested
        self.limit = limit


@dataclass(slots=True, eq=False)
class Publication:
    """Memory of `size` bytes that is there to be fetched. `connection` is the one that it came by; `handle`
    belongs to whoever keeps the table."""

    id: str
    size: int
    label: str
    publisher: Peer
    connection: Any
    handle: int
    fetched: dict[Peer, int] = field(default_factory=dict)
    """How often each peer that lives has fetched it."""

    @property
    def references(self) -> int:
        """Descriptors of it that peers were given."""
        return sum(self.fetched.values())


class Table:
    """All publications, at most `count_max` of `bytes_max` bytes together."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.publications: dict[str, Publication] = {}
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.bytes = 0

    def check(self, size: int) -> None:
        """Raises Crowded if no more of that size may be published."""
        if len(self.publications) >= self.count_max:
            raise Crowded("descriptors", len(self.publications) + 1, self.count_max)
        if self.bytes + size > self.bytes_max:
            raise Crowded("bytes of descriptors", self.bytes + size, self.bytes_max)

    def publish(self, one: Publication) -> None:
        """Raises Crowded; then nothing has changed."""
        self.check(one.size)
        self.publications[one.id] = one
        self.bytes += one.size

    def get(self, id: str) -> Publication:
        """Raises NoSuchDescriptor."""
        found = self.publications.get(id)
        if found is None:
            raise NoSuchDescriptor(id)
        return found

    def fetch(self, id: str, peer: Peer) -> Publication:
        """Count a peer's descriptor. Raises NoSuchDescriptor."""
        one = self.get(id)
        one.fetched[peer] = one.fetched.get(peer, 0) + 1
        return one

    def release(self, id: str, peer: Peer) -> Publication:
        """What its publisher takes back. Raises NoSuchDescriptor; to others than the publisher, too."""
        one = self.get(id)
        if one.publisher != peer:
            raise NoSuchDescriptor(id)
        return self._drop(one)

    def disconnected(self, connection: object) -> list[Publication]:
        """A connection has ended: what came by it is published no more."""
        return [self._drop(one) for one in list(self.publications.values()) if one.connection is connection]

    def ended(self, peer: Peer) -> list[Publication]:
        """A process has ended: so has what it published, and it holds nothing of others any more."""
        for one in self.publications.values():
            one.fetched.pop(peer, None)
        return [self._drop(one) for one in list(self.publications.values()) if one.publisher == peer]

    def peers(self) -> set[Peer]:
        """Processes that have published something that is still there, or fetched it."""
        return {peer for one in self.publications.values() for peer in (one.publisher, *one.fetched)}

    def _drop(self, one: Publication) -> Publication:
        del self.publications[one.id]
        self.bytes -= one.size
        return one
