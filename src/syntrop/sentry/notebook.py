# SPDX-License-Identifier: Apache-2.0
"""What the guards know, kept on disk: written a moment after it changed, so that many failures are one write."""

from __future__ import annotations

from syntrop.common import journal, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.sentry.kit import Kit

DELAY = 0.05  # seconds


class Notebook:
    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._writing: loop.Timer | None = None

    def read(self) -> None:
        """Take up what an earlier life of ours knew."""
        kit = self._kit
        kept = kit.audit.guards()
        if kept:
            try:
                kit.guards.load(kept, kit.clock.seconds(), kit.clock.wall_us())
            except (KeyError, TypeError, ValueError) as error:
                journal.warning(f"What the breakers knew cannot be read, and is forgotten: {error!r}")

    def changed(self) -> None:
        """The guards may have learned something."""
        if self._writing is None and self._kit.guards.changed:
            self._writing = loop.call_later(DELAY, self.flush)

    def flush(self) -> None:
        """Write it down now, if there is anything new."""
        kit = self._kit
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if kit.guards.changed:
            kit.guards.changed = False
            try:
                kit.audit.write_guards(kit.guards.dump(kit.clock.seconds(), kit.clock.wall_us()))
            except OSError as error:
                journal.error(f"What the breakers know cannot be kept: {error}", ERRNO=error.errno)
