# SPDX-License-Identifier: Apache-2.0
"""What `ExecStopPost=` runs: thaw whatever the log says is frozen, and give units their limits back.

Nothing wakes a socket-activated daemon after it was killed, and a frozen unit cannot even be stopped: whom we
froze would stand still until somebody calls. Without a log it costs no more than a look.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.inferenced.records import Past


def path() -> str:
    """Where the log is."""
    from syntrop.common import paths

    return paths.run("syntrop", "inferenced", "leases.log")


def main() -> None:
    """Exits with 1 if something could not be set right."""
    import os

    if not os.path.exists(path()):
        return
    from syntrop.common import peer
    from syntrop.inferenced import records

    past, _ = records.replay(path(), peer.boot_id())
    if not past.frozen and not past.limits:
        return
    from syntrop.common import loop

    sys.exit(0 if loop.run(_set_right(past)) else 1)


async def _set_right(past: Past) -> bool:
    """Thaw all, latest first, and give units their limits back; whether all run as before."""
    from syntrop.common import journal
    from syntrop.inferenced import freezer, squeeze
    from syntrop.inferenced.standstill import FreezeError

    manager = freezer.Manager()
    done: list[list[str]] = []
    left = False
    try:
        for target in reversed(list(past.frozen)):
            try:
                await freezer.thaw(manager, target, 5.0)
                # The daemon may have died with a freeze on its way to the manager: the next one looks again.
                done.append(["loose", target])
                journal.notice(f"Thawed {target}, which was frozen when inferenced ended")
            except FreezeError as error:
                journal.error(f"{target} is still frozen: {error.reason}")
                left = True
        # The manager does not touch the limits of what is frozen.
        for target, size in past.limits.items():
            try:
                await squeeze.limit(manager, target, size, 5.0)
                done.append(["unlimit", target])
            except FreezeError as error:
                journal.error(f"The memory limit of {target} is still low: {error.reason}")
                left = True
    finally:
        manager.close()
    _note(done)
    return not left


def _note(lines: list[list[str]]) -> None:
    import json
    import os

    data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    # A line that the killed daemon left unfinished must not swallow ours.
    fd = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, b"\n" + data)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
