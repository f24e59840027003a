# SPDX-License-Identifier: Apache-2.0
"""The jinja2 environment in which chat templates run, and its bounds.

jinja2's sandbox keeps templates from Python's internals, but not from looping for ever or from building a value
that fills memory. Here each turn of a loop, call, filter, test and operator costs a step of a `Budget`, and
whatever can make a value larger than its operands by more than a constant factor is checked before it is done, or
is not offered: of the methods of Python's own types only those that are named here are. A list that holds itself
twice doubles with each turn, and takes for ever to write or to compare although it takes no memory: so every value
is weighed with all that is in it, as often as it is in it, when it is made.
Importing this module imports jinja2.

What templates expect of their host, as the tools that write them give it: `trim_blocks`, `lstrip_blocks`, loop
controls, `generation` blocks, `raise_exception`, `strftime_now`, and a `tojson` that escapes no HTML.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Generator
from itertools import islice

from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, do_round
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from markupsafe import Markup

from syntrop.runtimed.chat_template import TemplateLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0  # of the processor: whoever else uses it does not count
MAX_SIZE = 1 << 24  # characters of output or of a string
MAX_ITEMS = 1 << 17  # of a sequence or range
MAX_WEIGHT = 1 << 25  # of a value with all that is in it: one for each item and character
MAX_MADE = 1 << 28  # characters of all texts that are made on the way
MAX_NUMBER = 1 << 63
MAX_GROWING = 1 << 12  # items of a list that a template appends to

# Filters that build values as wide as an argument says, or that nothing in a conversation needs.
_NO_FILTERS = ("batch", "center", "format", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr")
# What can be called of values, by their type; of numbers, bytes and types nothing can.
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(
        ("capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isascii",
         "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower",
         "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
         "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper")
    )),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("append", "copy", "count", "index", "pop"))),
    (tuple, frozenset(("count", "index"))),
    (range, frozenset(("count", "index"))),
)  # fmt: skip
# A width of four digits, or one that is itself computed.
_WIDE_FORMAT = re.compile(r"\d{4}|%[^a-zA-Z%]*\*|\{[^{}:]*:[^{}]*\{")
_ESCAPING_FORMAT = re.compile("%[^a-zA-Z%]*[ra]")
_MAX_FIELD = 999  # characters, of a value that is no text
_MAX_SEPARATORS = 16  # characters


class Budget:
    """Steps, time and sizes of one rendering. Raises TemplateLimit."""

    __slots__ = ("_deadline", "_given", "_left", "_made", "_output")

    def __init__(self) -> None:
        self.start(())

    def start(self, given: Iterable[Any]) -> None:
        """For one rendering, of values that its caller vouches for: they are weighed once."""
        self._left = MAX_STEPS
        self._output = self._made = 0
        self._deadline = time.thread_time() + MAX_SECONDS
        self._given: dict[int, int] = {}
        for value in given:
            self._weigh_given(value)

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise TemplateLimit(f"the chat template took more than {MAX_STEPS} steps")
        if time.thread_time() > self._deadline:
            raise TemplateLimit(f"the chat template took more than {MAX_SECONDS:g} seconds")

    def produce(self, characters: int) -> None:
        self._output += characters
        if self._output > MAX_SIZE:
            raise TemplateLimit(f"the chat template wrote more than {MAX_SIZE} characters")

    def checked(self, value: Any) -> Any:
        """The value, unless it is too large to go on with."""
        if isinstance(value, str):
            self._made += len(value)
            if len(value) > MAX_SIZE:
                raise TemplateLimit(f"the chat template builds a text of {len(value)} characters")
            if self._made > MAX_MADE:
                raise TemplateLimit(f"the chat template builds texts of more than {MAX_MADE} characters")
        elif isinstance(value, list | tuple | dict):
            if len(value) > MAX_ITEMS:
                raise TemplateLimit(f"the chat template builds a sequence of {len(value)} items")
            if self._weight(value) > MAX_WEIGHT:
                raise TemplateLimit("the chat template builds a value that is too large")
        elif isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateLimit("the chat template computes a number beyond 64 bits")
        return value

    def _weigh_given(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value)
        weight = 1
        if isinstance(value, list | tuple | dict):
            for item in value.values() if isinstance(value, dict) else value:
                weight += self._weigh_given(item)
            if isinstance(value, dict):
                weight += sum(map(len, map(str, value)))
            self._given[id(value)] = weight
        return weight

    def _weight(self, value: Any) -> int:
        """Stops at a bound of its own, so that a value that passes it takes no time."""
        weight = items = 0
        waiting = [value]
        while waiting:
            one = waiting.pop()
            items += 1
            known = self._given.get(id(one))
            if known is not None:
                weight += known
            elif isinstance(one, str):
                weight += 1 + len(one)
            elif isinstance(one, _Growing):
                weight += MAX_GROWING * 16
            elif isinstance(one, dict):
                waiting += one.values()
                waiting += one
            elif isinstance(one, list | tuple):
                waiting += one
            if len(waiting) + items > MAX_ITEMS:
                return MAX_WEIGHT + 1
        self.step(items >> 6)
        return weight + items


class _Growing(list["Any"]):
    """A list that was written empty: the only one that a template may change. Holds texts and numbers only, so
    that none can be put into another while it is small."""

    def append(self, value: Any) -> None:
        if not isinstance(value, str | int | float | None) or (isinstance(value, str) and len(value) > 4096):
            raise SecurityError("only short texts and numbers can be appended to a list")
        if len(self) >= MAX_GROWING:
            raise TemplateLimit(f"the chat template appends more than {MAX_GROWING} items")
        super().append(value)


class _Namespace(Namespace):
    """Is written by its name: what it holds may hold it again."""

    def __repr__(self) -> str:
        return "<Namespace>"


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


def _check_percent(text: str, values: Any) -> None:
    """Whether what `text % values` gives is within the bound, by the longest that it can be."""
    times = 10 if _ESCAPING_FORMAT.search(text) else 1  # a character as \\U0001f600
    fields = text.count("%")

    def written(value: Any) -> int:
        return times * len(value if isinstance(value, str) else str(value))

    if isinstance(values, tuple):
        size = sum(map(written, values))  # each has its place
    else:
        size = written(values)
        if isinstance(values, dict):
            size += fields * max(map(written, values.values()), default=0)
    if len(text) + size + fields * _MAX_FIELD > MAX_SIZE:
        raise TemplateLimit("the chat template builds a text that is too long")


class _Metered(SandboxedFormatter):
    """str.format that stops where its text becomes too long."""

    _size = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        environment: Any = self._env
        environment.budget.step()
        result = super().format_field(value, format_spec)
        self._size += len(result)
        if self._size > MAX_SIZE:
            raise TemplateLimit("the chat template builds a text that is too long")
        return result


class _MeteredEscape(_Metered, SandboxedEscapeFormatter):
    pass


def _is_offered(function: Any) -> bool:
    """Whether a template may call this: what is not a method of a value is its own, ours or jinja2's."""
    owner = getattr(function, "__self__", None)
    if owner is None or type(owner).__module__.startswith("jinja2."):
        return True
    name = getattr(function, "__name__", "")
    return any(isinstance(owner, kind) and name in names for kind, names in _METHODS)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    budget: Budget

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        # What a macro is given it can pass on together, so it is weighed together.
        self.budget.checked([*args, *kwargs.values()])
        name = getattr(function, "__name__", "")
        if not _is_offered(function):
            raise SecurityError(f"{name} is not available")
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            if name == "replace" and len(args) >= 2 and all(isinstance(one, str) for one in args[:2]):
                _check_replace(owner, args[0], args[1])
            elif name == "join" and len(args) == 1:
                args = (_joinable(args[0], owner),)
        return self.budget.checked(super().call(context, function, *args, **kwargs))

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
        elif operator == "%" and isinstance(left, str):
            if _WIDE_FORMAT.search(left):
                raise SecurityError("a format as wide as that is not available")
            _check_percent(left, right)
        return self.budget.checked(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, _Growing) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        if value.__name__ != "format":
            raise SecurityError(f"str.{value.__name__} is not available")
        if _WIDE_FORMAT.search(text):
            raise SecurityError("a format as wide as that is not available")

        def run(*args: Any, **kwargs: Any) -> str:
            if isinstance(text, Markup):
                return Markup(_MeteredEscape(self, escape=text.escape).vformat(text, args, kwargs))
            return _Metered(self).vformat(text, args, kwargs)

        return run

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        # Loops, `~` and literals have no hook of their own, so they get a filter.
        for loop in list(source.find_all(nodes.For)):
            loop.iter = self._filtered(loop.iter, "counted")
        for concatenation in list(source.find_all(nodes.Concat)):
            plain = nodes.Concat(concatenation.nodes, lineno=concatenation.lineno)
            concatenation.nodes = [self._filtered(plain, "sized")]
        _wrap_literals(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    @staticmethod
    def _filtered(node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _wrap_literals(node: nodes.Node) -> None:
    """Weigh lists, tuples and dictionaries where they are written; an empty list may grow."""
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            _wrap_literals(value)
            setattr(node, name, _wrapped(value))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    _wrap_literals(item)
                    value[index] = _wrapped(item)


def _wrapped(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.List) and not node.items:
        return _Environment._filtered(node, "growing")
    if isinstance(node, nodes.Tuple) and node.ctx != "load":
        return node  # the names that are assigned to
    if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) and not all(
        isinstance(item, nodes.Const | nodes.TemplateData)
        for item in (
            [part for pair in node.items for part in (pair.key, pair.value)]
            if isinstance(node, nodes.Dict)
            else node.items
        )
    ):
        return _Environment._filtered(node, "sized")
    return node


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
    if separators is not None and sum(map(len, separators)) > _MAX_SEPARATORS:
        raise SecurityError("separators as long as that are not available")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[Any]:
    """What `map` and `select` give is no list yet."""
    if isinstance(value, Generator):
        return list(islice(value, MAX_ITEMS))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if (width if isinstance(width, int) else len(width)) > 64:
        raise SecurityError("an indent as wide as that is not available")
    if len(text.splitlines()) > MAX_ITEMS:
        raise TemplateLimit(f"the chat template indents more than {MAX_ITEMS} lines")
    return do_indent(text, width, first, blank)


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    source, old, new = str(text), str(old), str(new)
    _check_replace(source, old, new)
    return source.replace(old, new, count)


def _round(value: Any, precision: int = 0, method: Any = "common") -> float:
    if not -64 <= precision <= 64:
        raise SecurityError("a precision as high as that is not available")
    return do_round(value, precision, method)


def _strftime_now(form: str) -> str:
    if len(form) > 256:
        raise SecurityError("a format as long as that is not available")
    return time.strftime(form)


def _same(value: Any) -> Any:
    return value


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
            return budget.checked(function(*args, **kwargs))

        return run

    plain_join = FILTERS["join"]

    @functools.wraps(plain_join)
    def join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        # With an attribute the items are weighed with all that they hold, and the result is checked.
        return plain_join(context, value if attribute is not None else _joinable(value, d), d, attribute)

    result = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    result.budget = budget
    offered = {name: one for name, one in FILTERS.items() if name not in _NO_FILTERS}
    offered |= {"tojson": _tojson, "indent": _indent, "replace": _replace, "join": join, "round": _round}
    offered |= {"sized": _same, "growing": _Growing}
    result.filters = {name: metered(one) for name, one in offered.items()}
    result.filters["counted"] = counted
    # `select` and its kin ask a test of every item.
    tests: Any = TESTS
    result.tests = {name: metered(one) for name, one in tests.items()}
    result.globals = {name: DEFAULT_NAMESPACE[name] for name in ("dict", "cycler", "joiner")}
    result.globals |= {
        "range": _range,
        "namespace": _Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return result
