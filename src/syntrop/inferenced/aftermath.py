# SPDX-License-Identifier: Apache-2.0
"""What `ExecStopPost=` runs: thaw whatever the log says is frozen.

Nothing wakes a socket-activated daemon after it was killed, and a frozen unit cannot even be stopped: whom we
froze would stand still until somebody calls. A log without standstills costs no more than its reading.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def path() -> str:
    """Where the log is."""
    from syntrop.common import paths

    return paths.run("syntrop", "inferenced", "leases.log")


def main() -> None:
    """Exits with 1 if something could not be thawed."""
    from syntrop.common import peer
    from syntrop.inferenced import records

    past, _ = records.replay(path(), peer.boot_id())
    if not past.frozen:
        return
    from syntrop.common import loop

    sys.exit(0 if loop.run(_thaw(past.frozen)) else 1)


async def _thaw(frozen: Iterable[str]) -> bool:
    """Thaw all, latest first; whether all run again."""
    from syntrop.common import journal
    from syntrop.inferenced import freezer
    from syntrop.inferenced.arbiter import FreezeError

    manager = freezer.Manager()
    left = []
    try:
        for target in reversed(list(frozen)):
            try:
                await freezer.thaw(manager, target, 5.0)
                journal.notice(f"Thawed {target}, which was frozen when inferenced ended")
            except FreezeError as error:
                journal.error(f"{target} is still frozen: {error.reason}")
                left.append(target)
    finally:
        manager.close()
    _note(target for target in frozen if target not in left)
    return not left


def _note(thawed: Iterable[str]) -> None:
    import json
    import os

    data = b"".join(json.dumps(["thaw", target], separators=(",", ":")).encode() + b"\n" for target in thawed)
    # A line that the killed daemon left unfinished must not swallow ours.
    fd = os.open(path(), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, b"\n" + data)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
