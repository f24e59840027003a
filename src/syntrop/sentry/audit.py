# SPDX-License-Identifier: Apache-2.0
"""Incidents on disk: one file each, written whole; open ones apart from closed ones."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.sentry.incident import Incident


class Audit:
    """The folder of incidents. Raises OSError where the disk does."""

    def __init__(self, folder: str, *, keep: int, keep_days: int) -> None:
        raise NotImplementedError

    def open(self) -> list[Incident]:
        """The incidents that are not closed, oldest first."""
        raise NotImplementedError

    def write(self, incident: Incident, *, durable: bool = False) -> None:
        """Before each step that changes something, and whenever an incident changed. `durable`: synced."""
        raise NotImplementedError

    def get(self, id: str) -> Incident:
        """Raises KeyError."""
        raise NotImplementedError

    def list(self, *, unit: str | None, status: str | None, since_us: int, limit: int) -> list[dict[str, Any]]:
        """In the interface's form, newest first."""
        raise NotImplementedError
