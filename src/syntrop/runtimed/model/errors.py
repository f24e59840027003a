# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a model or with a request to one; `subject` names the tensor, key or argument."""

from __future__ import annotations


class ModelError(ValueError):
    """`subject` is not usable, for `reason`."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"{subject}: {reason}")
        self.subject = subject
        self.reason = reason


class UnsupportedModel(ModelError):
    """Well formed, but of a kind that this engine does not run (yet)."""


class BrokenModel(ModelError):
    """The file contradicts itself."""


class BadRequest(ModelError):
    """The caller asked for what the model cannot do: a token out of range, more tokens than there is room."""


class NoMemory(ModelError):
    """The system gave no memory or no threads."""
