# SPDX-License-Identifier: Apache-2.0
"""The methods of `io.syntrop.Inference1` that pass sealed memory from one process to others. Only on fd.sock."""

from __future__ import annotations

from syntrop.common import authority
from syntrop.common.varlink.errors import MethodNotImplemented
from syntrop.inferenced.admission import SIZE_MAX, invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from syntrop.common.service import Daemon
    from syntrop.common.varlink.server import Call
    from syntrop.inferenced.sharing import Sharing

ENDPOINT = "fd.sock"
TEXT_MAX = 256


class Descriptors:
    """`endpoint` is the socket that the calls come by."""

    def __init__(self, daemon: Daemon, endpoint: str) -> None:
        self._daemon = daemon
        self._endpoint = endpoint
        self._sharing: Sharing | None = None

    async def PublishDescriptor(
        self,
        call: Call,
        fd: int,
        size: int,
        label: str | None = None,
        allowInteractiveAuthentication: bool | None = None,
    ) -> dict[str, Any]:
        shown = label or ""
        sharing = await self._share(call, allowInteractiveAuthentication, label=shown, size=str(size))
        if not 0 < size <= SIZE_MAX:
            raise invalid("size")
        if len(shown) > TEXT_MAX:
            raise invalid("label")
        return {"descriptor_id": sharing.publish(call, fd, size, shown)}

    async def FetchDescriptor(
        self, call: Call, descriptor_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        sharing = await self._share(call, allowInteractiveAuthentication, descriptor=descriptor_id)
        handle, size = sharing.fetch(call, descriptor_id)
        return {"fd": call.give_fd(handle), "size": size}

    async def ReleaseDescriptor(
        self, call: Call, descriptor_id: str, allowInteractiveAuthentication: bool | None = None
    ) -> dict[str, Any]:
        sharing = await self._share(call, allowInteractiveAuthentication, descriptor=descriptor_id)
        sharing.release(call, descriptor_id)
        return {}

    async def _share(self, call: Call, interactive: bool | None, **details: str) -> Sharing:
        """For those who may, what is shared; made when the first of them comes."""
        if self._endpoint != ENDPOINT:
            raise MethodNotImplemented(call.method)
        shown = {name: text[:TEXT_MAX] for name, text in details.items()}
        await authority.authorize(call, interactive=interactive, details=shown)
        if self._sharing is None:
            from syntrop.inferenced.sharing import Sharing

            self._sharing = Sharing(self._daemon)
        return self._sharing
