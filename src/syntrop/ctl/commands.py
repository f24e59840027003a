# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function a verb; what a verb needs is imported when it is called."""

from __future__ import annotations

import argparse
import sys

from syntrop import __version__


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="syntropctl", description="Run and use the syntrop suite on this machine.")
    top.add_argument("--version", action="version", version=f"syntropctl {__version__}")
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

    one = verbs.add_parser("ask", help="ask a model and see the answer as it comes")
    one.add_argument("prompt", metavar="PROMPT", help="what to ask; - reads standard input")
    one.add_argument("-m", "--model", help="model to ask (default: the first that the router lists)")
    one.add_argument("--tokens", type=int, default=1024, metavar="N", help="longest answer, in tokens")
    one.add_argument(
        "--temperature", type=float, default=0.2, metavar="T", help="0 always takes the likeliest token"
    )
    one.add_argument("--timing", action="store_true", help="tell on standard error how long it took")
    one.set_defaults(run=_ask)

    one = verbs.add_parser("status", help="see who is awake, without waking anybody")
    one.add_argument("daemon", nargs="?", metavar="DAEMON")
    one.add_argument("--wake", action="store_true", help="ask every daemon what it is (wakes it)")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_status)

    one = verbs.add_parser("models", help="list models, or put one into the store")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_models_list)
    kinds = one.add_subparsers(dest="kind", metavar="VERB")
    one = kinds.add_parser("list", help="list what is stored")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_models_list)
    one = kinds.add_parser("import", help="store a model file")
    one.add_argument("file", metavar="FILE")
    one.add_argument("--name", metavar="NAME:TAG", help="default: the file's name")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_models_import)
    one = kinds.add_parser("fetch-starter", help="download a small model that is ready to use")
    one.add_argument("--import", action="store_true", dest="store", help="and store it, if it is not stored")
    one.add_argument("--to", metavar="FOLDER", help="where to keep the file (default: the user's cache)")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_models_starter)

    _add_router(verbs)

    one = verbs.add_parser("call", help="make one Varlink call")
    one.add_argument("socket", metavar="SOCKET", help="path, or an endpoint's name such as io.syntrop.Model1")
    one.add_argument("method", metavar="METHOD")
    one.add_argument("parameters", metavar="JSON", nargs="?", default="{}")
    one.add_argument("--more", action="store_true", help="ask for every reply of a stream")
    one.set_defaults(run=_call)

    one = verbs.add_parser("info", help="tell where this installation keeps things")
    one.add_argument("--json", action="store_true")
    one.add_argument("--curl", action="store_true", help="print only a curl that asks the running suite")
    one.set_defaults(run=_info)

    one = verbs.add_parser("completions", help="print tab completion for a shell")
    one.add_argument("shell", choices=("bash", "zsh"))
    one.set_defaults(run=_completions)
    return top


def _add_router(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    top = verbs.add_parser("router", help="see who answers requests, and why")
    kinds = top.add_subparsers(dest="kind", required=True, metavar="VERB")

    def add(name: str, help: str) -> argparse.ArgumentParser:
        one = kinds.add_parser(name, help=help)
        one.add_argument("--json", action="store_true")
        one.set_defaults(run=_router)
        return one

    tiers = ("auto", "fast", "hard")
    add("status", "tell how the router is")
    add("providers", "list the providers, their health and their models")
    add("models", "list the models that can be asked for, and who has them")
    one = add("route", "tell who would answer a request, with the arithmetic")
    one.add_argument("model", nargs="?", default="", metavar="MODEL", help="a model, or auto, fast, hard")
    one.add_argument("-t", "--tier", choices=tiers, help="how difficult the request is")
    one.add_argument("--tokens", type=int, default=1024, metavar="N", help="prompt and answer together")
    one.add_argument("--stream", action="store_true", help="the answer must be streamed")
    one = add("test", "ask a provider, or all, for a sign of life; or ask a model a question")
    one.add_argument("provider", nargs="?", metavar="PROVIDER")
    one.add_argument("-p", "--prompt", metavar="TEXT", help="ask this, and tell who answered")
    one.add_argument("-m", "--model", default="", help="whom to ask it (default: auto)")
    one.add_argument("-t", "--tier", choices=tiers, help="how difficult it is")
    one = add("default", "show or set the model that is asked where none is named")
    one.add_argument("model", nargs="?", metavar="MODEL")
    one.add_argument("-t", "--tier", choices=tiers, default="auto", help="for requests of this tier")
    one.add_argument("--clear", action="store_true", help="leave it to the scores again")
    add("reload", "have the router read its configuration and its models again")


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


def _ask(options: argparse.Namespace) -> int:
    from syntrop.ctl.ask import ask

    return ask(
        options.prompt,
        options.model,
        tokens=options.tokens,
        temperature=options.temperature,
        timing=options.timing,
    )


def _status(options: argparse.Namespace) -> int:
    from syntrop.ctl.status import status

    return status(options.daemon, wake=options.wake, as_json=options.json)


def _models_list(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.show(options.json))


def _models_import(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.import_file(options.file, options.name, options.json))


def _models_starter(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    if options.store:
        return models.run(models.import_starter(options.json))
    return models.fetch_starter(options.to)


def _router(options: argparse.Namespace) -> int:
    from syntrop.ctl import router

    return router.run(options)


def _call(options: argparse.Namespace) -> int:
    from syntrop.ctl.status import call

    return call(options.socket, options.method, options.parameters, more=options.more)


def _info(options: argparse.Namespace) -> int:
    from syntrop.ctl.status import curl, info

    return curl() if options.curl else info(options.json)


def _completions(options: argparse.Namespace) -> int:
    from syntrop.ctl.completion import completions

    print(completions(options.shell, parser()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
