# SPDX-License-Identifier: Apache-2.0
"""The local model's part: its choice among near causes, and a sentence for people. Both by runtimed, both in time
or not at all.

The fixed parts of what it reads stay in runtimed's cache of prefixes once they were read; `warm` reads them when
nobody waits. Then a choice takes the last words of the unit once for each cause, side by side in one batch.
"""

from __future__ import annotations

from syntrop.common import loop
from syntrop.sentry import profiles, prompt
from syntrop.sentry.peers import RUNTIMED, PeerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from syntrop.sentry.causes import Cause
    from syntrop.sentry.clock import Clock
    from syntrop.sentry.evidence import Evidence
    from syntrop.sentry.peers import Peers
    from syntrop.sentry.prompt import Question
    from syntrop.sentry.verdict import Answer

_RUNTIME1 = "io.syntrop.Runtime1."
WARM_TIMEOUT = 60.0  # seconds for each profile; it may include loading the model
SENTENCE_TOKENS = 40
SENTENCE_MAX = 240  # characters


class Adviser:
    """`model` is its name in the store. Never raises but Cancelled: what fails is a reason, in words."""

    __slots__ = ("_clock", "_model", "_peers", "_warming")

    def __init__(self, peers: Peers, model: str, clock: Clock) -> None:
        self._peers, self._model, self._clock = peers, model, clock
        self._warming: loop.Task[None] | None = None

    def wanted(self, evidence: Evidence, causes: Sequence[Cause]) -> bool:
        """Whether there is anything for it to choose: else nobody need be woken."""
        return bool(prompt.questions(evidence, causes))

    async def choose(self, evidence: Evidence, causes: Sequence[Cause], *, deadline: int) -> Answer | str:
        """Its choice, or why there is none. `deadline` is monotonic, in microseconds."""
        asked = prompt.questions(evidence, causes)
        if not asked:
            return "the unit's words leave the model nothing to choose"
        left = (deadline - self._clock.monotonic_us()) / 1e6
        if left <= 0:
            return "there was no time left for the model"
        self.rest()
        tasks = [loop.spawn(self._likelihood(one, left), f"is it {one.fault_class}?") for one in asked]
        try:
            found = {one.fault_class: await task for one, task in zip(asked, tasks, strict=True)}
        except PeerError as error:
            return "the model was late" if error.late else f"the model did not answer: {error.reason}"
        finally:
            for task in tasks:
                task.cancel()
        return prompt.choice(found)

    async def _likelihood(self, question: Question, timeout: float) -> float:
        """The logarithm of the words' likelihood under one cause. Raises PeerError."""
        parameters = {
            "model": self._model,
            "prompt": question.prompt,
            "candidates": question.candidates(),
        }
        reply = await self._peers.call(RUNTIMED, _RUNTIME1 + "Decide", parameters, timeout=timeout)
        scored = {one["name"]: float(one["logit"]) for one in reply["result"]["candidates"]}
        return scored[prompt.SAID]

    async def sentence(self, evidence: Evidence, cause: Cause, *, deadline: int) -> str:
        """One sentence for people; empty where there is none."""
        left = (deadline - self._clock.monotonic_us()) / 1e6
        if left <= 0:
            return ""
        parameters = {
            "model": self._model,
            "messages": prompt.conversation(evidence, cause),
            "max_tokens": SENTENCE_TOKENS,
            "stop": ["\n"],
        }
        try:
            reply = await self._peers.call(RUNTIMED, _RUNTIME1 + "Generate", parameters, timeout=left)
        except PeerError:
            return ""
        return prompt.first_sentence(reply["result"]["text"], SENTENCE_MAX)

    def warm(self) -> None:
        """Have the fixed parts read in the background, at nobody's cost."""
        if self._warming is None or self._warming.done:
            self._warming = loop.spawn(self._warm(), "read the model's fixed texts")

    def rest(self) -> None:
        """Stop warming: something else is wanted of the model now."""
        if self._warming is not None:
            self._warming.cancel()
            self._warming = None

    async def _warm(self) -> None:
        for name in profiles.OFTEN:
            question = prompt.Question(name, profiles.profile(name), ".")
            parameters = {
                "model": self._model,
                "prompt": question.prompt,
                "candidates": question.candidates(),
            }
            try:
                await self._peers.call(RUNTIMED, _RUNTIME1 + "Decide", parameters, timeout=WARM_TIMEOUT)
            except PeerError:
                return  # it is warmed by who asks it first
