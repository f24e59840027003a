# SPDX-License-Identifier: Apache-2.0
"""Asking toold, for the verbs that do; every failure told on one line."""

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

ENDPOINT = "io.syntrop.Tool1"
PATIENCE = 240.0  # seconds; the tool has a limit of its own, which is shorter, and a user may type a password


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("toold did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except VarlinkError as error:
        return fail(_words(error))
    except (OSError, ConnectionLost, InvalidReply) as error:
        return fail(str(error))


async def ask(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """One call; polkit may ask the user. Raises what the client raises."""
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters, timeout=PATIENCE) as reply:
            return dict(reply.parameters)
    finally:
        client.close()


def _words(error: VarlinkError) -> str:
    name = error.error.rpartition(".")[2]
    given = error.parameters
    if name == "ToolNotFound":
        return f"there is no tool {given['name']}; `syntropctl run` lists them"
    if name == "RollbackNotFound":
        return f"there is no change {given['rollback_id']}; `syntropctl history` lists them"
    if name == "InvalidParameter":
        if (given["parameter"], given.get("reason")) == ("target_unit", "missing"):
            return "it needs a unit: --unit UNIT"
        why = given.get("reason") or "not what it takes"
        return f"{given['parameter']}: {why}"
    if name == "Timeout":
        return f"not done within {given['limit_ms'] / 1000:g} s, and ended"
    if name in ("ExecutionFailed", "PermissionDenied") and "reason" in given:
        return str(given["reason"])
    if name == "PermissionDenied":
        return "permission denied: root, members of group syntrop, and whom polkit lets, may do this"
    return str(error)
