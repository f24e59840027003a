# SPDX-License-Identifier: Apache-2.0
"""From a failure to an end of it, with doubles for whom it asks: what is done, what is left, and what is kept."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from doubles import UNIT, Adviser, House, outcomes, play

from syntrop.common import loop
from syntrop.sentry import breaker as b
from syntrop.sentry import incident as i
from syntrop.sentry import marks
from syntrop.sentry import supervisor as supervising
from syntrop.sentry import trigger as t
from syntrop.sentry.hands import HandsError
from syntrop.sentry.incident import Incident
from syntrop.sentry.policy import Occasion
from syntrop.sentry.remedy import RESTORE_FILE, Action, Step
from syntrop.sentry.verdict import Answer

# What is done.


def test_a_crash_is_restarted_and_watched(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        assert house.supervisor.status()["open_incidents"] == 1
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == ["unit_restart web.service"]
    (told,) = house.incidents()
    assert told["status"] == i.RECOVERED
    assert told["causes"][0]["fault_class"] == "crash"
    assert [span["name"] for span in told["phases"]] == [
        "intercept", "slice", "correlate", "lease", "diagnose", "remedy", "restore",
    ]  # fmt: skip
    assert {span["name"] for span in told["phases"] if span["outcome"] == "skipped"} == {"lease"}
    assert os.listdir(tmp_path / "open") == []


def test_a_failure_that_two_tell_of_is_one_incident(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT)
        report = house.failed(UNIT)
        house.supervisor.report(report)
        house.supervisor.report(house.failed(UNIT, source=t.SIGNAL))
        await house.settled()
        house.supervisor.report(report)
        await house.settled()
        assert house.kit.guards.wire(UNIT, house.clock.seconds())["recent_failures"] == 1

    assert outcomes(play(tmp_path, scene)) == [(UNIT, i.RECOVERED)]


def test_a_bad_drop_in_is_reverted_first(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT, cause="typo")
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == ["revert_dropin web.service", "unit_restart web.service"]
    (told,) = house.incidents()
    assert told["status"] == i.RECOVERED
    assert told["action"]["rollback_id"] == "rb-0"


@pytest.mark.parametrize(
    ("cured", "done", "status"),
    [
        (True, ["set_unit_property web.service", "unit_restart web.service"], i.RECOVERED),
        (
            False,
            ["set_unit_property web.service", "unit_restart web.service", "rollback web.service"],
            i.ROLLED_BACK,
        ),
    ],
)
def test_an_edited_limit_is_given_back_and_taken_back_where_it_does_not_help(
    tmp_path: Path, cured: bool, done: list[str], status: str
) -> None:
    seen: list[tuple[str, str]] = []

    async def scene(house: House) -> None:
        def look(tool: str) -> None:
            (one,) = house.kit.audit.open()
            seen.append((tool, one.status))

        house.hands.before = look
        house.world.fail(UNIT, cause="cut", cured=cured)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == done
    (told,) = house.incidents()
    assert (told["status"], told["causes"][0]["fault_class"]) == (status, "memory_limit")
    assert (told["action"]["tool"], told["action"]["args"]) == ("set_unit_property", ["MemoryMax", "512M"])
    assert "left to a person" in told["action"]["reason"]
    assert seen[0] == ("set_unit_property", i.ACTING)  # the record comes first


def test_the_record_is_on_disk_before_anything_is_written(tmp_path: Path) -> None:
    seen: list[tuple[str, str, int]] = []

    async def scene(house: House) -> None:
        def look(tool: str) -> None:
            (one,) = house.kit.audit.open()
            seen.append((tool, one.status, one.done))

        house.hands.before = look
        house.world.fail(UNIT, cause="typo")
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    play(tmp_path, scene)
    assert seen == [("revert_dropin", i.ACTING, 0), ("unit_restart", i.ACTING, 1)]


def test_nothing_is_written_where_the_record_cannot_be_kept(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT, cause="typo")
        write = house.kit.audit.write

        def full(incident: Incident, *, sync: bool = False) -> None:
            if sync:
                raise OSError(28, "No space left on device")
            write(incident, sync=sync)

        house.kit.audit.write = full  # type: ignore[method-assign]
        house.supervisor.report(house.failed(UNIT))
        await house.settled()
        assert house.kit.guards.budget.left(house.clock.seconds()) == 1000

    house = play(tmp_path, scene)
    assert house.world.done == []
    assert outcomes(house) == [(UNIT, i.REPORTED)]


def test_what_does_not_help_is_taken_back(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT, cause="typo", cured=False)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == ["revert_dropin web.service", "unit_restart web.service", "rollback web.service"]
    assert outcomes(house) == [(UNIT, i.ROLLED_BACK)]
    assert house.incidents()[0]["action"]["rollback_id"] is None


def test_a_unit_that_fails_on_probation_was_not_helped(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        def falls(tool: str) -> None:
            if tool == "unit_restart":
                loop.call_later(0.05, fall)

        def fall() -> None:
            house.world.fail(UNIT, cured=True)
            house.supervisor.report(house.failed(UNIT))
            house.manager.stirred.set()

        house.settings.probation_sec = 5.0
        house.hands.after = falls
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()
        assert house.kit.guards.wire(UNIT, house.clock.seconds())["recent_failures"] == 2

    house = play(tmp_path, scene)
    assert outcomes(house) == [(UNIT, i.REPORTED)]
    assert house.world.done == ["unit_restart web.service"]


def test_rates_of_toold_are_waited_for(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.hands.refuse = HandsError("toold: more than 10 changes", refused=True, wait=0.05)
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    assert outcomes(play(tmp_path, scene)) == [(UNIT, i.RECOVERED)]


# What is late or missing.


def test_without_contextd_no_change_is_reverted(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.peers.late.add("contextd")
        house.world.fail(UNIT, cause="typo")
        house.world.fail("plain.service")
        house.supervisor.report(house.failed(UNIT))
        house.supervisor.report(house.failed("plain.service"))
        await house.settled()

    house = play(tmp_path, scene)
    assert dict(outcomes(house)) == {UNIT: i.REPORTED, "plain.service": i.RECOVERED}
    assert house.world.done == ["unit_restart plain.service"]
    (span,) = [one for one in house.incidents()[0]["phases"] if one["name"] == "correlate"]
    assert span["outcome"] == "late"
    assert "no change is held responsible" in span["note"]


def test_a_manager_that_does_not_answer_leaves_a_report(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        async def silent(name: str) -> dict[str, Any]:
            raise OSError("the bus is gone")

        house.world.fail(UNIT)
        house.manager.unit = silent  # type: ignore[method-assign]
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert outcomes(house) == [(UNIT, i.REPORTED)]
    assert house.world.done == []


# Faults of ours.


def test_a_fault_of_ours_is_told_of_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene(house: House) -> None:
        occasion = house.manager.occasion

        async def faulty(name: str, properties: Any) -> Occasion:
            if name == UNIT:
                raise ZeroDivisionError("a bug")
            return await occasion(name, properties)

        house.manager.occasion = faulty  # type: ignore[method-assign]
        for unit in (UNIT, "other.service"):
            house.world.fail(unit)
            house.supervisor.report(house.failed(unit))
        await house.settled()
        # It is not in the way of the unit's next failure.
        house.manager.occasion = occasion  # type: ignore[method-assign]
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert outcomes(house) == [(UNIT, i.REPORTED), ("other.service", i.RECOVERED), (UNIT, i.RECOVERED)]
    (told,) = [one for one in house.incidents() if one["status"] == i.REPORTED]
    assert any(
        "a fault of systemd-sentry's own" in line for line in house.supervisor.incident(told["id"]).timeline()
    )
    log = capfd.readouterr().err
    assert f"of {UNIT} failed in our hands" in log and "ZeroDivisionError: a bug" in log
    assert os.listdir(tmp_path / "open") == []


def test_a_fault_of_ours_in_a_dry_run_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def scene(house: House) -> None:
        async def faulty(name: str, properties: Any) -> Occasion:
            raise ZeroDivisionError("a bug")

        house.manager.occasion = faulty  # type: ignore[method-assign]
        house.world.fail(UNIT)
        with loop.deadline(30.0):
            told = await house.supervisor.triage(UNIT, dry_run=True)
        assert told.causes[0]["fault_class"] == "crash"
        await house.settled()

    house = play(tmp_path, scene)
    assert outcomes(house) == []
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


# The model.


def test_the_model_is_asked_only_where_the_evidence_leaves_it_open(tmp_path: Path) -> None:
    adviser = Adviser(Answer("configuration", 0.9, 0.8))

    async def scene(house: House) -> None:
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        house.peers.broken.add("contextd")
        house.world.fail("job.service", Type="oneshot")
        house.supervisor.report(house.failed("job.service"))
        await house.settled()

    house = play(tmp_path, scene, adviser=adviser)
    assert dict(outcomes(house))[UNIT] == i.RECOVERED
    assert len(adviser.asked) == 1
    lease = {span["name"]: span for one in house.incidents(unit="job.service") for span in one["phases"]}["lease"]
    assert lease["outcome"] == "done"
    assert house.peers.leases == []  # given back


def test_awake_the_lease_is_taken_side_by_side_and_the_model_has_its_say_afterwards(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.peers.up |= {"inferenced", "runtimed"}
        house.settings.probation_sec = 0.3
        house.world.fail(UNIT, cause="typo")
        house.supervisor.report(house.failed(UNIT))
        await house.settled()
        (told,) = house.incidents()
        words = "\n".join(house.supervisor.incident(told["id"]).timeline())
        assert "in the model's words: It fell over." in words

    house = play(tmp_path, scene, adviser=Adviser("the model is asleep"))
    (told,) = house.incidents()
    assert {span["name"]: span["outcome"] for span in told["phases"]}["lease"] == "done"
    assert house.peers.leases == []


# Others work on the machine as well.


def edited(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files as they are by now; what is not in it is absent."""
    files: dict[str, str] = {}
    monkeypatch.setattr(marks, "_mark", lambda path: files.get(path, marks.ABSENT))
    return files


def test_a_file_that_was_edited_since_the_verdict_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = edited(monkeypatch)

    async def scene(house: House) -> None:
        move = Incident.move

        def moved(incident: Incident, status: str, *more: Any) -> None:
            files["/etc/systemd/system/web.service.d/bad.conf"] = "a person's"
            move(incident, status, *more)

        monkeypatch.setattr(Incident, "move", moved)
        house.world.fail(UNIT, cause="typo")
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, scene)
    assert house.world.done == []
    assert outcomes(house) == [(UNIT, i.REPORTED)]
    (told,) = house.incidents()
    assert any("bad.conf was changed since" in line for line in house.supervisor.incident(told["id"]).timeline())


def test_a_failure_that_is_told_while_an_older_one_is_dismissed_is_not_lost(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        house.world.fail(UNIT)
        first = house.failed(UNIT)
        house.world.run(UNIT)  # a person has started it again
        occasion = house.manager.occasion

        async def fails(name: str, properties: Any) -> Any:
            house.manager.occasion = occasion  # type: ignore[method-assign]
            house.world.fail(UNIT)
            house.supervisor.report(house.failed(UNIT))  # as the first one has been looked at
            return await occasion(name, properties)

        house.manager.occasion = fails  # type: ignore[method-assign]
        house.supervisor.report(first)
        await house.settled()

    house = play(tmp_path, scene)
    assert [one["status"] for one in house.incidents()] == [i.DISMISSED, i.RECOVERED]
    assert house.world.units[UNIT]["ActiveState"] == "active"


def test_toold_is_told_what_a_file_has_to_hold_still(tmp_path: Path) -> None:
    there, gone = tmp_path / "a.conf", tmp_path / "b.conf"
    there.write_text("bad")
    seen = hashlib.sha256(b"bad").hexdigest()
    done: list[Step] = []

    async def scene(house: House) -> None:
        async def do(step: Step) -> None:
            done.append(step)

        house.hands.do = do  # type: ignore[method-assign]
        for number, path in enumerate((there, gone)):
            unit = f"web{number}.service"
            house.world.fail(unit)
            steps = [Step("restore_file", [str(path), f"{path.name}.bak"]), Step("unit_restart", [], unit)]
            incident = Incident(f"in-{number}-a", unit, 1)
            incident.action = Action(RESTORE_FILE, steps, "it was edited")
            incident.marks = marks.take([str(path)])
            incident.move(i.STAGED, 1)
            house.kit.keep(incident)
        house.settings.start_patience_sec = 0.01
        house.supervisor.resume()
        for number in range(2):
            await house.supervisor.approve(f"in-{number}-a")

    play(tmp_path / "state", scene)
    assert [one.args for one in done if one.tool == "restore_file"] == [
        (str(there), "a.conf.bak", seen),
        (str(gone), "b.conf.bak", "absent"),
    ]


def test_announced_work_is_not_fought_by_any_life_of_ours(tmp_path: Path) -> None:
    async def announced(house: House) -> None:
        house.supervisor.announce(["web*"], 600, "deployment", 1000)
        (told,) = house.supervisor.status()["planned"]
        assert (told["unit"], told["reason"], told["uid"]) == ("web*", "deployment", 1000)
        assert json.loads((tmp_path / "guards.json").read_text())["planned"]

    world = play(tmp_path, announced).world

    async def fails(house: House) -> None:
        house.supervisor.resume()
        world.fail(UNIT)
        world.fail("db.service")
        for unit in (UNIT, "db.service"):
            house.supervisor.report(house.failed(unit))
        await house.settled()
        house.supervisor.announce(["web*"], 0, "", 0)
        assert house.supervisor.status()["planned"] == []
        world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        await house.settled()

    house = play(tmp_path, fails, world=world)
    assert outcomes(house) == [(UNIT, i.DISMISSED), ("db.service", i.RECOVERED), (UNIT, i.RECOVERED)]
    first = house.incidents()[0]
    assert first["action"]["reason"] == "user 1000 announced work on web*: deployment"


def test_a_mark_tells_content_and_time(tmp_path: Path) -> None:
    path, other = tmp_path / "a.conf", tmp_path / "absent"
    path.write_text("one")
    kept = marks.take([str(path), str(other)])
    assert marks.changed(kept) == ""
    assert marks.digest(kept[str(path)]) == hashlib.sha256(b"one").hexdigest()
    assert marks.digest(kept[str(other)]) == ""
    times = path.stat()
    path.unlink()
    path.write_text("one")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert marks.changed(kept) == ""  # put back as it was
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "a.conf was changed since" in marks.changed(kept)
    path.write_text("one")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.symlink_to(path)
    assert "absent was changed since" in marks.changed(kept)


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "WAITING_MAX", 3)

    async def scene(house: House) -> None:
        for number in range(3):
            assert not house.supervisor.full
            unit = f"web{number}.service"
            house.world.fail(unit)
            house.supervisor.report(house.failed(unit))
        assert house.supervisor.full
        await house.settled()
        assert not house.supervisor.full

    play(tmp_path, scene)


def test_a_daemon_of_ours_that_is_away_does_not_count_against_a_unit(tmp_path: Path) -> None:
    async def scene(house: House) -> None:
        guards, now = house.kit.guards, house.clock.seconds()
        house.world.fail(UNIT)
        house.supervisor.report(house.failed(UNIT))
        for number in range(3):
            guards.failed(UNIT, f"earlier {number}", now - 45.0)
        # The failure that was told is one of those that opened it.
        guards._breakers[UNIT]._failures.clear()
        assert guards.state(UNIT, now) == b.HALF_OPEN
        house.hands.refuse = HandsError("toold: cannot connect", silent=True)
        await house.settled()
        now = house.clock.seconds()
        assert guards.state(UNIT, now) == b.HALF_OPEN
        assert guards.hold(UNIT, now) is None
        assert guards.budget.left(now) == 1000

    assert outcomes(play(tmp_path, scene)) == [(UNIT, i.REPORTED)]
