# SPDX-License-Identifier: Apache-2.0
"""Render a conversation as a model was trained to read it, by the Jinja template in its file.

Templates arrive with models and are not trusted. They run in jinja2's immutable sandbox (`template_sandbox`),
from which Python's internals cannot be reached and where loops and sizes are bounded: a template that exceeds a
bound is stopped, and says so.
"""

from __future__ import annotations

from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_TEMPLATE = 1 << 20  # characters; the longest in use have some 20,000


class TemplateError(ValueError):
    """The template is missing, broken, or refused the conversation; the text says which."""


class TemplateLimit(TemplateError):
    """The template was stopped at a bound."""


class ChatTemplate:
    """A compiled template. `render` may be called from any thread; renderings run one at a time."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Raises TemplateError where the source cannot be compiled."""
        # Imported here: only a model that is being loaded needs it, and it takes some 60 ms.
        from jinja2 import TemplateError as JinjaError

        from syntrop.runtimed.template_sandbox import Budget, environment

        if len(source) > MAX_TEMPLATE:
            raise TemplateLimit(f"a template of {len(source)} characters; at most {MAX_TEMPLATE} are read")
        self._budget = Budget()
        self._lock = allocate_lock()
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment(self._budget).from_string(source)
        except (JinjaError, RecursionError, SyntaxError, MemoryError) as error:
            raise TemplateError(f"the chat template cannot be read: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation. Raises TemplateError."""
        from jinja2 import TemplateError as JinjaError

        given = {"messages": messages, "tools": tools, "documents": None, **self._tokens, **variables}
        try:
            with self._lock:
                return self._generate({"add_generation_prompt": add_generation_prompt, **given})
        except TemplateError:
            raise
        except JinjaError as error:
            raise TemplateError(f"the chat template refuses the conversation: {error}") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # What the expressions of a template raise of themselves: it does not fit the conversation.
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template fails on the conversation: {reason}") from None

    def _generate(self, variables: dict[str, Any]) -> str:
        self._budget.start()
        parts: list[str] = []
        for part in self._template.generate(variables):
            self._budget.produce(len(part))
            parts.append(part)
        return "".join(parts)


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runtime1's messages as templates expect them: calls of tools as OpenAI's clients write them, their
    arguments as objects where they are one, and no key for what a message does not have."""
    import json

    result = []
    for message in messages:
        shaped = {key: value for key, value in message.items() if value is not None}
        shaped.setdefault("content", None)
        calls = []
        for call in message.get("tool_calls") or ():
            try:
                arguments = json.loads(call["arguments"])
            except ValueError:
                arguments = call["arguments"]
            function = {"name": call["name"], "arguments": arguments}
            calls.append({"id": call["id"], "type": "function", "function": function})
        if calls:
            shaped["tool_calls"] = calls
        result.append(shaped)
    return result
