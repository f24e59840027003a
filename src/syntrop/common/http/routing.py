# SPDX-License-Identifier: Apache-2.0
"""Which handler a request is for. Pure."""

from __future__ import annotations

import re

from syntrop.common.http.errors import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Row = tuple[str, tuple[str, ...], str]
    """Path, methods and handler. `{id}` is the rest of a path, slashes included: names of models may have them."""


class Routes:
    """A table of routes."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, rows: Iterable[Row]) -> None:
        self._exact: dict[str, tuple[tuple[str, ...], str]] = {}
        self._prefixes: list[tuple[str, tuple[str, ...], str]] = []
        for path, methods, name in rows:
            if path.endswith("{id}"):
                self._prefixes.append((path[:-4], methods, name))
            else:
                self._exact[path] = (methods, name)

    def find(self, method: str, path: str) -> tuple[str, str]:
        """Name of the handler, and the rest of the path. Raises HttpError: 404, or 405 with `Allow`."""
        found, rest = self._exact.get(path), ""
        if found is None:
            for prefix, methods, name in self._prefixes:
                if path.startswith(prefix) and len(path) > len(prefix):
                    found, rest = (methods, name), _unquote(path[len(prefix) :])
        if found is None:
            raise HttpError(404, f"There is nothing at {path}.", code="unknown_url", type="invalid_request_error")
        methods, name = found
        if method not in methods:
            allow = ", ".join(methods)
            raise HttpError(
                405,
                f"{method} is not allowed on {path}; {allow} is.",
                code="method_not_allowed",
                headers=(("allow", allow),),
            )
        return name, rest


def _unquote(text: str) -> str:
    """Percent-decoding. Raises HttpError when the result is not UTF-8."""
    raw = text.encode("latin-1")
    try:
        return re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), raw).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "The path is not valid UTF-8.") from None
