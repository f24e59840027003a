# SPDX-License-Identifier: Apache-2.0
"""The daemon's lease of inferenced: one for the weights and caches of all models, in steps of `ration.STEP`.

It is asked for before weights are mapped, while modeld is still opening their files, and made larger before
caches outgrow it. Where inferenced is away or slow the work goes on without one, which is noted once; where it
has no room, that counts: the budget shrinks to what is leased, and a load is refused. Nothing is connected
between the calls, and a lease lives on while inferenced restarts, since it is this process that holds it.
"""

from __future__ import annotations

from time import monotonic

from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.runtimed import ration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from syntrop.common.varlink.client import Client
    from syntrop.runtimed.model.kv import Budget

    Early = tuple[Client, list[dict[str, Any]]]
    """A connection and the planes that were listed on it."""

INFERENCE: Final = "io.syntrop.Inference1"
PRIORITY: Final = "Interactive"
"""A loaded model may serve anybody in the next moment; Batch work inside yields at a signal."""
SIGNAL: Final = "SIGUSR1"
TIMEOUT: Final = 10.0
"""Seconds after which an answer is not expected any more."""
RETRY: Final = 10.0
"""Seconds for which a refusal or a silence is taken for the next answer, too."""
SETTLE: Final = 10.0
"""Seconds after which what caches do not need any more is given back."""


LOOK_AGAIN: Final = 1.0
"""Seconds between two questions whether critical pressure has passed."""


class Refused(Exception):
    """There is no room for what is needed; the text has the numbers. `pressed`: that is for the pressure."""

    def __init__(self, text: str, *, pressed: bool = False) -> None:
        super().__init__(text)
        self.pressed = pressed


class Lent:
    """With it, so many bytes of caches are others' to lease."""

    __slots__ = ("_leases", "_size")

    def __init__(self, leases: Leases, size: int) -> None:
        self._leases = leases
        self._size = size

    def __enter__(self) -> None:
        self._leases.borrow(self._size)

    def __exit__(self, *_: object) -> None:
        self._leases.give_back(self._size)


class Leases:
    """`wait`: seconds that work is held up at most for an answer; `calm`: a load, for critical pressure to pass.
    What is leased is booked in `budget`, which is set before the first `cover()`."""

    def __init__(self, wait: float = 0.3, calm: float = 30.0) -> None:
        self.lease: str | None = None
        self.size = 0
        self.lent = 0
        """Bytes for caches of calls that others hold leases for, so that ours does not have to."""
        self._wait = wait
        self._calm = calm
        self._budget: Budget | None = None
        self._nodes = 1
        self._expected = 0  # bytes that are about to be taken into use
        self._noted = False
        self._turn: loop.Future[None] | None = None  # one conversation at a time
        self._early: loop.Task[Early | None] | None = None
        self._settling: loop.Timer | None = None
        self._retrying: loop.Timer | None = None

    @property
    def budget(self) -> Budget:
        assert self._budget is not None
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        budget.hungry = lambda: loop.threadsafe(self._hungry)

    # --- loads ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """A lease will be asked for soon: have a sleeping inferenced started, and look at its planes, already."""
        if self.lease is None and self._early is None:
            self._early = loop.spawn(self._look_early(), "wake inferenced")

    def rest(self) -> None:
        """Nothing will be asked for after all, or it has been."""
        if self._early is not None:
            loop.spawn(self._hang_up(), "hang up")

    def ahead(self, size: int) -> None:
        """So many bytes more will be wanted soon: ask for them already."""
        loop.spawn(self._grow(self._own() + self._expected + size), "lease ahead")

    async def cover(self, size: int) -> None:
        """Have so many bytes leased beside what is in use. The caller takes them at once. Raises Refused; for
        critical pressure only when that does not pass."""
        self._expected += size
        patience = monotonic() + self._calm
        try:
            while (refused := await self._in_time(self._grow(0))) is not None:
                if not refused.pressed or monotonic() >= patience:
                    raise refused
                await loop.sleep(LOOK_AGAIN)
        finally:
            self._expected -= size

    def settle_soon(self) -> None:
        """Something was given up for good: give back what is not needed for the rest."""
        if self._budget is not None and self._spare():
            loop.spawn(self.settle(), "settle the lease")

    def borrow(self, size: int) -> None:
        """A call begins whose cache, of so many bytes at most, somebody else's lease is for."""
        self.lent += size
        if self.lease is not None:
            self._allow_as_before()

    def give_back(self, size: int) -> None:
        """It has ended. What is kept of its cache is ours to lease, or goes; where it was broken off, when the
        engine lets go of it (`Budget.rest`)."""
        self.lent -= size
        if self.lease is not None:
            self._allow_as_before()
            if self.budget.used > self.budget.leased:
                loop.spawn(self._take_over(), "lease for what is kept")

    async def _take_over(self) -> None:
        refused = await self._grow(0, cache=True)
        if refused is not None:
            self._stay(refused)
            self.budget.compact(self.budget.leased)

    # --- caches ---------------------------------------------------------------------------------------------

    def _hungry(self) -> None:
        loop.spawn(self._feed(), "lease for caches")

    async def _feed(self) -> None:
        """More for caches that grow; where it is refused, they have to do with what there is."""
        budget = self.budget
        try:
            refused = await self._in_time(self._grow(budget.need - self.lent, cache=True))
            if refused is not None:
                self._stay(refused)
        finally:
            budget.answered()

    def _stay(self, refused: Refused) -> None:
        """Have no more in caches than is leased, for the time being."""
        journal.notice(f"Caches stay within the {self.size} bytes that are leased: {refused}")
        self._allow(min(self.size + self.lent, self.budget.ceiling))
        self._try_again_later()

    # --- giving back ----------------------------------------------------------------------------------------

    async def asked(self) -> int | None:
        """Bytes that inferenced asks us to shrink to; None where it does not, or does not answer in time."""
        if self.lease is None:
            return None
        try:
            with loop.deadline(self._wait):
                size: int | None = (await self._call("ExplainLease", lease_id=self.lease)).get("asked")
            return size
        except _FAULTS as error:
            journal.notice(f"inferenced does not tell how much memory it wants back: {error or 'no answer'}")
            return None

    async def shrink(self, size: int) -> None:
        """Lease no more than so many bytes, or what is in use. What needs more after that asks for it."""
        await self._begin()
        try:
            if self.lease is not None:
                budget = self.budget
                size = max(size, self._own())
                budget.allow(min(size + self.lent, budget.leased), budget.limit)
                await self._give(size if budget.used else 0)
        except _FAULTS as error:
            journal.notice(f"Lease {self.lease} could not be made smaller: {error or 'no answer'}")
        finally:
            self._end()

    async def settle(self) -> None:
        """Give back what is leased and not needed."""
        await self._begin()
        try:
            if self._spare():
                size = self._wanted()
                if self.budget.leased > size + self.lent:
                    self.budget.allow(size + self.lent, self.budget.limit)
                await self._give(size)
        except _FAULTS as error:
            journal.notice(f"Lease {self.lease} could not be made smaller: {error or 'no answer'}")
        finally:
            self._end()
        budget = self.budget
        if self.lease is not None and budget.held > budget.weights:
            self._settle_later()

    async def _give(self, size: int) -> None:
        assert self.lease is not None
        if size >= self.size:
            return
        if not size:
            lease = self.lease
            self._forget()
            await self._call("ReleaseLease", lease_id=lease)
            return
        try:
            await self._call("ResizeLease", lease_id=self.lease, memory_bytes=size)
        except VarlinkError as error:
            if error.name != "LeaseNotFound":
                raise
            self._forget()
        else:
            self.size = size

    def _wanted(self) -> int:
        return ration.wanted(self._own() + self._expected, self.budget.ceiling)

    def _own(self) -> int:
        """Bytes in use that are ours to lease."""
        return max(self.budget.weights, self.budget.used - self.lent)

    def _allow_as_before(self) -> None:
        budget = self.budget
        self._allow(min(self.size + self.lent, budget.ceiling) if budget.is_short else budget.limit)

    def _allow(self, limit: int) -> None:
        self.budget.allow(self.size + self.lent, limit)

    def _spare(self) -> bool:
        return self.lease is not None and self._wanted() < self.size

    def _settle_later(self) -> None:
        if self._settling is None:
            self._settling = loop.call_later(SETTLE, self._settle_now)

    def _settle_now(self) -> None:
        self._settling = None
        loop.spawn(self.settle(), "settle the lease")

    # --- asking ---------------------------------------------------------------------------------------------

    async def _in_time(self, growing: Any) -> Refused | None:
        """The answer, or None after a while: work goes on without then, and the answer counts when it comes."""
        task = loop.spawn(growing, "lease")
        try:
            with loop.deadline(self._wait):
                return await task  # type: ignore[no-any-return]
        except TimeoutError:
            self._go_without(f"no answer within {self._wait:g} s")
            return None

    async def _grow(self, least: int, *, cache: bool = False) -> Refused | None:
        """Have the lease cover what is in use and expected, and at least `least` bytes; for caches, well ahead."""
        await self._begin()
        try:
            budget = self.budget
            need = max(least, self._own() + self._expected)
            size = ration.wanted(need, budget.ceiling)
            if self.lease is not None and (size if cache else need) <= self.size:
                self._allow(budget.ceiling)
                return None
            if cache:
                need = self.size + ration.LEAST
            try:
                await self._have(size)
            except VarlinkError as error:
                less = ration.instead(need, size, self.size, self._available(error))
                if less is None:
                    raise
                await self._have(less)
            return None
        except VarlinkError as error:
            if error.name == "PressureCritical":
                return Refused("the machine's pressure is critical, and only emergencies get memory", pressed=True)
            if self._nodes == 1 and _is_about_memory(error):
                return _refused(error, need - self.size)
            self._go_without(str(error))
        except _FAULTS as error:
            self._go_without(str(error) or "no answer")
        finally:
            self._end()
        return None

    async def _have(self, size: int) -> None:
        """A lease of so many bytes: the one there is, or a new one."""
        if self.lease is not None:
            try:
                await self._call("ResizeLease", lease_id=self.lease, memory_bytes=size)
            except VarlinkError as error:
                if error.name != "LeaseNotFound":
                    raise
                self._forget()
        if self.lease is None:
            early, self._early = self._early, None
            client, planes = (await early if early is not None else None) or await self._look()
            plane, self._nodes = ration.host_plane(planes)
            where = {} if plane is None else {"plane": plane}
            request = {"priority": PRIORITY, "memory_bytes": size, "yield_signal": SIGNAL, **where}
            self.lease = (await _ask(client, "AcquireLease", request))["lease_id"]
        self.size = size
        self._allow(self.budget.ceiling)
        self._settle_later()

    @staticmethod
    def _available(error: VarlinkError) -> int:
        return error.parameters.get("available", 0) if error.name == "ResourceExhaustion" else 0

    def _go_without(self, why: str) -> None:
        if not self._noted:
            journal.notice(f"No lease for the memory of models, working without one: {why}")
        self._noted = True
        self.budget.lease_is_unknown()
        if self.lease is not None:
            self._try_again_later()

    def _try_again_later(self) -> None:
        if self._retrying is None:
            self._retrying = loop.call_later(RETRY, self._try_again)

    def _try_again(self) -> None:
        """From now on more is asked for again, once it is needed."""
        self._retrying = None
        if self.lease is None:
            self.budget.lease_is_unknown()
        else:
            self._allow(self.budget.ceiling)

    def _forget(self) -> None:
        self.lease, self.size = None, 0
        self.budget.lease_is_unknown()

    # --- inferenced -----------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        while self._turn is not None:
            await self._turn
        self._turn = loop.Future()

    def _end(self) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        turn.set_result(None)

    async def _look(self) -> Early:
        client = await _connect()
        try:
            return client, (await _ask(client, "ListPlanes", {}, last=False))["planes"]
        except BaseException:
            client.close()
            raise

    async def _look_early(self) -> Early | None:
        try:
            return await self._look()
        except _FAULTS:
            return None  # who needs it asks again, and says so

    async def _hang_up(self) -> None:
        early, self._early = self._early, None
        found = await early if early is not None else None
        if found is not None:
            found[0].close()

    @staticmethod
    async def _call(method: str, **parameters: Any) -> dict[str, Any]:
        return await _ask(await _connect(), method, parameters)


async def _connect() -> Client:
    from syntrop.common.varlink.client import connect

    return await connect(paths.endpoint(INFERENCE), timeout=TIMEOUT)


async def _ask(client: Client, method: str, parameters: dict[str, Any], *, last: bool = True) -> dict[str, Any]:
    """One call, and with `last` the end of the connection."""
    try:
        with await client.call(f"{INFERENCE}.{method}", parameters, timeout=TIMEOUT) as reply:
            result: dict[str, Any] = reply.parameters
            return result
    finally:
        if last:
            client.close()


def _is_about_memory(error: VarlinkError) -> bool:
    if error.name == "QuotaExceeded":
        return error.parameters.get("resource") == "bytes"
    return error.name == "ResourceExhaustion"


def _refused(error: VarlinkError, more: int) -> Refused:
    told = error.parameters
    if error.name == "QuotaExceeded":
        return Refused(f"{told['requested']} bytes would be leased, {told['limit']} are allowed")
    return Refused(f"{more} bytes of {told['plane']} are wanted, inferenced has {told['available']}")


_FAULTS = (VarlinkError, OSError, TimeoutError, ConnectionLost, InvalidReply)
