# SPDX-License-Identifier: Apache-2.0
"""The one clock of the chronology: microseconds since 1970 in UTC, as file systems and the journal have them."""

from __future__ import annotations

from time import time_ns

from syntrop.common import peer

_boot = ""


def now_us() -> int:
    return time_ns() // 1000


def boot_id() -> str:
    """This boot, in the journal's form: 32 hexadecimal digits. Empty where the kernel does not tell."""
    global _boot
    if not _boot:
        try:
            _boot = peer.boot_id().replace("-", "")
        except OSError:
            return ""
    return _boot
