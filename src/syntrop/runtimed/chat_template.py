# SPDX-License-Identifier: Apache-2.0
"""Render a conversation as a model was trained to read it, by the Jinja template in its file.

Templates arrive with models and are not trusted. They run in jinja2's immutable sandbox (`template_sandbox`),
from which Python's internals cannot be reached and where loops and sizes are bounded: a template that exceeds a
bound is stopped, and says so. A template is compiled when it is first needed: jinja2 takes some 60 ms to import,
and who gives a prompt needs none.
"""

from __future__ import annotations

from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from jinja2 import Template

    from syntrop.runtimed.template_forms import Forms
    from syntrop.runtimed.template_sandbox import Budget

MAX_TEMPLATE = 1 << 18  # characters; the longest in use have some 20,000


def is_warm() -> bool:
    """Whether a template can be compiled without a wait for jinja2."""
    import sys

    return "syntrop.runtimed.template_sandbox" in sys.modules


def warm() -> None:
    """Import what templates need, in a thread beside the loading of a model."""
    import syntrop.runtimed.template_forms
    import syntrop.runtimed.template_sandbox

    _ = syntrop


class TemplateError(ValueError):
    """The template is missing, broken, or refused the conversation; the text says which."""


class TemplateLimit(TemplateError):
    """The template was stopped at a bound."""


class ChatTemplate:
    """A template. `render` may be called from any thread; renderings run one at a time."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Raises TemplateLimit where the source is too long."""
        if len(source) > MAX_TEMPLATE:
            raise TemplateLimit(f"a template of {len(source)} characters; at most {MAX_TEMPLATE} are read")
        self._source = source
        self._lock = allocate_lock()
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._compiled: tuple[Template, Budget, Forms] | None = None
        self._takes_functions = False

    def prepare(self) -> None:
        """Compile, so that the first rendering need not. Raises TemplateError."""
        with self._lock:
            self._prepared()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation. Raises TemplateError.

        Messages are as OpenAI's clients write them (see `template_messages`); their contents may be lists of
        parts. `variables` are given to the template by their names: `enable_thinking`, `documents` and whatever
        else it knows.
        """
        with self._lock:
            _, _, forms = self._prepared()
            given = {"add_generation_prompt": add_generation_prompt, "documents": None, **variables}
            shaped = forms.shaped(messages)
            try:
                return self._render({"messages": shaped, "tools": tools, **given})
            except TemplateLimit:
                raise
            except TemplateError:
                # Some that were made for tools go through them without asking whether there are any.
                if tools is not None:
                    raise
                try:
                    return self._render({"messages": shaped, "tools": [], **given})
                except TemplateError:
                    pass
                raise

    def _prepared(self) -> tuple[Template, Budget, Forms]:
        if self._compiled is None:
            from jinja2 import TemplateError as JinjaError
            from jinja2 import meta

            from syntrop.runtimed.template_forms import Forms
            from syntrop.runtimed.template_sandbox import Budget, environment

            budget = Budget()
            maker = environment(budget)
            try:
                template = maker.from_string(self._source)
                if "functions" in self._source:
                    names = meta.find_undeclared_variables(maker.parse(self._source))
                    self._takes_functions = "functions" in names and "tools" not in names
            except (JinjaError, RecursionError, SyntaxError, MemoryError) as error:
                raise TemplateError(f"the chat template cannot be read: {error}") from None
            self._compiled = template, budget, Forms(self._probe)
        return self._compiled

    def _probe(self, messages: list[dict[str, Any]]) -> str | None:
        from syntrop.runtimed.template_forms import PROBE_TOOLS

        given = {"messages": messages, "tools": PROBE_TOOLS, "documents": None, "add_generation_prompt": True}
        try:
            return self._render(given)
        except TemplateLimit:
            raise  # once is enough
        except TemplateError:
            return None

    def _render(self, variables: dict[str, Any]) -> str:
        from jinja2 import TemplateError as JinjaError

        if self._takes_functions:
            variables = _named_functions(variables)
        try:
            return self._generate({**self._tokens, **variables})
        except TemplateError:
            raise
        except JinjaError as error:
            raise TemplateError(f"the chat template refuses the conversation: {error}") from None
        except (
            ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            # What the expressions of a template raise of themselves: it does not fit the conversation.
            reason = f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template fails on the conversation: {reason}") from None

    def _generate(self, variables: dict[str, Any]) -> str:
        template, budget, _ = self._prepared()
        budget.start(variables.values())
        parts: list[str] = []
        for part in template.generate(variables):
            budget.produce(len(part))
            parts.append(part)
        return "".join(parts)


def _named_functions(variables: dict[str, Any]) -> dict[str, Any]:
    """For templates from before there was `tools`: the functions as JSON, and the date."""
    import json
    import time

    functions = [tool.get("function", tool) for tool in variables.get("tools") or ()]
    named = {"functions": json.dumps(functions, indent=4), "datetime": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
    return {**named, **variables}


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
            except (ValueError, RecursionError):
                arguments = call["arguments"]
            function = {"name": call["name"], "arguments": arguments}
            calls.append({"id": call["id"], "type": "function", "function": function})
        if calls:
            shaped["tool_calls"] = calls
        result.append(shaped)
    return result
