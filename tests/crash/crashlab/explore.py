# SPDX-License-Identifier: Apache-2.0
"""The three proofs for one scenario: kill everywhere, lose power everywhere, fail everywhere."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from crashlab import model, trees
from crashlab.model import Log, Sync, Tree
from crashlab.recorder import Recorder
from crashlab.tracer import AFTER, BEFORE, TORN, Acknowledge, Fault, Kill, Outcome, run

SUBJECTS = ("src/", "tests/crash/specimens.py")  # whose syncs are looked at; others are a scenario's own
Line = tuple[str, int]
Check = Callable[[str, tuple[str, ...]], None]


@dataclass
class Scenario:
    """An operation and what must hold whatever becomes of it.

    `prepare(root)` fills an empty folder and is itself safe; `operate(root, acknowledge)` is what is cut short,
    and calls `acknowledge(what)` each time that it would answer its caller; `check(root, acknowledged)` opens what
    is left with the real code and raises if it is inconsistent, or if anything acknowledged is missing. `errors`
    are the types that `operate` may end with when the disk fails it; after that it must succeed when run again.
    """

    name: str
    prepare: Callable[[str], None]
    operate: Callable[[str, Acknowledge], None]
    check: Check
    errors: tuple[type[BaseException], ...] = (OSError,)


@dataclass
class Report:
    """What a proof looked at, and what it found wrong."""

    cases: int = 0
    wrong: list[str] = field(default_factory=list)

    def require(self) -> None:
        shown = "\n".join(self.wrong[:5])
        assert not self.wrong, f"{len(self.wrong)} of {self.cases} cases are wrong, such as\n{shown}"
        assert self.cases, "nothing was looked at"


class Laboratory:
    """A scenario with its folder: always at the same path, since records may hold absolute ones."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        # In memory, where it can be: syncs cost nothing there, and none of this needs a real disk.
        memory = "/dev/shm" if _usable("/dev/shm") else None
        self._home = os.path.realpath(tempfile.mkdtemp(prefix="crash-", dir=memory))
        self._root = os.path.join(self._home, "root")
        os.mkdir(self._root)
        scenario.prepare(self._root)
        self._base, _ = trees.snapshot(self._root)
        self._log: Log | None = None
        self._outcome = Outcome()
        self._verdicts: dict[object, str] = {}
        self._second_logs: list[tuple[Log, tuple[str, ...]]] = []

    def close(self) -> None:
        shutil.rmtree(self._home)

    # --- proofs --------------------------------------------------------------------------------------------

    def kill(self) -> Report:
        """SIGKILL before, within and after each call that changes state."""
        self.record()
        report = Report()
        tearable = {index for index, one in enumerate(self._outcome.actions) if one.length is not None}
        for phase in (BEFORE, TORN, AFTER):
            at = 0
            while True:
                if phase != TORN or at in tearable:
                    outcome = self._run(Kill(at, phase))
                    if outcome.ended != "killed":
                        assert outcome.ended == "done", outcome.error
                        break
                    report.cases += 1
                    self._judge(report, f"killed {phase} call {at}, {outcome.hit}", outcome.acks)
                elif at > max(tearable, default=0):
                    break
                at += 1
        return report

    def lose_power(self) -> Report:
        """Every crash state of the recorded log."""
        log = self.record()
        report = Report()
        for acked, choice, point in model.outcomes(log):
            report.cases += 1
            if wrong := self._verdict(model.apply(log, choice), acked):
                report.wrong.append(f"{self.scenario.name}: {self._describe(log, choice, point)}: {wrong}")
        return report

    def kill_again(self) -> Report:
        """SIGKILL at each call, the operation anew and to its end, and a power loss after it.

        What the first attempt left unsynced in the page cache looks done to the second one.
        """
        self.record()
        self._second_logs = []
        report = Report()
        for at in range(len(self._outcome.actions)):
            trees.materialise(self._base, self._root)
            recorder = Recorder(self._root)
            errors = self.scenario.errors
            first = run(self.scenario.operate, self._root, Kill(at, AFTER), errors=errors, recorder=recorder)
            if first.ended == "killed":
                report.cases += 1
                again = self._again(report, f"killed {AFTER} call {at}, {first.hit}", recorder)
                self._second_logs.append((recorder.log, again.acks))
        return report

    def fail(self) -> Report:
        """A full disk, a quota and a broken disk, at each call that they can hit."""
        report = Report()
        plans = (
            lambda at: Fault(at, errno.ENOSPC, lasting=True, short=True),
            lambda at: Fault(at, errno.EDQUOT),
            lambda at: Fault(at, errno.EIO),
        )
        for plan in plans:
            at = 0
            while self._fail_once(report, plan(at)):
                at += 1
        return report

    def needless(self) -> tuple[set[Line], set[Line]]:
        """Lines through which syncs are called, and those without whose syncs nothing would go wrong."""
        log = self.record()
        lines = _lines(log)
        unsited = [one.what for one in log.events if isinstance(one, Sync) and not one.site]
        assert not unsited, f"syncs from nowhere: {unsited}"
        return lines, {line for line in lines if not self._missed(line)}

    def sync_lines(self) -> set[Line]:
        """Lines through which syncs are called, also by a second attempt after a kill."""
        return _lines(self.record()).union(*(_lines(log) for log, _ in self._second_logs))

    def _missed(self, line: Line) -> bool:
        log = self.record().without({line})
        if any(self._verdict(model.apply(log, choice), acked) for acked, choice, _ in model.outcomes(log)):
            return True
        if not self._second_logs:
            self.kill_again()
        for log, acked in self._second_logs:
            second = log.without({line})
            if any(self._verdict(model.apply(second, choice), acked) for choice in model.endings(second)):
                return True
        return False

    # --- inside --------------------------------------------------------------------------------------------

    def record(self) -> Log:
        """The log of an undisturbed run."""
        if self._log is None:
            trees.materialise(self._base, self._root)
            recorder = Recorder(self._root)
            self._outcome = run(self.scenario.operate, self._root, errors=(), recorder=recorder)
            assert self._outcome.ended == "done", self._outcome.error or self._outcome.ended
            recorder.verify()
            self.scenario.check(self._root, self._outcome.acks)
            self._log = recorder.log
        return self._log

    def _run(self, plan: Kill) -> Outcome:
        trees.materialise(self._base, self._root)
        return run(self.scenario.operate, self._root, plan, errors=self.scenario.errors)

    def _fail_once(self, report: Report, plan: Fault) -> bool:
        trees.materialise(self._base, self._root)
        recorder = Recorder(self._root)
        outcome = run(self.scenario.operate, self._root, plan, errors=self.scenario.errors, recorder=recorder)
        if not outcome.hit:
            assert outcome.ended == "done", outcome.error
            return False
        report.cases += 1
        name = f"{errno.errorcode[plan.number]}{' from' if plan.lasting else ''} at call {plan.at}, {outcome.hit}"
        if outcome.ended == "crashed":
            report.wrong.append(f"{self.scenario.name}: {name}: an error without a type: {outcome.error}")
            return True
        assert outcome.ended in ("done", "failed"), outcome.ended
        left, _ = trees.snapshot(self._root)
        endings = [model.apply(recorder.log, choice) for choice in model.endings(recorder.log)]
        if outcome.ended == "failed":
            self._again(report, name, recorder)
        # What was acknowledged in spite of the error must outlive a power loss as well.
        for tree, then in ((left, ""), *((one, ", then a power loss") for one in endings)):
            if wrong := self._verdict(tree, outcome.acks):
                report.wrong.append(f"{self.scenario.name}: {name}{then}: {wrong}")
                break
        return True

    def _again(self, report: Report, name: str, recorder: Recorder) -> Outcome:
        """The operation once more where it was cut short; then a power loss must lose nothing of it."""
        name = f"{self.scenario.name}: {name}, then again"
        again = run(self.scenario.operate, self._root, errors=self.scenario.errors, recorder=recorder)
        if again.ended != "done":
            report.wrong.append(f"{name}: {again.error}")
            return again
        log = recorder.log
        for choice in (dict.fromkeys(range(len(log.events)), model.FULL), *model.endings(log)):
            if wrong := self._verdict(model.apply(log, choice), again.acks):
                report.wrong.append(f"{name}, then {self._describe(log, choice, len(log.events))}: {wrong}")
                break
        return again

    def _judge(self, report: Report, name: str, acks: tuple[str, ...]) -> bool:
        wrong = self._examine(acks)
        if wrong:
            report.wrong.append(f"{self.scenario.name}: {name}: {wrong}")
        return not wrong

    def _examine(self, acks: tuple[str, ...]) -> str:
        try:
            self.scenario.check(self._root, acks)
        except Exception as error:
            return f"{type(error).__name__}: {error} [acknowledged: {', '.join(acks) or 'nothing'}]"
        return ""

    def _verdict(self, tree: Tree, acks: tuple[str, ...]) -> str:
        key = (model.fingerprint(tree), acks)
        if key not in self._verdicts:
            trees.materialise(tree, self._root)
            self._verdicts[key] = self._examine(acks)
        return self._verdicts[key]

    @staticmethod
    def _describe(log: Log, choice: dict[int, str], point: int) -> str:
        lost = [
            f"{getattr(one, 'what', one)} ({choice.get(index, 'lost')})"
            for index, one in enumerate(log.events[:point])
            if isinstance(one, model.Change) and choice.get(index) != model.FULL
        ]
        at = getattr(log.events[point], "what", log.events[point]) if point < len(log.events) else "the end"
        return f"power lost before event {point} ({at}) with {'; '.join(lost) or 'nothing'} not on disk"


def _lines(log: Log) -> set[Line]:
    called = {line for one in log.events if isinstance(one, Sync) for line in one.site}
    return {line for line in called if line[0].startswith(SUBJECTS)}


def _usable(folder: str) -> bool:
    """Whether files there have extended attributes and can come without a name."""
    try:
        handle = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
    except OSError:
        return False
    try:
        os.setxattr(handle, "user.crash", b"1")
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
