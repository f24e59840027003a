# SPDX-License-Identifier: Apache-2.0
"""Settings of modeld."""

from __future__ import annotations

from syntrop.common.settings import Setting

TABLE: tuple[Setting, ...] = (
    Setting(
        "storage_path",
        str,
        None,
        "Folder of the store. Without it, the state folder that the service manager gives.",
        section="store",
    ),
)
