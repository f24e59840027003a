# SPDX-License-Identifier: Apache-2.0
"""`syntropctl router`: who answers requests, and why."""

from __future__ import annotations

import json
import os

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

ENDPOINT = "io.syntrop.Router1"
DROP_IN = "50-default.toml"
_HEAD = "# Written by `syntropctl router default`.\n"


class Refused(Exception):
    """One line of why not."""


def run(options: argparse.Namespace) -> int:
    """Run one verb, telling every failure on one line; the exit status."""
    find.settle()
    try:
        if options.kind == "test" and options.prompt is not None:
            return _ask(options)
        if options.kind == "default" and options.model is None and not options.clear:
            return _show_defaults(options)
        return loop.run(_VERBS[options.kind](options))
    except TimeoutError:
        return fail("routerd did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except VarlinkError as error:
        return fail(str(error.parameters.get("message") or error))
    except (OSError, ConnectionLost, InvalidReply, Refused) as error:
        return fail(str(error))


async def _call(method: str, **parameters: Any) -> dict[str, Any]:
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters) as reply:
            return reply.parameters
    finally:
        client.close()


async def _status(options: argparse.Namespace) -> int:
    reply = await _call("GetStatus")
    if options.json:
        return _print(reply)
    print(f"routerd {reply['version']}: {reply['status']}, up for {reply['uptime_seconds']} s")
    print(f"providers: {reply['healthy_providers_count']} of {reply['providers_count']} healthy")
    print(f"requests: {reply['active_requests']} now, {reply['total_requests']} since the start")
    print(f"pressure: {reply['psi_level']}, memory stalls {reply['psi_memory_some']:.1f} % of the time")
    print(f"memory: {reply['rss_mb']:.1f} MiB")
    return 0


async def _providers(options: argparse.Namespace) -> int:
    providers = (await _call("ListProviders"))["providers"]
    if options.json:
        return _print(providers)
    for one in providers:
        state = "healthy" if one["is_healthy"] else "not asked"
        failed = f", {one['total_errors']} failed" if one["total_errors"] else ""
        latency = f", {one['last_latency_ms']:.0f} ms to the first" if one["last_latency_ms"] else ""
        print(f"{one['id']:<16} {one['kind']:<10} {state:<10} {one['base_url']}")
        print(f"    {one['total_requests']} requests{failed}{latency}; weight {one['weight']:g}, {one['tier']}")
        print(f"    models: {', '.join(one['models']) or 'none that are known'}")
    return 0


async def _models(options: argparse.Namespace) -> int:
    names = (await _call("ListModels"))["models"]
    owners: dict[str, list[str]] = {name: [] for name in names}
    for one in (await _call("ListProviders"))["providers"]:
        for name in one["models"]:
            if name in owners:
                owners[name].append(one["id"])
    if options.json:
        return _print([{"name": name, "providers": providers} for name, providers in owners.items()])
    if not names:
        print("no models; `syntropctl models fetch-starter --import` gets a small one")
    for name, providers in owners.items():
        print(f"{name:<40} {', '.join(providers)}")
    return 0


async def _route(options: argparse.Namespace) -> int:
    given = {"model": options.model, "estimated_tokens": options.tokens, "require_stream": options.stream}
    if options.tier:
        given["tier"] = options.tier
    candidates = (await _call("RouteRequest", **given))["candidates"]
    if options.json:
        return _print(candidates)
    for place, one in enumerate(candidates, 1):
        cost = f", about ${one['estimated_cost']:.6f}" if one["estimated_cost"] else ""
        print(f"{place}. {one['provider_id']}/{one['model_name']}  {one['total_score']:.1f}{cost}")
        print(f"   {one['reason']}")
    return 0


async def _test(options: argparse.Namespace) -> int:
    ids = [options.provider]
    if options.provider is None:
        ids = [one["id"] for one in (await _call("ListProviders"))["providers"]]
    results: list[dict[str, Any]] = []
    for id in ids:
        try:
            results.append(await _call("TestProvider", provider_id=id))
        except VarlinkError as error:
            if error.name != "TestFailed" or options.provider is not None:
                raise
            why = error.parameters.get("message")
            results.append({"provider_id": id, "healthy": False, "latency_ms": 0.0, "error": why})
    if options.json:
        _print(results)
    else:
        for one in results:
            said = f"answers in {one['latency_ms']:.1f} ms"
            print(f"{one['provider_id']}: {said if one['healthy'] else 'does not answer: ' + one['error']}")
    return 0 if all(one["healthy"] for one in results) else 1


async def _reload(options: argparse.Namespace) -> int:
    reply = await _call("Reload", allowInteractiveAuthentication=True)
    if options.json:
        return _print(reply)
    if waiting := reply.get("at_next_start"):
        print(f"counts from the next start of routerd: {', '.join(waiting)}")
    return 0


def _ask(options: argparse.Namespace) -> int:
    """A question over HTTP: the answer, and who gave it for what reason."""
    from syntrop.ctl import ask

    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": options.prompt}],
        "max_completion_tokens": ask.TOKENS,
        "temperature": ask.TEMPERATURE,
    }
    headers = {"x-syntrop-tier": options.tier} if options.tier else {}
    try:
        response = ask.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    except ask.AskError as error:
        raise Refused(str(error)) from None
    answer = json.loads(response.read())
    who = {name: response.getheader(f"x-syntrop-{name}") for name in ("provider", "model", "reason")}
    if options.json:
        return _print({**who, "answer": answer})
    print(answer["choices"][0]["message"]["content"])
    print(f"-- {who['provider']}/{who['model']}: {who['reason']}")
    return 0


# --- the default model ---------------------------------------------------------------------------------------


def _show_defaults(options: argparse.Namespace) -> int:
    found: dict[str, dict[str, str]] = {}
    for path in _files():
        for tier, model in _read(path).items():
            found[tier] = {"model": model, "source": path}
    if options.json:
        return _print(found)
    if not found:
        print("no default; the scores decide (`syntropctl router route` shows them)")
    for tier, one in found.items():
        print(f"{tier:<6} {one['model']:<40} {one['source']}")
    return 0


async def _default(options: argparse.Namespace) -> int:
    """Write a drop-in, and have it read. One that the router refuses is taken back."""
    from syntrop.common import atomic

    if options.clear and options.model is not None:
        raise Refused("give a model, or --clear")
    if options.model is not None and options.model not in (await _call("ListModels"))["models"]:
        raise Refused(f"there is no model {options.model!r}; `syntropctl router models` lists them")
    folder = os.path.join(paths.config_dirs()[0], "routerd.toml.d")
    path = os.path.join(folder, DROP_IN)
    before = _text(path)
    defaults = _read(path) if before is not None else {}
    if options.clear:
        defaults.pop(options.tier, None)
    else:
        defaults[options.tier] = options.model
    os.makedirs(folder, mode=0o755, exist_ok=True)
    text = _HEAD
    for tier, model in defaults.items():
        text += f"\n[tiers.{tier}]\ndefault_model = {json.dumps(model, ensure_ascii=False)}\n"
    atomic.write_text(path, text, mode=0o644)
    try:
        await _call("Reload", allowInteractiveAuthentication=True)
    except VarlinkError:
        if before is None:
            os.unlink(path)
        else:
            atomic.write_text(path, before, mode=0o644)
        raise
    return _show_defaults(options)


def _files() -> list[str]:
    from syntrop.common.settings import SettingsError, config_files

    try:
        return config_files("routerd")
    except SettingsError as error:
        raise Refused(error.message) from None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _read(path: str) -> dict[str, str]:
    """Default models by tier that one file names."""
    import tomllib

    try:
        tiers = tomllib.loads(_text(path) or "").get("tiers", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: no valid TOML: {error}") from None
    tables = tiers.items() if isinstance(tiers, dict) else ()
    return {
        tier: table["default_model"]
        for tier, table in tables
        if isinstance(table, dict) and isinstance(table.get("default_model"), str)
    }


def _print(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


_VERBS = {
    "status": _status,
    "providers": _providers,
    "models": _models,
    "route": _route,
    "test": _test,
    "default": _default,
    "reload": _reload,
}
