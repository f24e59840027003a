# SPDX-License-Identifier: Apache-2.0
"""The local model's part: its choice among near causes, and a sentence for people. Both by runtimed, both in time
or not at all.

The fixed parts of what it reads stay in runtimed's cache of prefixes once they were read, and on its disk, so that
a model that has to be loaded first need not read them again; `warm` reads them when nobody waits. Then a choice
takes the last words of the unit once for each cause, side by side in one batch, before what others want.
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
WARM_SECONDS = 600.0  # after which runtimed may have forgotten them
SENTENCE_TOKENS = 40
URGENT, USUAL, SPARE = "EmergencyTriage", "Interactive", "Batch"  # runtimed's priorities


class Adviser:
    """`model` is its name in the store. Never raises but Cancelled: what fails is a reason, in words."""

    __slots__ = ("_clock", "_model", "_peers", "_urgent", "_warming", "warm_until")

    def __init__(self, peers: Peers, model: str, clock: Clock) -> None:
        self._peers, self._model, self._clock = peers, model, clock
        self._urgent = URGENT  # what a choice is to runtimed
        self._warming: loop.Task[None] | None = None
        self.warm_until = float("-inf")  # monotonic seconds: until then the fixed texts are known

    def wanted(self, evidence: Evidence, causes: Sequence[Cause]) -> bool:
        """Whether there is anything for it to choose: else nobody need be woken."""
        return bool(prompt.questions(evidence, causes))

    async def choose(self, evidence: Evidence, causes: Sequence[Cause], *, deadline: int) -> Answer | str:
        """Its choice, or why there is none. `deadline` is monotonic, in microseconds."""
        asked = prompt.questions(evidence, causes)
        if not asked:
            return "the unit's words leave the model nothing to choose"
        return await self.weigh(asked, deadline=deadline)

    async def weigh(self, asked: Sequence[Question], *, deadline: int) -> Answer | str:
        """Of these questions, at least two, the class under which the words are likeliest, or why none."""
        left = (deadline - self._clock.monotonic_us()) / 1e6
        if left <= 0:
            return "there was no time left for the model"
        self.rest()
        try:
            found = await loop.gather(*(self._likelihood(one, self._urgent, left) for one in asked))
        except PeerError as error:
            return "the model was late" if error.late else f"the model did not answer: {error.reason}"
        self.warm()  # the model is awake now
        return prompt.choice({one.fault_class: score for one, score in zip(asked, found, strict=True)})

    async def likelihoods(
        self,
        text: str,
        candidates: Sequence[dict[str, str]],
        timeout: float,
        *,
        priority: str = USUAL,
        fixed: bool = False,
    ) -> dict[str, float]:
        """The logarithm of how likely each candidate is after a text, by its name. `fixed`: the text is one that
        stays the same. Raises PeerError."""
        parameters = {
            "model": self._model,
            "prompt": text,
            "candidates": list(candidates),
            "priority": priority,
            "keep_prompt": fixed,
        }
        try:
            reply = await self._peers.call(RUNTIMED, _RUNTIME1 + "Decide", parameters, timeout=timeout)
        except PeerError as error:
            if priority != URGENT or not error.error.endswith(".PermissionDenied"):
                raise
            # Urgent is the account of the supervisor alone: who runs it by hand as somebody else is like others.
            self._urgent = USUAL
            return await self.likelihoods(text, candidates, timeout, fixed=fixed)
        return {one["name"]: float(one["logit"]) for one in reply["result"]["candidates"]}

    async def _likelihood(self, question: Question, priority: str, timeout: float) -> float:
        asked = question.candidates()
        found = await self.likelihoods(question.prompt, asked, timeout, priority=priority, fixed=True)
        return found[prompt.SAID]

    async def sentence(self, evidence: Evidence, cause: Cause, *, deadline: int) -> str:
        """One sentence for people; empty where there is none that holds to what is known."""
        left = (deadline - self._clock.monotonic_us()) / 1e6
        if left <= 0:
            return ""
        parameters = {
            "model": self._model,
            "prompt": prompt.story(evidence, cause),
            "max_tokens": SENTENCE_TOKENS,
            "stop": ["\n"],
        }
        try:
            reply = await self._peers.call(RUNTIMED, _RUNTIME1 + "Generate", parameters, timeout=left)
        except PeerError:
            return ""
        return prompt.told(evidence, cause, reply["result"]["text"])

    def warm(self) -> None:
        """Have the fixed texts read in the background, where they were not lately."""
        if self._warming is None and self._clock.seconds() >= self.warm_until:
            warming = loop.spawn(self._warm(), "read the model's fixed texts", eager=True)
            self._warming = None if warming.done else warming

    @property
    def warming(self) -> bool:
        return self._warming is not None

    def rest(self) -> None:
        """Stop warming: something else is wanted of the model now, or of us."""
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.cancel()

    async def _warm(self) -> None:
        for name in profiles.OFTEN:
            question = prompt.Question(name, profiles.profile(name), ".")
            try:
                await self._likelihood(question, SPARE, WARM_TIMEOUT)
            except PeerError:
                break  # who asks first reads it
        else:
            self.warm_until = self._clock.seconds() + WARM_SECONDS
        self._warming = None
