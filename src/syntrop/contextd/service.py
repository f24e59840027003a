# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Context1`."""

from __future__ import annotations


class Context1:
    """Handler of the interface. Methods that are not here are not built yet."""
