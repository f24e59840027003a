# SPDX-License-Identifier: Apache-2.0
"""The audit log beside callers who hang up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import journal, loop
from syntrop.toold import audit, events
from syntrop.toold.ledger import Ledger


def test_a_caller_who_leaves_while_an_entry_is_written_breaks_no_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, writing = threading.Event(), threading.Event()
    append = audit.Log.append

    def slowly(log: audit.Log, event: str, fields: dict[str, Any], *, sync: bool) -> dict[str, Any]:
        writing.set()
        assert gate.wait(30)
        return append(log, event, fields, sync=sync)

    monkeypatch.setattr(audit.Log, "append", slowly)

    async def main() -> None:
        ledger = Ledger(str(tmp_path))

        def note(name: str) -> loop.Task[None]:
            return loop.spawn(
                ledger.note(name, "text", events.RECOVERED, {"tool": name}, sync=True, priority=journal.DEBUG)
            )

        leaves, stays = note("leaves"), note("stays")
        await loop.thread(writing.wait, 30)
        await loop.stop(leaves)
        gate.set()
        with loop.deadline(30):
            await stays

    loop.run(main())
    assert [entry["event"] for entry in audit.read(str(tmp_path))] == ["leaves", "stays"]
