# SPDX-License-Identifier: Apache-2.0
"""Who we are to which host: the systemd credential `modeld.pull`. Pure but for `load`.

One line a host, `#` begins a comment:

    registry.example:5000 basic NAME PASSWORD
    hub.example bearer TOKEN

A host's words are sent to that host and port only, over https or to this machine, never along with a redirect.
"""

from __future__ import annotations

from base64 import b64encode

NAME = "modeld.pull"


class InvalidCredentials(ValueError):
    """A line that cannot be understood; its number is told, its content is not."""


class Credentials:
    """Authorization by host."""

    def __init__(self, headers: dict[str, str]) -> None:
        self._headers = headers

    def header(self, authority: str) -> str | None:
        """The value of Authorization for a host, `host` or `host:port`."""
        return self._headers.get(authority.lower())

    def __len__(self) -> int:
        return len(self._headers)


def parse(text: str) -> Credentials:
    """Raises InvalidCredentials."""
    headers = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        match words:
            case [host, "bearer", token] if token.isascii():
                headers[host.lower()] = f"Bearer {token}"
            case [host, "basic", name, password] if ":" not in name:
                headers[host.lower()] = "Basic " + b64encode(f"{name}:{password}".encode()).decode()
            case _:
                raise InvalidCredentials(f"line {number}: neither HOST bearer TOKEN nor HOST basic NAME PASSWORD")
    return Credentials(headers)


def load() -> Credentials:
    """Those that the service manager passed. Raises InvalidCredentials and OSError."""
    from syntrop.common import paths

    path = paths.credential(NAME)
    if path is None:
        return Credentials({})
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except FileNotFoundError:
        return Credentials({})
    except UnicodeDecodeError:
        raise InvalidCredentials("not UTF-8") from None
