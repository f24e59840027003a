# SPDX-License-Identifier: Apache-2.0
"""Take a JSON object apart, strictly: what is ill-typed, out of range or left over is an error that names it.

Nothing of a request is ignored in silence: every field is taken by somebody, or `done()` refuses it.
"""

from __future__ import annotations

import json

from syntrop.common.http.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INTEGER_MAX = 2**53 - 1  # beyond it JSON readers lose digits


def parse_object(body: bytes) -> Fields:
    """The JSON object of a request's body. Raises BadRequest."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not valid UTF-8 (at byte {error.start}).") from None
    except RecursionError:
        raise BadRequest("The body's JSON is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    except ValueError:
        raise BadRequest("The body holds a number with thousands of digits.") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    return Fields(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise BadRequest(f"The field {name!r} is given twice.", param=name)
            seen.add(name)
    return value


def _no_constant(name: str) -> object:
    raise BadRequest(f"The body is not valid JSON: {name} is no JSON value.")


class Fields:
    """One object of a request. Each taker removes a field; null counts as absent, as clients mean it."""

    __slots__ = ("_path", "_rest")

    def __init__(self, value: dict[str, Any], path: str = "") -> None:
        self._rest = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        """Full name of a field, as errors give it: `messages[0].content`."""
        return f"{self._path}.{name}" if self._path else name

    def fail(self, name: str, what: str, code: str | None = None) -> BadRequest:
        """The error that blames a field: `'temperature' must be …`."""
        path = self.path(name)
        return BadRequest(f"'{path}' {what}", param=path, code=code)

    @property
    def empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._rest

    def take(self, name: str) -> Any:
        return self._rest.pop(name, None)

    def string(self, name: str) -> str | None:
        value = self.take(name)
        if value is None:
            return None
        return self.checked(name, value)

    def checked(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.fail(name, f"must be a string, not {kind(value)}.", "invalid_type")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise self.fail(name, "holds half of a surrogate pair.", "invalid_value") from None
        return value

    def boolean(self, name: str) -> bool | None:
        value = self.take(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(name, f"must be true or false, not {kind(value)}.", "invalid_type")

    def integer(self, name: str, low: int, high: int = INTEGER_MAX) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(name, f"must be an integer, not {kind(value)}.", "invalid_type")
        if not low <= value <= high:
            raise self.fail(name, f"must be between {low} and {high}, not {value}.", "invalid_value")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, f"must be a number, not {kind(value)}.", "invalid_type")
        if not low <= value <= high:
            raise self.fail(name, f"must be between {low:g} and {high:g}, not {value}.", "invalid_value")
        return float(value)

    def array(self, name: str) -> list[Any] | None:
        value = self.take(name)
        if value is None or isinstance(value, list):
            return value
        raise self.fail(name, f"must be an array, not {kind(value)}.", "invalid_type")

    def object(self, name: str) -> Fields | None:
        value = self.take(name)
        return None if value is None else self.inside(name, value)

    def inside(self, name: str, value: Any) -> Fields:
        """The fields of `value`, which stands at `name` (`messages[3]`)."""
        if not isinstance(value, dict):
            raise self.fail(name, f"must be an object, not {kind(value)}.", "invalid_type")
        return Fields(value, self.path(name))

    def strings(self, name: str, *, most: int) -> list[str]:
        """A string or an array of strings, as a list; empty when absent."""
        value = self.take(name)
        if value is None:
            return []
        items = value if isinstance(value, list) else [value]
        if len(items) > most:
            raise self.fail(name, f"may hold at most {most} strings, not {len(items)}.", "invalid_value")
        if isinstance(value, list):
            return [self.checked(f"{name}[{i}]", item) for i, item in enumerate(items)]
        return [self.checked(name, value)]

    def json(self, name: str, value: Any) -> str:
        """JSON text of a value that stands at `name`, as models write it."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:  # 1e999 is JSON, and is read as infinity
            raise self.fail(name, "holds a number that is too large.", "invalid_value") from None
        return self.checked(name, text)

    def only(self, name: str, *allowed: Any) -> None:
        """A parameter that is not built yet: values that ask for nothing pass, others are refused."""
        value = self.take(name)
        if value is None or any(value == one and type(value) is type(one) for one in allowed):
            return
        shown = " or ".join(json.dumps(one) for one in allowed)
        what = f"is supported only as {shown} so far." if shown else "is not supported yet."
        raise self.fail(name, what, "unsupported_value" if shown else "unsupported_parameter")

    def done(self) -> None:
        """Raises BadRequest for the first field that nobody took."""
        for name in self._rest:
            raise self.fail(name, "is not a parameter of this request.", "unknown_parameter")


def kind(value: Any) -> str:
    """What JSON calls a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
