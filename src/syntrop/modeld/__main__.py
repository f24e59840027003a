# SPDX-License-Identifier: Apache-2.0
"""modeld: the store of models, addressed by content."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon


def main() -> None:
    from syntrop.common import service
    from syntrop.modeld.settings import TABLE

    service.run("modeld", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.modeld.service import Model1

    daemon.serve_varlink("io.syntrop.Model1", {"io.syntrop.Model1": Model1(daemon)})


if __name__ == "__main__":
    main()
