# SPDX-License-Identifier: Apache-2.0
"""What listens on the machine, asked of the kernel over a netlink socket that the service manager made for us.

The manager makes it in the machine's network (`toold-diag.socket`), where toold is not, and nothing that toold
may do makes another. The kernel goes by the rights of whoever sends: over this socket toold can look, as anybody
can, and close nobody's connections. Blocking: for a thread.
"""

from __future__ import annotations

import _thread
import os
import select
import socket
from time import monotonic

from syntrop.common import paths
from syntrop.toold import sockdiag
from syntrop.toold.sockdiag import IPV4, IPV6, TCP, UDP, DiagError, Socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROTOCOLS = {"udp": UDP, "tcp": TCP}  # in the order in which `ss` shows them
TEXT_MAX = 256 << 10  # bytes of what is shown, as of a command's output
_NAMES = {number: name for name, number in PROTOCOLS.items()}
_SOCKETS_MAX = 16_384
_DATAGRAM_MAX = 64 << 10  # the kernel fills no more than 32 KiB
_FOLDERS_MAX = 20_000


class Listeners:
    """The machine's sockets that listen. Owns the netlink socket; one asker has it at a time."""

    __slots__ = ("_groups", "_guard", "_netlink", "_sequence")

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink
        self._guard = _thread.allocate_lock()
        self._sequence = 0
        self._groups: dict[int, str] = {}

    def show(self, protocol: str, timeout: float) -> tuple[str, bool]:
        """The lines of `ss --listening --numeric --cgroup`, of one protocol or with "" of both, and whether these
        are all. Raises DiagError, OSError, and TimeoutError after so many seconds.
        """
        deadline = monotonic() + timeout
        if not self._guard.acquire(timeout=timeout):
            raise TimeoutError
        try:
            wanted = [PROTOCOLS[protocol]] if protocol else list(PROTOCOLS.values())
            found: list[Socket] = []
            whole = True
            for one in wanted:
                for family in (IPV4, IPV6):
                    whole &= self._ask(one, family, found, deadline)
            names = _interface_names() if any(one.interface for one in found) else {}
            groups = self._find_groups({one.cgroup for one in found if one.cgroup}, deadline)
        finally:
            self._guard.release()
        text, fits = table(found, names, groups, kinds=not protocol)
        return text, whole and fits

    # --- inside ----------------------------------------------------------------------------------------------

    def _ask(self, protocol: int, family: int, into: list[Socket], deadline: float) -> bool:
        # An answer that was not read to its end, and whatever else came: the kernel makes one list at a time.
        while self._received(deadline, wait=False) is not None:
            pass
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        self._netlink.send(sockdiag.request(protocol, family, self._sequence), socket.MSG_DONTWAIT)
        whole = True
        while True:
            data = self._received(deadline, wait=True)
            for found in sockdiag.replies(data or b"", protocol, self._sequence):
                if found is None:
                    return whole
                if len(into) < _SOCKETS_MAX:
                    into.append(found)
                else:
                    whole = False

    def _received(self, deadline: float, *, wait: bool) -> bytes | None:
        """A datagram of the kernel's; None when there is none, and nothing to wait for."""
        while True:
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                data, _, flags, sender = self._netlink.recvmsg(_DATAGRAM_MAX, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not wait:
                    return None
                poller = select.poll()
                poller.register(self._netlink, select.POLLIN)
                poller.poll(left * 1000)
                continue
            if flags & socket.MSG_TRUNC:
                raise DiagError(f"a datagram longer than {_DATAGRAM_MAX} bytes")
            if sender[0] == 0:  # whoever else may send to us (root) is nobody to ask
                return data

    def _find_groups(self, wanted: set[int], deadline: float) -> dict[int, str] | None:
        """Paths by number; None where there is no unified hierarchy. A group is not renamed and its number never
        another's, so what was found once holds, as does what was not: it was removed before its sockets were."""
        if not wanted <= self._groups.keys():
            top = paths.cgroup()
            if not os.path.exists(os.path.join(top, "cgroup.controllers")):
                return None
            known = {number: path for number, path in self._groups.items() if number in wanted}
            found, whole = _tree(top, wanted - known.keys(), deadline)
            known |= found
            if whole:
                known |= dict.fromkeys(wanted - known.keys(), "")
            self._groups = known
        return self._groups


def network_tables() -> str:
    """Folder of the machine's tables of sockets: the unit, which gives toold no network, puts PID 1's there."""
    given = paths.run("syntrop", "net")
    return given if os.access(os.path.join(given, "tcp"), os.R_OK) else f"/proc/{os.getpid()}/net"


def _interface_names() -> dict[int, str]:
    """Names by number, of the machine's interfaces: our own would be those of a network with none."""
    folder = network_tables()
    names: dict[int, str] = {}
    for file in ("igmp", "if_inet6"):
        try:
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as opened:
                names |= dict(interfaces(file, opened.read().splitlines()))
        except OSError:
            pass  # then it has a number
    return names


def _tree(top: str, wanted: set[int], deadline: float) -> tuple[dict[int, str], bool]:
    """Paths of control groups by number, and whether it looked until it had all, or everywhere."""
    found = dict.fromkeys(wanted & {os.stat(top).st_ino}, "/")
    pending, seen = ["/"], 0
    for parent in pending:
        if len(found) == len(wanted):
            break
        if seen > _FOLDERS_MAX or monotonic() > deadline:
            return found, False
        try:
            # A folder has as many links as folders, and two: one without any is not read.
            if os.stat(top + parent).st_nlink == 2:
                continue
            with os.scandir(top + parent) as entries:
                below = [(one.inode(), one.name) for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # removed meanwhile
        seen += len(below)
        for number, name in below:
            pending.append(os.path.join(parent, name))
            if number in wanted:
                found[number] = os.fsencode(pending[-1]).decode(errors="replace")
    return found, True


def interfaces(file: str, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Numbers and names in `igmp` or `if_inet6` of /proc/net. What does not read as documented is left out."""
    for line in lines:
        words = line.split()
        try:
            if file == "if_inet6" and len(words) == 6:
                yield int(words[1], 16), words[5]
            elif file == "igmp" and line[:1].isdigit():
                yield int(words[0]), words[1].rstrip(":")
        except (ValueError, IndexError):
            continue


def table(
    sockets: Sequence[Socket], names: dict[int, str], groups: dict[int, str] | None, *, kinds: bool
) -> tuple[str, bool]:
    """The lines for people, in the words and the order of `ss`, and whether all found room; `kinds`: with the
    protocol before each."""
    rows = []
    for one in sockets:
        address = f"[{one.address}]" if one.family == IPV6 else one.address
        if address == "[::]" and not one.v6only:
            address = "*"  # of both kinds
        anybody = {"0.0.0.0": "0.0.0.0", "*": "*"}.get(address, "[::]" if one.family == IPV6 else "0.0.0.0")
        if one.interface:
            address += f"%{names.get(one.interface, f'if{one.interface}')}"
        group = ""
        if one.cgroup and groups is not None:
            group = "cgroup:" + (groups.get(one.cgroup) or f"unreachable:{one.cgroup}")
        rows.append(
            (
                *([_NAMES[one.protocol]] if kinds else []),
                sockdiag.STATE_NAMES.get(one.state, str(one.state)),
                str(one.waiting),
                str(one.room),
                f"{address}:{one.port}",
                f"{anybody}:*",
                group,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text: list[str] = []
    size = 0
    for row in rows:
        line = " ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() + "\n"
        size += len(line.encode(errors="replace"))
        if size > TEXT_MAX:
            return "".join(text), False
        text.append(line)
    return "".join(text), True
