# SPDX-License-Identifier: Apache-2.0
"""The proofs of many scenarios at once: a process for each processor, and each of them takes what is next.

A process stays on its processor, with the children that it traces: they take turns, and never run side by side.
All of them come from a small program of its own, since what they do most is to fork.

    python -m crashlab.crew FOLDER MODULE…    put the findings of the modules' scenarios into a folder
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NoReturn

from crashlab import ptrace
from crashlab.explore import Laboratory, Line, Report, Scenario

# Two halves of about the same length; what is in one shares a recording and verdicts, so their order matters.
PARTS = (("kill", "lose_power", "kill_again", "needless", "sync_lines"), ("fail",))


class Findings:
    """What came of a scenario's proofs, asked for as from a `Laboratory`. Raises AssertionError for mishaps."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def kill(self) -> Report:
        return self._of("kill")

    def kill_again(self) -> Report:
        return self._of("kill_again")

    def lose_power(self) -> Report:
        return self._of("lose_power")

    def fail(self) -> Report:
        return self._of("fail")

    def needless(self) -> tuple[set[Line], set[Line]]:
        return self._of("needless")

    def sync_lines(self) -> set[Line]:
        return self._of("sync_lines")

    def _of(self, proof: str) -> Any:
        result = self.results.get(proof, "the process that was to prove it died")
        assert not isinstance(result, str), result
        return result


def prove(modules: Sequence[str]) -> dict[str, Findings]:
    """All proofs of these test modules' scenarios, by the scenarios' names."""
    # The modules are imported over there alone: here their names may mean other tests.
    findings: dict[str, Findings] = defaultdict(Findings)
    with tempfile.TemporaryDirectory(prefix="crash-findings-") as folder:
        home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        subprocess.run([sys.executable, "-m", "crashlab.crew", folder, *modules], cwd=home, check=True)
        for number in os.listdir(folder):
            with open(os.path.join(folder, number), "rb") as file:
                name, results = pickle.load(file)
            findings[name].results |= results
    return findings


def scenarios(modules: Sequence[str]) -> list[Scenario]:
    """What is in the lists `SCENARIOS` of these modules' classes."""
    classes = [kind for one in modules for kind in vars(importlib.import_module(one)).values()]
    lists = [kind.SCENARIOS for kind in classes if isinstance(kind, type) and hasattr(kind, "SCENARIOS")]
    found = [scenario for one in lists for scenario in one]
    assert len({one.name for one in found}) == len(found), "two scenarios have the same name"
    return found


def main() -> None:
    folder, *modules = sys.argv[1:]
    ptrace.die_with_parent()
    tasks = [(one, part) for one in scenarios(modules) for part in PARTS]
    # A byte for each task: whoever reads it has it.
    queue, filled = os.pipe()
    os.write(filled, bytes(range(len(tasks))))
    os.close(filled)
    gc.freeze()  # what is there already is not copied by each child's collector
    workers = []
    for processor in sorted(os.sched_getaffinity(0)):
        worker = os.fork()
        if worker == 0:
            _work(tasks, queue, folder, processor)
        workers.append(worker)
    for worker in workers:
        os.waitpid(worker, 0)


def _work(tasks: Sequence[tuple[Scenario, tuple[str, ...]]], queue: int, folder: str, processor: int) -> NoReturn:
    try:
        ptrace.die_with_parent()
        os.sched_setaffinity(0, {processor})
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)  # what is tested logs much
        while taken := os.read(queue, 1):
            scenario, part = tasks[taken[0]]
            results = _results(scenario, part)
            with open(os.path.join(folder, str(taken[0])), "wb") as file:
                pickle.dump((scenario.name, results), file)
    finally:
        os._exit(0)


def _results(scenario: Scenario, part: tuple[str, ...]) -> dict[str, Any]:
    """What each proof found, or the traceback (a str) of what went wrong on the way."""
    results: dict[str, Any] = {}
    try:
        laboratory = Laboratory(scenario)
    except Exception:
        return dict.fromkeys(part, traceback.format_exc())
    try:
        for proof in part:
            try:
                results[proof] = getattr(laboratory, proof)()
            except Exception:
                results[proof] = traceback.format_exc()
    finally:
        laboratory.close()
    return results


if __name__ == "__main__":
    main()
