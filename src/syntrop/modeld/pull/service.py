# SPDX-License-Identifier: Apache-2.0
"""`io.syntrop.Fetch1`: the network, as the store calls it. Whatever waits for a server runs in a worker thread."""

from __future__ import annotations

import os

from syntrop.common import loop
from syntrop.common.varlink.errors import VarlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from syntrop.common.settings import Settings
    from syntrop.common.varlink.server import Call
    from syntrop.modeld.pull.transport import Control, Transport

    T = TypeVar("T")

_INTERFACE = "io.syntrop.Fetch1."


class Fetch1:
    """Handler of the interface."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def Resolve(
        self, call: Call, reference: str, format: str | None = None, quantization: str | None = None
    ) -> dict[str, Any]:
        await _authorize(call)

        def look() -> dict[str, Any]:
            from syntrop.modeld.pull import sources

            found = sources.resolve(
                self._transport(control),
                reference,
                hub=self._settings.hub.rstrip("/"),
                library=self._settings.library.rstrip("/"),
                format=format or "gguf",
                quantization=quantization or "",
            )
            files = [
                {"path": one.path, "url": one.url, "digest": one.digest, "size": one.size} for one in found.files
            ]
            return {"name": found.name, "tag": found.tag, "files": files}

        control = _control()
        return await _run(control, look)

    async def Fetch(
        self,
        call: Call,
        url: str,
        fd: int,
        offset: int | None = None,
        validator: str | None = None,
        verified: bool | None = None,
    ) -> dict[str, Any]:
        call.require_more()
        await _authorize(call)
        pipe = call.take_fd(fd)
        control = _control()
        heads: loop.Queue[tuple[int, int | None, str | None]] = loop.Queue(1)

        def announce(start: int, total: int | None, content: str | None) -> None:
            loop.threadsafe(heads.put_nowait, (start, total, content))

        def fetch() -> None:
            from syntrop.modeld.pull import fetching, references

            try:
                os.set_blocking(pipe, True)
                urls = references.mirrored(url, self._settings.mirrors)
                work = fetching.Fetch(self._transport(control), urls, lambda data: _write(pipe, data), announce)
                work.run(max(0, offset or 0), validator, bool(verified))
            finally:
                os.close(pipe)

        task = loop.spawn(_run(control, fetch), "fetch")
        # The caller may leave in the moment in which it fails: then nobody is to be told.
        task.when_done(lambda one: one.forgive(VarlinkError))
        telling = loop.spawn(_tell(call, heads), "announce")
        try:
            await task
            if len(heads) or not telling.done:
                await telling
        finally:
            for one in (task, telling):
                if not one.done:
                    await loop.stop(one)
        return {}

    def _transport(self, control: Control) -> Transport:
        from syntrop.modeld.pull import credentials, transport

        try:
            known = credentials.load()
        except credentials.InvalidCredentials as error:
            from syntrop.common import journal

            journal.error(f"The credential {credentials.NAME} is not used: {error}")
            known = credentials.Credentials({})
        return transport.Transport(
            control,
            known,
            stall_sec=self._settings.stall_sec,
            tries=self._settings.tries,
            longest_wait_sec=self._settings.longest_wait_sec,
            ca_file=self._settings.ca_file,
            mirrors=self._settings.mirrors,
        )


async def _tell(call: Call, heads: loop.Queue[tuple[int, int | None, str | None]]) -> None:
    start, total, validator = await heads.get()
    await call.send({"offset": start, "total_bytes": total, "validator": validator})


def _control() -> Control:
    from syntrop.modeld.pull.transport import Control

    return Control()


async def _run(control: Control, function: Callable[[], T]) -> T:
    """Run in a worker thread; faults in the interface's terms. When the caller goes, so does the connection."""
    from syntrop.modeld.pull import faults

    future = loop.thread(function)
    try:
        return await future
    except loop.Cancelled:
        control.cancel()
        future.when_done(_forget)
        raise
    except faults.NotFound as error:
        raise VarlinkError(_INTERFACE + "NotFound", reference=error.reference, reason=error.reason) from None
    except faults.Unavailable as error:
        raise VarlinkError(_INTERFACE + "Unavailable", url=error.url, reason=error.reason) from None
    except faults.Changed as error:
        raise VarlinkError(_INTERFACE + "Changed", url=error.url) from None
    except faults.Cancelled:
        raise VarlinkError(_INTERFACE + "Unavailable", url="", reason="nobody waits for it") from None


def _forget(future: loop.Future[Any]) -> None:
    try:
        future.result()
    except Exception:
        pass  # of no concern to anybody: the caller has gone


def _write(pipe: int, data: bytes) -> None:
    from syntrop.modeld.pull.faults import Cancelled

    view = memoryview(data)
    try:
        while view:
            view = view[os.write(pipe, view) :]
    except BrokenPipeError:
        raise Cancelled from None


async def _authorize(call: Call) -> None:
    from syntrop.common import authority

    await authority.authorize(call)
