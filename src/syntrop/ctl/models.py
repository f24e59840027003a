# SPDX-License-Identifier: Apache-2.0
"""`syntropctl models`: what modeld stores, files that are given to it, and models that it fetches."""

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
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

ENDPOINT = "io.syntrop.Model1"
IMPORT_SEC = 3600.0  # a large file on a slow disk
FILES_MAX = 250  # descriptors that one message can carry
OUT_OF_SPACE = ("requested_bytes", "available_bytes", "removable_bytes", "pinned_bytes", "open_bytes")
PHASES = {"resolving": "looking", "downloading": "downloading", "verifying": "verifying", "done": "stored"}
UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}


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
    except VarlinkError as error:
        return fail(explain(error))
    except (OSError, ConnectionLost, InvalidReply, starter.FetchError) as error:
        return fail(str(error))


def explain(error: VarlinkError) -> str:
    """What went wrong, and what to do about it, in a sentence or two."""
    name = error.error.rpartition(".")[2]
    given = {"id": "", "reason": "", "reference": "", **error.parameters}
    if name == "NoSuchModel":
        return f"there is no model {given['id']!r}; `syntropctl models` lists what there is"
    if name == "InvalidIdentifier":
        rule = "letters, digits, dots, dashes and underscores, as NAME or NAME:TAG"
        return f"{given['id']!r} cannot be the name of a model: {rule}"
    if name == "PullFailed":
        return f"{given['reference']} was not fetched: {given['reason']}"
    if name == "InvalidParameter" and given["reason"]:
        where = "" if given.get("parameter") in ("fd", "files") else f"{given.get('parameter')}: "
        return f"{where}{given['reason']}"
    if name == "DigestMismatch":
        return f"its digest is {given.get('actual')}, not {given.get('expected')}; nothing was stored"
    if name == "OutOfSpace":
        room = {key.removesuffix("_bytes"): size(error.parameters[key]) for key in OUT_OF_SPACE}
        told = (
            f"no room for {room['requested']}: {room['available']} are left and {room['removable']} could be "
            f"removed; {room['pinned']} are pinned and {room['open']} in use"
        )
        if coming := error.parameters.get("promised_bytes"):
            told += f"; {size(coming)} are kept for what is on its way now: try again once that is here"
        return told
    if name == "PermissionDenied":
        return "modeld does not let you: it takes root or a member of the group syntrop"
    return given["reason"] or str(error)


async def show(as_json: bool) -> int:
    """List the stored models."""
    entries = await _list()
    if as_json:
        print(json.dumps(entries, indent=2))
        return 0
    if not entries:
        print("no models yet: `syntropctl models pull NAME` or `import FILE`; `fetch-starter --import` to try one")
    for entry in entries:
        pinned = "  pinned" if entry["pinned"] else ""
        room = size(entry["size_bytes"])
        print(f"{entry['id']:<32} {room:>12}  {entry['format']:<12} {entry['digest'][:19]}{pinned}")
    return 0


async def import_path(path: str, name: str | None, as_json: bool) -> int:
    """Give a file or a folder to modeld: we open it, so that it may lie where the daemon cannot look."""
    base = os.path.basename(os.path.abspath(path))
    default = (base if os.path.isdir(path) else base.rsplit(".", 1)[0]).lower()
    entry = await _import(path, default if name is None else name, None)
    print(json.dumps(entry, indent=2) if as_json else f"{entry['id']}  {entry['digest']}")
    return 0


async def pull(
    reference: str,
    name: str | None,
    as_json: bool,
    *,
    format: str | None,
    quantization: str | None,
    digest: str | None,
) -> int:
    """Have modeld fetch a model; Ctrl-C ends the download unless others wait for it too."""
    parameters = {
        "reference": reference,
        "id": name,
        "format": format,
        "quantization": quantization,
        "digest": digest,
        "allowInteractiveAuthentication": True,
    }

    def progress(at: dict[str, Any]) -> tuple[str, int, int | None]:
        return PHASES.get(at["phase"], at["phase"]), at["received_bytes"], at.get("total_bytes")

    last = await _stream("Pull", parameters, (), progress)
    entry = last["entry"]
    print(json.dumps(entry, indent=2) if as_json else f"{entry['id']}  {entry['digest']}")
    return 0


async def pin(name: str, wanted: bool) -> int:
    """Keep a model from being pruned, or no more."""
    await _call("Pin" if wanted else "Unpin", {"id": name, "allowInteractiveAuthentication": True})
    return 0


async def prune(limit: int, as_json: bool) -> int:
    """Remove the models that were used longest ago, and tell which."""
    done = await _call("Prune", {"max_bytes": limit, "allowInteractiveAuthentication": True})
    left = await _call("GetStorageStats", {})
    if left["total_bytes"] > limit:
        pinned = f"{left['pinned_count']} pinned models" if left["pinned_count"] != 1 else "1 pinned model"
        stay = f"{size(left['total_bytes'])} stay: {pinned}, and what is open at the moment"
        print(f"syntropctl: {stay}", file=sys.stderr)
    if as_json:
        print(json.dumps(done, indent=2))
        return 0
    for entry in done.get("entries", ()):
        print(f"removed {entry['id']}  {size(entry['size_bytes'])}")
    print(f"{size(done['reclaimed_bytes'])} given back")
    return 0


async def fsck(as_json: bool) -> int:
    """Have every file read again; 1 when something was damaged."""
    last = await _stream(
        "Check",
        {"allowInteractiveAuthentication": True},
        (),
        lambda at: ("checking", at["checked_bytes"], at["total_bytes"]),
    )
    if as_json:
        print(json.dumps(last, indent=2))
    else:
        for digest in last["damaged"]:
            print(f"damaged, now in quarantine: {digest}")
        damaged = "1 model" if len(last["damaged"]) == 1 else f"{len(last['damaged'])} models"
        print(f"{size(last['checked_bytes'])} read, {damaged} damaged")
        if last["damaged"]:
            print("syntropctl: pull or import them again to have them again", file=sys.stderr)
    return 1 if last["damaged"] else 0


def parse_size(text: str) -> int:
    """Bytes of `500M`, `20G` or a number. Raises ValueError, whose text says what would do."""
    shift = UNITS.get(text[-1:].upper(), 0)
    try:
        number = float(text[:-1] if shift else text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1 << 53:
        raise ValueError(f"{text!r} is no size: a number of bytes, or such as 500M or 20G")
    return int(number * (1 << shift))


async def import_starter(as_json: bool) -> int:
    """Have the starter model in the store: nothing is fetched when it is there already."""
    entry = next((one for one in await _list() if one["digest"] == starter.DIGEST), None)
    if entry is None:
        path = await loop.thread(starter.fetch, None, starter.Bar())
        entry = await _import(path, starter.NAME, starter.DIGEST)
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
    models: list[dict[str, Any]] = (await _call("List", {}))["models"]
    return models


async def _import(path: str, name: str, digest: str | None) -> dict[str, Any]:
    """Pass a file, or all files of a folder, to modeld, which chooses those that belong to a model."""
    opened: dict[str, int] = {}
    try:
        for place, where in _files(path):
            # Neither a FIFO nor a terminal may hold us up: modeld refuses both.
            opened[place] = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        parameters: dict[str, Any] = {"id": name, "digest": digest, "allowInteractiveAuthentication": True}
        if "" in opened:
            parameters["fd"] = 0
        else:
            parameters["files"] = [{"path": place, "fd": index} for index, place in enumerate(opened)]
        last = await _stream(
            "Import",
            parameters,
            list(opened.values()),
            lambda at: ("importing", at["done_bytes"], at["total_bytes"]),
        )
        entry: dict[str, Any] = last["entry"]
        return entry
    except OSError as error:
        if error.filename is None:
            raise
        raise starter.FetchError(f"{error.filename}: {error.strerror}") from None
    finally:
        for handle in opened.values():
            os.close(handle)


def _files(path: str) -> list[tuple[str, str]]:
    """Paths below a folder, and where they are; an empty path for a single file. Raises FetchError."""
    if not os.path.isdir(path):
        return [("", path)]
    from syntrop.common import modelfiles

    found = []
    for base, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(names):
            where = os.path.join(base, name)
            place = os.path.relpath(where, path)
            if modelfiles.belongs(place):
                found.append((place, where))
    if not any(modelfiles.is_weights(place) for place, _ in found):
        raise starter.FetchError(f"{path}: no safetensors or GGUF file in it")
    if len(found) > FILES_MAX:
        raise starter.FetchError(f"{path}: {len(found)} files of a model; at most {FILES_MAX} can be imported")
    return found


def _raise(error: OSError) -> None:
    raise error


async def _call(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters) as reply:
            return reply.parameters
    finally:
        client.close()


async def _stream(
    method: str,
    parameters: dict[str, Any],
    fds: Sequence[int],
    progress: Callable[[dict[str, Any]], tuple[str, int, int | None]],
) -> dict[str, Any]:
    """The last reply; the others are shown as they come."""
    bar = starter.Bar()
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    last: dict[str, Any] = {}
    try:
        async for reply in client.stream(f"{ENDPOINT}.{method}", parameters, fds=fds, timeout=IMPORT_SEC):
            last = reply.parameters
            phase, done, total = progress(last)
            if total:
                bar(phase, done, total)
        return last
    finally:
        client.close()


def size(number: int) -> str:
    """Bytes as people read them: `1.5 GiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
