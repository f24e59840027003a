# SPDX-License-Identifier: Apache-2.0
"""What is on record beside a change that is under way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from syntrop.common import loop
from syntrop.common.turn import Turn
from syntrop.toold.changes import Site
from syntrop.toold.service import Tool1


def test_a_change_that_is_under_way_is_waited_for(tmp_path: Path) -> None:
    """systemd-sentry, killed in mid-action, sees the file gone and asks whether that was toold, for it."""

    async def main() -> None:
        daemon: Any = SimpleNamespace(handed=lambda *_: None)
        tool1, call = Tool1(daemon, Site(str(tmp_path))), SimpleNamespace()
        changes, over = Turn(), loop.Event()
        state: Any = SimpleNamespace(changes=changes)
        tool1._state = state

        async def change() -> None:
            async with changes:
                await over.wait()
                (tmp_path / "over").touch()

        changing = loop.spawn(change())
        while not changes.taken:
            await loop.sleep(0)
        listing: loop.Task[dict[str, Any]] = loop.spawn(tool1.ListRollbacks(call))  # type: ignore[arg-type]
        for _ in range(100):
            await loop.sleep(0)
        assert not listing.done
        over.set()
        with loop.deadline(60):
            await changing
            assert (await listing) == {"records": []}
        assert (tmp_path / "over").exists()

    loop.run(main())
