# SPDX-License-Identifier: Apache-2.0
"""All methods of `io.syntrop.Inference1`, put together from their parts."""

from __future__ import annotations

from syntrop.inferenced.serve_leases import Leases
from syntrop.inferenced.serve_planes import Planes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from syntrop.inferenced.broker import Broker


class Methods(Leases, Planes):
    """The handler on `endpoint`. Methods of the interface that are not here are not built."""

    def __init__(self, ready: Callable[[], Awaitable[Broker]], endpoint: str) -> None:
        Leases.__init__(self, ready, endpoint)
        Planes.__init__(self, ready)
