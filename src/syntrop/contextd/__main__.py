# SPDX-License-Identifier: Apache-2.0
"""contextd: remembers what changed on the machine."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.contextd.settings import TABLE

    service.run("contextd", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.contextd.service import Context1

    daemon.serve_varlink("io.syntrop.Context1", {"io.syntrop.Context1": Context1(daemon)})


if __name__ == "__main__":
    main()
