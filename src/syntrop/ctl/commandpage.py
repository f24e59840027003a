# SPDX-License-Identifier: Apache-2.0
"""syntropctl(1), from the parser of its command line, so that it cannot lag behind. Pure."""

from __future__ import annotations

import argparse

from syntrop.ctl.manpage import roff


def command_page(top: argparse.ArgumentParser, version: str) -> str:
    """The roff text of the manual page: every verb with its options."""
    lines = [
        f'.TH "SYNTROPCTL" "1" "" "syntrop {version}" "syntropctl"',
        ".SH NAME",
        "syntropctl \\- run and use the syntrop suite on this machine",
        ".SH SYNOPSIS",
        ".B syntropctl",
        "VERB [OPTION]... [ARGUMENT]...",
        ".SH VERBS",
        *_verbs(top, "syntropctl"),
        ".SH EXIT STATUS",
        "0, or 1 where it could not be done (a line on standard error says why), or 2 for a wrong command line;",
        "`run` ends with the tool's own status.",
    ]
    return "\n".join(lines) + "\n"


def _verbs(parser: argparse.ArgumentParser, path: str) -> list[str]:
    lines: list[str] = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        about = {one.dest: one.help or "" for one in action._choices_actions}
        for name, verb in action.choices.items():
            words = [one.metavar or one.dest for one in verb._actions if not one.option_strings]
            taken = [str(word) for word in words if not isinstance(word, tuple) and word != "VERB"]
            lines += [f".SS {roff(' '.join([path, name, *taken]))}", roff(_sentence(about.get(name, "")))]
            for one in verb._actions:
                if (
                    one.dest == "help"
                    or one.help == argparse.SUPPRESS
                    or isinstance(one, argparse._SubParsersAction)
                ):
                    continue
                if not one.option_strings and not one.help:
                    continue  # its name says it
                what = ", ".join(one.option_strings) or str(one.metavar or one.dest)
                takes = one.metavar or ("|".join(map(str, one.choices)) if one.choices else one.dest.upper())
                if one.option_strings and one.nargs != 0:
                    what += f" {takes}"
                lines += [".TP", f".B {roff(what)}", roff(_sentence(one.help or "print JSON"))]
            lines += _verbs(verb, f"{path} {name}")
    return lines


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."
