# SPDX-License-Identifier: Apache-2.0
"""Models that the arbiter was told of, and where they are to be. Kept over restarts."""

from __future__ import annotations

import json
import os

from syntrop.common import atomic, journal, loop
from syntrop.common.turn import Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

MODELS_MAX: Final = 4096


class Full(Exception):
    """No more models are taken."""


class Registry:
    """Models by identifier, each as `ModelInfo` of the interface, in a file of the state folder.

    `add()` and `place()` block for the disk, so they are done by `change()`. They raise OSError; then nothing has
    changed.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "models.json")
        self.models: dict[str, dict[str, Any]] = {}
        self._turn = Turn()
        try:
            with open(self._path, encoding="utf-8") as file:
                self.models = {one["id"]: one for one in map(_checked, json.load(file)["models"])}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as error:
            journal.error(f"{self._path} cannot be read, no model is known: {error}")

    def placement(self, model: str) -> str | None:
        """The plane that a model is kept on."""
        found = self.models.get(model)
        return None if found is None else found["placement"] or None

    async def change(self, function: Callable[..., None], *arguments: object) -> None:
        """Run a change in a thread; one after the other, since each makes its file from what there was before."""
        await self._turn.to_the_end(lambda: loop.thread(function, *arguments), "models that are known")

    def add(self, model: str, form: str, path: str, size: int) -> None:
        """Tell of a model, or tell it anew; where it is kept stays. Raises Full."""
        if model not in self.models and len(self.models) >= MODELS_MAX:
            raise Full
        entry = {"id": model, "format": form, "path": path, "estimated_memory": size}
        self._replace({**self.models, model: {**entry, "placement": self.placement(model) or ""}})

    def place(self, model: str, plane: str) -> None:
        """Keep a model on a plane; the empty one lets go of it. Raises KeyError."""
        self._replace({**self.models, model: {**self.models[model], "placement": plane}})

    def _replace(self, models: dict[str, dict[str, Any]]) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        atomic.write_json(self._path, {"models": list(models.values())}, mode=0o600)
        self.models = models


def _checked(entry: Any) -> dict[str, Any]:
    return {
        **{name: str(entry[name]) for name in ("id", "format", "path", "placement")},
        "estimated_memory": int(entry["estimated_memory"]),
    }
