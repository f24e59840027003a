# SPDX-License-Identifier: Apache-2.0
"""toold: runs a closed set of tools, each in a sandbox, and takes back what they did."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.toold.settings import TABLE

    service.run("toold", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.toold.service import Tool1

    daemon.serve_varlink("io.syntrop.Tool1", {"io.syntrop.Tool1": Tool1(daemon)})


if __name__ == "__main__":
    main()
