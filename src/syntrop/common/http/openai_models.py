# SPDX-License-Identifier: Apache-2.0
"""OpenAI's `/v1/models`. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def model(id: str, owner: str = "syntrop") -> dict[str, Any]:
    """One entry. The store keeps no time of creation, and 0 says so."""
    return {"id": id, "object": "model", "created": 0, "owned_by": owner}


def models(ids: Iterable[str]) -> dict[str, Any]:
    return {"object": "list", "data": [model(id) for id in ids]}
