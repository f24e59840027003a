# SPDX-License-Identifier: Apache-2.0
"""Settings of contextd. So far it has none of its own beside those of every daemon."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = ()
