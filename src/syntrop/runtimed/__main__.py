# SPDX-License-Identifier: Apache-2.0
"""runtimed: runs models. io.syntrop.Runtime1."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.runtimed.settings import TABLE

    service.run("runtimed", TABLE, build)


def build(daemon: Daemon) -> None:
    import signal

    from syntrop.common import loop
    from syntrop.runtimed.service import Runtime1

    handler = Runtime1(daemon)
    daemon.serve_varlink("io.syntrop.Runtime1", {"io.syntrop.Runtime1": handler})
    daemon.on_stop(handler.stop)
    daemon.on_reload(handler.reload)
    loop.on_signal(signal.SIGUSR1, handler.yield_batch)


if __name__ == "__main__":
    main()
