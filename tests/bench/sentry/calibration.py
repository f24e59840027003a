# SPDX-License-Identifier: Apache-2.0
"""How well the starter model tells causes apart, and what becomes of it: the tables of docs/triage.md.

    python tests/bench/sentry/calibration.py

Lines of `tests/data/incidents/words.jsonl` under every profile: those that the profiles were shaped with, and
those that were held out. Then the captured failures, and open ones that are composed of them, by signatures alone,
by the model alone, and by both. It takes the engine as a library: about two minutes of one core.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS), str(TESTS / "unit" / "sentry")]

import captured  # noqa: E402
import judging  # noqa: E402

import models  # noqa: E402
from syntrop.common.gguf import parse  # noqa: E402
from syntrop.runtimed import tokenizer  # noqa: E402
from syntrop.runtimed.model.llama import LlamaModel  # noqa: E402
from syntrop.runtimed.sampler import logprobs  # noqa: E402
from syntrop.sentry import causes, evidence, profiles, prompt, signatures, verdict  # noqa: E402
from syntrop.sentry.evidence import Change, Evidence, Package  # noqa: E402

WORDS = TESTS / "data" / "incidents" / "words.jsonl"
KINDS = sorted({profiles.kind(name) for name in profiles.PROFILED})
STEPS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.01)


class Engine:
    """The model, with the profiles read."""

    def __init__(self) -> None:
        with open(models.path("smollm2"), "rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = parse(data)
        self.tokenizer = tokenizer.load(header.metadata)
        self.model = LlamaModel.load(header, data, threads=1)
        self.read: dict[str, tuple[list[int], Any]] = {}

    def likelihood(self, kind: str, words: str) -> float:
        """The logarithm of the words' likelihood, as `Runtime1.Decide` gives it."""
        if kind not in self.read:
            tokens = self.tokenizer.encode(profiles.profile(kind))
            sequence = self.model.sequence(1024)
            self.model.forward(sequence, tokens[:-1], logits=False)
            self.read[kind] = tokens, sequence
        tokens, sequence = self.read[kind]
        whole = self.tokenizer.encode(f"{profiles.profile(kind)} {words}\n")
        assert whole[: len(tokens)] == tokens, "the words joined the profile"
        path = whole[len(tokens) :]
        total = 0.0
        for token, row in zip(path, self.model.forward_rows(sequence, whole[len(tokens) - 1 : -1]), strict=True):
            total += logprobs(row, len(self.tokenizer), token).logprob
        sequence.truncate(len(tokens) - 1)
        return total


def words(engine: Engine, which: str) -> None:
    lines = [one for one in map(json.loads, WORDS.read_text().splitlines()) if one["set"] == which]
    right: Counter[str] = Counter()
    count = Counter(one["fault_class"] for one in lines)
    pairs: list[tuple[bool, float]] = []
    for one in lines:
        text = prompt.telling([one["line"]], prompt.WORDS_MAX // 2)
        found = {kind: engine.likelihood(kind, text) for kind in KINDS}
        right[one["fault_class"]] += prompt.choice(found).label == one["fault_class"]
        for kind in KINDS:
            if kind != one["fault_class"]:
                answer = prompt.choice({name: found[name] for name in (one["fault_class"], kind)})
                pairs.append((answer.label == one["fault_class"], answer.confidence))
    print(f"\n{which}: {len(lines)} lines, {len(KINDS)} classes")
    print(f"  the right one of all: {sum(right.values())} ({sum(right.values()) / len(lines):.3f})")
    print("  " + ", ".join(f"{name} {right[name]}/{count[name]}" for name in KINDS if count[name]))
    print(f"  of two: {sum(ok for ok, _ in pairs) / len(pairs):.3f} of {len(pairs)}")
    for low, high in pairwise(STEPS):
        part = [ok for ok, confidence in pairs if low <= confidence < high]
        if part:
            share, good = len(part) / len(pairs), sum(part) / len(part)
            print(f"  confidence {low:.1f} and more: {share:.2f} of them, {good:.3f} right")


def opened() -> list[tuple[str, Evidence]]:
    """Failures that signatures leave open: words of the lists, after an edit or an upgrade that may have nothing
    to do with it."""
    found = []
    for one in map(json.loads, WORDS.read_text().splitlines()):
        if one["set"] != "held_out":
            continue
        for what in ("edit", "upgrade"):
            right = one["fault_class"]
            if right not in ("crash", "configuration" if what == "edit" else "package_upgrade"):
                continue
            found.append((right, failure(one["line"], what)))
    return found


def failure(line: str, what: str) -> Evidence:
    unit, when = "web.service", 10**15
    edit = Change(
        "d1", path="/etc/web/web.conf", time_us=when - 60_000_000, diff="-a = 1\n+a = 2", event_id="e1",
        summary="/etc/web/web.conf changed", reason=f"configuration of {unit}, 1 min before it failed",
    )  # fmt: skip
    upgrade = Package(
        "k1", name="web", action="upgrade", version="2", old_version="1", time_us=when - 60_000_000,
        reason="package of /usr/bin/web, which it runs, 1 min before it failed",
    )  # fmt: skip
    said = evidence.Entry("j1", cursor="c1", message=line, origin=evidence.SERVICE, unit=unit)
    return Evidence(
        unit, failed_us=when, exit=evidence.Exit("exit-code", evidence.EXITED, 1), entries=[said],
        changes=[edit] if what == "edit" else [], packages=[upgrade] if what == "upgrade" else [],
    )  # fmt: skip


def incidents(engine: Engine) -> None:
    known = [
        (judging.CLASSES[name], captured.captured(release, name))
        for release in captured.RELEASES
        for name in captured.names()
    ]
    print("\n| incidents | of them open | by signatures | by the model | both | answers of the model |")
    print("| --- | --- | --- | --- | --- | --- |")
    for title, cases in (("captured", known), ("after a change, words held out", opened())):
        scores: Counter[str] = Counter()
        for right, found in cases:
            ranked = causes.candidates(found, signatures.scan(found))
            asked = prompt.questions(found, ranked)
            answer = None
            if asked:
                answer = prompt.choice(
                    {
                        one.fault_class: engine.likelihood(profiles.kind(one.fault_class), one.words)
                        for one in asked
                    }
                )
            both = verdict.combine(ranked, answer).cause.fault_class
            scores["open"] += ranked[0].confidence < verdict.ACT_AT
            scores["signatures"] += ranked[0].fault_class == right
            scores["model"] += answer is not None and answer.label == right
            scores["both"] += both == right
            scores["answers"] += answer is not None
            if both != right or ranked[0].fault_class != right:
                said = "no answer" if answer is None else f"{answer.label} ({answer.confidence:.2f})"
                first = f"{ranked[0].fault_class} ({ranked[0].confidence:.2f})"
                print(f"<!-- {right}: signatures {first}, model {said}, both {both} -->", file=sys.stderr)
        row = (scores[name] for name in ("open", "signatures", "model", "both", "answers"))
        print(f"| {title}: {len(cases)} | " + " | ".join(map(str, row)) + " |")


def main() -> None:
    engine = Engine()
    for which in ("shaping", "held_out"):
        words(engine, which)
    incidents(engine)


if __name__ == "__main__":
    main()
