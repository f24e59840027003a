# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function a verb; what a verb needs is imported when it is called."""

from __future__ import annotations

import argparse
import sys

VERSION = "0.1.0"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="syntropctl", description="Run and use the syntrop suite on this machine.")
    top.add_argument("--version", action="version", version=f"syntropctl {VERSION}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    one = verbs.add_parser(
        "up",
        help="serve the suite's sockets where PID 1 is not systemd",
        description="Bind the suite's sockets and start its daemons when somebody connects. After -- a command "
        "may follow: it runs with SYNTROP_RUN_ROOT set, and the suite ends when it has ended and all sleeps.",
    )
    one.add_argument("--port", type=_port, default=32768, help="TCP port in place of 32768; 0 takes a free one")
    one.add_argument("--idle", type=_seconds, metavar="SEC", help="idle time after which a daemon exits")
    one.add_argument("--units", metavar="FOLDER", help="unit files to read (default: this installation's)")
    one.add_argument("-q", "--quiet", action="store_true", help="say nothing that is not a problem")
    one.add_argument("--json", action="store_true", help="print the ready line as JSON")
    one.add_argument("command", nargs="*", metavar="COMMAND", help="after --: run it under the suite")
    one.set_defaults(run=_up)
    return top


def run(arguments: list[str]) -> int:
    # argparse drops only the first `--`, and not reliably in a subparser: cut it here.
    command: list[str] = []
    if arguments[:1] == ["up"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    options = parser().parse_args(arguments)
    if command:
        options.command = command
    status: int = options.run(options)
    return status


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is no port")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


def _up(options: argparse.Namespace) -> int:
    from syntrop.ctl.up import up

    return up(
        options.command,
        port=options.port,
        idle=options.idle,
        folder=options.units,
        quiet=options.quiet,
        json=options.json,
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
