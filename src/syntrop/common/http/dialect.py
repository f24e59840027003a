# SPDX-License-Identifier: Apache-2.0
"""What a dialect is to those who serve it: a `parse_…` of the body, and a reply that turns events into bytes.

A reply is pure and made for one request. Either `whole()` is asked for the answer at once, or its stream is
written: any number of `frames()`, then `end()` where every choice has finished, or `broken()` where the engine
failed after the headers had gone. What `broken()` gives is never a clean end, so the connection breaks off
behind it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Protocol

    from syntrop.common.http import chat
    from syntrop.common.http.errors import HttpError

    class Reply(Protocol):
        model: str  # may be set to the one that answers, before anything is told

        @property
        def headers(self) -> Sequence[tuple[str, str]]:
            """Those of a stream."""
            ...

        @property
        def ping(self) -> bytes:
            """What a stream may say while there is nothing to say."""
            ...

        def whole(self, events: Iterable[chat.Event]) -> dict[str, Any]:
            """The answer as a JSON object, of all events of all choices."""
            ...

        def frames(self, events: Iterable[chat.Event]) -> bytes:
            """The next bytes of the stream; the first ones open it."""
            ...

        def end(self) -> bytes:
            """The last bytes, behind the last event of the last choice."""
            ...

        def broken(self, error: HttpError) -> bytes:
            """The last bytes of a stream that fails."""
            ...
