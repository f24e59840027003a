# SPDX-License-Identifier: Apache-2.0
"""One file, from wherever it can be had, in one piece. Blocks."""

from __future__ import annotations

import re

from syntrop.modeld.pull.faults import Changed, Unavailable
from syntrop.modeld.pull.transport import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from syntrop.modeld.pull.transport import Answer, Transport

    Announce = Callable[[int, int | None, str | None], object]
    """First byte that will be written, size of the whole, what the source says of its content."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)


class Fetch:
    """Addresses of one content, the first being the best. `verified`: who asks knows the digest.

    Without that, what comes later must be provably of the content that came first: the same address and the same
    strong validator.
    """

    def __init__(
        self, transport: Transport, urls: Sequence[str], write: Callable[[bytes], object], announce: Announce
    ) -> None:
        self._transport = transport
        self._urls = list(urls)
        self._write = write
        self._announce = announce
        self._position = 0
        self._total: int | None = None
        self._validator: str | None = None
        self._begun = False
        self._verified = False

    def run(self, offset: int, validator: str | None, verified: bool) -> None:
        """Write the file from `offset` on, or all of it. Raises Unavailable, Changed and Cancelled."""
        self._position, self._validator, self._verified = offset, validator, verified
        if offset and not verified and not _is_strong(validator):
            self._position = 0
        patience = self._transport.patience()
        while True:
            url = self._urls[0]
            before = self._position
            try:
                if self._try(url):
                    return
                raise Failed("it ended too early")
            except Failed as failure:
                if self._position > before:
                    patience.progress()
                self._next(url, failure)
                try:
                    patience.failed(url, failure)
                except Unavailable:
                    if len(self._urls) < 2 or self._urls[0] == url:
                        raise
                    patience.progress()

    def _next(self, url: str, failure: Failed) -> None:
        """Let another address have its turn; one that will never do goes for good."""
        if len(self._urls) > 1 and (self._verified or not self._begun):
            self._urls.remove(url)
            if failure.again:
                self._urls.append(url)

    def _try(self, url: str) -> bool:
        """Whether the file is whole now."""
        headers = {}
        if self._position:
            headers["Range"] = f"bytes={self._position}-"
            if not self._verified and self._validator:
                headers["If-Range"] = self._validator
        try:
            answer = self._transport.get(url, headers)
        except Failed as failure:
            if failure.status == 416 and self._position:
                return self._past_the_end(url)
            raise
        with answer:
            skip = self._begin(url, answer)
            for data in answer.pieces():
                if skip:
                    data, skip = data[skip:], max(0, skip - len(data))
                if self._total is not None and self._position + len(data) > self._total:
                    raise Unavailable(url, f"it sends more than the {self._total} bytes that it told")
                if data:
                    self._write(data)
                    self._position += len(data)
        return self._total is None or self._position == self._total

    def _begin(self, url: str, answer: Answer) -> int:
        """Judge the head of an answer; how many of its first bytes are there already."""
        validator = answer.headers.get("etag")
        skip = 0
        if answer.status == 206:
            start, total = _content_range(url, answer)
            if start != self._position or not self._position:
                raise Unavailable(url, "it sends another range than it was asked for")
        else:
            total = answer.length
            if self._position and self._begun:
                skip = self._position  # it does not do ranges: what is there already goes by
            elif self._position:
                self._position = 0
        if self._begun:
            same = self._verified or (_is_strong(validator) and validator == self._validator)
            if not same or (None not in (self._total, total) and total != self._total):
                raise Changed(url)
            return skip
        if total is None and not self._verified:
            raise Unavailable(url, "it tells no size, and the digest is not known: nobody could tell if all came")
        self._begun, self._total, self._validator = True, total, validator
        self._announce(self._position, total, validator)
        return skip

    def _past_the_end(self, url: str) -> bool:
        """416: what is there is all that there is, or more than that."""
        if not self._begun:
            if self._verified:
                # The digest will tell.
                self._begun = True
                self._announce(self._position, self._position, self._validator)
                return True
            self._position = 0
            raise Failed("it has less than we have")
        if self._position == self._total:
            return True
        raise Changed(url)


def _content_range(url: str, answer: Answer) -> tuple[int, int | None]:
    found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    if found is None:
        raise Unavailable(url, "it sends a range without telling which")
    return int(found[1]), None if found[3] == "*" else int(found[3])


def _is_strong(validator: str | None) -> bool:
    return validator is not None and validator.startswith('"')
