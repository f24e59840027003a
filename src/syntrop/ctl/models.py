# SPDX-License-Identifier: Apache-2.0
"""`syntropctl models`: what modeld stores, and files that are given to it."""

from __future__ import annotations

import json
import os
import sys

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find, starter
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

ENDPOINT = "io.syntrop.Model1"
IMPORT_SEC = 3600.0  # a large file on a slow disk


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop, telling every failure on one line."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("modeld did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except (OSError, VarlinkError, ConnectionLost, InvalidReply, starter.FetchError) as error:
        return fail(str(error))


async def show(as_json: bool) -> int:
    """List the stored models."""
    entries = await _list()
    if as_json:
        print(json.dumps(entries, indent=2))
        return 0
    if not entries:
        print("no models; `syntropctl models import FILE` or `syntropctl models fetch-starter --import`")
    for entry in entries:
        pinned = "  pinned" if entry["pinned"] else ""
        size = f"{entry['size_bytes'] / 2**20:.1f} MiB"
        print(f"{entry['id']:<32} {size:>12}  {entry['format']:<12} {entry['digest'][:19]}{pinned}")
    return 0


async def import_file(path: str, name: str | None, as_json: bool) -> int:
    """Give a file to modeld: we open it, so that it may lie where the daemon cannot look."""
    default = os.path.basename(path).rsplit(".", 1)[0].lower()
    entry = await _register(path, name or default, None)
    print(json.dumps(entry, indent=2) if as_json else f"{entry['id']}  {entry['digest']}")
    return 0


async def import_starter(as_json: bool) -> int:
    """Have the starter model in the store: nothing is fetched when it is there already."""
    entry = next((one for one in await _list() if one["digest"] == starter.DIGEST), None)
    if entry is None:
        path = await loop.thread(starter.fetch, None, starter.Bar())
        entry = await _register(path, starter.NAME, starter.DIGEST)
        print(f"{entry['id']} ({starter.TITLE}) is in the store", file=sys.stderr)
    if as_json:
        print(json.dumps(entry, indent=2))
    return 0


def fetch_starter(dest: str | None) -> int:
    """Download the starter model without giving it to modeld; prints its path."""
    try:
        print(starter.fetch(dest, starter.Bar()))
    except starter.FetchError as error:
        return fail(str(error))
    return 0


async def _list() -> list[dict[str, Any]]:
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.List") as reply:
            models: list[dict[str, Any]] = reply.parameters["models"]
            return models
    finally:
        client.close()


async def _register(path: str, name: str, digest: str | None) -> dict[str, Any]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise starter.FetchError(f"{path}: {error.strerror}") from None
    try:
        client = await varlink.connect(paths.endpoint(ENDPOINT))
        try:
            parameters: dict[str, Any] = {"id": name, "fd": 0}
            if digest:
                parameters["digest"] = digest
            method = f"{ENDPOINT}.Register"
            with await client.call(method, parameters, fds=[handle], timeout=IMPORT_SEC) as reply:
                entry: dict[str, Any] = reply.parameters["entry"]
                return entry
        finally:
            client.close()
    finally:
        os.close(handle)
