# SPDX-License-Identifier: Apache-2.0
"""modeld: the store of models, addressed by content."""

from __future__ import annotations

from syntrop.common import service
from syntrop.modeld.settings import TABLE


def build(daemon: service.Daemon) -> None:
    from syntrop.modeld.service import Model1

    daemon.serve_varlink("io.syntrop.Model1", {"io.syntrop.Model1": Model1(daemon)})


def main() -> None:
    service.run("modeld", TABLE, build)


if __name__ == "__main__":
    main()
