# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a model or with a request to one; `subject` names the tensor, key or argument."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class ModelError(ValueError):
    """`subject` is not usable, for `reason`. `offset` is where in the file it says so, once that is known."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject}: {reason}")
        self.subject = subject
        self.reason = reason
        self.offset: int | None = None

    def locate(self, places: Mapping[str, int]) -> None:
        """Look the subject up among the bytes where keys and tensors of the file stand."""
        self.offset = places.get(self.subject)
        if self.offset is not None:
            self.args = (f"{self.subject} at byte {self.offset}: {self.reason}",)


class UnsupportedModel(ModelError):
    """Well formed, but of a kind that this engine does not run (yet)."""


class BrokenModel(ModelError):
    """The file contradicts itself."""


class BadRequest(ModelError):
    """The caller asked for what the model cannot do: a token out of range, more tokens than there is room."""


class NoMemory(ModelError):
    """The system gave no memory or no threads."""


class OverBudget(NoMemory):
    """The budget has no room for what is asked; the text has the numbers."""

    def __init__(self, wanted: int, held: int, limit: int) -> None:
        super().__init__(
            "memory", f"{wanted} bytes are wanted, {max(0, limit - held)} of the {limit} allowed are free"
        )
