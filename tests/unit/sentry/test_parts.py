# SPDX-License-Identifier: Apache-2.0
"""The small parts of a course: incidents on disk, connections, toold's answers, probation, guards."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from syntrop.common import loop
from syntrop.sentry import audit, breaker, order, probation
from syntrop.sentry import incident as i
from syntrop.sentry.audit import Audit
from syntrop.sentry.budget import Budget
from syntrop.sentry.guards import BUDGET, UNITS_MAX, Guards
from syntrop.sentry.hands import Hands, HandsError
from syntrop.sentry.incident import Incident
from syntrop.sentry.peers import PeerError, Peers
from syntrop.sentry.policy import Policy
from syntrop.sentry.probation import ACTIVE, COMING, DOWN, Health
from syntrop.sentry.remedy import Step

UNIT = "web.service"
SECOND = 1_000_000

# Incidents on disk.


def kept(store: Audit, time_us: int, *, unit: str = UNIT, status: str = i.OPEN) -> Incident:
    one = Incident(audit.identifier(time_us), unit, time_us)
    if status != i.OPEN:
        one.move(status, time_us)
    store.write(one)
    return one


def test_open_incidents_are_found_without_reading_the_closed_ones(tmp_path: Path) -> None:
    store = Audit(str(tmp_path), keep=10, keep_days=1)
    first, second = kept(store, 5), kept(store, 4)
    kept(store, 3, status=i.REPORTED)
    assert [one.id for one in store.open()] == [second.id, first.id]
    first.move(i.DISMISSED, 6)
    store.write(first, sync=True)
    assert [one.id for one in store.open()] == [second.id]
    assert store.get(first.id).status == i.DISMISSED
    # A crash between the two steps of closing leaves it in both folders: it is closed.
    for name in os.listdir(tmp_path / "closed"):
        (tmp_path / "open" / name).write_bytes((tmp_path / "closed" / name).read_bytes())
    assert [one.id for one in store.open()] == [second.id]
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "closed" / f"{first.id}.json").stat().st_mode & 0o777 == 0o600


def test_listings_are_newest_first_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    store = Audit(str(tmp_path), keep=3, keep_days=1)
    now = 10 * 86_400 * SECOND
    for number in range(5):
        kept(store, now + number, unit=f"{number % 2}.service", status=i.REPORTED)
    old = kept(store, 5, status=i.REPORTED)
    staged = kept(store, now + 9, status=i.STAGED)
    everything: dict[str, Any] = {"unit": None, "status": None, "since_us": 0, "limit": 100}
    found = store.listing(**everything)
    assert [one["timestamp_us"] for one in found] == [now + 9, now + 4, now + 3, now + 2, now + 1, now, 5]
    assert store.listing(**{**everything, "status": i.STAGED})[0]["id"] == staged.id
    assert len(store.listing(**{**everything, "unit": "1.service"})) == 2
    assert len(store.listing(**{**everything, "since_us": now + 3})) == 3
    assert len(store.listing(**{**everything, "limit": 2})) == 2
    assert store.retire(now + 10) == 3
    assert store.retire(now + 10) == 0
    with pytest.raises(KeyError):
        store.get(old.id)
    assert store.get(staged.id).status == i.STAGED


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"form": 1}', b"\xff", b'{"form": 1, "status": 7}'])
def test_a_record_that_cannot_be_read_is_passed_over(tmp_path: Path, content: bytes) -> None:
    store = Audit(str(tmp_path), keep=10, keep_days=1)
    good = kept(store, 7)
    (tmp_path / "open" / f"{audit.identifier(8)}.json").write_bytes(content)
    (tmp_path / "guards.json").write_bytes(content)
    assert [one.id for one in store.open()] == [good.id]
    assert store.guards() in ({}, {"form": 1}, {"form": 1, "status": 7})


@pytest.mark.parametrize(
    "id", ["", "..", "in-1", "../open/x", "in-0000000000000007-ab/../../x", "in-7-" + "a" * 99]
)
def test_no_path_is_an_identifier(tmp_path: Path, id: str) -> None:
    with pytest.raises(KeyError):
        Audit(str(tmp_path), keep=10, keep_days=1).get(id)


# Guards.


def test_guards_survive_a_restart_and_a_boot_and_what_they_knew_ages() -> None:
    guards = Guards(Policy(), Budget(((2, 60.0),)))
    for number in range(3):
        assert guards.failed(UNIT, f"run {number}", 100.0)
    assert not guards.failed(UNIT, "run 2", 100.0)
    guards.lock("locked.service", 100.0)
    assert guards.enter("other.service", 100.0) is None
    dumped = guards.dump(101.0, 50 * SECOND)
    again = Guards(Policy(), Budget(((2, 60.0),)))
    again.load(dumped, 3.0, 60 * SECOND)  # ten seconds later, after a boot
    hold = again.hold(UNIT, 3.0)
    assert hold is not None
    assert hold.kind == breaker.OPEN
    assert hold.wait == pytest.approx(30 - 11)
    locked = again.hold("locked.service", 3.0)
    assert locked is not None
    assert (locked.kind, locked.wait) == (breaker.LOCKED, None)
    assert again.budget.left(3.0) == 1
    assert {one["unit"] for one in again.tripped(3.0)} == {UNIT, "locked.service"}


def test_one_trial_at_a_time_and_its_failure_opens_again() -> None:
    guards = Guards(Policy(), Budget(((100, 60.0),)))
    for _ in range(3):
        guards.failed(UNIT, "", 0.0)
    assert guards.enter(UNIT, 30.0) is None
    second = guards.enter(UNIT, 30.0)
    assert second is not None
    assert second.kind == breaker.HALF_OPEN
    guards.ended(UNIT, False, 31.0)
    assert guards.state(UNIT, 31.0) == breaker.OPEN
    assert guards.enter(UNIT, 91.0) is None
    guards.ended(UNIT, True, 92.0)
    assert guards.state(UNIT, 92.0) == breaker.CLOSED


def test_the_budget_is_the_whole_machines_and_what_did_not_take_place_is_not_spent() -> None:
    guards = Guards(Policy(), Budget(((2, 60.0),)))
    assert guards.enter("a.service", 0.0) is None
    assert guards.enter("b.service", 0.0) is None
    hold = guards.enter("c.service", 1.0)
    assert hold is not None
    assert (hold.kind, hold.wait) == (BUDGET, 59.0)
    guards.ended("b.service", None, 1.0)
    assert guards.enter("c.service", 1.0) is None


def test_units_are_bounded_and_those_that_matter_are_kept() -> None:
    guards = Guards(Policy(), Budget())
    guards.lock("kept.service", 0.0)
    for number in range(2 * UNITS_MAX):
        guards.failed(f"{number}.service", "", 1.0)
    assert len(guards.dump(1.0, 0)["breakers"]) <= UNITS_MAX
    assert guards.state("kept.service", 1.0) == breaker.LOCKED


# Dependencies and importance, from properties.


def test_who_is_needed_by_others_or_has_a_socket_is_more_important() -> None:
    plain = order.importance({})
    assert plain == 0
    assert order.importance({"RequiredBy": ["a.service", "b.service", "c.service"]}) > order.importance(
        {"TriggeredBy": ["x.socket"]}
    )
    assert order.importance({"RequiredBy": ["multi-user.target"]}) == plain
    assert order.importance({"WantedBy": ["multi-user.target"]}) > plain
    assert order.importance({"DeviceAllow": [("/dev/dri/renderD128", "rw")]}) > plain
    assert order.needs({"Requires": ["a", "b"], "BindsTo": ["b"], "Wants": ["c"]}) == ("a", "b")


# Connections.


@contextmanager
def served(path: Path, answer: Callable[[str, dict[str, Any]], dict[str, Any] | None]) -> Iterator[list[str]]:
    """A socket whose every caller is answered; None hangs up. Gives the methods that were called."""
    import json

    asked: list[str] = []
    path.parent.mkdir(parents=True, exist_ok=True)

    def attend(peer: socket.socket) -> None:
        data = b""
        with peer:
            while True:
                while b"\0" not in data:
                    part = peer.recv(65536)
                    if not part:
                        return
                    data += part
                head, _, data = data.partition(b"\0")
                request = json.loads(head)
                asked.append(request["method"].rpartition(".")[2])
                reply = answer(asked[-1], request.get("parameters", {}))
                if reply is None:
                    return
                try:
                    peer.sendall(json.dumps(reply).encode() + b"\0")
                except BrokenPipeError:
                    return  # it was too late for the caller

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=attend, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SYNTROP_RUN_ROOT", str(tmp_path))
    return tmp_path / "syntrop"


def with_peers(use: Callable[[Peers], Any]) -> Any:
    async def main() -> Any:
        peers = Peers()
        try:
            with loop.deadline(60):
                return await use(peers)
        finally:
            peers.close()

    return loop.run(main())


def test_who_has_answered_is_awake_and_a_socket_alone_is_not(run_root: Path) -> None:
    async def use(peers: Peers) -> None:
        peers.knock("contextd", "toold")  # of whom one is not there
        assert not peers.awake("toold")
        assert await peers.call("toold", "io.syntrop.Tool1.ListTools", timeout=30) == {"tools": []}
        assert peers.awake("toold")
        with pytest.raises(PeerError) as caught:
            await peers.context(UNIT, timeout=30)
        assert (caught.value.daemon, caught.value.late) == ("contextd", False)
        assert not peers.awake("contextd")
        with pytest.raises(PeerError, match="NoSuchTool"):
            await peers.call("toold", "io.syntrop.Tool1.ListTools", timeout=30)
        with pytest.raises(PeerError):  # it hangs up
            await peers.call("toold", "io.syntrop.Tool1.ListTools", timeout=30)
        assert not peers.awake("toold")

    answers: list[dict[str, Any] | None] = [
        {"parameters": {"tools": []}},
        {"error": "io.syntrop.Tool1.NoSuchTool", "parameters": {}},
        None,
    ]
    with served(run_root / "io.syntrop.Tool1", lambda *_: answers.pop(0)) as asked:
        with_peers(use)
    assert asked == ["ListTools"] * 3


def test_calls_side_by_side_have_connections_of_their_own_and_late_ones_are_told(run_root: Path) -> None:
    gate = threading.Event()

    def answer(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "ReleaseLease":
            gate.wait(60)
        return {"parameters": {} if method == "ReleaseLease" else {"planes": []}}

    async def use(peers: Peers) -> None:
        with pytest.raises(PeerError) as caught:
            await peers.call("inferenced", "io.syntrop.Inference1.ReleaseLease", {"lease_id": "x"}, timeout=0.2)
        assert caught.value.late
        waiting = loop.spawn(peers.release("y"))
        found = await peers.call("inferenced", "io.syntrop.Inference1.ListPlanes", timeout=30)
        assert found == {"planes": []}
        assert peers.awake("inferenced")
        gate.set()
        await waiting

    with served(run_root / "sentry.sock", answer):
        with_peers(use)


# toold's answers.


class Tools:
    """Peers whose toold gives these replies, or raises these errors, in order."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []

    async def call(self, daemon: str, method: str, parameters: Any = None, *, timeout: float) -> Any:
        self.asked.append((method.rpartition(".")[2], parameters))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def refused(reason: str) -> PeerError:
    return PeerError("toold", reason, "io.syntrop.Tool1.PermissionDenied", {"reason": reason})


def done(code: int = 0, rollback_id: str | None = None) -> dict[str, Any]:
    return {"result": {"exit_code": code, "stdout": "", "stderr": "no\n"}, "rollback_id": rollback_id}


def test_a_step_is_a_call_of_a_tool() -> None:
    tools = Tools(done(rollback_id="rb-1"), done(3), refused("ssh.service is never changed"))

    async def main() -> None:
        hands = Hands(tools)  # type: ignore[arg-type]
        assert await hands.do(Step("revert_dropin", ["x.conf"], UNIT)) == "rb-1"
        with pytest.raises(HandsError, match="ended with 3: no") as failed:
            await hands.do(Step("unit_restart", [], UNIT))
        assert not failed.value.refused
        with pytest.raises(HandsError) as never:
            await hands.do(Step("unit_restart", [], "ssh.service"))
        assert (never.value.refused, never.value.wait) == (True, None)

    loop.run(main())
    assert tools.asked[0] == ("ExecuteTool", {"name": "revert_dropin", "args": ["x.conf"], "target_unit": UNIT})


def test_taking_back_waits_for_toolds_rates() -> None:
    busy = refused("more than 10 changes in 60 s; try again in 0 s")
    tools = Tools(busy, {"restored": {}}, PeerError("toold", "is gone"))

    async def main() -> None:
        hands = Hands(tools)  # type: ignore[arg-type]
        await hands.take_back("rb-1")
        with pytest.raises(HandsError, match="is gone"):
            await hands.take_back("rb-1")

    loop.run(main())
    assert [name for name, _ in tools.asked] == ["Rollback"] * 3


def test_what_toold_kept_for_a_step_is_found() -> None:
    records = [
        {"id": "rb-3", "timestamp_us": 30, "target_unit": UNIT, "target_path": "/etc/x"},
        {"id": "rb-2", "timestamp_us": 20, "target_unit": UNIT},
        {"id": "rb-1", "timestamp_us": 10, "target_unit": UNIT},
        {"id": "rb-0", "timestamp_us": 25, "target_unit": "other.service"},
        {"id": "rb-9", "timestamp_us": 26, "target_path": "/etc/y.conf"},
    ]
    tools = Tools({"records": records}, {"records": records})

    async def main() -> None:
        hands = Hands(tools)  # type: ignore[arg-type]
        assert await hands.kept(Step("revert_dropin", ["x"], UNIT), since_us=15, now_us=40) == ["rb-2", "rb-3"]
        restored = Step("restore_file", ["/etc/y.conf", "/etc/y.conf.bak"])
        assert await hands.kept(restored, since_us=15, now_us=40) == ["rb-9"]

    loop.run(main())


# Probation.


@pytest.mark.parametrize(
    ("properties", "state"),
    [
        ({"ActiveState": "active", "SubState": "running"}, ACTIVE),
        ({"ActiveState": "reloading"}, ACTIVE),
        ({"ActiveState": "activating", "SubState": "start"}, COMING),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, DOWN),
        ({"ActiveState": "failed", "Result": "signal"}, DOWN),
        ({"ActiveState": "inactive", "Type": "simple", "Result": "success"}, DOWN),
        ({"ActiveState": "inactive", "Type": "oneshot", "Result": "success"}, ACTIVE),
        ({"ActiveState": "inactive", "Type": "oneshot", "Result": "exit-code"}, DOWN),
        ({"ActiveState": "deactivating"}, DOWN),
        ({}, DOWN),
    ],
)
def test_how_a_unit_is(properties: dict[str, Any], state: str) -> None:
    assert Health(properties).state == state


class Scripted:
    """A manager that tells one state after the other; `changed` comes with each."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.closed = False

    async def unit(self, name: str) -> dict[str, Any]:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def watch(self, name: str) -> Scripted:
        return self

    async def changed(self) -> None:
        await (loop.sleep(0.001) if len(self.states) > 1 else loop.sleep(600))

    def close(self) -> None:
        self.closed = True


def state(active: str, run: str = "a", restarts: int = 0, sub: str = "") -> dict[str, Any]:
    return {"ActiveState": active, "SubState": sub, "InvocationID": run, "NRestarts": restarts}


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ([state("active")], ""),
        ([state("activating"), state("activating"), state("active")], ""),
        ([state("activating"), state("failed")], "it is failed"),
        ([state("activating")], "it was not active within"),
        ([state("active"), state("failed")], "it is failed"),
        ([state("active"), state("active", "b")], "it was restarted meanwhile"),
        ([state("active"), state("active", "a", 1)], "it was restarted meanwhile"),
        ([state("active"), state("activating", "b", sub="auto-restart")], "it is activating (auto-restart)"),
    ],
)
def test_probation(states: list[dict[str, Any]], why: str) -> None:
    manager = Scripted(*states)
    seen: list[int] = []

    async def main() -> str:
        return await probation.healthy(
            manager,  # type: ignore[arg-type]
            UNIT,
            seconds=0.05,
            patience=0.3 if "within" in why else 60.0,
            active=lambda: seen.append(1),
        )

    assert loop.run(main()).startswith(why)
    assert bool(seen) == any(one["ActiveState"] == "active" for one in states)
    assert manager.closed
