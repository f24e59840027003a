# SPDX-License-Identifier: Apache-2.0
"""Man pages, completion and the operator's reference, from the daemons' settings tables.

Pure: tables in, texts out. Who collects the tables of all daemons is outside of the package (docs/generate.py),
since `ctl` imports no daemon.
"""

from __future__ import annotations

from syntrop.common.settings import Setting, default_text, option_usage, whole_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Tables = Mapping[str, tuple[str, Sequence[Setting]]]

FOLDERS = ("/etc/syntrop", "/run/syntrop/conf", "/usr/lib/syntrop/conf")
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list of strings"}


def documents(tables: Tables, version: str) -> dict[str, str]:
    """Every file to install, by its path below `/usr/share`. `tables`: daemon to its summary and own table."""
    files: dict[str, str] = {}
    for daemon, (summary, table) in tables.items():
        files[f"man/man8/{daemon}.8"] = daemon_page(daemon, summary, table, version)
        files[f"man/man5/{daemon}.toml.5"] = config_page(daemon, table, version)
        files[f"bash-completion/completions/{daemon}"] = bash_completion(daemon, table)
        files[f"zsh/vendor-completions/_{daemon}"] = zsh_completion(daemon, table)
    return files


def daemon_page(daemon: str, summary: str, table: Sequence[Setting], version: str) -> str:
    """The roff text of `daemon`(8)."""
    rows = whole_table(table)
    lines = [
        f'.TH "{_quoted(daemon.upper())}" "8" "" "syntrop {version}" "{_quoted(daemon)}"',
        ".SH NAME",
        f"{roff(daemon)} \\- {roff(summary)}",
        ".SH SYNOPSIS",
        f".B {roff(daemon)}",
        "[OPTION]...",
        ".SH DESCRIPTION",
        "Started by the service manager when one of its sockets is connected to, and gone again when idle.",
        "Without passed sockets it binds its addresses itself.",
        f"Settings come from the command line, the environment, {roff(daemon)}.toml(5), and their defaults,",
        "in this order.",
        ".SH OPTIONS",
    ]
    for row in rows:
        lines += [
            ".TP",
            f".B {roff(option_usage(row))}",
            roff(row.help),
            f"Default: {roff(default_text(row))}.",
        ]
    lines += [
        ".TP",
        ".B \\-\\-help",
        "Print a summary of the options.",
        ".TP",
        ".B \\-\\-version",
        "Print the version.",
    ]
    named = [row for row in rows if row.environment]
    if named:
        lines.append(".SH ENVIRONMENT")
        for row in named:
            lines += [".TP", f".B {roff(row.environment)}", f"Overrides {roff(row.name)} of the files."]
    lines += [
        ".SH EXIT STATUS",
        "0 when idle or stopped, 2 for a wrong command line, 71 when the system refused something,",
        "78 for a wrong configuration.",
        ".SH SEE ALSO",
        f".BR {roff(daemon)}.toml (5),",
        ".BR systemd.socket (5)",
    ]
    return "\n".join(lines) + "\n"


def config_page(daemon: str, table: Sequence[Setting], version: str) -> str:
    """The roff text of `daemon`.toml(5)."""
    lines = [
        f'.TH "{_quoted(daemon.upper())}.TOML" "5" "" "syntrop {version}" "{_quoted(daemon)}.toml"',
        ".SH NAME",
        f"{roff(daemon)}.toml \\- configuration of {roff(daemon)}(8)",
        ".SH SYNOPSIS",
    ]
    for folder in FOLDERS:
        lines += [
            f".I {roff(folder)}/{roff(daemon)}.toml",
            ".br",
            f".I {roff(folder)}/{roff(daemon)}.toml.d/*.toml",
            ".br",
        ]
    lines += [
        ".SH DESCRIPTION",
        "The file of the first folder that has one is read, then the drop\\-ins of all folders in the order",
        "of their names, the last one winning. A drop\\-in hides those of its name in later folders; a link to",
        "/dev/null hides them without a replacement. A wrong value refuses the whole configuration; an unknown",
        "key only warns.",
    ]
    for section, rows in _sections(table).items():
        lines += [f".SH [{roff(section)}]"]
        for row in rows:
            lines += [".TP", f".B {roff(row.name)}", f"{roff(_kind(row))}.", roff(row.help)]
            lines.append(f"Default: {roff(default_text(row))}.")
    lines += [".SH SEE ALSO", f".BR {roff(daemon)} (8)"]
    return "\n".join(lines) + "\n"


def bash_completion(daemon: str, table: Sequence[Setting]) -> str:
    """A completion script for bash: options, and the words that a setting may have."""
    rows = whole_table(table)
    function = "_" + "".join(letter if letter.isalnum() else "_" for letter in daemon)
    options = " ".join(row.option + ("" if row.type is bool else "=") for row in rows)
    lines = [
        f"# bash completion for {daemon}; generated from its settings table",
        f"{function}() {{",
        "    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}",
        "    # `=` is a word of its own to bash: the option stands before it, or before this word.",
        '    if [[ $word == "=" ]]; then',
        "        word=",
        '    elif [[ $option == "=" ]]; then',
        "        option=${COMP_WORDS[COMP_CWORD-2]}",
        "    fi",
        "    case $option in",
    ]
    for row in rows:
        words = _words(row)
        if words:
            matches = f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$word")'
            lines.append(f"        {row.option}) {matches}; return ;;")
    lines += [
        "    esac",
        f'    mapfile -t COMPREPLY < <(compgen -W "{options} --help --version" -- "$word")',
        "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace",
        "}",
        f"complete -o default -F {function} {daemon}",
    ]
    return "\n".join(lines) + "\n"


def zsh_completion(daemon: str, table: Sequence[Setting]) -> str:
    """A completion function for zsh."""
    lines = [
        f"#compdef {daemon}",
        f"# zsh completion for {daemon}; generated from its settings table",
        "_arguments \\",
    ]
    for row in whole_table(table):
        about = row.help.split(". ")[0].rstrip(".")
        for letter in "\\'[]:":
            about = about.replace(letter, "" if letter == "'" else "\\" + letter)
        words = _words(row)
        action = f":{row.name}:({' '.join(words)})" if words else f":{row.name}: "
        repeat = "*" if row.type is list else ""
        if row.type is bool:
            lines.append(f"    '{row.option}[{about}]' \\")
        else:
            lines.append(f"    '{repeat}{row.option}=[{about}]{action}' \\")
    lines += ["    '--help[Print a summary of the options]' \\", "    '--version[Print the version]'"]
    return "\n".join(lines) + "\n"


def reference(tables: Tables) -> str:
    """The settings of all daemons as Markdown; what all have in common comes once, first."""
    lines = ["### Every daemon", "", *_table(whole_table(()))]
    common = {row.name: row for row in whole_table(())}
    for daemon, (summary, table) in tables.items():
        own = [row for row in whole_table(table) if common.get(row.name) is not row]
        lines += ["", f"### {daemon}", "", f"{summary}. File: `{daemon}.toml`.", ""]
        lines += _table(own) if own else ["No settings of its own."]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Setting]) -> list[str]:
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for row in rows:
        about = row.help + (f" Environment: `{row.environment}`." if row.environment else "")
        cells = (f"`{row.section}.{row.name}`", _kind(row), default_text(row), about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def _sections(table: Sequence[Setting]) -> dict[str, list[Setting]]:
    sections: dict[str, list[Setting]] = {}
    for row in whole_table(table):
        sections.setdefault(row.section, []).append(row)
    return sections


def _kind(row: Setting) -> str:
    """`integer, 1 to 64`, `number of seconds, at least 0`, `one of fast, exact`."""
    if row.choices:
        return f"one of {', '.join(row.choices)}"
    text = _TYPES[row.type] + (f" of {row.unit}" if row.unit else "")
    if row.minimum is not None and row.maximum is not None:
        return f"{text}, {_plain(row.minimum)} to {_plain(row.maximum)}"
    if row.minimum is not None:
        return f"{text}, at least {_plain(row.minimum)}"
    if row.maximum is not None:
        return f"{text}, at most {_plain(row.maximum)}"
    return text


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _words(row: Setting) -> tuple[str, ...]:
    return ("yes", "no") if row.type is bool else row.choices or ()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\(rs").replace('"', "\\(dq")


def roff(text: str) -> str:
    """Text as roff shows it: a leading dot or quote would be a request, a hyphen would not be ASCII's."""
    text = text.replace("\\", "\\(rs").replace("-", "\\-").replace("\n", " ").replace("…", "...")
    return "\\&" + text if text[:1] in (".", "'") else text
