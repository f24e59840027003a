# SPDX-License-Identifier: Apache-2.0
"""`syntropctl up`: the suite without systemd, in the foreground, or around one command."""

from __future__ import annotations

import os
import socket
import sys

from syntrop.ctl import keeper, units
from syntrop.ctl.activator import Activator
from syntrop.ctl.folders import Busy, KeptFolders, RuntimeFolder, specifiers
from syntrop.ctl.listen import PORT, Binder, BindError, Listener
from syntrop.ctl.output import INFO, NOTICE, WARNING, Log, fail
from syntrop.ctl.unitfile import UnitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.ctl.units import Catalogue


def up(
    command: list[str],
    *,
    port: int = PORT,
    idle: float | None = None,
    folder: str | None = None,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Serve the suite's sockets until a signal, or for as long as a command runs; the exit status.

    `port` takes the place of 32768 (0: any free one), `idle` is the daemons' idle time in seconds, `folder`
    holds the unit files.
    """
    log = Log(NOTICE if quiet else INFO)
    kept = KeptFolders()
    try:
        runtime = RuntimeFolder()
    except (OSError, Busy) as error:
        return fail(str(error))
    try:
        catalogue = units.load(folder or units.default_folder(), specifiers(runtime.root, kept))
        binder = Binder(runtime, port)
        listeners = _bind(catalogue, binder)
    except (OSError, UnitError, BindError) as error:
        runtime.remove()
        return fail(str(error))
    runtime.claim(os.path.join(runtime.endpoints, "notify"))
    for unit in catalogue.services.values():
        for name in unit.folders["RuntimeDirectory"]:
            if not os.path.exists(path := os.path.join(runtime.root, name)):
                runtime.claim(path)
    url = _url(listeners)
    environment = {"SYNTROP_RUN_ROOT": runtime.root}
    if idle is not None:
        environment["SYNTROP_IDLE_EXIT_SEC"] = f"{idle:g}"
    for warning in catalogue.warnings:
        log.own(WARNING, warning)
    for note in binder.notes:
        log.own(INFO, note)
    if text := unhonoured(catalogue):
        log.own(INFO, text)

    def ready() -> None:
        if json:
            _tell_json(runtime, url)
        elif not command:
            _tell(runtime, url)

    def activate(channel: socket.socket) -> int:
        activator = Activator(catalogue, binder, listeners, kept, log, environment)
        return activator.run(channel, command, ready)

    def let_go() -> None:
        for listener in listeners:
            listener.socket.close()

    return keeper.keep(log, activate, let_go, runtime.remove)


def _bind(catalogue: Catalogue, binder: Binder) -> list[Listener]:
    """Every address of every socket unit; all or none."""
    listeners: list[Listener] = []
    try:
        for unit in catalogue.sockets.values():
            bound = (binder.bind(unit, address) for address in unit.addresses)
            listeners += [listener for listener in bound if listener]
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def unhonoured(catalogue: Catalogue) -> str:
    """The one line that says which directives have no effect here; empty when all have."""
    root = os.geteuid() == 0
    names = dict(catalogue.unhonoured)
    users = {unit.user for unit in catalogue.services.values() if unit.user}
    if users and (not root or not all(map(_exists, users))):
        names["User"] = sorted(users)
    if not names:
        return ""
    listed = " ".join(f"{name}=" for name in sorted(names))
    return f"not enforced here, only where PID 1 is systemd: {listed}"


def _exists(user: str) -> bool:
    import pwd

    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _url(listeners: list[Listener]) -> str:
    for listener in listeners:
        if listener.tcp:
            host, port = listener.tcp
            return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return ""


def _tell(runtime: RuntimeFolder, url: str) -> None:
    print(f"syntrop is ready on {url or 'its sockets'} and in {runtime.endpoints}; Ctrl-C stops it", flush=True)
    if url:
        from syntrop.ctl.starter import curl_command

        print(f"try: {curl_command(url)}", flush=True)


def _tell_json(runtime: RuntimeFolder, url: str) -> None:
    import json

    sockets = sorted(name for name in os.listdir(runtime.endpoints) if name != "notify")
    facts = {"runRoot": runtime.root, "url": url, "endpoints": sockets, "activator": os.getpid()}
    print(json.dumps(facts), flush=True)
    sys.stdout.flush()
