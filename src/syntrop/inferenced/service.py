# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Inference1`: what there is of it before anybody asks for anything."""

from __future__ import annotations

import gc
import os
import sys

from syntrop.common import loop, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from syntrop.common.service import Daemon
    from syntrop.inferenced.broker import Broker
    from syntrop.inferenced.lending import Lender


class Office:
    """Makes the one broker when it is first needed, and the one lender."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._making: loop.Task[Broker] | None = None
        self.broker: Broker | None = None
        self._lender: Lender | None = None
        daemon.on_reload(self.reload)
        daemon.on_drain(self._end_watches)
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

    def lender(self) -> Lender:
        """What calls the engine for others."""
        if self._lender is None:
            from syntrop.inferenced.lending import Lender

            self._lender = Lender(self.ready)
        return self._lender

    async def _make(self) -> Broker:
        from syntrop.inferenced.broker import Broker, survey

        # Threads look at the kernel's files. The loop has deadlines, and gets the interpreter back within this.
        sys.setswitchinterval(0.0002)
        try:
            broker = Broker(self.daemon, await loop.thread(survey, self.daemon.settings))
            await broker.recover()
        finally:
            self._making = None
        self.broker = broker
        # What is loaded now stays. The collector need not go through it again and again, 15 ms each time.
        gc.collect()
        gc.freeze()
        # In a crowd ten young generations at once take 2 ms, for which an emergency would wait: as many, in parts.
        gc.set_threshold(700, 2, 35)
        return broker

    def reload(self) -> None:
        """Take over what can change while leases are held: thresholds of pressure and watermarks."""
        from syntrop.common.settings import resolve
        from syntrop.inferenced.settings import TABLE

        found = resolve("inferenced", TABLE, sys.argv[1:])
        if self.broker is None:
            self.daemon.settings = found
        else:
            self.broker.retune(found)

    def _end_watches(self) -> None:
        if self.broker is not None:
            self.broker.watchers.end()
            self.broker.arbiter.close()

    async def _stop(self) -> None:
        if self._lender is not None:
            self._lender.close()
        if self.broker is not None:
            await self.broker.stop()


class Inference1:
    """Handler of the interface on one endpoint. Its methods are loaded when the first of them is called."""

    def __init__(self, office: Office, endpoint: str) -> None:
        self._office = office
        self._endpoint = endpoint
        self._methods: object = None

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._methods is None:
            from syntrop.inferenced.methods import Methods

            self._methods = Methods(self._office, self._endpoint)
        return getattr(self._methods, name)
