# SPDX-License-Identifier: Apache-2.0
"""Downloads of modeld: what is gone on with was really there, and a stored model is never written again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from crashlab.explore import Line, Scenario
from proofs import Proofs
from test_modeld import FILES, goes_on, open_store, prepare, sound

from syntrop.modeld.incoming import Incoming
from syntrop.modeld.pieces import Piece
from syntrop.modeld.store import Store

Acknowledge = Callable[[str], None]
DATA, OTHER = FILES["one"], FILES["two"][::-1]  # different from the first byte on
STEP = 64


def opened(store: Store) -> Incoming:
    store.prepare()
    arriving = Incoming(store.incoming, "https://source")
    arriving.resume(lambda: True)
    return arriving


def feed(arriving: Incoming, data: bytes, acknowledge: Acknowledge | None = None) -> None:
    arriving.validator = hashlib.sha256(data).hexdigest()
    while arriving.size < len(data):
        arriving.append(data[arriving.size : arriving.size + STEP])
        arriving.checkpoint()
        if acknowledge is not None:
            acknowledge(f"safe {arriving.size}")


def download(root: str, acknowledge: Acknowledge) -> None:
    store = open_store(root)
    arriving = opened(store)
    if arriving.validator not in (None, hashlib.sha256(DATA).hexdigest()):
        arriving.restart()
    feed(arriving, DATA, acknowledge)
    piece = Piece("", arriving.handle, arriving.path, arriving.digest(), arriving.size)
    store.store([piece], None, "one", "latest", None)
    acknowledge("stored")
    arriving.discard()


def prepare_other(root: str) -> None:
    """A part of another content, under the same address."""
    prepare(root)
    arriving = opened(open_store(root))
    feed(arriving, OTHER[: 2 * STEP])
    arriving.validator = hashlib.sha256(OTHER).hexdigest()
    arriving.checkpoint()
    arriving.close()


def make_room(root: str, acknowledge: Acknowledge) -> None:
    """What nobody waits for goes, and what is discarded; neither is believed of another content in its place."""
    store = open_store(root)
    store.prune(0)
    acknowledge("pruned")
    for data in (DATA, OTHER):
        arriving = opened(store)
        if arriving.validator not in (None, hashlib.sha256(data).hexdigest()):
            arriving.restart()
        feed(arriving, data)
        if data is DATA:
            arriving.discard()
        else:
            arriving.close()


def check(root: str, acked: tuple[str, ...]) -> None:
    store = sound(root)
    found = {entry.id for entry in store.entries()}
    assert "stored" not in acked or "one:latest" in found, "the model is lost"
    arriving = opened(store)
    contents = {hashlib.sha256(data).hexdigest(): data for data in (DATA, OTHER)}
    if arriving.size:
        whole = contents[arriving.validator or ""]
        assert os.pread(arriving.handle, 1 << 20, 0) == whole[: arriving.size], "bytes of something else"
    # With its digest known, a file that has its place is not fetched again, whether it is a model yet or not.
    if not os.path.exists(os.path.join(store.blobs, hashlib.sha256(DATA).hexdigest())):
        safe = [int(one.split()[1]) for one in acked if one.startswith("safe")]
        assert arriving.size >= max(safe, default=0), "what was safe is lost"
    arriving.append(b"more")
    arriving.close()
    goes_on(root, sound(root))


class TestIncoming(Proofs):
    SCENARIOS = (
        Scenario("download", prepare, download, check),
        Scenario("download of what has changed", prepare_other, download, check),
        Scenario("download where room was made", prepare_other, make_room, check),
    )
    SOURCES = ("src/syntrop/modeld/incoming.py",)

    def test_no_sync_can_be_missing(self, laboratory):
        """Of the download's own syncs: those of the store are `test_modeld.py`'s."""
        called: set[Line] = set()
        needed: set[Line] = set()
        for scenario in self.SCENARIOS:
            lines, needless = laboratory(scenario).needless()
            mine = {line for line in lines if line[0] in self.SOURCES}
            called |= mine
            needed |= mine - needless
        assert called
        assert not called - needed, f"syncs whose absence nothing shows: {sorted(called - needed)}"
