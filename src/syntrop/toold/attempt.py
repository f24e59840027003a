# SPDX-License-Identifier: Apache-2.0
"""One caller's attempt at one thing, and what all attempts share: rates, policy, the journal and the audit log."""

from __future__ import annotations

import os
from time import monotonic

from syntrop.common import journal, loop
from syntrop.common.turn import Once, Turn
from syntrop.common.varlink.errors import PermissionDenied, VarlinkError
from syntrop.toold import catalog
from syntrop.toold.ledger import Ledger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from socket import socket
    from typing import Any, NoReturn, TypeVar

    from syntrop.common.authority import Right
    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.toold.catalog import Call as ToolCall
    from syntrop.toold.changes import Changer, Site
    from syntrop.toold.listeners import Listeners
    from syntrop.toold.undo import Record
    from syntrop.toold.view import Views

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Tool1."
_ROLLBACK_TIMEOUT = 90.0  # seconds for the manager's part
LOOKS_MAX = 4  # commands that run at once; further ones wait


class State:
    """What calls share."""

    def __init__(self, daemon: Daemon, site: Site, netlink: socket | None = None) -> None:
        from syntrop.common.rates import Rate
        from syntrop.toold.changes import Changer
        from syntrop.toold.policy import Policy

        settings = daemon.settings
        self.daemon, self.site = daemon, site
        self.policy = Policy(
            units_allow=settings.units_allow,
            units_deny=settings.units_deny,
            files_allow=settings.files_allow,
            files_deny=settings.files_deny,
        )
        self.changer: Changer = Changer(site, self.policy, bytes_max=settings.preimage_bytes)
        self.ledger = Ledger(site.root)
        self.changes = Turn()
        self.looks = loop.Queue[None](LOOKS_MAX)
        self.look_rate = Rate(settings.looks_per_minute)
        self.change_rate = Rate(settings.changes_per_minute)
        self.unit_rate = Rate(settings.changes_per_unit_per_minute)
        self.groups: str | None = None
        self._netlink = netlink
        self._listeners: Listeners | None = None
        self._views: Views | None = None
        self._grouping = Once(self._take_group, "control groups")
        self._lock_file: int | None = None
        self._recovery = Once(self._recover, "recovery")

    async def recover(self) -> None:
        """Roll back what was cut short, once. Raises VarlinkError when that, or the audit log, fails."""
        from syntrop.toold import audit, undo
        from syntrop.toold.confinement import SandboxError

        try:
            await self._recovery.wait()
        except (OSError, undo.UndoError, audit.BrokenChain, SandboxError) as error:
            what = "audit log: " if isinstance(error, audit.BrokenChain) else ""
            raise VarlinkError(_INTERFACE + "ExecutionFailed", reason=f"{what}{error}") from None

    async def _recover(self) -> None:
        with self.daemon.busy():
            self._lock_file = self._lock_file or await loop.thread(_lock, self.site.root)
            await self._remember()
            for record, failure in await self.changer.recover():
                await self._tell_recovered(record, failure)

    async def _remember(self) -> None:
        """The rates go on from the audit log: leaving idle must not be a way round them."""
        import time

        now_us, now = time.time_ns() // 1000, monotonic()
        for entry in await self.ledger.recent(now_us - 60_000_000):
            if entry.get("counted"):
                when = now - (now_us - entry["time_us"]) / 1e6
                self.change_rate.count("all", when)
                if entry.get("unit"):
                    self.unit_rate.count(entry["unit"], when)

    async def _tell_recovered(self, record: Record, failure: str) -> None:
        from syntrop.toold import events

        fields = {
            "tool": record.tool,
            "unit": record.target_unit,
            "rollback": record.id,
            "failure": failure or None,
        }
        text = f"Rolled back what a crash had cut short: {record.summary}" + (f" ({failure})" if failure else "")
        await self.ledger.note(
            "recovery",
            text,
            events.RECOVERY_FAILED if failure else events.RECOVERED,
            fields,
            sync=True,
            priority=journal.ERR if failure else journal.WARNING,
        )

    async def group(self) -> str | None:
        """Folder of control groups that is ours; None where nothing was delegated."""
        await self._grouping.wait()
        return self.groups

    async def _take_group(self) -> None:
        from syntrop.toold.delegation import take

        self.groups = await loop.thread(take)

    def listeners(self) -> Listeners | None:
        """To ask what listens on the machine; None where no socket was passed for that."""
        if self._listeners is None and self._netlink is not None:
            from syntrop.toold.listeners import Listeners

            self._listeners = Listeners(self._netlink)
        return self._listeners

    def views(self) -> Views:
        """What commands see; made at the first of them."""
        if self._views is None:
            from syntrop.toold.view import Views

            self._views = Views(self.daemon.settings.bubblewrap)
        return self._views


class Attempt:
    """One caller's attempt at one thing, from permission to the audit log."""

    def __init__(self, state: State, call: Call, what: str, mode: str, unit: str | None) -> None:
        self._state, self._call = state, call
        self.what, self.mode, self.unit = what, mode, unit
        self._started = monotonic()
        self._counted: bool | None = None  # whether the entry that ends it is the one that the rates count

    @property
    def caller(self) -> dict[str, Any]:
        return {"uid": self._call.peer.uid, "pid": self._call.peer.pid}

    async def authorize(self, right: Right, interactive: bool | None) -> None:
        from syntrop.common import authority

        uid = self._call.peer.uid
        if uid != 0:
            # Refusals are written down, so they are counted as well: nobody fills the disk by being refused.
            self._count(self._state.look_rate, uid, "calls of this user")
        try:
            details = {"tool": self.what[:256], **({"unit": self.unit} if self.unit else {})}
            await authority.authorize(self._call, right, interactive=interactive, details=details)
        except PermissionDenied:
            await self._note_refusal(f"the caller does not hold {right.name}")
            raise

    async def look(self, wanted: ToolCall) -> dict[str, Any]:
        """Run a safe tool."""
        await self._state.looks.put(None)
        try:
            if wanted.tool.name == "unit_status":
                result = await self._status(wanted)
            elif wanted.tool.name == "net_listeners" and (listeners := self._state.listeners()) is not None:
                result = await self._listening(wanted, listeners)
            else:
                result = await self._command(wanted)
        finally:
            self._state.looks.get_nowait()
        return {"result": result, "rollback_id": None}

    async def _status(self, wanted: ToolCall) -> dict[str, Any]:
        from syntrop.toold.manager import Manager, ManagerError, show

        try:
            with loop.deadline(wanted.tool.timeout_ms / 1000):
                async with Manager() as manager:
                    unit = await manager.properties(str(wanted.unit))
                    service: dict[str, Any] = {}
                    if str(unit.get("Id", "")).endswith(".service"):
                        service = await manager.properties(str(wanted.unit), "Service")
        except TimeoutError:
            await self._timed_out(wanted)
        except ManagerError as error:
            await self._failed(str(error))
        found = unit.get("LoadState") != "not-found"
        await self._note_look(0 if found else 4)
        return self._result(0 if found else 4, show(unit, service), "")  # 4 as systemctl status says it

    async def _listening(self, wanted: ToolCall, listeners: Listeners) -> dict[str, Any]:
        from syntrop.toold.listeners import TEXT_MAX
        from syntrop.toold.sockdiag import DiagError

        try:
            text, whole = await loop.thread(listeners.show, wanted.text("protocol"), wanted.tool.timeout_ms / 1000)
        except TimeoutError:
            await self._timed_out(wanted)
        except (DiagError, OSError) as error:
            journal.warning(f"What listens is read from the kernel's tables: {error}")
            return await self._command(wanted)
        await self._note_look(0)
        return self._result(0, text, "" if whole else _cut_off(TEXT_MAX))

    async def _command(self, wanted: ToolCall) -> dict[str, Any]:
        from syntrop.toold import commands, runner
        from syntrop.toold.confinement import SandboxError

        command = commands.build(wanted)
        assert command is not None, wanted.tool.name
        cancel = runner.Cancel()
        groups, views = await self._state.group(), self._state.views()
        wants = self._state.daemon.settings.namespaces
        run = loop.thread(lambda: runner.run(command, cancel=cancel, groups=groups, views=views, namespaces=wants))
        run.when_done(lambda _run: cancel.close())
        try:
            outcome = await run
        except loop.Cancelled:
            if not run.done:  # its pipe is closed otherwise, and the number may be another's
                cancel.set()  # the caller hung up: nobody wants the answer
            raise
        except (SandboxError, OSError) as error:
            await self._failed(str(error))
        if outcome.timed_out:
            await self._timed_out(wanted)
        await self._note_look(outcome.exit_code, outcome.layers())
        stderr = outcome.stderr.decode("utf-8", "replace")
        if outcome.truncated:
            stderr += _cut_off(runner.OUTPUT_MAX)
        shown = outcome.stdout.decode("utf-8", "replace")
        return {**self._result(outcome.exit_code, shown, stderr), "sandbox": outcome.layers()}

    async def change(self, wanted: ToolCall) -> dict[str, Any]:
        """Run a tool that changes something, alone."""
        async with self._state.changes:
            await self._begin(record=not wanted.tool.undone.startswith(catalog.NOTHING))
            timeout = wanted.tool.timeout_ms / 1000
            text, record = await self._guard(self._state.changer.run(wanted, self.caller, timeout), timeout)
            await self._end("change", text.strip(), record)
        result = self._result(0, text, "")
        return {"result": result, "rollback_id": record.id if record is not None else None}

    async def take_back(self, record: Record, *, only_unchanged: bool) -> dict[str, Any]:
        async with self._state.changes:
            await self._begin(record=True)
            back = self._state.changer.take_back(
                record, self.caller, _ROLLBACK_TIMEOUT, only_unchanged=only_unchanged
            )
            draft = await self._guard(back, _ROLLBACK_TIMEOUT)
            await self._end("rollback", draft.summary, draft)
        return {"restored": record_reply(record), "rollback_id": draft.id}

    # --- what went on ----------------------------------------------------------------------------------------

    def _count(self, rate: Any, key: object, what: str) -> None:
        now = monotonic()
        wait = rate.wait(key, now)
        if wait > 0:
            reason = f"more than {rate.limit} {what} in {rate.window:g} s; try again in {wait:.0f} s"
            raise VarlinkError(_INTERFACE + "PermissionDenied", reason=reason)
        rate.count(key, now)

    async def _begin(self, *, record: bool) -> None:
        """Count a change. One without a record is written down before anything is done; a record does that itself,
        and what a crash leaves of such a change is told when it is rolled back.
        """
        from syntrop.toold import events

        try:
            self._count(self._state.change_rate, "all", "changes")
            if self.unit:
                self._count(self._state.unit_rate, self.unit, f"changes of {self.unit}")
        except VarlinkError as error:
            await self._note_refusal(str(error.parameters["reason"]))
            raise
        self._counted = record
        if not record:
            text = f"Begins: {self.what}"
            await self._note("begin", text, events.TOOL_RUN, {"counted": True}, sync=True, priority=journal.DEBUG)

    async def _guard(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """A change, its errors in the interface's terms, and written down."""
        from syntrop.toold.changes import ChangeError
        from syntrop.toold.confinement import SandboxError
        from syntrop.toold.image import ImageError
        from syntrop.toold.manager import ManagerError
        from syntrop.toold.policy import Refused
        from syntrop.toold.undo import UndoError

        try:
            return await work
        except Refused as error:
            await self._note_refusal(str(error))
            raise VarlinkError(_INTERFACE + "PermissionDenied", reason=str(error)) from None
        except TimeoutError:
            await self._note_failure(f"not done within {timeout:g} s")
            raise VarlinkError(_INTERFACE + "Timeout", limit_ms=int(timeout * 1000)) from None
        except (ChangeError, ManagerError, ImageError, SandboxError, UndoError, OSError) as error:
            await self._failed(str(error))

    async def _end(self, event: str, text: str, record: Record | None) -> None:
        from syntrop.toold import events, undo

        message_id = events.ROLLED_BACK if event == "rollback" else events.TOOL_CHANGED
        fields = {
            "rollback": record.id if record is not None else None,
            "counted": self._counted,
            "duration_ms": self._elapsed(),
        }
        await self._note(event, f"{self.what}: {text}", message_id, fields, sync=True, priority=journal.NOTICE)
        if record is not None:
            import time

            settings = self._state.daemon.settings
            try:
                await loop.thread(
                    lambda: undo.retire(
                        self._state.site.root,
                        count=settings.rollback_count,
                        total_bytes=settings.rollback_bytes,
                        age_sec=settings.rollback_days * 86400,
                        now_us=time.time_ns() // 1000,
                    )
                )
            except OSError as error:
                journal.warning(f"Old rollback records could not be removed: {error}")

    async def _note_look(self, exit_code: int, layers: list[str] | None = None) -> None:
        from syntrop.toold import events

        fields = {"exit_code": exit_code, "duration_ms": self._elapsed(), "layers": layers}
        await self._note("look", self.what, events.TOOL_RUN, fields, sync=False, priority=journal.INFO)

    async def _note_refusal(self, reason: str) -> None:
        from syntrop.toold import events

        text = f"Refused {self.what} to uid {self._call.peer.uid}: {reason}"
        await self._note(
            "refusal", text, events.TOOL_REFUSED, {"reason": reason}, sync=False, priority=journal.WARNING
        )

    async def _note_failure(self, reason: str) -> None:
        from syntrop.toold import events

        text = f"{self.what} failed: {reason}"
        fields = {"reason": reason, "counted": self._counted, "duration_ms": self._elapsed()}
        await self._note("failure", text, events.TOOL_FAILED, fields, sync=True, priority=journal.WARNING)

    async def _failed(self, reason: str) -> NoReturn:
        from syntrop.toold.undo import readable

        reason = readable(reason)
        await self._note_failure(reason)
        raise VarlinkError(_INTERFACE + "ExecutionFailed", reason=reason) from None

    async def _timed_out(self, wanted: ToolCall) -> NoReturn:
        limit = wanted.tool.timeout_ms
        await self._note_failure(f"not done within {limit} ms")
        raise VarlinkError(_INTERFACE + "Timeout", limit_ms=limit) from None

    async def _note(
        self, event: str, text: str, message_id: str, fields: dict[str, Any], *, sync: bool, priority: int
    ) -> None:
        from syntrop.toold.audit import BrokenChain

        all_fields = {"call": self.what, "mode": self.mode, "unit": self.unit, **self.caller, **fields}
        try:
            await self._state.ledger.note(event, text, message_id, all_fields, sync=sync, priority=priority)
        except (OSError, BrokenChain) as error:
            # What cannot be written down is not done, and not told of.
            raise VarlinkError(_INTERFACE + "ExecutionFailed", reason=f"audit log: {error}") from None

    def _elapsed(self) -> int:
        return round((monotonic() - self._started) * 1000)

    def _result(self, exit_code: int, stdout: str, stderr: str) -> dict[str, Any]:
        return {
            "command": self.what,
            "exit_code": exit_code,
            "stdout": stdout,
            "stderr": stderr,
            "duration_ms": self._elapsed(),
        }


def _cut_off(limit: int) -> str:
    return f"\n[ended: more than {limit} bytes of output]\n"


def _lock(root: str) -> int:
    """The state folder is ours alone; the kernel gives it back when we end. Raises OSError."""
    import fcntl

    os.makedirs(root, mode=0o700, exist_ok=True)
    handle = os.open(os.path.join(root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError(f"another toold works on {root}") from None
    return handle


def record_reply(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "timestamp_us": record.timestamp_us,
        "target_path": record.target_path,
        "target_unit": record.target_unit,
        "summary": record.summary,
    }
