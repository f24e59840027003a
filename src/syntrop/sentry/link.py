# SPDX-License-Identifier: Apache-2.0
"""A connection to the system bus for many callers at once: one task reads; nobody waits for another's reply,
unless so many are due that the bus would refuse one more."""

from __future__ import annotations

from syntrop.common import dbus, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# Replies that may be due at once. dbus-daemon refuses a call while 128 are (LimitsExceeded; its limit
# max_replies_per_connection, dbus-daemon(1)): one question too many would look like a manager that does not tell.
PENDING_MAX = 96
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
        self._pending: dict[int, loop.Future[dbus.Message]] = {}
        self._room = loop.Event()
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
        """Send a call, as soon as fewer than PENDING_MAX replies are due. What is returned gives the reply, or
        raises DBusError or OSError. Raises OSError; the deadline is the caller's."""
        while self._sending is not None or (self._bus is not None and len(self._pending) >= PENDING_MAX):
            if self._sending is not None:
                await self._sending.wait()
            else:
                self._room.clear()
                await self._room.wait()
        if self._bus is None:
            raise ConnectionResetError("the system bus closed the connection")
        self._serial = self._serial % 0xFFFFFFFF + 1
        serial = self._serial
        data = dbus.method_call(serial, destination, path, interface, member, signature, values)
        reply: loop.Future[dbus.Message] = loop.Future()
        self._pending[serial] = reply
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
                reply = self._pending.pop(message.reply_serial, None)
                if reply is None:
                    continue
                self._room.set()
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
        pending, self._pending = self._pending, {}
        self._room.set()
        for reply in pending.values():
            reply.set_error(error)
        self._lost()


async def connect(signal: Callable[[dbus.Message], object], lost: Callable[[], object]) -> Link:
    """Raises OSError and DBusError; the deadline is the caller's."""
    return Link(await dbus.connect(), signal, lost)
