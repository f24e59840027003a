# SPDX-License-Identifier: Apache-2.0
"""Render a conversation as a model was trained to read it, by the Jinja template in its file.

Templates arrive with models and are not trusted. They run in jinja2's immutable sandbox (`template_sandbox`),
from which Python's internals cannot be reached and where loops and sizes are bounded: a template that exceeds a
bound is stopped, and says so. A template is compiled when it is first needed: jinja2 takes some 60 ms to import,
and who gives a prompt needs none.
"""

from __future__ import annotations

from _thread import allocate_lock

from syntrop.common.http.thinking import PAIRS

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


# What a template's expressions raise of themselves, and jinja2's parser lets through: its own fault, not ours.
# Anything else is a fault of ours, and logged as one.
_ITS_OWN = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NameError, RuntimeError,
    SyntaxError, TypeError, ValueError,
)  # fmt: skip
# What switches thoughts on and off, whatever a template calls it.
_THINKING = {"enable_thinking", "thinking", "reasoning_effort"}


class TemplateError(ValueError):
    """The template is missing, broken, or refused the conversation; the text says which."""


class TemplateLimit(TemplateError):
    """The template was stopped at a bound."""


class TemplateLacks(TemplateError):
    """The template has no place for something that was given: it would go unread. `parameter`: tools or
    template_variables."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(reason)
        self.parameter = parameter


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
        self._names: set[str] | None = None  # of the variables that it reads

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

    def check(self, *, tools: bool, variables: Mapping[str, Any]) -> None:
        """Raises TemplateLacks where `tools`, or all of the `variables`, would change nothing.

        Variables that ask for nothing, such as `enable_thinking` when false, may be read by none: but not where
        the template has marks of thoughts, so that the model may think all the same. Those that ask a model to
        think that does so unasked are what it does.
        """
        names = self._reads()
        if tools and not names & {"tools", "functions"}:
            raise TemplateLacks("tools", "the model's chat template has no place for them")
        if variables and not names & variables.keys():
            thinks = any(mark in self._source for pair in PAIRS for mark in pair)
            if thinks != any(variables.values()) or not variables.keys() <= _THINKING:
                given = ", ".join(sorted(variables))
                raise TemplateLacks("template_variables", f"the model's chat template reads no {given[:200]}")

    def _reads(self) -> set[str]:
        with self._lock:
            self._prepared()
            if self._names is None:
                from jinja2 import meta

                from syntrop.runtimed.template_sandbox import Budget, environment

                self._names = meta.find_undeclared_variables(environment(Budget()).parse(self._source))
            return self._names

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
            except TemplateError:
                raise
            except (JinjaError, *_ITS_OWN) as error:
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
        except _ITS_OWN as error:  # it does not fit the conversation
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
