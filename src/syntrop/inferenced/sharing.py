# SPDX-License-Identifier: Apache-2.0
"""Sealed memory on its way from one process to others: descriptors checked, kept, and handed out for reading."""

from __future__ import annotations

import os

from syntrop.common import memfd, paths
from syntrop.common.varlink.errors import VarlinkError
from syntrop.inferenced import holders
from syntrop.inferenced.admission import INTERFACE, invalid
from syntrop.inferenced.descriptors import Crowded, NoSuchDescriptor, Publication, Table
from syntrop.inferenced.lease import Holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.descriptors import Peer
    from syntrop.inferenced.lease import Key


class Sharing:
    """What is published. The daemon stays while anything is. All methods raise VarlinkError."""

    def __init__(self, daemon: Daemon) -> None:
        settings = daemon.settings
        most = settings.descriptors_bytes_max
        self._busy = daemon.busy()
        self._table = Table(settings.descriptors_max, _host_memory() if most is None else most)
        self._peers: set[Peer] = set()
        self._living = holders.Watcher(self._ended)
        self._connections: set[object] = set()
        """Those that something came by."""

    def publish(self, call: Call, fd: int, size: int, label: str) -> str:
        """Take what the caller has passed; its identifier."""
        try:
            self._table.check(size)
        except Crowded as error:
            raise VarlinkError(
                INTERFACE + "QuotaExceeded", resource=error.resource, requested=error.requested, limit=error.limit
            ) from None
        given = call.take_fd(fd)
        try:
            handle = _sealed(given, size)
        finally:
            os.close(given)
        connection = call.connection
        try:
            id, publisher = "d-" + os.urandom(8).hex(), self._peer(call)
            self._table.publish(Publication(id, size, label, publisher, connection, handle))
        except BaseException:
            os.close(handle)
            raise
        if connection not in self._connections:
            self._connections.add(connection)
            connection.when_closed(lambda: self._disconnected(connection))
        self._busy.hold()
        return id

    def fetch(self, call: Call, id: str) -> tuple[int, int]:
        """A descriptor that is the caller's from now on, and the size of its memory."""
        try:
            one = self._table.get(id)
            handle = _reopened(one.handle)
            try:
                self._table.fetch(id, self._peer(call))
            except BaseException:
                os.close(handle)
                raise
        except NoSuchDescriptor:
            raise _unknown(id) from None
        return handle, one.size

    def release(self, call: Call, id: str) -> None:
        """The caller takes back what it published."""
        try:
            self._drop([self._table.release(id, self._peer(call))])
        except NoSuchDescriptor:
            raise _unknown(id) from None

    # --- inside --------------------------------------------------------------------------------------------

    def _peer(self, call: Call) -> Peer:
        """The calling process, which is watched from now on, as long as it has to do with anything here."""
        found = call.peer.identity() if call.peer.known else None
        if found is None:
            raise invalid("pid")  # nobody would know when it ends
        peer = (found[0], found[1])
        if peer not in self._peers:
            try:
                self._living.add(_holder(peer))
            except (holders.Gone, OSError):
                raise invalid("pid") from None
            self._peers.add(peer)
        return peer

    def _disconnected(self, connection: object) -> None:
        self._connections.discard(connection)
        self._drop(self._table.disconnected(connection))

    def _ended(self, key: Key) -> None:
        assert not isinstance(key, str)
        self._peers.discard(key)
        self._drop(self._table.ended(key))

    def _drop(self, gone: Iterable[Publication]) -> None:
        for one in gone:
            os.close(one.handle)
        for peer in self._peers - self._table.peers():
            self._peers.discard(peer)
            self._living.remove(_holder(peer))
        if not self._table.publications:
            self._busy.release()


def _holder(peer: Peer) -> Holder:
    return Holder(0, peer[0], peer[1])


def _sealed(given: int, size: int) -> int:
    """A descriptor of the same memory, open for reading only. Raises DescriptorRefused."""
    try:
        memfd.verify(given, size)  # before it is opened: to open a pipe or a device does something
    except (memfd.MemfdError, OSError) as error:
        raise _refused(str(error)) from None
    return _reopened(given)


def _reopened(handle: int) -> int:
    """The same file with an offset and flags of its own, so that no peer has another's in its hands."""
    try:
        return os.open(paths.proc("self", "fd", str(handle)), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(f"it cannot be opened for reading: {error.strerror}") from None


def _refused(reason: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "DescriptorRefused", reason=reason)


def _unknown(id: str) -> VarlinkError:
    return VarlinkError(INTERFACE + "DescriptorNotFound", descriptor_id=id[:256])


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
