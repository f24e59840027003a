# SPDX-License-Identifier: Apache-2.0
"""One at a time, however they leave."""

from __future__ import annotations

from syntrop.common import loop
from syntrop.common.turn import Turn


def test_nobody_comes_in_before_the_other_has_left() -> None:
    inside: list[int] = []
    most = 0

    async def main() -> None:
        turn = Turn()

        async def one(number: int) -> None:
            nonlocal most
            async with turn:
                assert turn.taken
                inside.append(number)
                most = max(most, len(inside))
                await loop.sleep(0)
                inside.remove(number)
                if number % 2:
                    raise ValueError(number)

        tasks = [loop.spawn(one(number)) for number in range(10)]
        for number, task in enumerate(tasks):
            try:
                await task
                assert number % 2 == 0
            except ValueError as error:
                assert error.args == (number,)
        assert not turn.taken

    loop.run(main())
    assert (most, inside) == (1, [])


def test_who_is_cancelled_inside_or_in_line_holds_up_nobody() -> None:
    done: list[str] = []

    async def main() -> None:
        turn, go_on = Turn(), loop.Event()

        async def one(name: str) -> None:
            async with turn:
                await go_on.wait()
                done.append(name)

        inside, in_line, last = (loop.spawn(one(name)) for name in ("inside", "in line", "last"))
        while not turn.taken:
            await loop.sleep(0)
        await loop.stop(in_line)
        await loop.stop(inside)
        go_on.set()
        with loop.deadline(30):
            await last
        assert not turn.taken

    loop.run(main())
    assert done == ["last"]
