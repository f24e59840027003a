# SPDX-License-Identifier: Apache-2.0
"""All methods of `io.syntrop.Inference1`, put together from their parts."""

from __future__ import annotations

from syntrop.inferenced.serve_descriptors import Descriptors
from syntrop.inferenced.serve_leases import Leases
from syntrop.inferenced.serve_models import Models
from syntrop.inferenced.serve_planes import Planes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Protocol

    from syntrop.common.service import Daemon
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.lending import Lender

    class Office(Protocol):
        """Where the parts come from that all endpoints share."""

        daemon: Daemon

        def ready(self) -> Awaitable[Broker]: ...
        def lender(self) -> Lender: ...


class Methods(Leases, Planes, Models, Descriptors):
    """The handler on `endpoint`. Methods of the interface that are not here are not built."""

    def __init__(self, office: Office, endpoint: str) -> None:
        Leases.__init__(self, office.ready, endpoint)
        Planes.__init__(self, office.ready)
        Models.__init__(self, office.ready, office.lender)
        Descriptors.__init__(self, office.daemon, endpoint)
