# SPDX-License-Identifier: Apache-2.0
"""systemd-sentry: finds out why a unit failed, and puts it right within its policy. `mcp` serves assistants."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    if sys.argv[1:] == ["mcp"]:
        from syntrop.sentry import mcpserver

        mcpserver.main()
        return
    from syntrop.common import service
    from syntrop.sentry.settings import TABLE

    service.run("systemd-sentry", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.sentry.service import Sentry1

    daemon.serve_varlink("systemd-sentry/sentry.sock", {"io.syntrop.Sentry1": Sentry1(daemon)}, mode=0o660)


if __name__ == "__main__":
    main()
