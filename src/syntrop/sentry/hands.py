# SPDX-License-Identifier: Apache-2.0
"""What changes something, through toold: the steps of an action, and taking them back.

toold writes a record with the whole pre-image before it touches a file, makes the manager read its units again
once for a change, and finishes a change that it has begun even when its caller is gone.
"""

from __future__ import annotations

from syntrop.common import loop
from syntrop.common.patterns import late
from syntrop.sentry.peers import TOOLD, PeerError
from syntrop.sentry.remedy import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.sentry.peers import Peers

_TOOL1 = "io.syntrop.Tool1."
STEP_TIMEOUT = 120.0  # seconds: toold's own limits are below it
TAKE_BACK_PATIENCE = 180.0  # seconds for what toold's rate lets wait
_AGAIN = late(r"; try again in (?P<seconds>\d{1,4}) s\Z")


class HandsError(Exception):
    """toold did not do it. `refused`: its policy forbids it, so nothing was begun. `wait`: seconds after which its
    rates allow it; None where waiting does not help. `silent`: it could not be asked, or did not answer, which
    says nothing of the unit."""

    def __init__(
        self, reason: str, *, refused: bool = False, wait: float | None = None, silent: bool = False
    ) -> None:
        super().__init__(reason)
        self.refused, self.wait, self.silent = refused, wait, silent


class Hands:
    """One caller of toold. Side by side calls are in order there: one change at a time."""

    __slots__ = ("_peers",)

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def do(self, step: Step) -> str | None:
        """Carry out a step; the identifier to take it back by, if it changed a file. Raises HandsError."""
        parameters: dict[str, Any] = {"name": step.tool, "args": list(step.args)}
        if step.unit:
            parameters["target_unit"] = step.unit
        reply = await self._call("ExecuteTool", parameters)
        code = reply["result"]["exit_code"]
        if code:
            raise HandsError(f"{step.tool} ended with {code}: {reply['result']['stderr'].strip()[:256]}")
        rollback_id: str | None = reply.get("rollback_id")
        return rollback_id

    async def look(self, step: Step) -> str:
        """What a tool that only looks printed. Raises HandsError."""
        parameters: dict[str, Any] = {"name": step.tool, "args": list(step.args)}
        if step.unit:
            parameters["target_unit"] = step.unit
        result = (await self._call("ExecuteTool", parameters))["result"]
        return str(result["stdout"]) or str(result["stderr"])

    async def warm(self, unit: str) -> None:
        """Have toold import and open what a change takes, by a look that changes nothing. Never raises but
        Cancelled: whoever wants something of it will be told."""
        try:
            await self.look(Step("unit_status", [], unit))
        except HandsError:
            pass

    async def take_back(self, rollback_id: str) -> None:
        """Take a change back, however long toold's rates let it wait; not over what somebody else has made of the
        file since. Raises HandsError."""
        patience = TAKE_BACK_PATIENCE
        while True:
            try:
                await self._call("Rollback", {"rollback_id": rollback_id, "only_unchanged": True})
                return
            except HandsError as error:
                if error.wait is None or error.wait > patience:
                    raise
                patience -= error.wait
                await loop.sleep(error.wait)

    async def kept(self, step: Step, *, since_us: int, now_us: int) -> list[str]:
        """Identifiers of what toold changed since then that a step like this one changes, oldest first: what a
        crash of ours kept us from writing down. Raises HandsError."""
        seconds = max(0, (now_us - since_us + 999_999) // 1_000_000)
        reply = await self._call("ListRollbacks", {"since_seconds": seconds, "limit": 100})
        mine = [
            one
            for one in reply["records"]
            if one["timestamp_us"] >= since_us
            and (one.get("target_unit") == step.unit if step.unit else one.get("target_path") in step.args)
        ]
        return [str(one["id"]) for one in sorted(mine, key=lambda one: int(one["timestamp_us"]))]

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._peers.call(TOOLD, _TOOL1 + method, parameters, timeout=STEP_TIMEOUT)
        except PeerError as error:
            refused = error.error.endswith(".PermissionDenied")
            again = _AGAIN.search(error.reason) if refused else None
            wait = float(again["seconds"]) + 1.0 if again is not None else None
            raise HandsError(str(error), refused=refused, wait=wait, silent=not error.error) from None
