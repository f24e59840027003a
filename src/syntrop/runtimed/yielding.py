# SPDX-License-Identifier: Apache-2.0
"""Memory is given back at SIGUSR1: what inferenced asks for, or by hand all that is cheap to give."""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from syntrop.runtimed.engine import Engine
    from syntrop.runtimed.library import Library

PATIENCE: Final = (0.15, 10.0)
"""Seconds for the engine's step in progress: of the 250 ms that inferenced gives something is to be left. If it
takes longer, what there is by then is given back, and the rest when it comes."""
_LOOK: Final = 0.002


async def give_back(library: Library, engine: Engine | None, pause: float) -> None:
    """Pause Batch work for so many seconds; then give up, until no more is used than inferenced wants us to have,
    what is kept of earlier prompts, the caches of Batch work, and idle models, the one used longest ago first.

    Where nobody says how much, kept prompts and Batch caches go and models stay.
    """
    if engine is not None:
        engine.yield_batch(pause)
    before, leased = library.used_bytes, library.leases.size
    asked = await library.leases.asked()
    # What others hold leases for is not ours to give: they are asked for it themselves.
    size = 0 if asked is None else asked + library.leases.lent
    library.compact(size)
    if engine is not None and library.used_bytes > size:
        engine.yield_batch(pause, give_back=True)
    for patience in PATIENCE:
        await _stepped(engine, patience)
        library.compact(size)
        if asked is None:
            library.leases.settle_soon()
        else:
            await library.shrink(size)
            await library.leases.shrink(asked)
        if engine is None or not engine.gives_back:
            break
    # Other work may have taken more meanwhile.
    freed = f"gave up {max(0, before - library.used_bytes)} of {before} bytes in use"
    if asked is None:
        journal.info(f"Batch work stands still for {pause:g} s; {freed}")
    else:
        less = max(0, leased - library.leases.size)
        journal.notice(
            f"inferenced wants memory: {freed}, and {less} of {leased} bytes leased (asked to shrink to {asked})"
        )


async def _stepped(engine: Engine | None, patience: float) -> None:
    """Wait until the engine has given up what was asked of it."""
    deadline = monotonic() + patience
    while engine is not None and engine.gives_back and monotonic() < deadline:
        await loop.sleep(_LOOK)
