# SPDX-License-Identifier: Apache-2.0
"""routerd: chooses who answers a request. HTTP in OpenAI's dialect, and io.syntrop.Router1."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.routerd.settings import TABLE

    service.run("routerd", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.routerd.service import Http, Router1
    from syntrop.routerd.status import Counters

    counters = Counters()
    http = Http(daemon, counters)
    daemon.serve("tcp", http.connect)
    daemon.serve("router.sock", http.connect)
    daemon.serve_varlink("io.syntrop.Router1", {"io.syntrop.Router1": Router1(counters)})
    daemon.on_stop(http.stop)


if __name__ == "__main__":
    main()
