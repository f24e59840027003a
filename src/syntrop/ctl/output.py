# SPDX-License-Identifier: Apache-2.0
"""What the activator and its services say, as lines on standard error.

Under systemd a service's output goes to the journal with the priority of its `<N>` prefix (sd-daemon(3)). Here
every service has a pipe; its lines come out with the service's name, or are dropped if they are not urgent.
"""

from __future__ import annotations

import os
import sys

ERR, WARNING, NOTICE, INFO, DEBUG = 3, 4, 5, 6, 7
LONGEST = 65536  # a longer line is cut into several


class Log:
    """Lines up to a priority, on standard error; with `<N>` prefixes where that is the journal."""

    __slots__ = ("level", "prefixed")

    def __init__(self, level: int = INFO) -> None:
        self.level = level
        self.prefixed = bool(os.environ.get("JOURNAL_STREAM"))

    def line(self, priority: int, source: str, text: str) -> None:
        if priority > self.level:
            return
        mark = f"<{priority}>" if self.prefixed else ""
        data = f"{mark}{source}: {text}\n".encode("utf-8", "backslashreplace")
        try:
            os.write(2, data)
        except OSError:
            pass  # nobody reads us any more; the suite goes on

    def own(self, priority: int, text: str) -> None:
        self.line(priority, "syntropctl", text)


class Output:
    """The reading end of one process's output."""

    __slots__ = ("_log", "_rest", "handle", "name")

    def __init__(self, log: Log, name: str, handle: int) -> None:
        self._log, self.name, self.handle = log, name, handle
        self._rest = b""
        os.set_blocking(handle, False)

    def read(self) -> bool:
        """Forward what has come; False once the other side is closed (or we failed to read it)."""
        while True:
            try:
                data = os.read(self.handle, 65536)
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            if self._rest and (not data or len(self._rest) > LONGEST):
                lines.append(self._rest)
                self._rest = b""
            for line in lines:
                self._forward(line)
            if not data:
                return False

    def _forward(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        # What has no prefix is a traceback or a foreign library's cry: it is shown even when all is quiet.
        priority = NOTICE
        if len(text) > 2 and text[0] == "<" and text[2] == ">" and text[1] in "01234567":
            priority, text = int(text[1]), text[3:]
        if text:
            self._log.line(priority, self.name, text)


def fail(message: str) -> int:
    """Say on one line why a command could not do its work; the status to exit with."""
    print(f"syntropctl: {message}", file=sys.stderr)
    return 1
