# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Inference1`, put together from its parts."""

from __future__ import annotations

import os

from syntrop.common import loop, paths
from syntrop.inferenced.serve_leases import Leases
from syntrop.inferenced.serve_planes import Planes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon
    from syntrop.inferenced.broker import Broker


class Office:
    """Makes the one broker when it is first needed."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._making: loop.Task[Broker] | None = None
        self.broker: Broker | None = None
        daemon.on_stop(self._stop)
        if os.path.exists(paths.run("syntrop", "inferenced", "leases.log")):
            # Whoever was frozen or leased before a restart does not wait for the next caller.
            loop.call_soon(lambda: loop.spawn(self.ready(), "recovery"))

    async def ready(self) -> Broker:
        """The broker, with what an earlier process left taken over."""
        if self.broker is not None:
            return self.broker
        if self._making is None:
            self._making = loop.spawn(self._make(), "broker")
        return await self._making

    async def _make(self) -> Broker:
        from syntrop.inferenced.broker import Broker
        from syntrop.inferenced.gauges import Gauges

        try:
            broker = Broker(self._daemon, await loop.thread(Gauges))
            await broker.recover()
        finally:
            self._making = None
        self.broker = broker
        return broker

    async def _stop(self) -> None:
        if self.broker is not None:
            await self.broker.stop()


class Inference1(Leases, Planes):
    """Handler of the interface on one endpoint. Methods that are not here are not built."""

    def __init__(self, office: Office, endpoint: str) -> None:
        Leases.__init__(self, office.ready, endpoint)
        Planes.__init__(self, office.ready)
