# SPDX-License-Identifier: Apache-2.0
"""The journal's identifiers of what toold tells operators. `units/catalog/syntrop.catalog` explains each."""

from __future__ import annotations

TOOL_RUN = "b4fbd4d08eec4ce497f27a3cd952a18a"
TOOL_CHANGED = "2b966026476c4fa58791e0d2ff68426b"
TOOL_REFUSED = "e135f7d196f942f0864bea954fa1441f"
TOOL_FAILED = "9843da366c4342f181a221d80a76ec7d"
ROLLED_BACK = "0b7e848b20034889a4463882c8c2bbd9"
RECOVERED = "0c52b0aa11ae40828bf448ebcc3d4662"
RECOVERY_FAILED = "09b7dfd4d5754b9f80f7ca60dd7eff35"
AUDIT_BROKEN = "10a89952a9a841bd9dea75005dfcd8c2"
