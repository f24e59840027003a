# SPDX-License-Identifier: Apache-2.0
"""A small D-Bus client: marshalling without I/O, and one connection on the loop. Imported only when needed.

Message format and authentication are those of the D-Bus specification 0.38. We write little-endian and read
both. Values are Python's own: a struct is a tuple (or list), a dictionary a dict, a variant the pair
`(signature, value)`, a descriptor (`h`) its index among those that travel with the message.
"""

from __future__ import annotations

import os
import socket
import struct

from syntrop.common import loop, paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final, TypeVar

    T = TypeVar("T")

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
NO_REPLY_EXPECTED, NO_AUTO_START, ALLOW_INTERACTIVE_AUTHORIZATION = 1, 2, 4
MESSAGE_MAX: Final = 1 << 20  # bytes; the specification allows 128 MiB, none that we ask for needs it
DEPTH_MAX: Final = 64  # the specification's limit on nested containers
SIGNALS_MAX: Final = 4096  # signals that wait to be asked for; further ones are dropped
LINE_MAX: Final = 4096  # bytes of an authentication line

_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SENDER, _SIGNATURE, _FDS = range(1, 10)

# type -> (struct letter, size, which is also its alignment)
_FIXED: Final = {
    "y": ("B", 1),
    "b": ("I", 4),
    "n": ("h", 2),
    "q": ("H", 2),
    "i": ("i", 4),
    "u": ("I", 4),
    "x": ("q", 8),
    "t": ("Q", 8),
    "d": ("d", 8),
    "h": ("I", 4),
}
_ALIGNMENT: Final = {
    **{kind: size for kind, (_, size) in _FIXED.items()},
    "s": 4,
    "o": 4,
    "g": 1,
    "v": 1,
    "a": 4,
    "(": 8,
    "{": 8,
}


class DBusError(Exception):
    """An error reply, or a fault in the connection: `name` is the error's D-Bus name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{message} ({name})")
        self.name = name


class Malformed(DBusError):
    """Bytes or values that the specification does not allow."""

    def __init__(self, message: str) -> None:
        super().__init__("org.freedesktop.DBus.Error.InvalidArgs", message)


def split(signature: str) -> list[str]:
    """The complete types of a signature, in order. Raises Malformed."""
    types = []
    at = 0
    while at < len(signature):
        end = _end(signature, at, 0)
        types.append(signature[at:end])
        at = end
    return types


def _end(signature: str, at: int, depth: int) -> int:
    """Where the complete type that starts at `at` ends."""
    if at >= len(signature) or depth > DEPTH_MAX:
        raise Malformed(f"signature {signature!r} ends too early or nests too deeply")
    kind = signature[at]
    if kind in _FIXED or kind in "sogv":
        return at + 1
    if kind == "a":
        if signature[at + 1 : at + 2] != "{":
            return _end(signature, at + 1, depth + 1)
        key = _end(signature, at + 2, depth + 2)
        if signature[at + 2] not in _FIXED and signature[at + 2] not in "sog":
            raise Malformed(f"signature {signature!r} has a key that is no basic type")
        value = _end(signature, key, depth + 2)
        if signature[value : value + 1] != "}":
            raise Malformed(f"signature {signature!r} has a dictionary of other than pairs")
        return value + 1
    if kind == "(":
        at += 1
        first = at
        while signature[at : at + 1] != ")":
            at = _end(signature, at, depth + 1)
        if at == first:
            raise Malformed(f"signature {signature!r} has an empty struct")
        return at + 1
    raise Malformed(f"signature {signature!r} has the unknown type {kind!r}")


class Writer:
    """Marshals values, little-endian."""

    def __init__(self) -> None:
        self.data = bytearray()

    def pad(self, alignment: int) -> None:
        self.data += bytes(-len(self.data) % alignment)

    def put(self, signature: str, values: Sequence[Any]) -> None:
        """Append one value for each complete type. Raises Malformed where one does not fit its type."""
        types = split(signature)
        if len(types) != len(values):
            raise Malformed(f"{len(values)} values for signature {signature!r}")
        for kind, value in zip(types, values, strict=True):
            self._put(kind, value, 0)

    def _put(self, kind: str, value: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise Malformed("values nest too deeply")
        self.pad(_ALIGNMENT[kind[0]])
        if kind[0] in _FIXED:
            try:
                self.data += struct.pack("<" + _FIXED[kind][0], value)
            except struct.error as error:
                raise Malformed(f"{value!r} is no {kind}: {error}") from None
        elif kind in "so":
            raw = value.encode()
            if b"\0" in raw:
                raise Malformed("a string with a NUL")
            self.data += struct.pack("<I", len(raw)) + raw + b"\0"
        elif kind == "g":
            self.data += bytes((len(value),)) + value.encode("ascii") + b"\0"
        elif kind == "v":
            inner, content = value
            if len(split(inner)) != 1:
                raise Malformed(f"a variant of signature {inner!r}")
            self._put("g", inner, depth)
            self._put(inner, content, depth + 1)
        elif kind[0] == "a":
            self._put_array(kind[1:], value, depth)
        else:
            fields = split(kind[1:-1])
            if len(fields) != len(value):
                raise Malformed(f"{len(value)} values for {kind}")
            for field, item in zip(fields, value, strict=True):
                self._put(field, item, depth + 1)

    def _put_array(self, item: str, values: Any, depth: int) -> None:
        length_at = len(self.data)
        self.data += bytes(4)
        self.pad(_ALIGNMENT[item[0]])  # not counted in the length, and there even when the array is empty
        start = len(self.data)
        if item[0] == "{":
            key, value = split(item[1:-1])
            for name, content in values.items():
                self.pad(8)
                self._put(key, name, depth + 2)
                self._put(value, content, depth + 2)
        else:
            for content in values:
                self._put(item, content, depth + 1)
        struct.pack_into("<I", self.data, length_at, len(self.data) - start)


class Reader:
    """Unmarshals values; every read is checked against the end."""

    def __init__(self, data: bytes, order: str, at: int = 0) -> None:
        self.data = data
        self.order = order
        self.at = at

    def pad(self, alignment: int) -> None:
        self.at += -self.at % alignment

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise Malformed("a message that ends too early")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def get(self, signature: str) -> list[Any]:
        """One value for each complete type. Raises Malformed."""
        return [self._get(kind, 0) for kind in split(signature)]

    def _get(self, kind: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise Malformed("values nest too deeply")
        self.pad(_ALIGNMENT[kind[0]])
        if kind[0] in _FIXED:
            letter, size = _FIXED[kind]
            value = struct.unpack(self.order + letter, self._take(size))[0]
            return value != 0 if kind == "b" else value
        if kind in "sog":
            length = self._take(1)[0] if kind == "g" else self._get("u", depth)
            raw = self._take(length + 1)
            try:
                return raw[:-1].decode()
            except UnicodeDecodeError:
                raise Malformed("a string that is not UTF-8") from None
        if kind == "v":
            inner = self._get("g", depth)
            if len(split(inner)) != 1:
                raise Malformed(f"a variant of signature {inner!r}")
            return inner, self._get(inner, depth + 1)
        if kind[0] == "a":
            return self._get_array(kind[1:], depth)
        return tuple(self._get(field, depth + 1) for field in split(kind[1:-1]))

    def _array_end(self, item: str) -> int:
        """Where an array ends, whose length is read; `item` is how the type of its items begins."""
        length = self._get("u", 0)
        self.pad(_ALIGNMENT[item])
        end: int = self.at + length
        if end > len(self.data):
            raise Malformed("an array that passes the end of its message")
        return end

    def _get_array(self, item: str, depth: int) -> Any:
        end = self._array_end(item[0])
        if item[0] == "{":
            key, value = split(item[1:-1])
            pairs = {}
            while self.at < end:
                self.pad(8)
                name = self._get(key, depth + 2)
                pairs[name] = self._get(value, depth + 2)
            return pairs
        items = []
        while self.at < end:
            items.append(self._get(item, depth + 1))
        return items


class Message:
    """A message that was received. `body` has one value for each complete type of `signature`; it is unmarshalled,
    and may raise Malformed, when it is asked for."""

    __slots__ = (
        "_body", "_reader", "error_name", "interface", "kind", "member", "path", "reply_serial", "signature",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        order = _order(data)
        reader = Reader(data, order, 1)
        self.kind = reader.get("y")[0]
        reader.at = 12
        fields = {code: value for code, (_, value) in reader.get("a(yv)")[0]}
        self.path = _field(fields, _PATH, str, "")
        self.interface = _field(fields, _INTERFACE, str, "")
        self.member = _field(fields, _MEMBER, str, "")
        self.error_name = _field(fields, _ERROR_NAME, str, "")
        self.reply_serial = _field(fields, _REPLY_SERIAL, int, 0)
        self.signature = _field(fields, _SIGNATURE, str, "")
        reader.pad(8)
        self._reader = reader
        self._body: list[Any] | None = None

    @property
    def body(self) -> list[Any]:
        if self._body is None:
            self._body = self.at_body().get(self.signature)
        return self._body

    def at_body(self) -> Reader:
        """A reader at the beginning of the body."""
        return Reader(self._reader.data, self._reader.order, self._reader.at)

    def error(self) -> DBusError:
        """What an error reply says, even where its words cannot be read."""
        text = ""
        if self.signature.startswith("s"):
            try:
                text = self.body[0]
            except Malformed:
                text = "an error that cannot be read"
        return DBusError(self.error_name or "org.freedesktop.DBus.Error.Failed", text)


def _field(fields: dict[int, Any], code: int, kind: type[T], default: T) -> T:
    value = fields.get(code, default)
    if type(value) is not kind:
        raise Malformed(f"a message whose header field {code} is {value!r}")
    return value


def _order(data: bytes | bytearray) -> str:
    if data[:1] == b"l":
        return "<"
    if data[:1] == b"B":
        return ">"
    raise Malformed("a message of unknown byte order")


def length(head: bytes | bytearray) -> int | None:
    """Length of the message that starts with these bytes; None while there are too few. Raises Malformed."""
    if len(head) < 16:
        return None
    body, _, fields = struct.unpack(_order(head) + "III", head[4:16])
    total: int = 16 + fields + (-fields % 8) + body
    if total > MESSAGE_MAX:
        raise Malformed(f"a message of {total} bytes")
    return total


def method_call(
    serial: int,
    destination: str,
    path: str,
    interface: str,
    member: str,
    signature: str = "",
    values: Sequence[Any] = (),
    *,
    fds: int = 0,
    flags: int = 0,
) -> bytes:
    """The bytes of a method call that `fds` descriptors travel with."""
    body = Writer()
    body.put(signature, values)
    fields: list[tuple[int, tuple[str, Any]]] = [
        (_PATH, ("o", path)),
        (_INTERFACE, ("s", interface)),
        (_MEMBER, ("s", member)),
        (_DESTINATION, ("s", destination)),
    ]
    if signature:
        fields.append((_SIGNATURE, ("g", signature)))
    if fds:
        fields.append((_FDS, ("u", fds)))
    head = Writer()
    head.put("yyyyuua(yv)", [ord("l"), METHOD_CALL, flags, 1, len(body.data), serial, fields])
    head.pad(8)
    return bytes(head.data + body.data)


class Bus:
    """A connection to a message bus, for one caller at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._serial = 0
        self._buffer = bytearray()
        self._signals: list[Message] | None = None
        self.name = ""
        """Our own on the bus, unique."""

    async def subscribe(self, rule: str) -> None:
        """Have signals that match a rule sent to us and kept for `signal()`. Raises DBusError and OSError."""
        if self._signals is None:
            self._signals = []
        name = "org.freedesktop.DBus"
        await self.call(name, "/org/freedesktop/DBus", name, "AddMatch", "s", [rule])

    async def signal(self) -> Message:
        """The next signal: one that came during a call, or else one that is waited for. Raises OSError."""
        while True:
            if self._signals:
                return self._signals.pop(0)
            message = await self.receive()
            if message.kind == SIGNAL:
                return message

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        values: Sequence[Any] = (),
        *,
        fds: Sequence[int] = (),
        allow_interactive: bool = False,
    ) -> Message:
        """Call a method and wait for its reply. Descriptors stay the caller's. Raises DBusError and OSError."""
        self._serial += 1
        flags = ALLOW_INTERACTIVE_AUTHORIZATION if allow_interactive else 0
        data = method_call(
            self._serial, destination, path, interface, member, signature, values, fds=len(fds), flags=flags
        )
        await self.send(data, fds)
        while True:
            message = await self.receive()
            if message.kind == SIGNAL and self._signals is not None and len(self._signals) < SIGNALS_MAX:
                self._signals.append(message)
            if message.reply_serial != self._serial:
                continue  # signals, which the bus sends unasked
            if message.kind == ERROR:
                raise message.error()
            return message

    def close(self) -> None:
        loop.forget(self._socket.fileno())
        self._socket.close()

    async def authenticate(self) -> None:
        """Tell the bus who we are (the kernel vouches for it) and take a name on it."""
        await self.send(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        await self._expect(b"OK")
        await self.send(b"NEGOTIATE_UNIX_FD\r\n")
        await self._expect(b"AGREE_UNIX_FD")
        await self.send(b"BEGIN\r\n")
        name = "org.freedesktop.DBus"
        self.name = (await self.call(name, "/org/freedesktop/DBus", name, "Hello")).body[0]

    async def _expect(self, word: bytes) -> None:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > LINE_MAX:
                raise Malformed("an authentication line that does not end")
            await self._fill()
        line, _, rest = bytes(self._buffer).partition(b"\r\n")
        self._buffer = bytearray(rest)
        if line.split(b" ")[0] != word:
            raise DBusError("org.freedesktop.DBus.Error.AuthFailed", f"the bus answered {line[:80]!r}")

    async def receive(self) -> Message:
        """The next message, whatever it is: for who calls `send` himself. Raises DBusError and OSError."""
        while (size := length(self._buffer)) is None or len(self._buffer) < size:
            await self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return Message(data)

    async def _fill(self) -> None:
        while True:
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                await loop.readable(self._socket.fileno())
                continue
            if not data:
                raise ConnectionResetError("the bus closed the connection")
            self._buffer += data
            return

    async def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a whole message; one that was interrupted leaves the connection of no use. Raises OSError."""
        # Descriptors travel with the first byte.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        view = memoryview(data)
        while view:
            try:
                sent = self._socket.sendmsg([view], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await loop.writable(self._socket.fileno())
                continue
            rights = []
            view = view[sent:]


async def connect() -> Bus:
    """A connection to the system bus. Raises OSError and DBusError; the deadline is the caller's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    bus = Bus(sock)
    try:
        # A Unix socket connects at once or fails; EAGAIN says that the bus has no room for more at the moment.
        sock.connect(_address())
        await bus.authenticate()
    except BaseException:
        bus.close()
        raise
    return bus


def _address() -> str:
    """Where the system bus is: the first Unix path that the environment names, else the customary one."""
    for address in os.environ.get("DBUS_SYSTEM_BUS_ADDRESS", "").split(";"):
        transport, _, parameters = address.partition(":")
        for parameter in parameters.split(","):
            key, _, value = parameter.partition("=")
            if transport == "unix" and key == "path":
                return value
            if transport == "unix" and key == "abstract":
                return "\0" + value
    return paths.run("dbus", "system_bus_socket")
