# SPDX-License-Identifier: Apache-2.0
"""Planes that are out of use because they are faulty. Kept over reboots, until somebody clears them."""

from __future__ import annotations

import json
import os

from syntrop.common import atomic, journal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Quarantine:
    """Reasons by plane, in a file of the state folder."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "quarantine.json")
        self.reasons: dict[str, str] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                found: Any = json.load(file)
            self.reasons = {str(plane): str(reason) for plane, reason in found["planes"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Nothing may be placed on a faulty plane by mistake, but nobody can tell any more which those are.
            journal.error(f"{self._path} cannot be read, no plane is in quarantine: {error}")

    def add(self, plane: str, reason: str) -> None:
        """Raises OSError; then nothing has changed. Blocks for the disk."""
        self._replace({**self.reasons, plane: reason})

    def clear(self, plane: str) -> None:
        """Raises OSError; then nothing has changed. Blocks for the disk."""
        self._replace({name: reason for name, reason in self.reasons.items() if name != plane})

    def _replace(self, reasons: dict[str, str]) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        atomic.write_json(self._path, {"planes": reasons}, mode=0o600)
        self.reasons = reasons
