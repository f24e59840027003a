# SPDX-License-Identifier: Apache-2.0
"""The command line: one parser, one function a verb; what a verb needs is imported when it is called."""

from __future__ import annotations

import argparse
import sys

from syntrop import __version__

# Of io.syntrop.Sentry1.IncidentStatus; a test compares.
_STATUSES = ("open", "staged", "acting", "recovered", "rolled_back", "reported", "dismissed")


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

    one = verbs.add_parser(
        "generate",
        help="have a model continue a text",
        description="Continue a text as it is, or with --chat answer it through the model's chat template.",
    )
    one.add_argument("model", metavar="MODEL")
    one.add_argument("prompt", metavar="PROMPT", nargs="?", help="default, and -: standard input")
    one.add_argument("--chat", action="store_true", help="answer, through the model's chat template")
    one.add_argument("--system", metavar="TEXT", help="what the model is told beforehand; with it, --chat")
    one.add_argument("--max-tokens", type=int, metavar="N", help="longest text (default: 256)")
    one.add_argument(
        "--temperature", type=float, metavar="T", help="0 always takes the likeliest token (default: 0)"
    )
    one.add_argument("--top-k", type=int, metavar="N", help="choose among the N likeliest tokens")
    one.add_argument("--top-p", type=float, metavar="P", help="choose among the likeliest that make up this share")
    one.add_argument(
        "--min-p", type=float, metavar="P", help="leave out what is less likely than this share of the best"
    )
    one.add_argument("--repetition-penalty", type=float, metavar="X", help="divide logits of tokens seen before")
    one.add_argument("--presence-penalty", type=float, metavar="X", help="lower logits of tokens made before")
    one.add_argument("--frequency-penalty", type=float, metavar="X", help="the same, for each time")
    one.add_argument("--seed", type=int, metavar="N", help="the same one gives the same text")
    one.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    one.add_argument("--logprobs", type=int, metavar="N", help="with --json: each token's, and of the N likeliest")
    one.add_argument("--timing", action="store_true", help="tell on standard error what it took")
    one.add_argument("--json", action="store_true", help="print the whole result")
    one.set_defaults(run=_generate)

    one = verbs.add_parser(
        "embed",
        help="turn texts into vectors",
        description="The vectors of texts as JSON, or without it how near they are to the first one.",
    )
    one.add_argument("model", metavar="MODEL")
    one.add_argument("texts", metavar="TEXT", nargs="*", help="default: the lines of standard input")
    one.add_argument("--pooling", choices=("mean", "cls", "last"), help="default: what the model was made for")
    one.add_argument("--json", action="store_true", help="print the vectors")
    one.set_defaults(run=_embed)

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
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_list)
    one = kinds.add_parser("import", help="store a model: a file, or a folder of safetensors")
    one.add_argument("path", metavar="PATH")
    one.add_argument("--name", metavar="NAME:TAG", help="default: the name of the file or folder")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_import)
    one = kinds.add_parser("pull", help="fetch a model from a registry, a hub or an address")
    one.add_argument("reference", metavar="REFERENCE", help="name:tag, organisation/repository, oci:… or https:…")
    one.add_argument("--name", metavar="NAME:TAG", help="default: what the reference says")
    one.add_argument("--format", choices=("gguf", "safetensors"), help="default: gguf")
    one.add_argument("--quant", metavar="QUANT", help="default: Q4_K_M, or the nearest that there is")
    one.add_argument("--digest", metavar="sha256:…", help="what it must have")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_pull)
    for verb, text in (("pin", "never remove a model to make room"), ("unpin", "let it go again")):
        one = kinds.add_parser(verb, help=text)
        one.add_argument("model", metavar="MODEL")
        one.set_defaults(run=_models_pin, wanted=verb == "pin")
    one = kinds.add_parser("prune", help="remove the models that were used longest ago")
    one.add_argument("--max-bytes", type=_bytes, required=True, metavar="SIZE", help="what may stay, such as 20G")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_prune)
    one = kinds.add_parser("fsck", help="read everything again and put aside what is damaged")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_fsck)
    one = kinds.add_parser("loaded", help="list what is in memory")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_loaded)
    one = kinds.add_parser("unload", help="take a model out of memory")
    one.add_argument("model", metavar="MODEL")
    one.set_defaults(run=_models_unload)
    one = kinds.add_parser("fetch-starter", help="download a small model that is ready to use")
    one.add_argument("--import", action="store_true", dest="store", help="and store it, if it is not stored")
    one.add_argument("--to", metavar="FOLDER", help="where to keep the file (default: the user's cache)")
    one.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
    one.set_defaults(run=_models_starter)

    one = verbs.add_parser("devices", help="see what computes here, its memory, and the ways between")
    one.add_argument("plane", nargs="?", metavar="PLANE", help="all of one: its identifier or its device")
    one.add_argument("--links", action="store_true", help="show the ways between planes")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_devices)

    one = verbs.add_parser("leases", help="see who holds memory of accelerators and of the host")
    one.add_argument("-w", "--watch", action="store_true", help="show what happens to leases from now on")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_leases)

    one = verbs.add_parser("explain-lease", help="see what became of a lease, and why")
    one.add_argument("id", metavar="ID", help="identifier, as `leases` prints it")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_explain_lease)

    one = verbs.add_parser("pressure", help="see how pressed the machine is, and how full its planes are")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_pressure)

    one = verbs.add_parser("quarantine", help="take a plane out of use, or let it be used again")
    one.add_argument("plane", metavar="PLANE", help="identifier, as `devices` prints it")
    one.add_argument("--reason", metavar="TEXT", help="why, for whoever wonders later")
    one.add_argument("--clear", action="store_true", help="let it be used again")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_quarantine)

    one = verbs.add_parser("drift", help="see what changed, on the machine or around a unit")
    one.add_argument("unit", nargs="?", metavar="UNIT", help="rank by what this unit has to do with it")
    one.add_argument("--since", type=_span, default=86400, metavar="SPAN", help="90, 15min, 2h, 1d (default: 1d)")
    one.add_argument("--diff", action="store_true", help="show the changes themselves")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_drift)

    one = verbs.add_parser("events", help="see what happened, follow it, or add to it")
    one.add_argument("--unit", metavar="UNIT", help="only what concerns this unit")
    one.add_argument("--since", type=_span, default=86400, metavar="SPAN", help="90, 15min, 2h, 1d (default: 1d)")
    one.add_argument("--limit", type=int, default=50, metavar="N", help="the newest N (default: 50)")
    one.add_argument("-f", "--follow", action="store_true", help="show what happens from now on")
    one.add_argument("--record", metavar="SUMMARY", help="record an event")
    one.add_argument("--source", default="operator", metavar="NAME", help="who records it (default: operator)")
    one.add_argument("--details", metavar="TEXT", help="more about what is recorded")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=_events)

    _add_incidents(verbs)

    one = verbs.add_parser("run", help="run one of toold's tools, or list them")
    one.add_argument("tool", nargs="?", metavar="TOOL", help="without it, the tools are listed")
    one.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="what the tool takes, in order")
    one.add_argument("-u", "--unit", metavar="UNIT", help="unit to work on")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_run_tool)

    one = verbs.add_parser("rollback", help="take a change of a tool back")
    one.add_argument("id", metavar="ID", help="identifier, as `run` and `history` print it")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_rollback)

    one = verbs.add_parser("history", help="list changes of tools that can be taken back")
    one.add_argument("--since", type=_span, default=86400, metavar="SPAN", help="90, 15min, 2h, 1d (default: 1d)")
    one.add_argument("--limit", type=int, default=50, metavar="N", help="most changes to list")
    one.add_argument("--json", action="store_true")
    one.set_defaults(run=_history)

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


def _add_incidents(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def add(name: str, help: str, json: str = "print the incident as JSON") -> argparse.ArgumentParser:
        one = verbs.add_parser(name, help=help)
        one.add_argument("--json", action="store_true", help=json)
        one.set_defaults(run=_incidents)
        return one

    one = add("incidents", "list failures of units and what came of them, or follow them", "print JSON")
    one.add_argument("--unit", metavar="UNIT", help="only this unit's")
    one.add_argument("--status", choices=_STATUSES, help="only those that stand so")
    one.add_argument("--since", type=_span, default=86400, metavar="SPAN", help="90, 15min, 2h, 1d (default: 1d)")
    one.add_argument("--limit", type=int, default=50, metavar="N", help="the newest N (default: 50)")
    one.add_argument("-f", "--follow", action="store_true", help="show them as they come and change")
    one = add("explain", "tell why a unit failed and what was done about it", "print the reply as JSON")
    one.add_argument("unit", metavar="UNIT", help="a unit (its newest incident), or an incident's identifier")
    one = add("triage", "look into a unit, and put it right within the policy")
    one.add_argument("unit", metavar="UNIT")
    one.add_argument("-n", "--dry-run", action="store_true", help="find out only, and change nothing")
    one = add("approve", "let an action that waits for a person be carried out")
    one.add_argument("id", metavar="ID", help="identifier, as `incidents` prints it")
    one = add("reject", "drop an action that waits for a person")
    one.add_argument("id", metavar="ID", help="identifier, as `incidents` prints it")
    one.add_argument("--reason", metavar="TEXT", help="why, for the record")
    one = add("reset", "let actions on a unit pass again", "print the breaker as JSON")
    one.add_argument("unit", metavar="UNIT")
    one = add("maintenance", "announce work on units, about which nothing is done then", "print all of it as JSON")
    one.add_argument(
        "unit", metavar="UNIT", nargs="*", help="a unit, or a glob; without one: tell what is announced"
    )
    one.add_argument(
        "--for", dest="span", type=_span, default=1800, metavar="SPAN", help="30min (default), 2h, 1d"
    )
    one.add_argument("--end", dest="span", action="store_const", const=0, help="it is over")
    one.add_argument("--reason", metavar="TEXT", help="why, for the record")


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


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line; exits with a usage where they are none."""
    # argparse drops only the first `--`, and not reliably in a subparser: cut it here.
    words: list[str] = []
    if arguments[:1] in (["up"], ["run"]) and "--" in arguments:
        cut = arguments.index("--")
        arguments, words = arguments[:cut], arguments[cut + 1 :]
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if options.verb == "run" and not any(one.startswith("-") for one in rest):
        # Before Python 3.13 it takes a list's words from before an option only.
        options.arguments += rest + words
        if options.tool is None and options.arguments:
            options.tool = options.arguments.pop(0)
    elif rest:
        _take_late(top, options, rest)
    elif words:
        options.command = words
    return options


def run(arguments: list[str]) -> int:
    options = parsed(arguments)
    status: int = options.run(options)
    return status


def _take_late(top: argparse.ArgumentParser, options: argparse.Namespace, words: list[str]) -> None:
    """To argparse, a text that may be left out was left out when an option comes before it: `embed MODEL --json
    TEXT`."""
    cut = words.index("--") if "--" in words else len(words)
    taken = words[:cut] + words[cut + 1 :]
    if not any(word.startswith("-") and len(word) > 1 for word in words[:cut]):
        if options.verb == "embed":
            options.texts += taken
            return
        if options.verb == "generate" and options.prompt is None and len(taken) == 1:
            options.prompt = taken[0]
            return
    top.error(f"unrecognized arguments: {' '.join(words)}")


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is no port")
    return number


def _bytes(text: str) -> int:
    from syntrop.ctl.models import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return number


def _span(text: str) -> int:
    from syntrop.ctl.chronology import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _devices(options: argparse.Namespace) -> int:
    from syntrop.ctl import arbiter
    from syntrop.ctl.devices import devices

    return arbiter.run(devices(options.plane, links=options.links, as_json=options.json))


def _leases(options: argparse.Namespace) -> int:
    from syntrop.ctl import arbiter
    from syntrop.ctl.leases import leases

    return arbiter.run(leases(watch=options.watch, as_json=options.json))


def _explain_lease(options: argparse.Namespace) -> int:
    from syntrop.ctl import arbiter
    from syntrop.ctl.leases import explain

    return arbiter.run(explain(options.id, as_json=options.json))


def _pressure(options: argparse.Namespace) -> int:
    from syntrop.ctl import arbiter
    from syntrop.ctl.leases import pressure

    return arbiter.run(pressure(as_json=options.json))


def _quarantine(options: argparse.Namespace) -> int:
    from syntrop.ctl import arbiter
    from syntrop.ctl.quarantine import quarantine

    return arbiter.run(quarantine(options.plane, options.reason, clear=options.clear, as_json=options.json))


def _drift(options: argparse.Namespace) -> int:
    from syntrop.ctl import chronology
    from syntrop.ctl.drift import drift

    return chronology.run(drift(options.unit, options.since, diffs=options.diff, as_json=options.json))


def _events(options: argparse.Namespace) -> int:
    from syntrop.ctl import chronology, events

    if options.record is not None:
        return chronology.run(events.record(options.source, options.unit, options.record, options.details))
    if options.follow:
        return chronology.run(events.follow(options.unit, as_json=options.json))
    return chronology.run(events.events(options.unit, options.since, options.limit, as_json=options.json))


def _incidents(options: argparse.Namespace) -> int:
    from syntrop.ctl import incidents as verb
    from syntrop.ctl import supervision

    as_json: bool = options.json
    if options.verb == "explain":
        return supervision.run(verb.explain(options.unit, as_json=as_json))
    if options.verb == "triage":
        return supervision.run(verb.triage(options.unit, dry_run=options.dry_run, as_json=as_json))
    if options.verb == "approve":
        return supervision.run(verb.approve(options.id, as_json=as_json))
    if options.verb == "reject":
        return supervision.run(verb.reject(options.id, options.reason, as_json=as_json))
    if options.verb == "reset":
        return supervision.run(verb.reset(options.unit, as_json=as_json))
    if options.verb == "maintenance":
        return supervision.run(verb.maintenance(options.unit, options.span, options.reason, as_json=as_json))
    if options.follow:
        return supervision.run(verb.follow(options.unit, as_json=as_json))
    return supervision.run(
        verb.incidents(options.unit, options.status, options.since, options.limit, as_json=as_json)
    )


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


def _generate(options: argparse.Namespace) -> int:
    from syntrop.ctl import runtime

    return runtime.run(
        runtime.generate(
            options.model,
            options.prompt,
            chat=options.chat,
            system=options.system,
            as_json=options.json,
            timing=options.timing,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            seed=options.seed,
            stop=options.stop,
            top_logprobs=options.logprobs,
        )
    )


def _embed(options: argparse.Namespace) -> int:
    from syntrop.ctl import runtime

    return runtime.run(runtime.embed(options.model, options.texts, pooling=options.pooling, as_json=options.json))


def _status(options: argparse.Namespace) -> int:
    from syntrop.ctl.status import status

    return status(options.daemon, wake=options.wake, as_json=options.json)


def _models_list(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.show(options.json))


def _models_import(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.import_path(options.path, options.name, options.json))


def _models_pull(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    wanted = {"format": options.format, "quantization": options.quant, "digest": options.digest}
    return models.run(models.pull(options.reference, options.name, options.json, **wanted))


def _models_pin(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.pin(options.model, options.wanted))


def _models_prune(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.prune(options.max_bytes, options.json))


def _models_fsck(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    return models.run(models.fsck(options.json))


def _models_starter(options: argparse.Namespace) -> int:
    from syntrop.ctl import models

    if options.store:
        return models.run(models.import_starter(options.json))
    return models.fetch_starter(options.to)


def _run_tool(options: argparse.Namespace) -> int:
    from syntrop.ctl import run as verb
    from syntrop.ctl import tooling

    if options.tool is None:
        return tooling.run(verb.show(options.json))
    return tooling.run(verb.execute(options.tool, options.arguments, options.unit, options.json))


def _rollback(options: argparse.Namespace) -> int:
    from syntrop.ctl import rollback as verb
    from syntrop.ctl import tooling

    return tooling.run(verb.rollback(options.id, options.json))


def _history(options: argparse.Namespace) -> int:
    from syntrop.ctl import history as verb
    from syntrop.ctl import tooling

    return tooling.run(verb.history(options.since, options.limit, options.json))


def _models_loaded(options: argparse.Namespace) -> int:
    from syntrop.ctl import runtime

    return runtime.run(runtime.loaded(options.json))


def _models_unload(options: argparse.Namespace) -> int:
    from syntrop.ctl import runtime

    return runtime.run(runtime.unload(options.model))


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
