# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of sockets as sock_diag(7) gives it over netlink: requests and replies, without I/O.

All of it is in the machine's byte order but for addresses and ports (linux/inet_diag.h, linux/netlink.h).
"""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL = 4  # NETLINK_SOCK_DIAG, which systemd.socket(5) calls inet-diag
TCP, UDP = int(socket.IPPROTO_TCP), int(socket.IPPROTO_UDP)
IPV4, IPV6 = int(socket.AF_INET), int(socket.AF_INET6)
# What "listens": of TCP what accepts connections, of UDP what is connected to nobody.
STATES = {TCP: 10, UDP: 7}
STATE_NAMES = {10: "LISTEN", 7: "UNCONN"}

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, of any address
# Family, state, port, address, interface, and after cookie and timer the two queues; user and inode come last.
_SOCKET = struct.Struct("=BB2x2s2x16s16xI12xII8x")
_ATTRIBUTE = struct.Struct("=HH")
_BY_FAMILY, _ERROR, _DONE, _OVERRUN = 20, 2, 3, 4
_REQUEST_DUMP = 0x1 | 0x300  # NLM_F_REQUEST, NLM_F_DUMP
_V6ONLY, _CGROUP_ID = 11, 21
_ATTRIBUTE_TYPE = 0x3FFF  # without the flags of nested and big-endian ones


class DiagError(Exception):
    """The kernel could not be asked, or what it said makes no sense."""


class Refused(DiagError):
    """The kernel said no: `number` is its errno, ENOENT where a protocol's part of it is missing."""

    def __init__(self, number: int) -> None:
        import os

        super().__init__(f"the kernel does not list its sockets: {os.strerror(number)}")
        self.number = number


class Socket:
    """One socket. Addresses are text; `waiting` and `room` are what `ss` calls Recv-Q and Send-Q: of a listener,
    connections that wait and how many may. `interface` is 0 for any, `cgroup` 0 where the kernel does not tell."""

    __slots__ = (
        "address", "cgroup", "family", "interface", "port", "protocol", "room", "state", "v6only", "waiting",
    )  # fmt: skip

    def __init__(self, protocol: int, family: int, state: int, address: str, port: int) -> None:
        self.protocol, self.family, self.state = protocol, family, state
        self.address, self.port = address, port
        self.waiting = self.room = self.interface = self.cgroup = 0
        self.v6only = True


def request(protocol: int, family: int, sequence: int) -> bytes:
    """Asks for all sockets of a protocol and a family that listen."""
    body = _REQUEST.pack(family, protocol, 0, 1 << STATES[protocol])
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, sequence, 0) + body


def replies(data: bytes, protocol: int, sequence: int) -> Iterator[Socket | None]:
    """Sockets of one datagram, and None where the list ends. What answers another request is passed over.

    Raises DiagError; Refused where the kernel said so.
    """
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise DiagError("a message without a whole header")
        length, kind, _flags, answers, _port = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise DiagError(f"a message of {length} bytes in {len(data) - at}")
        body = data[at + _HEADER.size : at + length]
        at += length + 3 & ~3
        if answers != sequence:
            continue
        if kind == _BY_FAMILY:
            yield _socket(body, protocol)
        elif kind == _DONE:
            # A list that could not be made to its end says so here.
            if len(body) >= 4 and (number := struct.unpack_from("=i", body)[0]) < 0:
                raise Refused(-number)
            yield None
            return
        elif kind == _ERROR:
            if len(body) < 4:
                raise DiagError("an error without a number")
            raise Refused(-struct.unpack_from("=i", body)[0])
        elif kind == _OVERRUN:
            raise DiagError("messages were lost")


def _socket(body: bytes, protocol: int) -> Socket:
    if len(body) < _SOCKET.size:
        raise DiagError(f"a socket in {len(body)} bytes")
    family, state, port, source, interface, waiting, room = _SOCKET.unpack_from(body)
    if family not in (IPV4, IPV6):
        raise DiagError(f"a socket of family {family}")
    address = socket.inet_ntop(family, source[:4] if family == IPV4 else source)
    found = Socket(protocol, family, state, address, int.from_bytes(port, "big"))
    found.waiting, found.room, found.interface = waiting, room, interface
    for kind, value in _attributes(body[_SOCKET.size :]):
        if kind == _V6ONLY and value:
            found.v6only = value[0] != 0
        elif kind == _CGROUP_ID and len(value) == 8:
            found.cgroup = struct.unpack("=Q", value)[0]
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while len(data) - at >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise DiagError(f"an attribute of {length} bytes in {len(data) - at}")
        yield kind & _ATTRIBUTE_TYPE, data[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
