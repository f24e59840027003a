# SPDX-License-Identifier: Apache-2.0
"""Incidents played on a machine against the installed suite: what came of each, and whether that was right.

`playing.py [FOLDER]` boots a machine, plays the incidents of a folder (ours by default), and prints the table.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import suite
import witness
from catalogue import (
    OURS,
    PATIENCE,
    WATCHED,
    Case,
    FolderError,
    broken,
    cases,
    clean,
    differences,
    invocations,
    place,
    snapshot,
)
from machine import Machine, MachineError

from syntrop.sentry import causes, remedy, signatures, verdict

PYTHON = "/usr/lib/syntrop/bin/python3"
WITNESS = Path(witness.__file__).read_text()
# What a busy test machine needs, and no incident: time, and rates that many failures in a row do not meet.
SETTINGS = {
    "/etc/syntrop/systemd-sentry.toml": "[policy]\nactions_per_minute = 1000\nactions_per_hour = 10000\n"
    "[diagnose]\npatience_sec = 60.0\n[restore]\nprobation_sec = 0.5\nstart_patience_sec = 60.0\n",
    "/etc/syntrop/toold.toml": "[rates]\nchanges_per_minute = 1000\nchanges_per_unit_per_minute = 1000\n",
}


@dataclass
class Judgement:
    """A cause and what it leads to, and whether that is what the incident wants."""

    cause: str
    confidence: float
    action: str
    done: str
    right: bool


@dataclass
class Played:
    """What came of an incident. `wrong` is empty where all is as it should be."""

    case: Case
    signatures: Judgement
    model: Judgement | None
    combined: Judgement
    incident: dict[str, Any]
    wrong: list[str] = field(default_factory=list)


def prepare(machine: Machine, wanted: Sequence[Case]) -> None:
    """Settings, the model, and all incidents' services running well and known to contextd."""
    for path, text in SETTINGS.items():
        machine.write(path, text)
    suite.set_idle(machine, "*", 120)
    machine.run("systemctl stop systemd-sentry.service toold.service", check=False)
    machine.run(suite.IMPORT, timeout=PATIENCE)
    place(machine, wanted)
    look(machine, wanted)
    until = time.monotonic() + PATIENCE
    while "first look" in machine.run("syntropctl drift", timeout=PATIENCE).stdout:
        # What changed before contextd has looked at everything is no change to it.
        if time.monotonic() > until:
            raise MachineError("contextd has not looked at everything")
        time.sleep(0.2)


def look(machine: Machine, wanted: Sequence[Case], model: str = "") -> list[dict[str, Any]]:
    """What systemd-sentry's eyes see of their units, and the model's choice where one is named."""
    told = machine.run_python(WITNESS, model, *(case.unit for case in wanted), python=PYTHON, timeout=PATIENCE)
    return [json.loads(line) for line in told.splitlines()]


def play(machine: Machine, case: Case, *, ask: bool = True) -> Played:
    """Break it, have it triaged, compare, take all back, compare again. `ask`: find out beforehand what signatures
    and model say by themselves; without it, both are taken to say what systemd-sentry does.

    Raises MachineError where a script fails or nothing answers.
    """
    folders = (*WATCHED, *case.watch)
    broken(machine, case)
    before, alone = snapshot(machine, folders), invocations(machine, case)
    alone[case.unit] = machine.property(case.unit, "InvocationID")
    opinions = judgements(case, look(machine, [case], suite.MODEL)[0]) if ask else None
    one = json.loads(syntropctl(machine, "triage", case.unit, "--json"))
    if one["status"] == "staged" and case.approve:
        one = json.loads(syntropctl(machine, "approve", one["id"], "--json"))
    wrong = verdict_faults(case, one)
    if opinions is None:
        first = one["causes"][0]
        same = Judgement(first["fault_class"], first["confidence"], case.action, case.done, not wrong)
        opinions = (same, None, same)
    played = Played(case, *opinions, one, wrong)
    did = case.done == "act" or case.approve
    wrong += effect_faults(machine, case, alone, did=did)
    if case.locked and not unlocked(machine, case.unit):
        wrong.append("its breaker is not locked")
    after = snapshot(machine, folders)
    wrong += write_faults(case, differences(before, after), did=did)
    if one["status"] == "staged":
        syntropctl(machine, "reject", one["id"], "--reason", "the catalogue goes on")
    if after == before:
        return played
    for record in rollbacks(machine, one):
        syntropctl(machine, "rollback", record)
    if left := differences(before, snapshot(machine, folders)):
        wrong.append(f"not put back to the byte: {', '.join(left)}")
    return played


def judgements(case: Case, told: dict[str, Any]) -> tuple[Judgement, Judgement | None, Judgement]:
    """What signatures, the model and both together make of what was seen; None where the model had no choice."""
    found = witness.read(told)
    ranked = causes.candidates(found, signatures.scan(found))

    def judged(ruled: verdict.Verdict) -> Judgement:
        action = remedy.choose(ruled.cause, found)
        done = remedy.disposition(ruled, action, found)
        name = ruled.cause.fault_class
        right = name in case.cause and (action.name, done) == (case.action, case.done)
        return Judgement(name, ruled.confidence, action.name, done, right)

    if told["answer"] is None:
        alone = judged(verdict.combine(ranked, None))
        return alone, None, alone
    answer = verdict.Answer(**told["answer"])
    chosen = next(cause for cause in ranked if cause.fault_class == answer.label)
    by_model = verdict.Verdict(chosen, answer.confidence, verdict.MODEL, ranked, "")
    return judged(verdict.combine(ranked, None)), judged(by_model), judged(verdict.combine(ranked, answer))


def syntropctl(machine: Machine, *words: str) -> str:
    return machine.run(["syntropctl", *words], timeout=PATIENCE).stdout


def verdict_faults(case: Case, one: dict[str, Any]) -> list[str]:
    """What systemd-sentry itself found and decided, that it should not have."""
    first = one["causes"][0]
    wrong = []
    if first["fault_class"] not in case.cause:
        wrong.append(f"found {first['fault_class']} ({first['confidence']:.2f}), not {' or '.join(case.cause)}")
    if not first["evidence"]:
        wrong.append("nothing is cited")
    expected = {
        "act": ("recovered",),
        "stage": ("recovered",) if case.approve else ("staged",),
        "report": ("reported", "dismissed"),
    }
    if one["status"] not in expected[case.done]:
        wrong.append(f"it is {one['status']}, not {' or '.join(expected[case.done])}")
    tools = {
        "restart": ("unit_reset_failed", "unit_restart"),
        "revert_drop_in": ("revert_dropin",),
        "set_property": ("set_unit_property",),
    }
    tool = one["action"]["tool"] if one["action"] else "none"
    if tool not in tools.get(case.action, ("none" if case.action == "wait_for_root" else case.action,)):
        wrong.append(f"the action is {tool}, not {case.action}")
    said = json.dumps(one["causes"], ensure_ascii=False) + json.dumps(one["action"], ensure_ascii=False)
    if case.explains not in said:
        wrong.append(f"{case.explains} is not told")
    return wrong


def effect_faults(machine: Machine, case: Case, before: dict[str, str], *, did: bool) -> list[str]:
    """What became of the units."""
    wrong = []
    if did and (state := machine.property(case.unit, "ActiveState")) != "active":
        wrong.append(f"{case.unit} is {state}, and not well")
    for unit, invocation in before.items():
        if unit == case.unit and did:
            continue
        if (now := machine.property(unit, "InvocationID")) != invocation:
            wrong.append(f"{unit} was not left alone ({invocation or 'none'} became {now or 'none'})")
    return wrong


def unlocked(machine: Machine, unit: str) -> bool:
    """Reset a unit's breaker, as an operator would; whether it was locked."""
    socket = "/run/systemd-sentry/sentry.sock"
    told = json.loads(syntropctl(machine, "call", socket, "io.syntrop.Sentry1.GetStatus"))
    syntropctl(machine, "reset", unit)
    return any(one["unit"] == unit and one["state"] == "locked" for one in told["breakers"])


def write_faults(case: Case, changed: list[str], *, did: bool) -> list[str]:
    """Files that changed, and may not have; and that did not, and should."""
    globs = case.changed if did else ()
    wrong = [f"{path} was written to" for path in changed if not any(fnmatchcase(path, one) for one in globs)]
    wrong += [f"{one} was left as it was" for one in globs if not any(fnmatchcase(path, one) for path in changed)]
    return wrong


def rollbacks(machine: Machine, one: dict[str, Any]) -> list[str]:
    """What the incident's action can be taken back by, the newest first."""
    records = json.loads(syntropctl(machine, "history", "--json", "--limit", "1000"))
    mine = [record for record in records if record["timestamp_us"] >= one["timestamp_us"]]
    return [record["id"] for record in sorted(mine, key=lambda record: -record["timestamp_us"])]


def table(all_played: Sequence[Played]) -> str:
    """The table for docs/triage.md."""

    def cell(one: Judgement | None) -> str:
        if one is None:
            return "not asked"
        return (
            f"{'' if one.right else '**'}`{one.cause}` {one.confidence:.2f} {one.done}{'' if one.right else '**'}"
        )

    lines = ["| incident | signatures | model | combined | systemd-sentry |", "| --- | --- | --- | --- | --- |"]
    for one in all_played:
        came = f"{one.incident['status'].replace('_', ' ')}, by {one.incident['decided_by']}"
        cells = (cell(one.signatures), cell(one.model), cell(one.combined), came)
        lines.append(f"| {one.case.name} | " + " | ".join(cells) + " |")
    asked = [one for one in all_played if one.model is not None]
    right = (
        f"{sum(one.signatures.right for one in all_played)} of {len(all_played)}",
        f"{sum(one.model is not None and one.model.right for one in asked)} of {len(asked)}",
        f"{sum(one.combined.right for one in all_played)} of {len(all_played)}",
        f"{sum(not one.wrong for one in all_played)} of {len(all_played)}",
    )
    return "\n".join([*lines, "| **right** | " + " | ".join(right) + " |"])


def main() -> int:
    from roots import TRIXIE, Roots

    from syntrop.ctl import starter

    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OURS
    try:
        wanted = cases(folder)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 2
    roots = Roots(TRIXIE)
    binds = [(str(starter.fetch()), suite.MODEL_FILE, True)]
    all_played = []
    with Machine(roots.layers(), binds=binds, name="syntrop-incidents") as machine:
        prepare(machine, wanted)
        for case in wanted:
            try:
                one = play(machine, case)
            finally:
                clean(machine, case)
            all_played.append(one)
            print(f"{case.name}: {'; '.join(one.wrong) or 'right'}", file=sys.stderr, flush=True)
    print(table(all_played))
    return 1 if any(one.wrong for one in all_played) else 0


if __name__ == "__main__":
    sys.exit(main())
