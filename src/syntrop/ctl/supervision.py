# SPDX-License-Identifier: Apache-2.0
"""Asking systemd-sentry, for the verbs that do; every failure told on one line."""

from __future__ import annotations

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

INTERFACE = "io.syntrop.Sentry1"
ENDPOINT = "systemd-sentry/sentry.sock"
PATIENCE = 180.0  # seconds: a remedy ends within 120 (phases.py), and a user may type a password first


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop; the exit status."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("systemd-sentry did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except PermissionError:
        return fail(f"{paths.endpoint(ENDPOINT)} is for root and members of group syntrop")
    except VarlinkError as error:
        return fail(words(error))
    except (OSError, ConnectionLost, InvalidReply) as error:
        return fail(str(error))


async def connect() -> varlink.Client:
    """A connection to systemd-sentry, which starts it. The caller closes it."""
    return await varlink.connect(paths.endpoint(ENDPOINT))


async def ask(method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call; the reply's parameters. Raises what the client raises."""
    client = await connect()
    try:
        with await client.call(f"{INTERFACE}.{method}", parameters or {}, timeout=PATIENCE) as reply:
            return dict(reply.parameters)
    finally:
        client.close()


def full_name(unit: str) -> str:
    """A unit's whole name: like systemctl's, a name without a suffix is a service's."""
    return unit if "." in unit else f"{unit}.service"


def words(error: VarlinkError) -> str:
    """An error of the interface as a sentence."""
    name, given = error.error.rpartition(".")[2], error.parameters
    if name == "NoSuchUnit":
        return f"there is no unit {given['unit']}"
    if name == "NoSuchIncident":
        return f"there is no incident {given['id']}; `syntropctl incidents` lists them"
    if name == "NotStaged":
        return f"nothing waits for approval in {given['id']}: it is {given['status'].replace('_', ' ')}"
    if name == "UnitProtected":
        return f"{given['unit']} is protected: {given['reason']}"
    if name == "CircuitOpen":
        wait = given.get("cooldown_ms")
        until = (
            f"for {wait / 1000:.0f} s more" if wait is not None else f"until `syntropctl reset {given['unit']}`"
        )
        return f"no action on {given['unit']} {until}: its breaker is {given['state'].replace('_', ' ')}"
    if name == "TooMany":
        return f"too much at once; try again in {given['retry_ms'] / 1000:.0f} s"
    if name == "PeerFailed":
        return f"{given['daemon']} did not do its part: {given['reason']}"
    if name == "PermissionDenied":
        return "permission denied: root, members of group syntrop, and whom polkit lets, may do this"
    return str(error)
