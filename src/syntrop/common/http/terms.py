# SPDX-License-Identifier: Apache-2.0
"""What an engine cannot honour, under the names that a dialect has for it. Pure."""

from __future__ import annotations

from syntrop.common.http import chat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def in_terms(error: chat.EngineError, names: Mapping[str, str]) -> chat.EngineError:
    """The same error with its parameter as the client calls it. A name that ends with `…` stands for the whole
    field: where the client's has another shape, its indices would mislead. Refusals in a provider's own words
    stay as they are."""
    if not isinstance(error, chat.Unhonoured) or isinstance(error, chat.Refused) or error.parameter is None:
        return error
    word = error.parameter.partition(".")[0].partition("[")[0]
    name = names.get(word)
    if name is None:
        return error
    rest = "" if name.endswith("…") else error.parameter[len(word) :]
    return chat.Unhonoured(name.removesuffix("…") + rest, error.reason)
