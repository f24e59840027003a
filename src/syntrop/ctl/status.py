# SPDX-License-Identifier: Apache-2.0
"""`syntropctl status` and `call`: which endpoints are there, who sleeps, and what a daemon says of itself."""

from __future__ import annotations

import json
import os
import sys

from syntrop import __version__
from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find, units
from syntrop.ctl.folders import KeptFolders, specifiers
from syntrop.ctl.output import fail
from syntrop.ctl.unitfile import UnitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ABSENT, ASLEEP, AWAKE, UNKNOWN = "absent", "asleep", "awake", "unknown"


class Daemon:
    """What can be seen of one daemon from outside."""

    __slots__ = ("endpoints", "info", "name", "pids", "resident", "state")

    def __init__(self, name: str, endpoints: list[str]) -> None:
        self.name, self.endpoints = name, endpoints
        self.state, self.pids, self.resident = ABSENT, list[int](), 0
        self.info: dict[str, Any] | None = None

    def look(self, listening: dict[str, int]) -> None:
        """Judge by the kernel's tables alone: nothing is connected to, so nothing wakes."""
        inodes = {listening[path] for path in self.endpoints if path in listening}
        if not inodes:
            return
        self.pids = find.servants(inodes)
        self.resident = sum(map(find.resident, self.pids))
        if self.pids:
            self.state = AWAKE
        elif os.geteuid() == 0 or "SYNTROP_RUN_ROOT" in os.environ:
            self.state = ASLEEP
        else:  # another user's processes hide their descriptors from us: ask the service manager
            self.state = _ask_systemd(self.name)

    async def wake(self) -> None:
        """Ask each Varlink endpoint what it is; only the first that answers counts."""
        for path in filter(_speaks_varlink, self.endpoints):
            client = await varlink.connect(path)
            try:
                with await client.call("org.varlink.service.GetInfo") as reply:
                    self.info = reply.parameters
                return
            finally:
                client.close()


def status(only: str | None, *, wake: bool, as_json: bool) -> int:
    """Print every daemon, or one, with its state; 3 if one of them is absent (as systemctl does)."""
    find.settle()
    try:
        daemons = known()
    except (OSError, UnitError) as error:
        return fail(str(error))
    if only:
        daemons = [daemon for daemon in daemons if only.removesuffix(".service") == daemon.name]
        if not daemons:
            return fail(f"there is no daemon {only}")
    listening = find.listening()
    for daemon in daemons:
        daemon.look(listening)
        if wake and daemon.state != ABSENT:
            try:
                loop.run(daemon.wake())
            except (OSError, TimeoutError, VarlinkError, ConnectionLost, InvalidReply) as error:
                return fail(f"{daemon.name}: {error or 'no answer in time'}")
            daemon.look(listening)
    if as_json:
        print(json.dumps([_plain(daemon) for daemon in daemons], indent=2))
    else:
        for daemon in daemons:
            _show(daemon)
    return 3 if any(daemon.state == ABSENT for daemon in daemons) else 0


def known() -> list[Daemon]:
    """The daemons of our unit files and the Unix sockets that start them."""
    # `%t` in a path and `/run` in a path lead to the same place: both are moved by the runtime root.
    catalogue = units.load(units.default_folder(), specifiers("/run", KeptFolders()))
    out = []
    for name in catalogue.services:
        if "@" in name:
            continue  # a template: a process a connection of another daemon, and nobody's to ask
        endpoints = [
            paths.run(address.removeprefix("/run/"))
            for unit in catalogue.sockets_of(name)
            for address in unit.addresses
            if address.startswith("/run/")
        ]
        out.append(Daemon(name.removesuffix(".service"), endpoints))
    return out


def _speaks_varlink(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith("io.syntrop.") or path == paths.endpoint("systemd-sentry/sentry.sock")


def _ask_systemd(name: str) -> str:
    import subprocess

    try:
        status = subprocess.call(["systemctl", "is-active", "--quiet", f"{name}.service"], timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return AWAKE if status == 0 else ASLEEP


def _plain(daemon: Daemon) -> dict[str, Any]:
    return {
        "name": daemon.name,
        "state": daemon.state,
        "pids": daemon.pids,
        "residentBytes": daemon.resident,
        "endpoints": daemon.endpoints,
        **({"info": daemon.info} if daemon.info else {}),
    }


def _show(daemon: Daemon) -> None:
    awake = f"process {daemon.pids[0]}, {daemon.resident / 2**20:.1f} MiB" if daemon.pids else ""
    print(f"{daemon.name:<16} {daemon.state:<8} {awake}".rstrip())
    for path in daemon.endpoints:
        print(f"    {path}")
    if daemon.info:
        print(f"    {daemon.info.get('product', '')} {daemon.info.get('version', '')}: ", end="")
        print(" ".join(daemon.info.get("interfaces", ())))


def call(socket: str, method: str, parameters: str, *, more: bool) -> int:
    """One Varlink call; every reply is printed as a line of JSON."""
    find.settle()
    try:
        values = json.loads(parameters)
    except ValueError as error:
        return fail(f"the parameters are not JSON: {error}")
    if not isinstance(values, dict):
        return fail("the parameters must be a JSON object")
    address = socket if "/" in socket else paths.endpoint(socket)
    try:
        return loop.run(_call(address, method, values, more))
    except VarlinkError as error:
        print(json.dumps({"error": error.error, "parameters": error.parameters}), file=sys.stderr)
        return 1
    except (OSError, TimeoutError, ConnectionLost, InvalidReply) as error:
        return fail(f"{address}: {error or 'no answer in time'}")


async def _call(address: str, method: str, values: dict[str, Any], more: bool) -> int:
    client = await varlink.connect(address)
    try:
        if more:
            async for reply in client.stream(method, values, timeout=None):
                with reply:
                    print(json.dumps(reply.parameters), flush=True)
        else:
            with await client.call(method, values) as reply:
                print(json.dumps(reply.parameters))
    finally:
        client.close()
    return 0


def curl() -> int:
    """Print a curl for the suite that runs here."""
    from syntrop.ctl.starter import curl_command

    if not find.settle():
        return fail("no suite runs here")
    print(curl_command(f"--unix-socket {paths.endpoint('router.sock')} http://localhost"))
    return 0


def info(as_json: bool) -> int:
    """Where this installation keeps and finds things."""
    from syntrop.ctl import starter

    running = find.settle()
    kept = KeptFolders()
    try:
        folder = units.default_folder()
    except FileNotFoundError:
        folder = None
    model = os.path.join(starter.cache(), os.path.basename(starter.MEMBER))
    facts = {
        "version": __version__,
        "units": folder,
        "endpoints": paths.endpoint("x")[:-2] if running else None,
        "state": kept.state,
        "configuration": list(paths.config_dirs()),
        "starterModel": model if os.path.exists(model) else None,
        "systemd": os.path.isdir(paths.run("systemd", "system")),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            print(f"{name:<16} {' '.join(value) if isinstance(value, list) else value}")
    return 0
