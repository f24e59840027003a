# SPDX-License-Identifier: Apache-2.0
"""A Unix stream socket that carries messages and descriptors, for the server and the client alike.

Descriptors travel with the message that was sent in the same sendmsg(2). The kernel ends a read behind the data
that carried descriptors (unix(7)), so they belong to the message that the last byte of that read belongs to.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections import deque

from syntrop.common import loop
from syntrop.common.varlink.errors import ConnectionLost
from syntrop.common.varlink.framing import MESSAGE_MAX, Framer, MessageTooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_READ = 128 * 1024
_FDS_MAX = 253  # SCM_MAX_FD of the kernel
_CUT = int(socket.MSG_CTRUNC)  # an enumeration's `&` takes longer than the call that it judges
_ANCILLARY = socket.CMSG_SPACE(_FDS_MAX * 4)


class Malformed(Exception):
    """The bytes are not a message: no JSON object, or descriptors were lost on the way."""


def _constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


_decoder = json.JSONDecoder(parse_constant=_constant)
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Fixed(dict[str, "Any"]):
    """Parameters of a reply that is given again and again: they do not change, and are encoded once."""

    __slots__ = ("encoded",)

    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.encoded: bytes | None = None


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of a message, without its NUL. Raises ValueError and TypeError for what JSON does not have."""
    parameters = message.get("parameters")
    if type(parameters) is Fixed and parameters.encoded is not None and len(message) == 1:
        return parameters.encoded
    try:
        return _encode(message).encode()
    except UnicodeEncodeError:
        # A lone surrogate, which a peer may write as an escape: it is no UTF-8, so it leaves as one too.
        return _encode_ascii(message).encode()


def decode(message: bytes) -> dict[str, Any]:
    """The JSON object in `message`. Raises Malformed."""
    try:
        value = _decoder.decode(message.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    if type(value) is not dict:
        raise Malformed("not an object")
    return value


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class Wire:
    """One connection. Owns its socket, and every received descriptor until a message is taken."""

    __slots__ = ("_carried", "_framer", "_limit", "_messages", "closed", "eof", "fd", "socket")

    def __init__(self, sock: socket.socket, limit: int = MESSAGE_MAX) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.fd = sock.fileno()
        self.closed = False
        self.eof = False
        self._limit = limit
        self._framer = Framer(limit)
        self._messages: deque[tuple[bytes, list[int]]] = deque()
        self._carried: list[int] = []  # descriptors of the unfinished message

    @property
    def quiet(self) -> bool:
        """Nothing has arrived that was not taken."""
        return not self._messages and self._framer.pending == 0

    async def receive(self, timeout: float | None = None) -> tuple[bytes, list[int]] | None:
        """The next message and its descriptors, which the caller owns now; None when the peer has ended.

        `timeout` (seconds) is how long the rest of a message may take that has begun; for its beginning we wait
        as long as it takes. Raises MessageTooLong, Malformed, ConnectionLost and TimeoutError.
        """
        while not self._messages and self._framer.pending == 0:
            if self.eof:
                return None
            if not self.read():
                await loop.readable(self.fd)
        with loop.deadline(timeout):
            while not self._messages:
                if self.eof:
                    return None
                if not self.read():
                    await loop.readable(self.fd)
        return self._messages.popleft()

    def read(self) -> bool:
        """Read once what is there; False when nothing was. Sets `eof`."""
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_READ, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            # Reset by a peer that left without reading: for the reader that is the end.
            self.eof = True
            return True
        fds: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                fds.extend(numbers)
        if flags & _CUT:
            # Our own table of descriptors is full: some never arrived, so the message is not whole.
            close_all(fds)
            raise Malformed("descriptors were lost")
        if not data:
            self.eof = True
            close_all(fds)
            return True
        try:
            messages = self._framer.feed(data)
        except BaseException:
            close_all(fds)
            raise
        for message in messages:
            self._messages.append((message, self._carried))
            self._carried = []
        if fds:
            if self._framer.pending or not messages:
                self._carried.extend(fds)
                if len(self._carried) > _FDS_MAX:
                    # Piece by piece, one message could take every descriptor that this process may have.
                    raise Malformed("too many descriptors")
            else:
                self._messages[-1][1].extend(fds)
        return True

    async def send(self, message: dict[str, Any], fds: Sequence[int] = (), timeout: float | None = None) -> None:
        """Send one message; the descriptors stay the caller's.

        Raises ConnectionLost, TimeoutError, and MessageTooLong before anything is sent. A connection whose
        message was sent only in part is closed.
        """
        data = encode(message) + b"\0"
        if len(data) - 1 > self._limit:
            raise MessageTooLong(f"a message of {len(data) - 1} bytes; the limit is {self._limit}")
        try:
            if fds:
                numbers = array.array("i", fds)
                while True:
                    try:
                        sent = self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
                        break
                    except BlockingIOError:
                        with loop.deadline(timeout):
                            await loop.writable(self.fd)
            else:
                try:
                    sent = self.socket.send(data)
                except BlockingIOError:
                    sent = 0
            if sent < len(data):
                await self._send_rest(memoryview(data)[sent:], timeout)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.close()
                raise
            raise ConnectionLost(str(error)) from error

    async def _send_rest(self, rest: memoryview, timeout: float | None) -> None:
        try:
            while rest:
                # The deadline is for progress: a slow reader of a long message is not a dead one.
                with loop.deadline(timeout):
                    await loop.writable(self.fd)
                try:
                    rest = rest[self.socket.send(rest) :]
                except BlockingIOError:
                    pass
        except loop.Cancelled:
            self.close()
            raise

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            loop.forget(self.fd)
            self.socket.close()
            close_all(self._carried)
            self._carried = []
            while self._messages:
                close_all(self._messages.popleft()[1])
