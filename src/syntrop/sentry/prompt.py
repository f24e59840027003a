# SPDX-License-Identifier: Apache-2.0
"""What the model reads: how likely the unit's last words are as one more line of each cause's profile. Pure.

Text of logs is data, and here it stands nowhere that a model could take it for an instruction: it is not what the
model answers to, but what is weighed. It is one line; line breaks, invisible characters and everything that a chat
template or a control token is made of are taken out. What is left is that words may sound like another cause's:
verdict.py bounds what that can lead to.
"""

from __future__ import annotations

import math
import unicodedata

from syntrop.common.patterns import late
from syntrop.sentry import profiles
from syntrop.sentry.evidence import SERVICE
from syntrop.sentry.record import Record
from syntrop.sentry.verdict import ACT_AT, REACH, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from syntrop.sentry.causes import Cause
    from syntrop.sentry.evidence import Evidence

QUESTIONS_MAX = 3  # causes that are compared: the model reads the words once for each
WORDS_MAX = 240  # characters that it reads in all, which are about 70 tokens
LINE_MAX = 240
SAID = "said"  # the label of the words; what else a choice must have is one token, which costs nothing
# From likelihoods to shares: a difference of so many nats is worth a factor of e. Fitted (docs/triage.md).
NATS = 4.0

# `<|im_start|>`, `</s>`, `[INST]`, `{{`, `<<SYS>>`, backticks: what templates and control tokens are written with.
_MARKUP = str.maketrans(
    {"<": "(", ">": ")", "[": "(", "]": ")", "{": "(", "}": ")", "|": "/", "`": "'", "\u2581": "_"}
)
_SPACE = late(r"\s+")
# What stands before the words: times, process numbers, levels, and Python's name of an errno.
_PREFIX = late(
    r"\A(?:[\s\[(]*(?:\d{4}[-/]\d\d[-/]\d\d[T ]?|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?|[+-]\d\d:?\d\d\b"
    r"|(?:\S{1,32}\[)?\d{2,7}\]?:?(?=\s)|[A-Z][a-z]{2} [ \d]\d (?=\d\d:))[\])]*[ ,|:]*){0,6}"
    r"(?:[\w./-]{1,32}: (?=\[[A-Za-z]{3,9}\]))?(?:\[[A-Za-z]{3,9}\] ?:? ?|level=[a-z]{3,8} )?"
    r"(?:\(\d{1,7}\) ?: ?)?(?:msg=\"?)?(?:\w{1,40}Error: \[Errno \d{1,3}\] )?"
)
# Parts of a stack, underlinings, and what everybody says who ends.
_NOISE = late(
    r"\A\s*(?:File \"|at [\w.$<>]{1,200}\(|#\d|\^|~|Traceback \(|\.\.\. \d|goroutine \d|exit(?:ing|ed)?\b"
    r"|(?:shutting|shut) down\b|stopp(?:ed|ing)\b|bye\b|terminat(?:ed|ing)\b|giving up\b|note: )"
    r"|\A[^A-Za-z]*\Z"
)
_TELLING = late(
    r"(?i)error\b|\b(?:err|fatal|fail(?:ed|ure|s)?|panic(?:ked)?|critical|alert|emerg|abort(?:ed|ing)?"
    r"|exception|cannot|can't|could not|couldn't|unable|invalid|not |no |denied|refus|missing|unknown|bad|wrong"
    r"|must|corrupt|assert)"
)


# Before the sentence that the model is to write: three that are written.
_STORIES = """Unit: db.service
Cause: there is no space left (/var/lib/db)
Log: could not extend file base/16384: device is full
Sentence: db.service failed because there is no space left in /var/lib/db, so that it could not extend a file.

Unit: mail.service
Cause: /etc/mail/mail.conf changed before it failed
Log: line 4: unknown key 'hostnam'
Sentence: mail.service failed because /etc/mail/mail.conf was changed and line 4 has the unknown key 'hostnam'.

Unit: api.service
Cause: its main process ended on SIGSEGV
Log: worker 3 started
Sentence: api.service failed because its main process ended on SIGSEGV.

"""
_BECAUSE = " failed because"
SENTENCE_MAX = 200
_SENTENCE = late(r"[^\n]{8,200}?[.!](?=\s|\Z)")
_WORD = late(r"[a-z0-9_@/.-]*[a-z0-9]")
_NOT = late(r"\b(?:no|not|never|none|cannot|without|must|missing|refused|denied|unable|n't)\b|n't\b|\bun[a-z]{4}")
_STEM = 5  # letters by which two forms of a word are known for one
_PLAIN_WORDS = """
a able an and any are as at be because been before but by can cannot could did do does failed for from had has
have in into is it its may must no not nothing of on or so than that the then there they this to too unable was
were when which while will with without would
"""
_PLAIN = frozenset(_PLAIN_WORDS.split())
_NAME = late(r"[^a-z]")  # what names something rather than being a word


class Question(Record):
    """How likely are the words if this were the cause? `prompt` is the fixed text of its profile."""

    __slots__ = ("fault_class", "prompt", "words")

    def __init__(self, fault_class: str, prompt: str, words: str) -> None:
        self.fault_class, self.prompt, self.words = fault_class, prompt, words

    def candidates(self) -> list[dict[str, str]]:
        """As `Runtime1.Decide` takes them."""
        return [{"name": SAID, "token": f" {self.words}\n"}, {"name": "nothing", "token": "\n"}]


def quoted(text: str, limit: int = LINE_MAX) -> str:
    """A text as one harmless line of at most `limit` characters."""
    text = text[: limit * 4]
    if not (text.isascii() and text.isprintable()):
        text = unicodedata.normalize("NFKC", text)
        text = "".join(" " if letter.isspace() else letter for letter in text if _shown(letter))
    text = _SPACE.sub(" ", text.translate(_MARKUP)).strip()
    return text if len(text) <= limit else text[: limit - 2] + " …"


def _shown(letter: str) -> bool:
    return letter.isspace() or letter.isprintable()


def last_words(evidence: Evidence, limit: int = LINE_MAX) -> str:
    """The last line of the unit's own that tells something, without what stands before its words; empty where
    there is none.
    """
    said = [entry for entry in evidence.entries if entry.origin == SERVICE and entry.unit in ("", evidence.unit)]
    return telling([line for entry in said for line in entry.message.split("\n")], limit)


def telling(lines: Sequence[str], limit: int = LINE_MAX) -> str:
    """The last of these lines that tells something."""
    kept = [line for line in lines if line.strip() and not _NOISE.search(line)]
    line = next((line for line in reversed(kept) if _TELLING.search(line)), kept[-1] if kept else "")
    return quoted(_PREFIX.sub("", line[: limit * 4]), limit)


def comparable(causes: Sequence[Cause]) -> list[Cause]:
    """The causes that words can choose among: those that evidence leaves near the first, one for each profile."""
    found: dict[str, Cause] = {}
    first = causes[0]
    for cause in causes:
        kind = profiles.kind(cause.fault_class)
        near = first.confidence - cause.confidence <= REACH or first.confidence >= ACT_AT
        if kind and near and kind not in found and len(found) < QUESTIONS_MAX:
            found[kind] = cause
    return list(found.values())


def questions(evidence: Evidence, causes: Sequence[Cause], *, words: str = "") -> list[Question]:
    """What is to be asked; nothing where there are no words, or none to choose among. `words` are others than the
    unit's last ones.
    """
    compared = comparable(causes)
    if len(compared) < 2 or compared[0] is not causes[0]:
        return []
    limit = WORDS_MAX // len(compared)
    words = quoted(words, limit) or last_words(evidence, limit)
    if not words:
        return []
    return [
        Question(cause.fault_class, profiles.profile(profiles.kind(cause.fault_class)), words)
        for cause in compared
    ]


def choice(likelihoods: Mapping[str, float]) -> Answer:
    """The answer by the logarithm of the words' likelihood under each class, of at least two."""
    ranked = sorted(likelihoods, key=lambda name: -likelihoods[name])
    shares = [math.exp((likelihoods[name] - likelihoods[ranked[0]]) / NATS) for name in ranked]
    whole = sum(shares)
    return Answer(ranked[0], shares[0] / whole, (shares[0] - shares[1]) / whole)


def story(evidence: Evidence, cause: Cause) -> str:
    """What the model is to complete to a sentence: why the unit failed."""
    unit = quoted(evidence.unit, 256)
    words = last_words(evidence) or "nothing"
    return f"{_STORIES}Unit: {unit}\nCause: {quoted(cause.explanation)}\nLog: {words}\nSentence: {unit}{_BECAUSE}"


def told(evidence: Evidence, cause: Cause, text: str) -> str:
    """The sentence that a completion makes of the story; empty where it is none, or says what is not in the story.

    A small model makes things up. So each word that means something has to stand in the cause, or in the unit's
    words, and a "not" of theirs must not get lost.
    """
    line = quoted(text.strip().split("\n")[0], SENTENCE_MAX)
    match = _SENTENCE.match(line)
    if match is None:
        return ""
    source = f"{cause.explanation} {last_words(evidence)}".lower()
    known = {_stem(word) for word in _WORD.findall(source)}
    meant = [word for word in _WORD.findall(match[0].lower()) if word not in _PLAIN]
    if len(meant) < 2 or any(_stem(word) not in known for word in meant):
        return ""
    if _NOT.search(source) and not _NOT.search(match[0].lower()):
        return ""
    return f"{quoted(evidence.unit, 256)}{_BECAUSE} {match[0]}"


def _stem(word: str) -> str:
    """What two forms of a word have in common; a name is itself."""
    return word if _NAME.search(word) else word[:_STEM]
