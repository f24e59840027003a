# SPDX-License-Identifier: Apache-2.0
"""routerd: chooses who answers a request. HTTP in several dialects, and io.syntrop.Router1."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.routerd.settings import FOREIGN, TABLE

    service.run("routerd", TABLE, build, foreign=FOREIGN)


def build(daemon: Daemon) -> None:
    from syntrop.routerd.core import Core
    from syntrop.routerd.service import Http, Router1

    core = Core.start(daemon)
    http = Http(core)
    daemon.serve("tcp", http.connect)
    daemon.serve("router.sock", http.connect)
    daemon.serve_varlink("io.syntrop.Router1", {"io.syntrop.Router1": Router1(core)})
    daemon.on_reload(core.on_hangup)
    daemon.on_stop(core.stop)


if __name__ == "__main__":
    main()
