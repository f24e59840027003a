# SPDX-License-Identifier: Apache-2.0
"""Unit files as systemd.syntax(7) reads them: text in, assignments out.

No I/O. The rules kept here: `#` and `;` open a comment line; a trailing backslash joins the next line with a
space, and comment lines between are dropped; a key may repeat; an empty assignment forgets what came before
it; `%` specifiers are expanded per unit; words are split with shell-like quotes and C escapes.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECTION = re.compile(r"\[([^\[\]]+)\]")
SPAN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zµ]*)", re.IGNORECASE)
SECONDS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "us": 1e-6, "µs": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "s": " ",
}  # fmt: skip


class UnitError(ValueError):
    """A unit file says something that cannot be understood."""


class UnitFile:
    """The assignments of one unit, drop-ins included, in file order."""

    __slots__ = ("entries", "name", "warnings")

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[tuple[str, str, str]] = []
        self.warnings: list[str] = []

    def read(self, text: str, source: str = "") -> UnitFile:
        """Add the assignments of a file or drop-in. What makes no sense becomes a warning, as in systemd."""
        where = source or self.name
        section = ""
        for number, line in logical_lines(text):
            if match := SECTION.fullmatch(line):
                section = match[1]
                continue
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                self.warnings.append(f"{where}:{number}: not an assignment, ignored")
            elif not section:
                self.warnings.append(f"{where}:{number}: assignment outside a section, ignored")
            else:
                self.entries.append((section, key.strip(), value.strip()))
        return self

    def all(self, section: str, key: str) -> list[str]:
        """Every value in force: what follows the last empty assignment."""
        values: list[str] = []
        for at, name, value in self.entries:
            if at == section and name == key:
                if value:
                    values.append(value)
                else:
                    values.clear()
        return values

    def last(self, section: str, key: str, default: str = "") -> str:
        """The value in force of a key that holds one value."""
        values = self.all(section, key)
        return values[-1] if values else default

    def keys(self, section: str) -> list[str]:
        """Keys that are assigned something, in order of first appearance."""
        seen = dict.fromkeys(name for at, name, _ in self.entries if at == section)
        return [name for name in seen if self.all(section, name)]


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments gone, each with the number of its first physical line."""
    pending = ""
    start = 0
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = raw.strip()
        if line[:1] in ("#", ";"):
            continue  # inside a continuation too, as systemd does
        if not pending:
            start = number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        whole = (pending + line).strip()
        pending = ""
        if whole:
            yield start, whole
    if pending.strip():
        yield start, pending.strip()


def expand(text: str, specifiers: Mapping[str, str]) -> str:
    """Replace `%x` by its specifier; `%%` is a percent sign. Raises UnitError for one that is unknown."""
    out = []
    at = 0
    while (mark := text.find("%", at)) >= 0:
        out.append(text[at:mark])
        letter = text[mark + 1 : mark + 2]
        if letter == "%":
            out.append("%")
        elif letter in specifiers:
            out.append(specifiers[letter])
        else:
            raise UnitError(f"specifier %{letter} is not known here")
        at = mark + 2
    out.append(text[at:])
    return "".join(out)


def unit_specifiers(name: str) -> dict[str, str]:
    """The specifiers that follow from a unit's name alone: %n %N %p %i %I."""
    stem = name.rsplit(".", 1)[0]
    prefix, _, instance = stem.partition("@")
    return {"n": name, "N": stem, "p": prefix, "i": instance, "I": instance.replace("-", "/")}


def words(text: str) -> list[str]:
    """Split into words: single and double quotes group, backslash escapes as in C."""
    out: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\":
            piece, at = _escape(text, at)
            word = [*(word or ()), piece]
        elif quote:
            if letter == quote:
                quote = ""
            else:
                assert word is not None
                word.append(letter)
        elif letter in "\"'":
            quote = letter
            word = word or []
        elif letter.isspace():
            if word is not None:
                out.append("".join(word))
            word = None
        else:
            word = word or []
            word.append(letter)
    if quote:
        raise UnitError(f"quote {quote} is not closed in {text!r}")
    if word is not None:
        out.append("".join(word))
    return out


def _escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at : at + 1]
    if letter in ESCAPES and letter:
        return ESCAPES[letter], at + 1
    lengths = {"x": 2, "u": 4, "U": 8}
    digits, base, start = (lengths[letter], 16, at + 1) if letter in lengths else (3, 8, at)
    number = text[start : start + digits]
    try:
        if len(number) != digits:
            raise ValueError
        return chr(int(number, base)), start + digits
    except (ValueError, OverflowError):
        raise UnitError(f"unknown escape \\{letter} in {text!r}") from None


def assignments(values: list[str]) -> dict[str, str]:
    """`Environment=` lines to variables; a word without `=` is an error, as systemd warns and drops it."""
    out = {}
    for value in values:
        for word in words(value):
            name, equals, content = word.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise UnitError(f"not an environment assignment: {word!r}")
            out[name] = content
    return out


def environment_file(text: str) -> dict[str, str]:
    """Variables of an `EnvironmentFile=`: one assignment a line, quotes around the value removed."""
    out = {}
    for _, line in logical_lines(text):
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.strip()):
            value = value.strip()
            out[name.strip()] = "".join(words(value)) if value[:1] in ('"', "'") else value
    return out


def command(text: str, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """An `ExecStart=` line to its words, and whether its failure is to be ignored (prefix `-`).

    `${NAME}` is replaced inside a word; a word that is only `$NAME` becomes as many words as the value has;
    `$$` is a dollar sign. Prefix characters other than `-` have no meaning without systemd and are dropped.
    """
    stripped = text.lstrip("-@:+!|")
    forgiven = "-" in text[: len(text) - len(stripped)]
    out: list[str] = []
    for index, word in enumerate(words(stripped)):
        if index == 0:
            out.append(word)  # systemd substitutes nothing in the path
        elif match := re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word):
            out.extend(environment.get(match[1], "").split())
        else:
            out.append(
                re.sub(
                    r"\$(\$|\{([A-Za-z_][A-Za-z0-9_]*)\})",
                    lambda found: "$" if found[1] == "$" else environment.get(found[2], ""),
                    word,
                )
            )
    if not out:
        raise UnitError("ExecStart= is empty")
    return out, forgiven


def boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "yes", "y", "true", "t", "on"):
        return True
    if lowered in ("0", "no", "n", "false", "f", "off"):
        return False
    raise UnitError(f"not a boolean: {text!r}")


def seconds(text: str) -> float:
    """A time span in seconds; `infinity` is infinite."""
    if text.strip() == "infinity":
        return float("inf")
    total, at = 0.0, 0
    while at < len(text.rstrip()):
        match = SPAN.match(text, at)
        if not match or match[2].lower() not in SECONDS:
            raise UnitError(f"not a time span: {text!r}")
        # `M` would be a month in systemd; nobody times a service in months
        total += float(match[1]) * SECONDS[match[2].lower()]
        at = match.end()
    if at == 0:
        raise UnitError("empty time span")
    return total


def octal(text: str) -> int:
    if not re.fullmatch(r"[0-7]{1,5}", text):
        raise UnitError(f"not an octal mode: {text!r}")
    return int(text, 8)


def integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise UnitError(f"not a whole number: {text!r}")
    return int(text)


def limit(text: str) -> tuple[int, int]:
    """A `Limit…=` value as (soft, hard); -1 is infinity. K, M, G, T are powers of 1024."""
    parts = text.split(":")
    if len(parts) > 2:
        raise UnitError(f"not a limit: {text!r}")
    values = [_size(part) for part in parts]
    return values[0], values[-1]


def _size(text: str) -> int:
    text = text.strip()
    if text == "infinity":
        return -1
    match = re.fullmatch(r"([0-9]+)([KMGT]?)", text)
    if not match:
        raise UnitError(f"not a limit: {text!r}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]
