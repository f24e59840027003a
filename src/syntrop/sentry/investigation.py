# SPDX-License-Identifier: Apache-2.0
"""What signatures did not settle, looked into: the driver of agent.py's loop.

The model plans which tool to run, toold runs it, what it printed is read for evidence and for words, and the model
weighs the words as it does the unit's own. Nothing is changed: all the tools only look. It ends in act, stage or
report, never above what the evidence allows by then, and what was done is the transcript.
"""

from __future__ import annotations

from syntrop.common.patterns import late
from syntrop.sentry import agent, profiles, prompt, signatures, verdict
from syntrop.sentry import causes as c
from syntrop.sentry.cleaning import clean
from syntrop.sentry.evidence import Counter, Evidence
from syntrop.sentry.hands import HandsError
from syntrop.sentry.peers import PeerError
from syntrop.sentry.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Protocol

    from syntrop.sentry.agent import Ask, Move
    from syntrop.sentry.causes import Cause
    from syntrop.sentry.clock import Clock
    from syntrop.sentry.prompt import Question
    from syntrop.sentry.remedy import Step
    from syntrop.sentry.verdict import Answer, Verdict

    class Model(Protocol):
        """advice.Adviser."""

        async def weigh(self, asked: Sequence[Question], *, deadline: int) -> Answer | str: ...
        async def likelihoods(
            self, text: str, candidates: Sequence[dict[str, str]], timeout: float
        ) -> Mapping[str, float]: ...

    class Looker(Protocol):
        """hands.Hands."""

        async def look(self, step: Step) -> str: ...


# The model chooses a tool as the likeliest end of one line more, against how likely it is after words that tell
# nothing.
_PLAN = (
    "What a failed service said, and what to look at next:\n"
    "- cannot bind port 80: who listens on which address\n"
    "- write error, no space: how full the file systems are\n"
    "- Segfault in worker thread: the unit's crashes\n"
    "- unknown key in the unit: mistakes in the unit's files\n"
    "- the worker gave up after an error: the unit's newest warnings and errors\n"
    "- read error on device sda: the machine's newest errors\n"
    "- start took too long: how the manager sees the unit\n"
    "- everything is known: nothing more\n"
    "-"
)
_NOTHING_SAID = "it failed"
_ENOUGH = "nothing more"
_SAYING = frozenset(("warnings", "machine_errors", "unit_files"))  # tools whose output is lines of logs
_FULL = late(r"\A(?P<target>/\S{0,512}) +(?P<type>\S+) +(?P<size>\d+) +\d+ +(?P<free>\d+) ")
_STAMP = late(r"\A\d{4}-\d\d-\d\dT\S{8,24} \S{1,64} (?P<who>[^\s:\[]{1,64})(?:\[\d{1,7}\])?: ")
_ALWAYS_FULL = frozenset(("squashfs", "iso9660", "erofs", "cramfs", "udf", "efivarfs"))


_PARTS = (
    "invocation", "failed_us", "exit", "facts", "entries", "coredumps", "stalls", "changes", "packages",
    "neighbours", "copies", "context_known",
)  # fmt: skip


class Investigation(Record):
    """What came of it: act, stage or report; the verdict and the evidence by then; what was done."""

    __slots__ = ("evidence", "outcome", "reason", "transcript", "verdict")

    def __init__(
        self,
        outcome: str,
        reason: str,
        ruled: Verdict,
        evidence: Evidence,
        transcript: Sequence[Mapping[str, Any]],
    ) -> None:
        self.outcome, self.reason, self.verdict, self.evidence = outcome, reason, ruled, evidence
        self.transcript = list(transcript)


async def investigate(
    evidence: Evidence, causes: Sequence[Cause], *, model: Model, tools: Looker, clock: Clock, key: bytes
) -> Investigation:
    """Look into a failure that is open: at most five tools and 30 s. Never raises but Cancelled."""
    return await _Search(evidence, causes, model, tools, clock, key).run()


class _Search:
    def __init__(
        self, evidence: Evidence, causes: Sequence[Cause], model: Model, tools: Looker, clock: Clock, key: bytes
    ) -> None:
        self._evidence, self._causes = evidence, list(causes)
        self._model, self._tools, self._clock, self._key = model, tools, clock, key
        self._words = prompt.last_words(evidence)
        self._weighed: tuple[str, Evidence] | None = None
        self._bare: Mapping[str, float] = {}  # how likely each plan is after words that tell nothing
        self._verdict = verdict.combine(causes, None)
        self._vocabulary = agent.moves(evidence.unit)
        self._loop = agent.Loop(self._vocabulary, clock.seconds(), ceiling=self._verdict.disposition)

    async def run(self) -> Investigation:
        run, clock = self._loop, self._clock
        while True:
            want = run.next(clock.seconds())
            if isinstance(want, agent.End):
                transcript = run.dump()
                return Investigation(want.outcome, want.reason, self._verdict, self._evidence, transcript)
            if isinstance(want, agent.Run):
                await self._look(want.move)
                continue
            try:
                word = await self._answer(want)
            except PeerError as error:
                run.silent(clock.seconds(), f"the model did not answer: {error.reason}")
            else:
                run.chose(word, clock.seconds())

    async def _answer(self, want: Ask) -> str:
        """The model's word. Raises PeerError."""
        if want.kind == agent.PLAN:
            return await self._plan(want.options)
        if want.kind == agent.REFLECT:
            await self._reflect()
            settled = self._verdict.disposition != verdict.REPORT
            return agent.ENOUGH if settled else agent.GO_ON
        return min(self._verdict.disposition, want.options[-1], key=want.options.index)

    async def _plan(self, options: Sequence[str]) -> str:
        about = {move.name: move.about for move in self._vocabulary} | {agent.ENOUGH: _ENOUGH}
        if len(options) > len(self._vocabulary):
            options = options[:-1]  # nothing was looked at yet: that is not enough
        candidates = [{"name": name, "token": f": {text}\n"} for name, text in about.items()]
        if len(options) < 2:
            return agent.ENOUGH
        if not self._bare:
            self._bare = await self._after(_NOTHING_SAID, candidates)
        bare = self._bare
        if not self._words:  # no difference then: the likeliest one as such
            return max(options, key=bare.__getitem__)
        told = await self._after(self._words, candidates)
        return max(options, key=lambda name: told[name] - bare[name])

    async def _after(self, words: str, candidates: Sequence[dict[str, str]]) -> Mapping[str, float]:
        left = self._loop.left(self._clock.seconds())
        return await self._model.likelihoods(f"{_PLAN} {words}", candidates, left)

    async def _look(self, move: Move) -> None:
        run, clock = self._loop, self._clock
        try:
            output = await self._tools.look(move.step)
        except HandsError as error:
            run.ran(str(error), clock.seconds(), failed=True)
            return
        output = "\n".join(clean(line, self._key) for line in output.split("\n")[:256])
        self._learn(move, output)
        run.ran(output, clock.seconds(), ceiling=self._verdict.disposition)

    def _learn(self, move: Move, output: str) -> None:
        """Evidence, and words, from what a tool printed."""
        full = full_systems(output) if move.name == "space" else []
        if full:
            self._evidence = with_counters(self._evidence, full)
            self._causes = c.candidates(self._evidence, signatures.scan(self._evidence))
            self._verdict = verdict.combine(self._causes, None)
        if move.name in _SAYING:
            self._words = prompt.telling(said(output, self._evidence.unit)) or self._words

    async def _reflect(self) -> None:
        """Weigh the words anew: among the causes; where there are none to choose among, what they sound like."""
        if self._weighed == (self._words, self._evidence):
            return
        self._weighed = (self._words, self._evidence)
        deadline = self._clock.monotonic_us() + int(self._loop.left(self._clock.seconds()) * 1e6)
        asked = prompt.questions(self._evidence, self._causes, words=self._words)
        if asked:
            answer = await self._model.weigh(asked, deadline=deadline)
            if isinstance(answer, str):
                self._note(answer)
            else:
                self._note(f"of the causes, the words sound like {answer.label} ({answer.confidence:.2f})")
                self._verdict = verdict.combine(self._causes, answer)
                self._loop.ceiling = self._verdict.disposition
        elif self._words:
            every = [prompt.Question(name, profiles.profile(name), self._words) for name in profiles.OFTEN]
            answer = await self._model.weigh(every, deadline=deadline)
            if not isinstance(answer, str):
                unsure = "" if answer.sure else ", which is unsure"
                self._note(f"the words sound like {answer.label} ({answer.confidence:.2f}){unsure}")

    def _note(self, text: str) -> None:
        self._loop.note(text, self._clock.seconds())


def said(output: str, unit: str) -> list[str]:
    """Lines of the journal as a tool shows them, without times, hosts and names, and without the manager's own."""
    found = []
    for line in output.split("\n"):
        match = _STAMP.match(line)
        if match is not None and match["who"] == "systemd":
            continue
        found.append(line[match.end() :] if match is not None else line)
    return found


def full_systems(output: str) -> list[str]:
    """Where the file systems without space are mounted, from what `disk_usage` printed."""
    found = []
    for line in output.split("\n"):
        match = _FULL.match(line)
        if match is None or match["type"] in _ALWAYS_FULL:
            continue
        if int(match["size"]) and not int(match["free"]):
            found.append(match["target"])
    return found


def with_counters(evidence: Evidence, full: Sequence[str]) -> Evidence:
    """The evidence with counters that say that these file systems have no space."""
    known = {one.name for one in evidence.counters}
    more = [
        Counter(f"f{number}", f"free_bytes {target}", 0)
        for number, target in enumerate(full, 1)
        if f"free_bytes {target}" not in known
    ]
    parts = {name: getattr(evidence, name) for name in _PARTS}
    return Evidence(evidence.unit, counters=[*more, *evidence.counters], **parts)
