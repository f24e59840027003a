# SPDX-License-Identifier: Apache-2.0
"""What the verbs that ask inferenced have in common."""

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

ENDPOINT = "io.syntrop.Inference1"
PATIENCE = 30.0
"""Seconds: NVIDIA's driver takes some to wake a GPU."""


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop, telling every failure on one line; the exit status."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("inferenced did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except VarlinkError as error:
        return fail(str(error))
    except (OSError, ConnectionLost, InvalidReply) as error:
        return fail(str(error))


async def ask(method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call of inferenced; the reply's parameters."""
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters or {}, timeout=PATIENCE) as reply:
            found: dict[str, Any] = reply.parameters
            return found
    finally:
        client.close()
