# SPDX-License-Identifier: Apache-2.0
"""What `syntropctl drift` and `syntropctl events` have in common: asking contextd, and telling times."""

from __future__ import annotations

import re
import sys
import time

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

ENDPOINT = "io.syntrop.Context1"
PATIENCE = 60.0  # seconds: the first look at a large machine takes a while
_TAKEN = {
    "unit": "the name of a unit, such as ssh or ssh.service",
    "limit": "1 or more",
    "summary": "1 to 1024 characters",
    "details": "at most 32 KiB",
    "source": "1 to 64 printable characters, and no name that contextd itself records under",
}
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop, telling every failure on one line."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("contextd did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except VarlinkError as error:
        if error.name == "InvalidParameter":
            return fail(refusal(str(error.parameters.get("parameter", "parameter"))))
        return fail(str(error))
    except (OSError, ConnectionLost, InvalidReply) as error:
        return fail(str(error))


def refusal(parameter: str) -> str:
    """What contextd does not take, and what it would."""
    wanted = _TAKEN.get(parameter)
    return f"contextd does not take this {parameter}" + (f": {wanted}" if wanted else "")


async def ask(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """One call of contextd; the reply's parameters."""
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters, timeout=PATIENCE) as reply:
            found: dict[str, Any] = reply.parameters
            return found
    finally:
        client.close()


def caveats(reply: dict[str, Any]) -> None:
    """Say what an answer lacks, where contextd says so."""
    for text in reply.get("coverage") or ():
        print(f"syntropctl: {text}", file=sys.stderr)


def seconds(text: str) -> int:
    """A span such as `90`, `15min`, `2h`, `1d`, in seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip())
    if match is None or (match[2] or "s") not in _UNITS:
        raise ValueError(f"{text!r} is no span of time such as 90, 15min, 2h or 1d")
    return int(match[1]) * _UNITS[match[2] or "s"]


def clock(time_us: int) -> str:
    """A time for people, in this machine's time zone, to the millisecond."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_us // 1_000_000))
    return f"{stamp}.{time_us // 1000 % 1000:03d}"
