# SPDX-License-Identifier: Apache-2.0
"""A coroutine event loop over epoll, one per process.

`asyncio` costs a control daemon more than its whole start budget (about 30 ms of a cold activation and
11 MiB), so the suite brings the part of it that it uses. The rules:

1. A *future* is one value that arrives later. A *task* is a future that drives a coroutine; what the
   coroutine awaits is always a future in the end.
2. A task is interrupted (`cancel()`, `deadline`) only where it really waits. When the value it waits for has
   already arrived it is delivered first and the interruption comes at the next wait, so nothing is lost
   between a queue and its reader.
3. Waiting for a task does not own it: when the waiter is interrupted, the awaited task goes on.
4. Descriptors are armed one-shot (EPOLLONESHOT, epoll_ctl(2)), so a descriptor that was closed and whose
   number was used again needs no book-keeping here.
5. All deadlines are on the monotonic clock.
6. An *urgent* task, and whatever it starts and waits for, comes before all others: what became ready for it is
   found between two steps of theirs, not only once a turn.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import signal
from collections import deque
from heapq import heapify, heappop, heappush
from time import monotonic
from time import sleep as pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import FrameType, TracebackType
    from typing import Any, Generic, TypeVar

    T = TypeVar("T")
else:
    T = None

    class Generic:
        """Stands in for typing's, which stays off the start path."""

        __slots__ = ()

        def __class_getitem__(cls, item):
            return cls


_IN, _OUT, _HUP = select.EPOLLIN, select.EPOLLOUT, 0
_GONE = select.EPOLLHUP | select.EPOLLERR
_TURN = 0.0002  # seconds for which steps of others may run before urgent descriptors are looked at
_SLEEP = 1_000_000.0  # seconds for which the loop sleeps at most: the kernel takes no more than 24 days at once
_TIMERS = 256  # that are kept before those that were taken back are looked for
_ENDED = (errno.EBADF, errno.EPIPE)  # of waking a loop that is closed, or half so
_WORKERS = 8  # threads that `thread()` may have at once; further calls queue


class Cancelled(BaseException):
    """Thrown into a task that was cancelled; let it pass."""


class TaskCancelled(Exception):
    """The task that was waited for had been cancelled."""


class QueueFull(Exception):
    """`put_nowait` on a queue at its bound."""


class QueueEmpty(Exception):
    """`get_nowait` on an empty queue."""


class Future(Generic[T]):
    """One value, or one error, that arrives later."""

    __slots__ = ("__weakref__", "_callbacks", "_error", "_seen", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], None]] = []
        self._seen = False

    def set_result(self, value: T) -> None:
        """Give the value; a future that is already done keeps what it has."""
        if not self.done:
            self._value = value
            self._finish()

    def set_error(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def when_done(self, callback: Callable[[Future[T]], None]) -> None:
        """Call back with this future, at once when it is done already."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """The value of a done future, or raise its error."""
        self._seen = True
        if self._error is not None:
            if isinstance(self._error, Cancelled):
                raise TaskCancelled
            try:
                raise self._error
            finally:
                # The error's traceback has this frame. A ring of the two would keep what its other frames hold,
                # a request of megabytes perhaps, until the collector comes; so here and below.
                del self
        return self._value  # type: ignore[no-any-return]

    def forgive(self, *kinds: type[Exception]) -> None:
        """An error of these kinds may go unread: it is for whoever waits, and no fault where nobody does."""
        if isinstance(self._error, kinds):
            self._seen = True

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self.done:
            yield self
        try:
            return self.result()
        finally:
            del self


class Task(Future["T"]):
    """A running coroutine. Awaiting it gives its result or raises its error."""

    __slots__ = ("_coroutine", "_interrupts", "_loop", "_queue", "_waiting", "name", "urgent")

    def __init__(self, loop: Loop, coroutine: Coroutine[Any, Any, T], name: str, urgent: bool = False) -> None:
        super().__init__()
        self.name = name
        self.urgent = urgent
        self._queue = loop._first if urgent else loop._ready
        self._loop = loop
        self._coroutine = coroutine
        self._waiting: Future[Any] | None = None
        self._interrupts: list[BaseException] = []

    def cancel(self) -> None:
        """Throw `Cancelled` into the coroutine at its (next) wait."""
        self._interrupt(Cancelled())

    def _interrupt(self, error: BaseException) -> None:
        if self.done:
            return
        self._interrupts.append(error)
        waiting = self._waiting
        if waiting is not None and not waiting.done:
            waiting._callbacks.remove(self._resume)
            self._waiting = None
            self._queue.append((self._step, ()))

    def _withdraw(self, error: BaseException) -> None:
        if error in self._interrupts:
            self._interrupts.remove(error)

    def _resume(self, _future: Future[Any]) -> None:
        self._queue.append((self._step, ()))

    def _step(self) -> None:
        if self.done:
            return
        loop, waiting = self._loop, self._waiting
        self._waiting = None
        previous, loop.current = loop.current, self
        try:
            while True:
                if self._interrupts and waiting is None:
                    future = self._coroutine.throw(self._interrupts.pop(0))
                else:
                    future = self._coroutine.send(None)
                if future.done:
                    # Nothing to wait for. A pending interruption is kept for a real wait (rule 2).
                    waiting = future
                elif self._interrupts:
                    waiting = None
                else:
                    break
            self._waiting = future
            future._callbacks.append(self._resume)
        except StopIteration as stop:
            self.set_result(stop.value)
        except BaseException as error:
            self.set_error(error)
            if not isinstance(error, Exception | Cancelled):
                raise  # KeyboardInterrupt and SystemExit end the process as they always do
        finally:
            loop.current = previous
            del self, waiting

    def __del__(self) -> None:
        error = self._error
        if error is not None and not self._seen and not isinstance(error, Cancelled):
            from syntrop.common import journal

            journal.exception(f"Task {self.name} failed and nobody waited for it", error)
        elif not self.done:
            self._coroutine.close()


class Timer:
    """A call in the future; `cancel()` takes it back."""

    __slots__ = ("arguments", "function", "when")

    def __init__(self, when: float, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.when = when
        self.function: Callable[..., object] | None = function
        self.arguments = arguments

    def cancel(self) -> None:
        self.function = None
        self.arguments = ()

    def expire(self) -> None:
        """Make the call, unless it was taken back since it became due, by what ran before it in its turn."""
        if self.function is not None:
            self.function(*self.arguments)

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """The loop itself. Use the module's functions: they act on the process's one loop."""

    def __init__(self) -> None:
        self.current: Task[Any] | None = None
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._first: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()  # of urgent tasks
        self._timers: list[Timer] = []
        self._timers_most = _TIMERS
        self._epoll = select.epoll()
        # Waiters by descriptor, one dictionary a direction.
        self._readers: dict[int, Future[None]] = {}
        self._writers: dict[int, Future[None]] = {}
        self._hangups: dict[int, tuple[Future[None], int]] = {}
        self._watchers: dict[int, Callable[[int], object]] = {}
        self._known: set[int] = set()
        # Descriptors that urgent tasks wait for are in a set of their own, which is one of the others' set.
        self._urgent: select.epoll | None = None
        self._urgent_fd = -1
        self._urgent_known: set[int] = set()
        self._foreign: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._workers = 0
        self._work: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._signals: dict[int, Any] = {}
        self._old_wakeup: int | None = None

    # --- calls -------------------------------------------------------------------------------------------

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        self._ready.append((function, arguments))

    def call_later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> Timer:
        timer = Timer(monotonic() + seconds, function, arguments)
        timers = self._timers
        heappush(timers, timer)
        if len(timers) > self._timers_most:
            # Most timers are deadlines that were kept. So seldom, that it costs each of them little.
            timers[:] = [t for t in timers if t.function is not None]
            heapify(timers)
            self._timers_most = max(_TIMERS, 2 * len(timers))
        return timer

    def threadsafe(self, function: Callable[..., object], *arguments: Any) -> None:
        self._foreign.append((function, arguments))
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already
        except OSError as error:
            if error.errno not in _ENDED:  # a thread that outlived the loop
                raise

    # --- descriptors -------------------------------------------------------------------------------------

    def readable(self, fd: int) -> Future[None]:
        return self._watch(self._readers, fd)

    def writable(self, fd: int) -> Future[None]:
        return self._watch(self._writers, fd)

    def _watch(self, waiters: dict[int, Future[None]], fd: int) -> Future[None]:
        previous = waiters.get(fd)
        if previous is not None and previous._callbacks:
            raise RuntimeError(f"two tasks wait for descriptor {fd} in one direction")
        future: Future[None] = Future()
        waiters[fd] = future
        self._arm(fd, self.is_urgent())
        return future

    def hangup(self, fd: int, *, half: bool) -> Future[None]:
        future: Future[None] = Future()
        self._hangups[fd] = (future, select.EPOLLRDHUP if half else _HUP)
        self._arm(fd, self.is_urgent())
        return future

    def is_urgent(self) -> bool:
        """Whether the task that runs now is."""
        return self.current is not None and self.current.urgent

    def _arm(self, fd: int, urgent: bool) -> None:
        mask = select.EPOLLONESHOT
        if fd in self._readers:
            mask |= _IN
        if fd in self._writers:
            mask |= _OUT
        if fd in self._hangups:
            mask |= self._hangups[fd][1]
        epoll, known = self._epoll, self._known
        if urgent:
            if fd in known:
                self._unregister(fd)
            if self._urgent is None:
                self._urgent = select.epoll()
                self._urgent_fd = self._urgent.fileno()
                self._epoll.register(self._urgent_fd, select.EPOLLIN)
            epoll, known = self._urgent, self._urgent_known
        elif fd in self._urgent_known:
            self._unregister(fd)
        # The number may be a new file since we last saw it, or the same: either call may be the right one.
        if fd in known:
            try:
                epoll.modify(fd, mask)
                return
            except FileNotFoundError:
                pass
        try:
            epoll.register(fd, mask)
        except FileExistsError:
            epoll.modify(fd, mask)
        known.add(fd)

    def _unregister(self, fd: int) -> None:
        for epoll, known in ((self._epoll, self._known), (self._urgent, self._urgent_known)):
            if fd in known and epoll is not None:
                known.discard(fd)
                try:
                    epoll.unregister(fd)
                except OSError:
                    pass  # closed already

    def watch(self, fd: int, function: Callable[[int], object]) -> None:
        self._epoll.register(fd, select.EPOLLPRI)
        self._watchers[fd] = function
        self._known.add(fd)

    def forget(self, fd: int) -> None:
        """Drop the waiters of a descriptor that is about to be closed; they never return."""
        self._watchers.pop(fd, None)
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)
        self._hangups.pop(fd, None)
        self._unregister(fd)

    def _dispatch(self, fd: int, events: int) -> None:
        if fd == self._wake_read:
            try:
                while os.read(fd, 4096):
                    pass
            except BlockingIOError:
                pass
            while self._foreign:
                self._ready.append(self._foreign.popleft())
            return
        if (watcher := self._watchers.get(fd)) is not None:
            self._ready.append((watcher, (events,)))
            return
        if events & (_IN | _GONE) and (future := self._readers.pop(fd, None)) is not None:
            future.set_result(None)
        if events & (_OUT | _GONE) and (future := self._writers.pop(fd, None)) is not None:
            future.set_result(None)
        hangup = self._hangups.get(fd)
        if hangup is not None and events & (_GONE | hangup[1]):
            del self._hangups[fd]
            hangup[0].set_result(None)
        if fd in self._readers or fd in self._writers or fd in self._hangups:
            self._arm(fd, fd in self._urgent_known)

    def _look_first(self) -> None:
        """Do what is urgent now."""
        if self._urgent is not None:
            for fd, events in self._urgent.poll(0, 64):
                self._dispatch(fd, events)
        first = self._first
        for _ in range(len(first)):
            function, arguments = first.popleft()
            function(*arguments)

    # --- tasks, threads, signals -------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str, eager: bool, urgent: bool = False) -> Task[T]:
        name = name or getattr(coroutine, "__qualname__", "task")
        task = Task(self, coroutine, name, urgent or self.is_urgent())
        if eager:
            task._step()
        else:
            task._queue.append((task._step, ()))
        return task

    def thread(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self._work.append((future, function, arguments))
        self._start_work()
        return future

    def _start_work(self) -> None:
        while self._work and self._workers < _WORKERS:
            work = self._work.popleft()
            self._workers += 1
            try:
                _thread.start_new_thread(any, (self._worker(*work),))
            except RuntimeError:  # no memory for its stack, or a limit on processes
                self._workers -= 1
                work[0].set_error(MemoryError("no thread can be started"))

    def _worker(
        self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Generator[None]:
        """The body of a worker thread, which `any` runs.

        A thread that begins where the system has no memory left has no room for the frame of a function, and what
        it was to do would be lost without a word. A generator brings its frame along, and calls nothing but C
        outside of the `try`.
        """
        ended: Callable[[Any], None]
        try:
            value = function(*arguments)
            ended = future.set_result
        except BaseException as error:
            value, ended = error, future.set_error
        told = False
        while True:
            try:
                if not told:
                    self._foreign.append((self._work_done, (ended, value)))
                    told = True
                os.write(self._wake_write, b"\0")
            except MemoryError:
                pause(0.05)
                continue
            except BlockingIOError:
                pass  # the pipe is full of wake-ups already
            except OSError as error:
                if error.errno not in _ENDED:  # a thread that outlived the loop
                    raise
            break
        del future, function, arguments, ended, value
        yield

    def _work_done(self, setter: Callable[[Any], None], value: Any) -> None:
        self._workers -= 1
        setter(value)
        self._start_work()

    def on_signal(self, number: int, function: Callable[[], object]) -> None:
        def handler(_number: int, _frame: FrameType | None) -> None:
            self._ready.append((function, ()))

        if self._old_wakeup is None:
            self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        old = signal.signal(number, handler)
        self._signals.setdefault(number, old)

    # --- running -----------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        task = self.spawn(main, "main", False)
        ready, first, poll, looked = self._ready, self._first, self._epoll.poll, 0.0
        while not task.done:
            if ready or first:
                timeout = 0.0
            elif self._timers:
                timeout = min(_SLEEP, max(0.0, self._timers[0].when - monotonic()))
            else:
                timeout = -1.0
            for fd, events in poll(timeout, 256):
                if fd != self._urgent_fd:
                    self._dispatch(fd, events)
            if self._timers:
                now = monotonic()
                while self._timers and self._timers[0].when <= now:
                    timer = heappop(self._timers)
                    if timer.function is not None:
                        ready.append((timer.expire, ()))
            if first or self._urgent is not None:
                self._look_first()
                looked = monotonic()
            # What becomes ready meanwhile waits for the next turn: descriptors and timers are never starved.
            for _ in range(len(ready)):
                function, arguments = ready.popleft()
                function(*arguments)
                if first or (self._urgent is not None and monotonic() - looked > _TURN):
                    self._look_first()
                    looked = monotonic()
        return task.result()

    def close(self) -> None:
        for number, old in self._signals.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
        if self._old_wakeup is not None:
            signal.set_wakeup_fd(self._old_wakeup)
        self._epoll.close()
        if self._urgent is not None:
            self._urgent.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


_loop: Loop | None = None


def _running() -> Loop:
    if _loop is None:
        raise RuntimeError("the event loop is not running")
    return _loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new loop and return its result. Tasks still running then are closed."""
    global _loop
    if _loop is not None:
        main.close()
        raise RuntimeError("the event loop is running already")
    _loop = Loop()
    try:
        return _loop.run(main)
    finally:
        loop, _loop = _loop, None
        loop.close()


def spawn(
    coroutine: Coroutine[Any, Any, T], name: str = "", *, eager: bool = False, urgent: bool = False
) -> Task[T]:
    """Start a task, with `eager` at once, up to its first wait; with `urgent`, or from an urgent one, it comes
    before all that are not. An error that nobody awaits is logged."""
    return _running().spawn(coroutine, name, eager, urgent)


def current() -> Task[Any]:
    """The task that runs now."""
    task = _running().current
    if task is None:
        raise RuntimeError("not inside a task")
    return task


def call_soon(function: Callable[..., object], *arguments: Any) -> None:
    _running().call_soon(function, *arguments)


def call_later(seconds: float, function: Callable[..., object], *arguments: Any) -> Timer:
    """Call `function` after `seconds` on the monotonic clock."""
    return _running().call_later(seconds, function, *arguments)


def threadsafe(function: Callable[..., object], *arguments: Any) -> None:
    """From any thread: have the loop call `function`. Nothing happens once the loop has ended."""
    loop = _loop
    if loop is not None:
        loop.threadsafe(function, *arguments)


def thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Run a blocking function in a worker thread; await the result. The call itself cannot be interrupted."""
    return _running().thread(function, *arguments)


def on_signal(number: int, function: Callable[[], object]) -> None:
    """Have the loop call `function` after each signal `number`."""
    _running().on_signal(number, function)


def readable(fd: int) -> Future[None]:
    """Done when `fd` can be read, or has failed or been hung up. One waiter a direction."""
    return _running().readable(fd)


def writable(fd: int) -> Future[None]:
    """Done when `fd` can be written, or has failed or been hung up."""
    return _running().writable(fd)


def hangup(fd: int, *, half: bool = False) -> Future[None]:
    """Done when the peer has gone: EPOLLHUP or EPOLLERR, with `half` already at its shutdown of writing.

    A Unix stream socket tells the two apart (only a closed peer gives EPOLLHUP). TCP does not: there a FIN
    looks the same either way, so servers that take it for a hang-up ask with `half`.
    """
    return _running().hangup(fd, half=half)


def watch(fd: int, function: Callable[[int], object]) -> None:
    """Have the loop call `function(events)` at each EPOLLPRI or EPOLLERR of a kernel file, till `forget(fd)`.

    Not one-shot: a pressure trigger forgets its event when it is polled, which arming again would do.
    """
    _running().watch(fd, function)


def forget(fd: int) -> None:
    """To be called before a watched descriptor is closed. Waiters still there never return."""
    if _loop is not None:
        _loop.forget(fd)


def sleep(seconds: float) -> Future[None]:
    future: Future[None] = Future()
    loop = _running()
    if seconds <= 0 and loop.is_urgent():
        loop._first.append((future.set_result, (None,)))  # timers come once a turn
    else:
        loop.call_later(seconds, future.set_result, None)
    return future


async def gather(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run several coroutines side by side and return their results in order.

    The first error cancels the rest and is raised; so does an interruption of the caller.
    """
    tasks = [spawn(c) for c in coroutines]
    running = len(tasks)
    settled: Future[None] = Future()

    def ended(task: Future[Any]) -> None:
        nonlocal running
        running -= 1
        if running == 0 or task._error is not None:
            settled.set_result(None)

    try:
        for task in tasks:
            task.when_done(ended)
        if tasks:
            await settled
        for task in tasks:
            if task._error is not None:
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            if not task.done:
                task.cancel()
            elif task._error is not None:
                task._seen = True


async def stop(task: Task[Any]) -> None:
    """Cancel a task and wait until it has ended; its error, if any, is the log's."""
    task.cancel()
    if not task.done:
        ended: Future[None] = Future()
        task.when_done(lambda _task: ended.set_result(None))
        await ended


class deadline:
    """`with deadline(seconds):` raises TimeoutError in the block when it takes longer. None never fires by itself;
    another task may `expire()` it while the block runs."""

    __slots__ = ("_marker", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timer: Timer | None = None
        self._marker: Cancelled | None = None

    def __enter__(self) -> deadline:
        loop = _running()
        if loop.current is None:
            raise RuntimeError("not inside a task")
        self._task = loop.current
        if self._seconds is not None:
            self._timer = loop.call_later(self._seconds, self._fire)
        return self

    def _fire(self) -> None:
        if self._marker is None:
            self._marker = Cancelled()
            self._task._interrupt(self._marker)

    def expire(self) -> None:
        """The time is up already. Only from another task, and while the block runs."""
        self._fire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._marker is None:
            return
        if error is self._marker:
            took = "in time" if self._seconds is None else f"within {self._seconds:g} s"
            raise TimeoutError(f"not done {took}") from None
        self._task._withdraw(self._marker)


class Event:
    """A flag to wait for."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        if self._set:
            return
        waiter: Future[None] = Future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


class Queue(Generic[T]):
    """A bounded queue between tasks of this loop."""

    __slots__ = ("_bound", "_getters", "_items", "_putters")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._items: deque[T] = deque()
        self._getters: deque[Future[None]] = deque()
        self._putters: deque[Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @staticmethod
    def _wake(waiters: deque[Future[None]]) -> None:
        while waiters:
            waiter = waiters.popleft()
            # One whose task was interrupted has no callback left: it would swallow the wake-up.
            if waiter._callbacks:
                waiter.set_result(None)
                return

    def put_nowait(self, item: T) -> None:
        """Raises QueueFull at the bound."""
        if len(self._items) >= self._bound:
            raise QueueFull
        self._items.append(item)
        self._wake(self._getters)

    def get_nowait(self) -> T:
        """Raises QueueEmpty."""
        if not self._items:
            raise QueueEmpty
        item = self._items.popleft()
        self._wake(self._putters)
        return item

    async def put(self, item: T) -> None:
        while len(self._items) >= self._bound:
            waiter: Future[None] = Future()
            self._putters.append(waiter)
            await waiter
        self.put_nowait(item)

    async def get(self) -> T:
        while not self._items:
            waiter: Future[None] = Future()
            self._getters.append(waiter)
            await waiter
        return self.get_nowait()
