# SPDX-License-Identifier: Apache-2.0
"""Texts as evidence keeps them: bounded, without secrets and without what a terminal obeys. Pure."""

from __future__ import annotations

import re

from syntrop.common import redaction
from syntrop.common.patterns import late

MESSAGE_MAX = 512  # characters of an entry

# In log lines secrets come in shapes that files do not have: options of a command line, cookies, queries of URLs.
_LOG_SECRETS = (
    (
        ("-pass", "-pw", "-secret", "-token", "-api", "-access"),
        late(
            r"(?P<head>--?(?:password|passwd|pass|pw|secret|token|api-?key|access-?key)(?:=|\s{1,4}))"
            r"(?P<value>[^\s'\"]{1,256})",
            re.IGNORECASE,
        ),
    ),
    (
        ("cookie",),
        late(r"(?P<head>\b(?:set-)?cookie\s{0,4}:\s{0,4})(?P<value>[^\r\n]{1,512})", re.IGNORECASE),
    ),
    (
        ("?", "&"),
        late(
            r"(?P<head>[?&](?:key|sig|signature|auth|code|session|sid|jwt|x-amz-[a-z-]{1,32})=)"
            r"(?P<value>[^\s&\"'<>]{4,512})",
            re.IGNORECASE,
        ),
    ),
)
_CONTROL = late(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
_ESCAPES = late(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-_])")


def clean(text: str, key: bytes, limit: int = MESSAGE_MAX) -> str:
    """A text without secrets, escape sequences and invisible characters, cut in its middle to `limit` characters.

    `key` is the machine's: the same secret has the same digest, and the digest cannot be tried out without it.
    """
    text = text[: 64 << 10]
    if not text.isprintable():
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text))
    text = redaction.redact(text, key)
    small = text.lower()
    for needles, pattern in _LOG_SECRETS:
        if not any(needle in small for needle in needles):
            continue
        text = pattern.sub(lambda match: match["head"] + redaction.masked(match["value"], key), text)
    return shorten(text, limit)


def shorten(text: str, limit: int) -> str:
    """A text without its middle when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    mark = " … "
    head = (limit - len(mark)) * 2 // 3
    return text[:head] + mark + text[len(text) - (limit - len(mark) - head) :]
