# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Tool1`: what was asked, and by which right; `attempt` does the rest."""

from __future__ import annotations

import os

from syntrop.common import journal, loop, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.toold import arguments, catalog
from syntrop.toold.attempt import Attempt, State, record_reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, TypeVar

    from syntrop.common.authority import Right
    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.toold.changes import Site

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Tool1."
_SOCK_DIAG = "netlink:4"


class Tool1:
    """Handler of the interface."""

    def __init__(self, daemon: Daemon, site: Site | None = None) -> None:
        self._daemon = daemon
        self._site = site
        self._state: State | None = None
        # To ask the kernel by what listens on the machine, in whose network we are not.
        self._netlink = daemon.handed(_SOCK_DIAG, "toold-diag.socket")
        if _cut_short(self._root()):
            # A crash left a change half made: that is put right at once, whoever calls or does not.
            loop.spawn(self._recover_first(), "recovery")

    async def ListTools(self, call: Call) -> dict[str, Any]:
        return {"tools": [_tool_info(tool) for tool in catalog.TOOLS]}

    async def ExecuteTool(
        self,
        call: Call,
        name: str,
        args: list[str],
        target_unit: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        try:
            tool = catalog.find(name)
        except KeyError:
            raise VarlinkError(_INTERFACE + "ToolNotFound", name=name) from None
        try:
            wanted = catalog.parse(tool, args, target_unit)
        except arguments.Unsound as error:
            wrong = {"parameter": error.parameter, "reason": error.reason}
            raise VarlinkError(_INTERFACE + "InvalidParameter", **wrong) from None
        state = await self._ready()
        attempt = Attempt(state, call, str(wanted), tool.mode, wanted.unit)
        await attempt.authorize(_right(tool), allowInteractiveAuthentication)
        if not tool.changes:
            return await attempt.look(wanted)
        return await _to_the_end(self._daemon, attempt.change(wanted))

    async def Rollback(
        self,
        call: Call,
        rollback_id: str,
        only_unchanged: bool | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        from syntrop.common import authority
        from syntrop.toold import undo

        state = await self._ready()
        attempt = Attempt(state, call, f"rollback {rollback_id[:64]}", catalog.REMEDIATION, None)
        await attempt.authorize(authority.TOOL_CHANGE, allowInteractiveAuthentication)
        try:
            record = await loop.thread(undo.find, state.site.root, rollback_id)
        except undo.NoSuchRecord:
            raise VarlinkError(_INTERFACE + "RollbackNotFound", rollback_id=rollback_id) from None
        except (undo.Damaged, OSError) as error:
            raise VarlinkError(_INTERFACE + "ExecutionFailed", reason=str(error)) from None
        if record.target_unit is None or record.tool in _MAINTENANCE:
            await attempt.authorize(authority.TOOL_MAINTAIN, allowInteractiveAuthentication)
        attempt.unit = record.target_unit
        return await _to_the_end(self._daemon, attempt.take_back(record, only_unchanged=bool(only_unchanged)))

    async def ListRollbacks(self, call: Call, since_seconds: int = 86400, limit: int = 50) -> dict[str, Any]:
        import time

        from syntrop.toold import undo

        if since_seconds < 0:
            raise VarlinkError(_INTERFACE + "InvalidParameter", parameter="since_seconds", reason="below 0")
        if not 0 <= limit <= 1000:
            raise VarlinkError(_INTERFACE + "InvalidParameter", parameter="limit", reason="not from 0 to 1000")
        since = time.time_ns() // 1000 - since_seconds * 1_000_000
        if self._state is not None:
            # A change that is under way is not on record yet, though its files may be seen to have changed.
            async with self._state.changes:
                pass
        try:
            records = await loop.thread(
                lambda: undo.listing(self._root(), since_us=since, limit=limit) if _kept(self._root()) else []
            )
        except OSError as error:
            raise VarlinkError(_INTERFACE + "ExecutionFailed", reason=str(error)) from None
        return {"records": [record_reply(record) for record in records]}

    # --- inside ----------------------------------------------------------------------------------------------

    def _root(self) -> str:
        return self._site.root if self._site is not None else paths.state("toold")

    async def _ready(self) -> State:
        """What calls share, made at the first of them; what a crash cut short is rolled back before any."""
        if self._state is None:
            from syntrop.toold.changes import Site

            self._state = State(self._daemon, self._site or Site(self._root()), self._netlink)
        await self._state.recover()
        return self._state

    async def _recover_first(self) -> None:
        with self._daemon.busy():
            try:
                await self._ready()
            except VarlinkError as error:
                journal.error(f"What was cut short could not be rolled back: {error}")


_MAINTENANCE = frozenset(tool.name for tool in catalog.TOOLS if tool.mode == catalog.MAINTENANCE)


async def _to_the_end(daemon: Daemon, work: Coroutine[Any, Any, T]) -> T:
    """A change is finished whether or not its caller stays, and the daemon does not leave before."""

    async def hold() -> T:
        with daemon.busy():
            return await work

    return await loop.spawn(hold(), "change")


def _right(tool: catalog.Tool) -> Right:
    from syntrop.common import authority

    if tool.mode == catalog.REMEDIATION:
        return authority.TOOL_CHANGE
    if tool.mode == catalog.MAINTENANCE:
        return authority.TOOL_MAINTAIN
    return authority.TOOL_LOOK if tool.private else authority.READ


def _cut_short(root: str) -> bool:
    try:
        return any(name.endswith(".open") for name in os.listdir(os.path.join(root, "rollbacks")))
    except OSError:
        return False


def _kept(root: str) -> bool:
    return os.path.isdir(os.path.join(root, "rollbacks"))


def _tool_info(tool: catalog.Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "mode": tool.mode,
        "timeout_ms": tool.timeout_ms,
        "unit": tool.unit,
        "reads": list(tool.reads),
        "writes": list(tool.writes),
        "undone": tool.undone,
        "parameters": [
            {
                "name": parameter.name,
                "description": parameter.description,
                "kind": parameter.kind,
                "optional": parameter.optional,
            }
            for parameter in tool.parameters
        ],
    }
