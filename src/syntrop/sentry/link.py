# SPDX-License-Identifier: Apache-2.0
"""A connection to the system bus for many callers at once: one task reads; nobody waits for another's reply."""

from __future__ import annotations

from syntrop.common import dbus, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

WAITING_MAX = 1024  # calls without a reply
_FIRST_SERIAL = 16  # those before are the greeting's


class Link:
    """`signal` is called with each signal, in the loop, and must not wait; `lost` once, when the connection is
    gone by itself."""

    def __init__(
        self, bus: dbus.Bus, signal: Callable[[dbus.Message], object], lost: Callable[[], object]
    ) -> None:
        self._bus: dbus.Bus | None = bus
        self._signal, self._lost = signal, lost
        self._serial = _FIRST_SERIAL
        self._waiting: dict[int, loop.Future[dbus.Message]] = {}
        self._sending: loop.Event | None = None
        self._reader = loop.spawn(self._read(bus), "the system bus")

    @property
    def closed(self) -> bool:
        return self._bus is None

    async def begin(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        values: Sequence[Any] = (),
    ) -> loop.Future[dbus.Message]:
        """Send a call. What is returned gives the reply, or raises DBusError or OSError. Raises OSError."""
        while self._sending is not None:
            await self._sending.wait()
        if self._bus is None:
            raise ConnectionResetError("the system bus closed the connection")
        if len(self._waiting) >= WAITING_MAX:
            raise BlockingIOError(11, "too many calls wait for the system bus")
        self._serial = self._serial % 0xFFFFFFFF + 1
        serial = self._serial
        data = dbus.method_call(serial, destination, path, interface, member, signature, values)
        reply: loop.Future[dbus.Message] = loop.Future()
        self._waiting[serial] = reply
        self._sending = loop.Event()
        try:
            await self._bus.send(data)
        except BaseException as error:
            # Half a message may be on its way.
            self._end(error if isinstance(error, OSError) else ConnectionResetError("a call was interrupted"))
            raise
        finally:
            sending, self._sending = self._sending, None
            sending.set()
        return reply

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        values: Sequence[Any] = (),
    ) -> dbus.Message:
        """Raises DBusError and OSError; the deadline is the caller's."""
        return await (await self.begin(destination, path, interface, member, signature, values))

    def close(self) -> None:
        """Hang up. Who still waits gets ConnectionResetError."""
        self._lost = lambda: None
        self._end(ConnectionResetError("the connection to the system bus was closed"))
        self._reader.cancel()

    async def _read(self, bus: dbus.Bus) -> None:
        try:
            while True:
                message = await bus.receive()
                if message.kind == dbus.SIGNAL:
                    self._signal(message)
                    continue
                reply = self._waiting.pop(message.reply_serial, None)
                if reply is None:
                    continue
                if message.kind == dbus.ERROR:
                    reply.set_error(message.error())
                else:
                    reply.set_result(message)
        except (OSError, dbus.DBusError) as error:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        bus, self._bus = self._bus, None
        if bus is None:
            return
        bus.close()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            reply.set_error(error)
        self._lost()


async def connect(signal: Callable[[dbus.Message], object], lost: Callable[[], object]) -> Link:
    """Raises OSError and DBusError; the deadline is the caller's."""
    return Link(await dbus.connect(), signal, lost)
