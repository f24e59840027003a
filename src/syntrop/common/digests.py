# SPDX-License-Identifier: Apache-2.0
"""SHA-256 and BLAKE2 without OpenSSL: to load that takes longer than all the digests that a caller waits for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b, sha256
    from typing import Any


def _made_in(*modules: str, name: str) -> Any:
    """The interpreter's own; what it is in depends on its version, and not every distribution builds it."""
    for module in (*modules, "hashlib"):
        try:
            return getattr(__import__(module), name)
        except ImportError:
            continue
    raise ImportError(name)


if not TYPE_CHECKING:
    blake2b = _made_in("_blake2", name="blake2b")
    sha256 = _made_in("_sha2", "_sha256", name="sha256")

__all__ = ["blake2b", "sha256"]
