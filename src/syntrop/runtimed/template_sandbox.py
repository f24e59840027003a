# SPDX-License-Identifier: Apache-2.0
"""The jinja2 environment in which chat templates run, and its bounds.

jinja2's sandbox keeps templates from Python's internals, but not from looping for ever or from building a value
that fills memory. Here each turn of a loop, call, filter and operator costs a step of a `Budget`, and whatever
can make a value larger than its operands by more than a constant factor is checked before it is done, or is not
offered. Importing this module imports jinja2.

What templates expect of their host, as the tools that write them give it: `trim_blocks`, `lstrip_blocks`, loop
controls, `generation` blocks, `raise_exception`, `strftime_now`, and a `tojson` that escapes no HTML.
"""

from __future__ import annotations

import functools
import json
import re
import time

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent
from jinja2.sandbox import ImmutableSandboxedEnvironment

from syntrop.runtimed.chat_template import TemplateLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0
MAX_SIZE = 1 << 24  # characters of output or of a string
MAX_ITEMS = 1 << 17  # of a sequence or range
MAX_NUMBER = 1 << 63

# Filters that build values as wide as an argument says, or that nothing in a conversation needs.
_NO_FILTERS = ("batch", "center", "format", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
_NO_STRING_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "translate", "zfill"))
# A width of four digits, or one that is itself computed.
_WIDE_FORMAT = re.compile(r"\d{4}|%[^a-zA-Z]*\*|\{[^{}]*\{")


class Budget:
    """Steps, time and output of one rendering. Raises TemplateLimit."""

    __slots__ = ("_deadline", "_left", "_output")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._left = MAX_STEPS
        self._output = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TemplateLimit(f"the chat template took more than {MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise TemplateLimit(f"the chat template took more than {MAX_SECONDS:g} seconds")

    def produce(self, characters: int) -> None:
        self._output += characters
        if self._output > MAX_SIZE:
            raise TemplateLimit(f"the chat template wrote more than {MAX_SIZE} characters")


def _sized(value: Any) -> Any:
    """The value, unless it is too large to go on with."""
    if isinstance(value, str):
        if len(value) > MAX_SIZE:
            raise TemplateLimit(f"the chat template builds a text of {len(value)} characters")
    elif isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise TemplateLimit(f"the chat template builds a sequence of {len(value)} items")
    elif isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise TemplateLimit("the chat template computes a number beyond 64 bits")
    return value


def _check_replace(text: str, old: str, new: str) -> None:
    if len(text) + text.count(old) * len(new) > MAX_SIZE:
        raise TemplateLimit("the chat template builds a text that is too long")


def _joinable(items: Iterable[Any], separator: str) -> list[Any]:
    """The items as a list, when they can be joined within the bounds."""
    result = []
    size = 0
    for item in items:
        size += len(separator) + (len(item) if isinstance(item, str) else 1)
        if size > MAX_SIZE:
            raise TemplateLimit("the chat template builds a text that is too long")
        result.append(item)
    return result


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    budget: Budget

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            name = getattr(function, "__name__", "")
            if name in _NO_STRING_METHODS:
                raise SecurityError(f"str.{name} is not available")
            if name == "replace" and len(args) >= 2 and all(isinstance(one, str) for one in args[:2]):
                _check_replace(owner, args[0], args[1])
            elif name == "join" and len(args) == 1:
                args = (_joinable(args[0], owner),)
        return _sized(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    limit = MAX_SIZE if isinstance(value, str) else MAX_ITEMS
                    if len(value) * times > limit:
                        raise TemplateLimit("the chat template repeats a value too often")
        elif operator == "**":
            if isinstance(left, int | float) and isinstance(right, int | float) and abs(right) > 63:
                raise TemplateLimit("the chat template computes a number beyond 64 bits")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError("a format as wide as that is not available")
        return _sized(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        text = getattr(value, "__self__", None)
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and isinstance(text, str) and _WIDE_FORMAT.search(text):
            raise SecurityError("a format as wide as that is not available")
        return wrapped

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        # Loops and `~` have no hook of their own, so they get a filter.
        for loop in list(source.find_all(nodes.For)):
            loop.iter = self._filtered(loop.iter, "counted")
        for concatenation in list(source.find_all(nodes.Concat)):
            plain = nodes.Concat(concatenation.nodes, lineno=concatenation.lineno)
            concatenation.nodes = [self._filtered(plain, "sized")]
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    @staticmethod
    def _filtered(node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise JinjaError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("an indent as wide as that is not available")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (width if isinstance(width, int) else len(width)) > 64:
        raise SecurityError("an indent as wide as that is not available")
    return do_indent(text, width, first, blank)


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    source, old, new = str(text), str(old), str(new)
    _check_replace(source, old, new)
    return source.replace(old, new, count)


def _strftime_now(form: str) -> str:
    return time.strftime(form)


def _range(*bounds: int) -> range:
    result = range(*bounds)
    # Not by len(), which cannot tell more than an index holds.
    if result and abs(result[-1] - result[0]) // abs(result.step) >= MAX_ITEMS:
        raise TemplateLimit(f"the chat template counts beyond {MAX_ITEMS}")
    return result


def environment(budget: Budget) -> ImmutableSandboxedEnvironment:
    """A sandbox whose templates spend `budget`."""

    def counted(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            budget.step()
            yield item

    def metered(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps what tells jinja2 to pass the context
        def run(*args: Any, **kwargs: Any) -> Any:
            budget.step()
            return _sized(function(*args, **kwargs))

        return run

    plain_join = FILTERS["join"]

    @functools.wraps(plain_join)
    def join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        # With an attribute the items are not known yet; their number is bounded, and the result is checked.
        return plain_join(context, value if attribute is not None else _joinable(value, d), d, attribute)

    result = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    result.budget = budget
    offered = {name: one for name, one in FILTERS.items() if name not in _NO_FILTERS}
    offered |= {"tojson": _tojson, "indent": _indent, "replace": _replace, "join": join, "sized": _sized}
    result.filters = {name: metered(one) for name, one in offered.items()}
    result.filters["counted"] = counted
    result.globals = {name: DEFAULT_NAMESPACE[name] for name in ("dict", "cycler", "joiner", "namespace")}
    result.globals |= {
        "range": _range,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return result
