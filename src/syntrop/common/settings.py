# SPDX-License-Identifier: Apache-2.0
"""One table of settings per daemon, from which come its TOML file, command line, man page and completion.

A value is looked for on the command line, then in the environment (for the few settings that name a
variable), then in `<daemon>.toml` with the drop-ins `<daemon>.toml.d/*.toml`, then in the table's default.
Files follow systemd's rules: `/etc` over `/run` over `/usr/lib`; a file of the same name in a stronger folder
masks the weaker one; drop-ins are read in the order of their names, and the last one wins.

A wrong value refuses the whole configuration, naming file and line: half a configuration is nobody's intent.
An unknown key only warns: the file may be written for a newer daemon. A daemon whose file holds more than settings
names those sections as `foreign`, and reads them itself.
"""

from __future__ import annotations

import os
import re
import sys

from syntrop import __version__
from syntrop.common import journal, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, NoReturn

    Value = bool | int | float | str | list[str] | None

USAGE_STATUS = 2
CONFIG_STATUS = 78  # EX_CONFIG, which `systemctl status` shows by name

_TYPE_WORDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list of strings"}
_TRUE = ("yes", "true", "on", "1")
_FALSE = ("no", "false", "off", "0")


class SettingsError(Exception):
    """A configuration that is refused: one line of what is wrong, one of what to do, and an exit status."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status


class Setting:
    """One row of a settings table.

    `type` is bool, int, float, str or list (of strings); a default of None means that unset is allowed.
    `section` is the TOML table (the name stays unique over all sections, since the option is `--name`);
    `environment` names a variable that overrides the files; `unit` is a word for people (`seconds`, `bytes`).
    """

    __slots__ = (
        "choices",
        "default",
        "environment",
        "help",
        "maximum",
        "minimum",
        "name",
        "section",
        "type",
        "unit",
    )

    def __init__(
        self,
        name: str,
        type: type[bool] | type[int] | type[float] | type[str] | type[list[str]],
        default: Value,
        help: str,
        *,
        section: str = "daemon",
        unit: str = "",
        choices: tuple[str, ...] | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        environment: str = "",
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.help = help
        self.section = section
        self.unit = unit
        self.choices = choices
        self.minimum = minimum
        self.maximum = maximum
        self.environment = environment

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: object) -> Value:
        """The value in this setting's type, or ValueError with the reason ("must be …")."""
        if self.type is bool:
            if not isinstance(value, bool):
                raise ValueError("must be true or false")
            return value
        if self.type is list:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ValueError("must be a list of strings")
            for item in value:
                self._check_choice(item)
            return list(value)
        if self.type is str:
            if not isinstance(value, str):
                raise ValueError("must be a string")
            self._check_choice(value)
            return value
        return self._check_number(value)

    def parse(self, text: str) -> Value:
        """The value of one word of the command line or of an environment variable, or ValueError."""
        if self.type is bool:
            word = text.lower()
            if word not in _TRUE + _FALSE:
                raise ValueError("must be yes or no")
            return word in _TRUE
        if self.type is list:
            return self.check([part.strip() for part in text.split(",") if part.strip()])
        if self.type is str:
            return self.check(text)
        try:
            number: object = int(text, 10) if self.type is int else float(text)
        except ValueError:
            raise ValueError(f"must be {_article(_TYPE_WORDS[self.type])}") from None
        return self.check(number)

    def _check_choice(self, value: str) -> None:
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")

    def _check_number(self, value: object) -> Value:
        wanted = (int,) if self.type is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"must be {_article(_TYPE_WORDS[self.type])}")
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("must be finite")
        unit = f" {self.unit}" if self.unit else ""
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"must be at least {self.minimum:g}{unit}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"must be at most {self.maximum:g}{unit}")
        return float(value) if self.type is float else value


COMMON: tuple[Setting, ...] = (
    Setting(
        "idle_exit_sec",
        float,
        30.0,
        "Exit after this long with nothing in flight; 0 keeps the daemon. The next connection starts it again.",
        unit="seconds",
        minimum=0.0,
        environment="SYNTROP_IDLE_EXIT_SEC",
    ),
    Setting(
        "log_level",
        str,
        "info",
        "Drop messages that are less urgent than this.",
        choices=journal.LEVELS,
        environment="SYSTEMD_LOG_LEVEL",
    ),
    Setting(
        "listen",
        list,
        [],
        "Addresses to bind when no service manager passed sockets: a path, HOST:PORT or [HOST]:PORT, each "
        "with the endpoint's name before it where the daemon has several (router.sock=/tmp/r.sock).",
    ),
    Setting(
        "stop_timeout_sec",
        float,
        10.0,
        "How long calls in flight may take to end after SIGTERM before they are cancelled.",
        unit="seconds",
        minimum=0.0,
        maximum=3600.0,
    ),
    Setting(
        "connections_max",
        int,
        4096,
        "Connections that are held open at once; more are closed as they arrive.",
        minimum=1,
        maximum=65536,
    ),
    Setting(
        "connections_max_per_uid",
        int,
        1024,
        "Connections that one user may hold open at once on the Unix sockets.",
        minimum=1,
        maximum=65536,
    ),
)


class Settings:
    """The values of one daemon, read as attributes; `source(name)` says where one came from."""

    __slots__ = ("_sources", "_values")

    def __init__(self, values: dict[str, Value], sources: dict[str, str]) -> None:
        self._values = values
        self._sources = sources

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no setting {name!r} in this daemon's table") from None

    def source(self, name: str) -> str:
        """`default`, a file with its line, `environment NAME` or `command line`."""
        return self._sources[name]

    def __iter__(self) -> Iterator[tuple[str, Any, str]]:
        return ((name, value, self._sources[name]) for name, value in self._values.items())


def whole_table(table: Sequence[Setting]) -> tuple[Setting, ...]:
    """The daemon's own rows and the common ones; a row of the daemon's replaces a common one of its name."""
    own = {row.name for row in table}
    rows = (*table, *(row for row in COMMON if row.name not in own))
    if len({row.name for row in rows}) != len(rows):
        raise ValueError("a settings table names one setting twice")
    return rows


def load(daemon: str, table: Sequence[Setting], argv: Sequence[str], *, foreign: Sequence[str] = ()) -> Settings:
    """What a daemon's main calls: `resolve()`, or print what was asked for or what is wrong, and exit.

    `argv` is without the program's name.
    """
    rows = whole_table(table)
    if "--help" in argv or "-h" in argv:
        _print_and_exit(help_text(daemon, rows))
    if "--version" in argv:
        _print_and_exit(f"{daemon} (syntrop) {__version__}\n")
    try:
        return resolve(daemon, table, argv, foreign=foreign)
    except SettingsError as error:
        if error.status == USAGE_STATUS:
            sys.stderr.write(f"{daemon}: {error.message}\nhint: {error.hint}\n")
        else:
            journal.error(f"{error.message} ({error.hint})")
        raise SystemExit(error.status) from None


def resolve(
    daemon: str, table: Sequence[Setting], argv: Sequence[str], *, foreign: Sequence[str] = ()
) -> Settings:
    """Settings of `daemon` from all sources. Raises SettingsError."""
    rows = whole_table(table)
    values = {row.name: row.default for row in rows}
    sources = dict.fromkeys(values, "default")
    for path in config_files(daemon):
        _apply_file(path, rows, values, sources, foreign)
    for row in rows:
        text = os.environ.get(row.environment) if row.environment else None
        if text:
            values[row.name] = _from_environment(row, text)
            sources[row.name] = f"environment {row.environment}"
    for name, value in parse_arguments(daemon, rows, argv).items():
        values[name] = value
        sources[name] = "command line"
    return Settings(values, sources)


def config_files(daemon: str) -> list[str]:
    """The files to read, weakest first: the main file, then the drop-ins by name; masked ones left out."""
    main = ""
    drop_ins: dict[str, str] = {}
    for folder in paths.config_dirs():
        candidate = os.path.join(folder, f"{daemon}.toml")
        if not main and os.path.exists(candidate):
            main = candidate
        try:
            names = os.listdir(candidate + ".d")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unreadable(candidate + ".d", error) from error
        for name in names:
            if name.endswith(".toml") and not name.startswith("."):
                drop_ins.setdefault(name, os.path.join(candidate + ".d", name))
    return ([main] if main else []) + [drop_ins[name] for name in sorted(drop_ins)]


def parse_arguments(daemon: str, rows: Iterable[Setting], argv: Sequence[str]) -> dict[str, Value]:
    """Values given on a command line: `--name value`, `--name=value`, `--flag`, `--no-flag`; lists repeat."""
    by_option = {row.option: row for row in rows}
    given: dict[str, Value] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        option, equals, text = word.partition("=")
        row = by_option.get(option)
        if row is None and option.startswith("--no-") and not equals:
            row = by_option.get("--" + option[5:])
            if row is not None and row.type is bool:
                given[row.name] = False
                continue
            row = None
        if row is None:
            raise _bad_word(daemon, option, by_option)
        if not equals:
            if row.type is bool:
                given[row.name] = True
                continue
            if not words:
                raise SettingsError(f"option {option} needs a value", f"write {option_usage(row)}", USAGE_STATUS)
            text = words.pop(0)
        try:
            value = row.parse(text)
        except ValueError as error:
            message = f"option {option}={text}: {error}"
            raise SettingsError(message, f"write {option_usage(row)}", USAGE_STATUS) from None
        earlier = given.get(row.name)
        given[row.name] = earlier + value if isinstance(earlier, list) and isinstance(value, list) else value
    return given


def help_text(daemon: str, rows: Iterable[Setting]) -> str:
    """What `--help` prints."""
    lines = [f"usage: {daemon} [OPTION]…", "", "options:"]
    entries = [(option_usage(row), _help_of(row)) for row in rows]
    entries += [("--help", "Print this text."), ("--version", "Print the version.")]
    for usage, text in entries:
        lines.append(f"  {usage}")
        lines += _wrap(text, 72, "        ")
    lines += ["", f"Each option but the last two can also be set in {daemon}.toml; see {daemon}.toml(5)."]
    return "\n".join(lines) + "\n"


def _from_environment(row: Setting, text: str) -> Value:
    if row.environment == "SYSTEMD_LOG_LEVEL":  # systemd's own: numbers, targets, and errors are forgiven
        try:
            return journal.LEVELS[journal.parse_level(text)]
        except ValueError:
            return row.default
    try:
        return row.parse(text)
    except ValueError as error:
        message = f"environment variable {row.environment}={text}: {error}"
        raise SettingsError(message, f"unset {row.environment}, or correct it", CONFIG_STATUS) from None


def _apply_file(
    path: str,
    rows: Iterable[Setting],
    values: dict[str, Value],
    sources: dict[str, str],
    foreign: Sequence[str],
) -> None:
    import tomllib  # 22 ms; most installations have no file

    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        document = tomllib.loads(text)
    except OSError as error:
        raise _unreadable(path, error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: no valid TOML: {error}", "correct the file", CONFIG_STATUS) from None

    by_section: dict[str, dict[str, Setting]] = {}
    for row in rows:
        by_section.setdefault(row.section, {})[row.name] = row
    for section, table in document.items():
        if section in foreign:
            continue
        known = by_section.get(section)
        if known is None or not isinstance(table, dict):
            where = _where(path, text, "" if not isinstance(table, dict) else section, section)
            what = "section" if isinstance(table, dict) else "key outside of a section"
            _warn_unknown(where, f"{what} {section!r}", sorted({*by_section, *foreign}))
            continue
        for name, value in table.items():
            where = _where(path, text, section, name)
            found = known.get(name)
            if found is None:
                _warn_unknown(where, f"key {name!r} in section {section!r}", sorted(known))
                continue
            try:
                values[name] = found.check(value)
            except ValueError as error:
                message = f"{where}: {name} {error}, not {_shown(value)}"
                raise SettingsError(message, "docs/operator.md lists every setting", CONFIG_STATUS) from None
            sources[name] = where


def _warn_unknown(where: str, what: str, known: list[str]) -> None:
    journal.warning(
        f"{where}: unknown {what} is ignored (known: {', '.join(known)})", message_id=journal.UNKNOWN_SETTING
    )


def _where(path: str, text: str, section: str, name: str) -> str:
    """`file:line` of a key (of a section when both names are equal), or the file where it is not found."""
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*\"?([^\]\"]+?)\"?\s*\]", line)
        if header:
            inside = header[1]
            if section == name == inside:
                return f"{path}:{number}"
            continue
        key = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
        if key and (inside, key[1]) in ((section, name), ("", f"{section}.{name}")):
            return f"{path}:{number}"
    return path


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _unreadable(path: str, error: OSError) -> SettingsError:
    reason = error.strerror or str(error)
    return SettingsError(f"{path}: cannot be read: {reason}", "correct its mode, or remove it", CONFIG_STATUS)


def _bad_word(daemon: str, option: str, by_option: dict[str, Setting]) -> SettingsError:
    if not option.startswith("-"):
        return SettingsError(f"unexpected argument {option!r}", f"see {daemon} --help", USAGE_STATUS)
    import difflib

    near = difflib.get_close_matches(option, by_option, 1)
    hint = f"did you mean {near[0]}?" if near else f"see {daemon} --help"
    return SettingsError(f"unknown option {option}", hint, USAGE_STATUS)


def option_usage(row: Setting) -> str:
    """How the option is written, as in `--idle-exit-sec=SECONDS`."""
    if row.type is bool:
        return f"{row.option}[=yes|no]"
    if row.choices:
        return f"{row.option}={'|'.join(row.choices)}"
    word = {int: "N", float: "NUMBER", str: "TEXT", list: "TEXT,…"}[row.type]
    return f"{row.option}={row.unit.upper() or word}"


def _help_of(row: Setting) -> str:
    parts = [row.help, f"Default: {default_text(row)}."]
    if row.environment:
        parts.append(f"Environment: {row.environment}.")
    return " ".join(parts)


def default_text(row: Setting) -> str:
    """The default as people read it: `30 seconds`, `none`, `yes`."""
    if row.default is None or row.default == [] or row.default == "":
        return "none"
    if isinstance(row.default, bool):
        return "yes" if row.default else "no"
    if isinstance(row.default, list):
        return ", ".join(row.default)
    text = f"{row.default:g}" if isinstance(row.default, float) else str(row.default)
    unit = row.unit.removesuffix("s") if text == "1" else row.unit
    return f"{text} {unit}" if unit else text


def _wrap(text: str, width: int, indent: str) -> list[str]:
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line] if line else lines


def _article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def _print_and_exit(text: str) -> NoReturn:
    sys.stdout.write(text)
    sys.stdout.flush()
    raise SystemExit(0)
