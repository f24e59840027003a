# SPDX-License-Identifier: Apache-2.0
"""Who may do what: one table for the whole suite. `docs/authority.md` shows it, and is tested against it.

Three kinds of caller hold rights. *Anybody* is every local process. *Operators* are root, the suite's own
users (the daemon's uid and the sysusers accounts), the members of group `syntrop`, and whoever polkit says.
The *supervisor* is one of them, without polkit, who came by `sentry.sock`: only there is EmergencyTriage to be
leased, whatever mode that file has. A daemon that has one socket for all knows the supervisor by its account
(`supervises`). HTTP carries requests of programs that cannot be told apart, and never gets above Interactive.
"""

from __future__ import annotations

import os

from syntrop.common import loop
from syntrop.common.varlink.errors import PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    from syntrop.common.peer import Peer
    from syntrop.common.varlink.server import Call

GROUP: Final = "syntrop"
# units/sysusers.d/syntrop.conf; a test compares.
USERS: Final = (
    "syntrop",
    "syntrop-runtime",
    "syntrop-model",
    "syntrop-context",
    "syntrop-tool",
    "inferenced",
    "sentry",
)

SUPERVISOR_USER: Final = "sentry"

ANYBODY: Final = "anybody"
OPERATORS: Final = "operators"
SUPERVISOR: Final = "supervisor"


class Right:
    """A class of right: who holds it, and the polkit action that may lend it."""

    __slots__ = ("action", "holders", "meaning", "name")

    def __init__(self, name: str, holders: str, meaning: str, action: str | None = None) -> None:
        self.name = name
        self.holders = holders
        self.meaning = meaning
        self.action = action

    def __repr__(self) -> str:
        return f"Right({self.name})"


READ: Final = Right("read", ANYBODY, "look at what is there")
GENERATE: Final = Right("generate", ANYBODY, "run models")
LEASE_OWN: Final = Right("lease_own", ANYBODY, "lease for one's own process or unit up to Interactive, in a quota")
TRIAGE: Final = Right("triage", SUPERVISOR, "lease at EmergencyTriage")
FOREIGN: Final = Right("foreign", OPERATORS, "act on another's process or unit", "io.syntrop.lease.foreign")
FREEZE: Final = Right("freeze", OPERATORS, "stop and continue a holder", "io.syntrop.lease.freeze")
EVICT: Final = Right("evict", OPERATORS, "take a model out of memory", "io.syntrop.model.evict")
PIN: Final = Right("pin", OPERATORS, "keep a model", "io.syntrop.model.pin")
PRUNE: Final = Right("prune", OPERATORS, "remove models from the store", "io.syntrop.model.prune")
REGISTER: Final = Right("register", OPERATORS, "add a model, or change one", "io.syntrop.model.register")
SHARE: Final = Right("share", OPERATORS, "pass memory to other processes", "io.syntrop.memory.share")
QUARANTINE: Final = Right("quarantine", OPERATORS, "take a plane out of use", "io.syntrop.plane.quarantine")
RECORD: Final = Right("record", OPERATORS, "add to the chronology", "io.syntrop.event.record")
TOOL_CHANGE: Final = Right("tool_change", OPERATORS, "run a tool that changes something", "io.syntrop.tool.change")
TOOL_LOOK: Final = Right("tool_look", OPERATORS, "run a tool that shows the journal", "io.syntrop.tool.look")
TOOL_MAINTAIN: Final = Right(
    "tool_maintain", OPERATORS, "run a tool that changes files beyond a unit", "io.syntrop.tool.maintain"
)
REMEDY: Final = Right("remedy", OPERATORS, "have an incident acted on", "io.syntrop.incident.remedy")
RELOAD: Final = Right("reload", OPERATORS, "have a daemon read its configuration", "io.syntrop.daemon.reload")

RIGHTS: Final = (
    READ,
    GENERATE,
    LEASE_OWN,
    TRIAGE,
    FOREIGN,
    FREEZE,
    EVICT,
    PIN,
    PRUNE,
    REGISTER,
    SHARE,
    QUARANTINE,
    RECORD,
    TOOL_CHANGE,
    TOOL_LOOK,
    TOOL_MAINTAIN,
    REMEDY,
    RELOAD,
)

# Every method of every interface. The first right is needed for any call; the others for some calls, as the
# second column of docs/authority.md says: another's pid or unit, a priority, a tool's mode.
METHODS: Final[dict[str, dict[str, tuple[Right, ...]]]] = {
    "org.varlink.service": {
        "GetInfo": (READ,),
        "GetInterfaceDescription": (READ,),
    },
    "io.syntrop.Router1": {
        "GetStatus": (READ,),
        "ListProviders": (READ,),
        "ListModels": (READ,),
        "RouteRequest": (READ,),
        "TestProvider": (GENERATE,),
        "Reload": (RELOAD,),
    },
    "io.syntrop.Inference1": {
        "GetDrmWatermark": (READ,),
        "ResizeLease": (LEASE_OWN, FOREIGN),
        "GetStatus": (READ,),
        "ListPlanes": (READ,),
        "GetTopology": (READ,),
        "GetPressure": (READ,),
        "AcquireLease": (LEASE_OWN, FOREIGN, TRIAGE),
        "AcquireCompositeLease": (LEASE_OWN, FOREIGN, TRIAGE),
        "ReleaseCompositeLease": (LEASE_OWN, FOREIGN),
        "ReleaseLease": (LEASE_OWN, FOREIGN),
        "RenewLease": (LEASE_OWN, FOREIGN),
        "Yield": (LEASE_OWN, FOREIGN),
        "Freeze": (FREEZE,),
        "Thaw": (FREEZE,),
        "ListLeases": (READ,),
        "ExplainLease": (READ,),
        "ListCompositeLeases": (READ,),
        "Watch": (LEASE_OWN, FOREIGN),
        "ListModels": (READ,),
        "RegisterModel": (REGISTER,),
        "EvictModel": (EVICT,),
        "PinModel": (PIN,),
        "QuarantinePlane": (QUARANTINE,),
        "ClearQuarantine": (QUARANTINE,),
        "StreamInference": (GENERATE,),
        "PublishDescriptor": (SHARE,),
        "FetchDescriptor": (SHARE,),
        "ReleaseDescriptor": (SHARE,),
    },
    "io.syntrop.Model1": {
        "List": (READ,),
        "Inspect": (READ,),
        "Register": (REGISTER,),
        "Import": (REGISTER,),
        "Open": (READ,),
        "OpenSealed": (SHARE,),
        "Pull": (REGISTER,),
        "Pin": (PIN,),
        "Unpin": (PIN,),
        "Prune": (PRUNE,),
        "Check": (PRUNE,),
        "GetStorageStats": (READ,),
    },
    "io.syntrop.Fetch1": {
        "Resolve": (REGISTER,),
        "Fetch": (REGISTER,),
    },
    "io.syntrop.Context1": {
        "GetUnitContext": (READ,),
        "ListRecentDiffs": (READ,),
        "ListEvents": (READ,),
        "RecordEvent": (RECORD,),
        "Watch": (READ,),
    },
    "io.syntrop.Tool1": {
        "ListTools": (READ,),
        "ExecuteTool": (READ, TOOL_LOOK, TOOL_CHANGE, TOOL_MAINTAIN),
        "Rollback": (TOOL_CHANGE, TOOL_MAINTAIN),
        "ListRollbacks": (READ,),
    },
    "io.syntrop.Runtime1": {
        "Generate": (GENERATE, TRIAGE),
        "Decide": (GENERATE, TRIAGE),
        "AttachVision": (REGISTER,),
        "AttachLora": (REGISTER,),
        "DetachLora": (REGISTER,),
        "GetLoad": (READ,),
        "CountTokens": (GENERATE,),
        "Embed": (GENERATE,),
        "GetModelStatus": (READ,),
        "UnloadModel": (EVICT,),
        "LoadModel": (GENERATE,),
        "ListLoadedModels": (READ,),
        "StreamAudioOut": (GENERATE,),
        "TranscribeAudio": (GENERATE,),
        "GenerateMusic": (GENERATE,),
        "GenerateAudio": (GENERATE,),
        "GenerateVisual": (GENERATE,),
        "GenerateVideo": (GENERATE,),
        "GroundVisual": (GENERATE,),
        "CompactKvCache": (EVICT,),
    },
    "io.syntrop.Sentry1": {
        "TriageUnit": (READ, REMEDY),
        "ReportFailure": (REMEDY,),
        "GetIncident": (READ,),
        "ListIncidents": (READ,),
        "WatchIncidents": (READ,),
        "ApproveAction": (REMEDY,),
        "RejectAction": (REMEDY,),
        "ResetCircuitBreaker": (REMEDY,),
        "AnnounceMaintenance": (REMEDY,),
        "GetStatus": (READ,),
        "Quarantine": (QUARANTINE,),
        "Clear": (QUARANTINE,),
    },
}

PRIORITIES: Final = ("Batch", "Interactive", "EmergencyTriage")  # weakest first
TRIAGE_ENDPOINT: Final = "sentry.sock"


def ceiling(endpoint: str) -> str:
    """The highest priority to be had at an endpoint. HTTP endpoints have no way to more than this either."""
    return "EmergencyTriage" if endpoint == TRIAGE_ENDPOINT else "Interactive"


def required(method: str) -> Right:
    """The right that any call of a method (by full name) needs. Unknown methods are nobody's: KeyError."""
    interface, _, name = method.rpartition(".")
    return METHODS[interface][name][0]


def holds(who: Peer, right: Right, *, endpoint: str, accounts: Accounts) -> bool:
    """Whether a peer holds a right by itself, without polkit."""
    if right.holders == ANYBODY:
        return True
    if not who.known or (right.holders == SUPERVISOR and endpoint != TRIAGE_ENDPOINT):
        return False
    return (
        who.uid in (0, os.geteuid())
        or who.uid in accounts.uids
        or (accounts.gid is not None and accounts.gid in who.groups)
    )


class Accounts:
    """Numbers of the suite's accounts on this machine; those that do not exist are left out."""

    __slots__ = ("gid", "supervisor", "uids")

    def __init__(self, uids: frozenset[int], gid: int | None, supervisor: int | None = None) -> None:
        self.uids = uids
        self.gid = gid
        self.supervisor = supervisor

    @classmethod
    def look_up(cls) -> Accounts:
        """Ask the name service. It may block, so this is for a worker thread."""
        import grp
        import pwd

        uids = {}
        for name in USERS:
            try:
                uids[name] = pwd.getpwnam(name).pw_uid
            except KeyError:
                pass
        try:
            gid: int | None = grp.getgrnam(GROUP).gr_gid
        except KeyError:
            gid = None
        return cls(frozenset(uids.values()), gid, uids.get(SUPERVISOR_USER))


NO_ACCOUNTS: Final = Accounts(frozenset(), None)
_accounts: Accounts | None = None


async def authorize(
    call: Call,
    right: Right | None = None,
    *,
    endpoint: str = "",
    interactive: bool | None = None,
    details: Mapping[str, str] | None = None,
) -> None:
    """Raise PermissionDenied unless the caller holds `right`, by default the one that every call needs.

    `endpoint` is the name of the socket that the call came by; `interactive` lets polkit ask the user, and
    `details` tells the user what is asked. Where there is no polkit, it lends nothing.
    """
    if right is None:
        right = required(call.method)
    # Free of look-ups, and so of waiting, for nearly every call.
    if holds(call.peer, right, endpoint=endpoint, accounts=NO_ACCOUNTS):
        return
    if not call.peer.known:
        raise PermissionDenied
    if holds(call.peer, right, endpoint=endpoint, accounts=await _known_accounts()):
        return
    if right.action is not None:
        from syntrop.common import polkit

        if await polkit.check(call.peer, right.action, details or {}, interactive=bool(interactive)):
            return
    raise PermissionDenied


async def trusts(call: Call) -> bool:
    """Whether what a caller says of itself is believed: one of the suite's, or an operator. Nobody is asked."""
    return call.peer.known and holds(call.peer, SHARE, endpoint="", accounts=await _known_accounts())


async def supervises(call: Call) -> bool:
    """Whether a caller is the supervisor by its account, at a socket that is everybody's. No other user is, root
    included: what goes before everybody's work is for one program."""
    return call.peer.known and call.peer.uid == (await _known_accounts()).supervisor


async def _known_accounts() -> Accounts:
    global _accounts
    if _accounts is None:
        _accounts = await loop.thread(Accounts.look_up)
    return _accounts


class Quota:
    """How much of something each user may hold at once. Root and the daemon's own user are not counted."""

    __slots__ = ("_held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[int, int] = {}

    def held(self, uid: int) -> int:
        return self._held.get(uid, 0)

    def take(self, uid: int, amount: int = 1) -> bool:
        """Count `amount` more for a user; False, with nothing counted, where that passes the limit."""
        held = self.held(uid) + amount
        if held > self.limit and uid not in (0, os.geteuid()):
            return False
        self._held[uid] = held
        return True

    def give(self, uid: int, amount: int = 1) -> None:
        """Count `amount` less for a user, who must have taken it."""
        left = self.held(uid) - amount
        if left < 0:
            raise ValueError(f"uid {uid} gives back more than it took")
        if left:
            self._held[uid] = left
        else:
            self._held.pop(uid, None)


def table() -> str:
    """The table in Markdown, as `docs/authority.md` shows it."""
    lines = ["| right | allows to | held by | polkit action |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{r.name}` | {r.meaning} | {r.holders} | {f'`{r.action}`' if r.action else 'none'} |" for r in RIGHTS
    ]
    lines += ["", "| method | any call needs | some calls need also |", "| --- | --- | --- |"]
    for interface, methods in METHODS.items():
        for name, rights in methods.items():
            more = ", ".join(f"`{r.name}`" for r in rights[1:]) or "none"
            lines.append(f"| `{interface}.{name}` | `{rights[0].name}` | {more} |")
    return "\n".join(lines) + "\n"
