# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Tool1`."""

from __future__ import annotations


class Tool1:
    """Handler of the interface. Methods that are not here are not built yet."""
