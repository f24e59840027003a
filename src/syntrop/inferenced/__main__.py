# SPDX-License-Identifier: Apache-2.0
"""inferenced: shares out the machine's accelerators."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon
    from syntrop.common.varlink.idl import Interface


def main() -> None:
    from syntrop.common import service
    from syntrop.inferenced.settings import TABLE

    service.run("inferenced", TABLE, build)


def build(daemon: Daemon) -> None:
    from syntrop.inferenced.gateway import Gateway
    from syntrop.inferenced.service import Inference1, Office

    office = Office(daemon)

    def handlers(endpoint: str) -> dict[str | Interface, object]:
        return {"io.syntrop.Inference1": Inference1(office, endpoint)}

    enclave = "inferenced-enclave.socket"  # the endpoints that are the suite's own and its operators'
    daemon.serve_varlink("io.syntrop.Inference1", handlers("io.syntrop.Inference1"))
    daemon.serve_varlink("sentry.sock", handlers("sentry.sock"), unit=enclave, mode=0o660, urgent=True)
    daemon.serve_varlink("fd.sock", handlers("fd.sock"), unit=enclave, mode=0o660)
    daemon.serve("gateway.sock", Gateway(daemon, office.lender).connect, unit=enclave, mode=0o660)


if __name__ == "__main__":
    main()
