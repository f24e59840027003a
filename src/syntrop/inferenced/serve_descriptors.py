# SPDX-License-Identifier: Apache-2.0
"""The methods of `io.syntrop.Inference1` that pass sealed memory from one process to others. Only on fd.sock."""

from __future__ import annotations

import os

from syntrop.common import authority, memfd, paths
from syntrop.common.varlink.errors import MethodNotImplemented, VarlinkError
from syntrop.inferenced import holders
from syntrop.inferenced.admission import INTERFACE, SIZE_MAX, invalid
from syntrop.inferenced.descriptors import Crowded, NoSuchDescriptor, Publication, Table
from syntrop.inferenced.lease import Holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.descriptors import Peer
    from syntrop.inferenced.lease import Key

ENDPOINT = "fd.sock"
LABEL_MAX = 256


class Descriptors:
    """`endpoint` is the socket that the calls come by. The daemon stays while anything is published."""

    def __init__(self, daemon: Daemon, endpoint: str) -> None:
        settings = daemon.settings
        self._endpoint = endpoint
        self._sharing = daemon.busy()
        most = settings.descriptors_bytes_max
        self._shared = Table(settings.descriptors_max, _host_memory() if most is None else most)
        self._peers: set[Peer] = set()
        self._living = holders.Watcher(self._ended)
        self._publishing: set[object] = set()
        """Connections that something came by."""

    async def PublishDescriptor(
        self,
        call: Call,
        fd: int,
        size: int,
        label: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        self._only_here(call)
        if not 0 < size <= SIZE_MAX:
            raise invalid("size")
        shown = label or ""
        if len(shown) > LABEL_MAX:
            raise invalid("label")
        details = {"label": shown, "size": str(size)}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        try:
            self._shared.check(size)
        except Crowded as error:
            raise VarlinkError(
                INTERFACE + "QuotaExceeded", resource=error.resource, requested=error.requested, limit=error.limit
            ) from None
        given = call.take_fd(fd)
        try:
            handle = _sealed(given, size)
        finally:
            os.close(given)
        try:
            publisher = self._peer(call)
            connection = call.connection
            one = Publication(
                "d-" + os.urandom(8).hex(), size, shown, publisher, call.peer.uid, connection, handle
            )
            self._shared.publish(one)
        except BaseException:
            os.close(handle)
            raise
        if connection not in self._publishing:
            self._publishing.add(connection)
            connection.when_closed(lambda: self._disconnected(connection))
        self._sharing.hold()
        return {"descriptor_id": one.id}

    async def FetchDescriptor(
        self, call: Call, descriptor_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        self._only_here(call)
        details = {"descriptor": descriptor_id[:LABEL_MAX]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        try:
            one = self._shared.get(descriptor_id)
            handle = _reopened(one.handle)
            try:
                self._shared.fetch(descriptor_id, self._peer(call))
            except BaseException:
                os.close(handle)
                raise
        except NoSuchDescriptor:
            raise _unknown(descriptor_id) from None
        return {"fd": call.give_fd(handle), "size": one.size}

    async def ReleaseDescriptor(
        self, call: Call, descriptor_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        self._only_here(call)
        details = {"descriptor": descriptor_id[:LABEL_MAX]}
        await authority.authorize(call, interactive=allowInteractiveAuthentication, details=details)
        try:
            self._drop([self._shared.release(descriptor_id, self._peer(call))])
        except NoSuchDescriptor:
            raise _unknown(descriptor_id) from None
        return {}

    # --- inside --------------------------------------------------------------------------------------------

    def _only_here(self, call: Call) -> None:
        if self._endpoint != ENDPOINT:
            raise MethodNotImplemented(call.method)

    def _peer(self, call: Call) -> Peer:
        """The calling process, which is watched from now on, as long as it has to do with anything here."""
        found = call.peer.identity() if call.peer.known else None
        if found is None:
            raise invalid("fd")  # nobody would know when it ends
        peer = (found[0], found[1])
        if peer not in self._peers:
            try:
                self._living.add(_holder(peer))
            except (holders.Gone, OSError):
                raise invalid("fd") from None
            self._peers.add(peer)
        return peer

    def _disconnected(self, connection: object) -> None:
        self._publishing.discard(connection)
        self._drop(self._shared.disconnected(connection))

    def _ended(self, key: Key) -> None:
        assert not isinstance(key, str)
        self._peers.discard(key)
        self._drop(self._shared.ended(key))

    def _drop(self, gone: Iterable[Publication]) -> None:
        for one in gone:
            os.close(one.handle)
        for peer in [peer for peer in self._peers if not self._shared.knows(peer)]:
            self._peers.discard(peer)
            self._living.remove(_holder(peer))
        if not self._shared.publications:
            self._sharing.release()


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
    return VarlinkError(INTERFACE + "DescriptorNotFound", descriptor_id=id[:LABEL_MAX])


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
