# SPDX-License-Identifier: Apache-2.0
"""One verdict from the deterministic causes and the model's choice among them. Pure.

The model is advisory. Late, absent or unsure, the deterministic verdict stands. Where both name one cause, its
confidence rises, by a bounded amount. Where they differ, the model is followed only if the signatures had not
settled it (below ACT) and its choice is near the first: then *their* evidence left it open. So

- a settled deterministic verdict is never changed,
- no cause ends up with less confidence than the signatures gave it,
- and the model, whatever it was told by a log, lifts nothing by more than `TRUST`, and nothing to where something
  is done without a person.
"""

from __future__ import annotations

from syntrop.sentry.causes import join
from syntrop.sentry.record import Record
from syntrop.sentry.signatures import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from syntrop.sentry.causes import Cause

ACT_AT, STAGE_AT = 0.90, 0.60
ACT, STAGE, REPORT = "act", "stage", "report"

TRUST = 0.35  # what the word of a model that is wholly sure is worth as evidence
CEILING = 0.89  # no higher: it read the words that a signature may have read, and two of one source are one
REACH = 0.25  # how far behind the first a cause may be for the model to prefer it
SURE_AT, MARGIN_AT = 0.55, 0.10  # below either, the model is unsure (docs/triage.md)

SIGNATURE, MODEL, BOTH = "signature", "model", "both"


class Answer(Record):
    """What the model said: the label, its share among the candidates, and its lead on the second (both 0 to 1)."""

    __slots__ = ("confidence", "label", "margin")

    def __init__(self, label: str, confidence: float, margin: float) -> None:
        self.label, self.confidence, self.margin = label, confidence, margin

    @property
    def sure(self) -> bool:
        """Whether it is worth anything. Figures that are none (NaN) are not."""
        return 1.0 >= self.confidence >= SURE_AT and self.margin >= MARGIN_AT


class Verdict(Record):
    """The cause that is taken for true, how sure that is, who chose it (`Incident.decided_by`), and why so."""

    __slots__ = ("cause", "causes", "confidence", "decided_by", "note")

    def __init__(
        self, cause: Cause, confidence: float, decided_by: str, causes: Sequence[Cause], note: str
    ) -> None:
        self.cause, self.confidence, self.decided_by = cause, confidence, decided_by
        self.causes = tuple(causes)
        self.note = note

    @property
    def disposition(self) -> str:
        """What the confidence alone allows: act, stage or report."""
        return disposition(self.confidence)


def disposition(confidence: float) -> str:
    """What may be done at a confidence. NaN allows nothing."""
    return ACT if confidence >= ACT_AT else STAGE if confidence >= STAGE_AT else REPORT


def answer(result: Mapping[str, Any]) -> Answer | None:
    """The model's choice from a `DecisionResult`; None where it is not one."""
    try:
        return Answer(str(result["winner"]), float(result["confidence"]), float(result["margin"]))
    except (KeyError, TypeError, ValueError):
        return None


def combine(
    causes: Sequence[Cause], model: Answer | None, *, why_absent: str = "the model was not asked"
) -> Verdict:
    """The verdict. `causes` are those of `causes.candidates`, likeliest first, at least one.

    The causes of the verdict come likeliest first, the chosen one before all.
    """
    first = causes[0]
    if model is None:
        return Verdict(first, first.confidence, SIGNATURE, causes, why_absent)
    if not model.sure:
        return Verdict(first, first.confidence, SIGNATURE, causes, "the model was unsure")
    chosen = next((cause for cause in causes if cause.fault_class == model.label), None)
    if chosen is None or chosen.fault_class == UNKNOWN:
        return Verdict(first, first.confidence, SIGNATURE, causes, "the model named none of the causes")
    raised = max(chosen.confidence, min(CEILING, join(chosen.confidence, TRUST * model.confidence)))
    if chosen is first:
        return Verdict(first, raised, BOTH, causes, "the model chose the same")
    if first.confidence >= ACT_AT:
        return Verdict(first, first.confidence, SIGNATURE, causes, "the evidence had settled it")
    if first.confidence - chosen.confidence > REACH:
        return Verdict(first, first.confidence, SIGNATURE, causes, "the model's choice has too little evidence")
    others = [cause for cause in causes if cause is not chosen]
    return Verdict(chosen, raised, MODEL, [chosen, *others], "the evidence had left it open")
