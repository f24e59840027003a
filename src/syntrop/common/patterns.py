# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that are compiled when they are first used: most are not before a caller has its reply."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, AnyStr


class _Late:
    def __init__(self, text: Any, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for one in ("search", "match", "sub", "findall"):
            setattr(self, one, getattr(compiled, one))  # from now on found without coming here
        return getattr(compiled, name)


def late(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` gives, later."""
    return _Late(text, flags)  # type: ignore[return-value]
