# SPDX-License-Identifier: Apache-2.0
"""The event loop, through its public functions."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
import weakref
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syntrop.common import journal, loop


def pair() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    return a, b


def test_run_returns_the_result_and_raises_the_error() -> None:
    async def fine() -> int:
        await loop.sleep(0)
        return 7

    async def broken() -> None:
        raise LookupError("x")

    assert loop.run(fine()) == 7
    with pytest.raises(LookupError):
        loop.run(broken())


def test_run_leaves_no_descriptor() -> None:
    async def main() -> None:
        loop.on_signal(signal.SIGUSR1, lambda: None)
        await loop.thread(lambda: None)

    before = os.listdir("/proc/self/fd")
    handler = signal.getsignal(signal.SIGUSR1)
    loop.run(main())
    assert os.listdir("/proc/self/fd") == before
    assert signal.getsignal(signal.SIGUSR1) == handler


def test_two_loops_at_once_are_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError):
            loop.run(loop.gather())

    loop.run(main())


def test_tasks_see_each_other_in_order() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def note(number: int) -> None:
            seen.append(number)
            await loop.sleep(0)
            seen.append(number + 10)

        first, second = loop.spawn(note(1)), loop.spawn(note(2))
        await first
        await second
        return seen

    assert loop.run(main()) == [1, 2, 11, 12]


def test_timers_fire_in_order_and_can_be_taken_back() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop.call_later(0.02, seen.append, "late")
        loop.call_later(0.01, seen.append, "early")
        loop.call_later(0.015, seen.append, "never").cancel()
        await loop.sleep(0.04)
        return seen

    assert loop.run(main()) == ["early", "late"]


def test_a_timer_may_be_years_away() -> None:
    async def main() -> int:
        timer = loop.call_later(1e9, os.abort)
        try:
            return await loop.thread(lambda: 7)  # until it has come, there is no other timer
        finally:
            timer.cancel()

    assert loop.run(main()) == 7


def test_many_cancelled_timers_are_dropped() -> None:
    async def main() -> int:
        for _ in range(10_000):
            loop.call_later(3600, print).cancel()
        return len(loop._running()._timers)

    assert loop.run(main()) < 1000


def test_deadline_interrupts_a_wait_and_only_its_own() -> None:
    async def main() -> str:
        try:
            with loop.deadline(600):
                try:
                    with loop.deadline(0.01):
                        await loop.sleep(60)
                except TimeoutError:
                    await loop.sleep(0)
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    assert loop.run(main()) == "inner"


def test_a_deadline_that_another_task_expires() -> None:
    async def main() -> list[str]:
        told = []
        for seconds in (None, 60.0):
            try:
                with loop.deadline(seconds) as limit:
                    loop.call_later(0.01, limit.expire)
                    loop.call_later(0.01, limit.expire)  # twice is once
                    try:
                        with loop.deadline(60):
                            await loop.sleep(60)
                    except TimeoutError:
                        told.append("inner")
            except TimeoutError as error:
                told.append(str(error))
        await loop.sleep(0.02)
        return told

    assert loop.run(main()) == ["not done in time", "not done within 60 s"]


def test_outer_deadline_passes_through_the_inner_one() -> None:
    async def main() -> str:
        try:
            with loop.deadline(0.01):
                try:
                    with loop.deadline(600):
                        await loop.sleep(60)
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    assert loop.run(main()) == "outer"


def test_a_value_that_arrived_is_not_lost_to_a_deadline() -> None:
    """The item is there and the deadline has passed in the same turn: the item is delivered."""

    async def main() -> tuple[int, bool]:
        queue: loop.Queue[int] = loop.Queue(1)
        late = False
        got = -1

        async def reader() -> None:
            nonlocal got, late
            try:
                with loop.deadline(0.01):
                    got = await queue.get()
                    await loop.sleep(60)
            except TimeoutError:
                late = True

        task = loop.spawn(reader())
        await loop.sleep(0)
        loop.call_later(0.005, queue.put_nowait, 5)
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass  # both timers are due in one turn now
        await task
        return got, late

    assert loop.run(main()) == (5, True)


def test_a_deadline_that_is_due_when_its_block_ends_does_not_fire_afterwards() -> None:
    """Data and deadline come in one turn, the data first: the block has ended when the timer would run."""

    async def main() -> None:
        for _ in range(3):
            a, b = pair()
            with loop.deadline(0.005):
                waiter = loop.readable(b.fileno())
                a.send(b"x")
                end = time.monotonic() + 0.01
                while time.monotonic() < end:
                    pass
                await waiter
            # Were it to fire now, it would end this wait as if the task had been cancelled.
            await loop.sleep(0.001)
            loop.forget(b.fileno())
            a.close()
            b.close()

    loop.run(main())


def test_a_timer_taken_back_in_the_turn_it_is_due_does_not_run() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        second = loop.call_later(0.002, seen.append, "second")
        loop.call_later(0.001, second.cancel)
        end = time.monotonic() + 0.01
        while time.monotonic() < end:
            pass
        await loop.sleep(0.005)
        return seen

    assert loop.run(main()) == []


def test_deadline_that_never_waits_does_not_fire_later() -> None:
    async def main() -> None:
        with loop.deadline(0.0):
            pass
        await loop.sleep(0.01)
        await loop.sleep(0)

    loop.run(main())


def test_cancel_is_seen_by_the_task_and_told_to_waiters() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def worker() -> None:
            try:
                await loop.sleep(60)
            except loop.Cancelled:
                seen.append("cleaned")
                raise

        task = loop.spawn(worker())
        await loop.sleep(0)
        await loop.stop(task)
        try:
            await task
        except loop.TaskCancelled:
            seen.append("told")
        return seen

    assert loop.run(main()) == ["cleaned", "told"]


def test_cancelling_a_waiter_leaves_the_awaited_task_alone() -> None:
    async def main() -> int:
        async def slow() -> int:
            await loop.sleep(0.02)
            return 3

        async def waiter(task: loop.Task[int]) -> int:
            return await task

        task = loop.spawn(slow())
        other = loop.spawn(waiter(task))
        await loop.sleep(0)
        await loop.stop(other)
        return await task

    assert loop.run(main()) == 3


def test_a_task_cancelled_before_it_ran_never_runs() -> None:
    async def main() -> bool:
        ran = False

        async def worker() -> None:
            nonlocal ran
            ran = True

        task = loop.spawn(worker())
        task.cancel()
        await loop.sleep(0.01)
        assert task.done
        return ran

    assert loop.run(main()) is False


def test_gather_cancels_the_rest_at_the_first_error() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def slow() -> None:
            try:
                await loop.sleep(60)
            finally:
                seen.append("slow ended")

        async def broken() -> None:
            await loop.sleep(0.001)
            raise LookupError

        with pytest.raises(LookupError):
            await loop.gather(slow(), broken())
        await loop.sleep(0)
        return seen

    assert loop.run(main()) == ["slow ended"]


def test_readiness_and_hangup_of_a_unix_socket() -> None:
    async def main() -> list[str]:
        a, b = pair()
        seen: list[str] = []

        async def note(name: str, wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            seen.append(name)

        tasks = [
            loop.spawn(note("half", lambda: loop.hangup(b.fileno(), half=True))),
            loop.spawn(note("read", lambda: loop.readable(b.fileno()))),
        ]
        await loop.sleep(0.01)
        assert seen == []
        a.shutdown(socket.SHUT_WR)
        await loop.sleep(0.01)
        assert sorted(seen) == ["half", "read"]
        seen.clear()
        tasks.append(loop.spawn(note("gone", lambda: loop.hangup(b.fileno()))))
        await loop.sleep(0.01)
        assert seen == []  # half-closed is not gone
        a.close()
        await loop.sleep(0.01)
        for task in tasks:
            await task
        loop.forget(b.fileno())
        b.close()
        return seen

    assert loop.run(main()) == ["gone"]


def test_a_reused_descriptor_number_is_watched_anew() -> None:
    async def main() -> None:
        for _ in range(50):
            a, b = pair()
            waiter = loop.readable(b.fileno())
            a.send(b"x")
            with loop.deadline(60):
                await waiter
            a.close()
            b.close()  # without forget(): the next pair gets the same numbers

    loop.run(main())


def test_two_readers_of_one_descriptor_are_refused() -> None:
    async def main() -> None:
        a, b = pair()

        async def read() -> None:
            await loop.readable(b.fileno())

        task = loop.spawn(read())
        await loop.sleep(0)
        with pytest.raises(RuntimeError):
            loop.readable(b.fileno())
        await loop.stop(task)
        with loop.deadline(60):
            a.send(b"x")
            await loop.readable(b.fileno())  # the cancelled one left its place
        a.close()
        b.close()

    loop.run(main())


def test_an_error_keeps_nothing_alive() -> None:
    """Neither of a thread's work nor of a task, without the collector's help."""

    class Large:
        pass

    left: list[weakref.ref[Large]] = []

    def refuse(large: Large) -> None:
        raise LookupError

    async def work() -> None:
        large = Large()
        left.append(weakref.ref(large))
        await loop.thread(refuse, large)

    async def main() -> None:
        for ask in (work, lambda: loop.spawn(work()), lambda: loop.spawn(work(), eager=True)):
            with pytest.raises(LookupError) as caught:
                await ask()
            del caught
            with loop.deadline(20):  # the thread lets go after it has told
                while left[-1]() is not None:
                    await loop.sleep(0.001)

    gc.collect()
    gc.disable()
    try:
        loop.run(main())
        assert len(left) == 3
    finally:
        gc.enable()


def test_signals_arrive_in_the_loop() -> None:
    async def main() -> int:
        seen = 0
        event = loop.Event()

        def note() -> None:
            nonlocal seen
            seen += 1
            event.set()

        loop.on_signal(signal.SIGUSR1, note)
        os.kill(os.getpid(), signal.SIGUSR1)
        with loop.deadline(60):
            await event.wait()
        return seen

    assert loop.run(main()) == 1


def test_an_error_that_nobody_awaits_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[BaseException] = []
    monkeypatch.setattr(journal, "exception", lambda message, error, **_: logged.append(error))

    async def broken() -> None:
        raise LookupError("lost")

    async def main() -> None:
        loop.spawn(broken())
        await loop.sleep(0)

    loop.run(main())
    gc.collect()
    assert [type(error) for error in logged] == [LookupError]


def test_an_error_that_may_go_unread_is_not_logged_and_any_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[BaseException] = []
    monkeypatch.setattr(journal, "exception", lambda message, error, **_: logged.append(error))

    async def broken(error: Exception) -> None:
        raise error

    async def main() -> None:
        for error in (KeyError("a"), IndexError("b"), OSError("c")):
            loop.spawn(broken(error)).when_done(lambda task: task.forgive(LookupError, ValueError))
        read = loop.spawn(broken(KeyError("d")))
        read.when_done(lambda task: task.forgive(LookupError))
        with pytest.raises(KeyError, match="d"):
            await read

    loop.run(main())
    gc.collect()
    assert [type(error) for error in logged] == [OSError]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(0, 2**32),
)
def test_a_queue_loses_and_doubles_nothing(bound: int, plan: list[tuple[int, bool]], seed: int) -> None:
    """Producers and consumers, some of them cancelled at arbitrary points: what was put is got once."""
    import random

    chance = random.Random(seed)

    async def main() -> None:
        queue: loop.Queue[int] = loop.Queue(bound)
        put: list[int] = []
        got: list[int] = []

        async def producer(number: int) -> None:
            await queue.put(number)
            put.append(number)

        async def consumer() -> None:
            got.append(await queue.get())

        tasks: list[loop.Task[None]] = []
        for number, (kind, pause) in enumerate(plan):
            tasks.append(loop.spawn(producer(number) if kind % 2 else consumer()))
            if kind == 3 and tasks:
                chance.choice(tasks).cancel()
            if pause:
                await loop.sleep(0)
            assert len(queue) <= bound
        for _ in range(len(plan) + 2):
            await loop.sleep(0)
        while len(queue):
            got.append(queue.get_nowait())
            await loop.sleep(0)
        for task in tasks:
            await loop.stop(task)
        while len(queue):
            got.append(queue.get_nowait())
        assert sorted(got) == sorted(put)
        assert len(set(got)) == len(got)

    loop.run(main())


def test_what_is_urgent_comes_between_two_steps_of_a_crowd() -> None:
    """Woken in the middle of a turn, it does not wait for the rest of it, nor does what it starts."""
    said: list[str] = []

    async def main() -> None:
        ours, theirs = pair()

        async def answer() -> None:
            await loop.readable(ours.fileno())
            ours.recv(1)
            await loop.sleep(0)
            await loop.spawn(follow())

        async def follow() -> None:
            said.append("urgent")

        async def step(number: int) -> None:
            if number == 3:
                theirs.send(b"x")
                until = time.monotonic() + 0.002
                while time.monotonic() < until:
                    pass
            said.append(str(number))

        urgent = loop.spawn(answer(), urgent=True)
        await loop.sleep(0.01)
        crowd = [loop.spawn(step(number)) for number in range(100)]
        for one in crowd:
            await one
        await urgent
        loop.forget(ours.fileno())
        ours.close()
        theirs.close()

    loop.run(main())
    # Each step of the crowd may let one step of the urgent ones by.
    assert 3 < said.index("urgent") < 12
    assert [one for one in said if one != "urgent"] == [str(number) for number in range(100)]


def test_a_descriptor_passes_between_the_urgent_and_the_others() -> None:
    async def main() -> list[bytes]:
        ours, theirs = pair()

        async def read() -> bytes:
            await loop.readable(ours.fileno())
            return ours.recv(1)

        got = []
        for urgent in (False, True, True, False, True):
            task = loop.spawn(read(), urgent=urgent)
            await loop.sleep(0)
            theirs.send(b"x")
            with loop.deadline(60):
                got.append(await task)
        loop.forget(ours.fileno())
        ours.close()
        theirs.close()
        return got

    assert loop.run(main()) == [b"x"] * 5
