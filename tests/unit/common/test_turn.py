# SPDX-License-Identifier: Apache-2.0
"""One at a time, and once for all, however they leave."""

from __future__ import annotations

import threading

from syntrop.common import loop
from syntrop.common.turn import Once, Turn


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


def test_who_leaves_ends_neither_what_was_begun_nor_its_turn() -> None:
    done: list[str] = []

    async def main() -> None:
        turn, gate = Turn(), threading.Event()

        async def work(name: str) -> str:
            await loop.thread(gate.wait, 30)
            done.append(name)
            return name

        async def one(name: str) -> str:
            return await turn.to_the_end(lambda: work(name), name)

        leaves, stays = loop.spawn(one("leaves")), loop.spawn(one("stays"))
        while not turn.taken:
            await loop.sleep(0)
        await loop.stop(leaves)
        assert turn.taken
        gate.set()
        with loop.deadline(30):
            assert await stays == "stays"

    loop.run(main())
    assert done == ["leaves", "stays"]


def test_what_is_done_once_is_not_lost_with_its_first_caller() -> None:
    begun = 0

    async def main() -> None:
        gate = threading.Event()

        async def work() -> None:
            nonlocal begun
            begun += 1
            await loop.thread(gate.wait, 30)

        once = Once(work, "work")
        first, second = loop.spawn(once.wait()), loop.spawn(once.wait())
        while not begun:
            await loop.sleep(0)
        await loop.stop(first)
        gate.set()
        with loop.deadline(30):
            await second
            await once.wait()
        assert once.done

    loop.run(main())
    assert begun == 1


def test_what_failed_is_tried_again() -> None:
    outcomes = [OSError("no"), None]

    async def main() -> None:
        async def work() -> None:
            await loop.sleep(0)
            if (outcome := outcomes.pop(0)) is not None:
                raise outcome

        once = Once(work, "work")
        with loop.deadline(30):
            for found in await loop.gather(*(failure(once) for _ in range(3))):
                assert found == "no"
            assert await failure(once) == ""
            assert await failure(once) == ""
        assert once.done

    async def failure(once: Once) -> str:
        try:
            await once.wait()
        except OSError as error:
            return str(error)
        return ""

    loop.run(main())
    assert outcomes == []
