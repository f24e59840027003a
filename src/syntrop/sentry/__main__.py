# SPDX-License-Identifier: Apache-2.0
"""systemd-sentry: finds out why a unit failed, and puts it right within its policy."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.sentry.settings import TABLE

    service.run("systemd-sentry", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.sentry.service import Sentry1

    daemon.serve_varlink("systemd-sentry/sentry.sock", {"io.syntrop.Sentry1": Sentry1(daemon)}, mode=0o660)


if __name__ == "__main__":
    main()
