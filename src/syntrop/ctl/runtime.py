# SPDX-License-Identifier: Apache-2.0
"""`syntropctl generate`, `embed`, `models loaded` and `models unload`: the engine itself, without the router."""

from __future__ import annotations

import io
import json
import sys

from syntrop.common import loop, paths
from syntrop.common.varlink import client as varlink
from syntrop.common.varlink.errors import ConnectionLost, InvalidReply, VarlinkError
from syntrop.ctl import find
from syntrop.ctl.output import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

ENDPOINT = "io.syntrop.Runtime1"
TIMEOUT = 600.0  # seconds between two pieces of an answer: a large model may have to be read from a slow disk
TEXTS_MAX = 64  # of one call


def run(verb: Coroutine[Any, Any, int]) -> int:
    """Run one verb on the loop, telling every failure on one line."""
    find.settle()
    try:
        return loop.run(verb)
    except TimeoutError:
        return fail("the engine did not answer in time")
    except (FileNotFoundError, ConnectionRefusedError):
        start = "`syntropctl up`, or `systemctl start syntrop-sockets.target`, starts the suite"
        return fail(f"nobody serves {paths.endpoint(ENDPOINT)}; {start}")
    except VarlinkError as error:
        return fail(_said(error))
    except (OSError, ConnectionLost, InvalidReply) as error:
        return fail(str(error))


def _said(error: VarlinkError) -> str:
    given = error.parameters
    match error.name:
        case "ModelNotFound":
            return f"no model {given['model']!r} in the store; `syntropctl models` lists what there is"
        case "ContextExceeded":
            return f"{given['requested']} tokens are needed, and the model has room for {given['max']}"
        case "InvalidParameter" if given.get("reason"):
            return f"{given['parameter']}: {given['reason']}"
    return str(given["reason"]) if given.get("reason") else str(error)


async def generate(
    model: str, prompt: str | None, *, chat: bool, system: str | None, as_json: bool, timing: bool, **how: Any
) -> int:
    """Continue a text, or answer it, and show what comes as it comes."""
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        if prompt in (None, "-"):
            if sys.stdin.isatty():
                # Nobody should type a text for a model that is not there.
                await client.call(f"{ENDPOINT}.GetModelStatus", {"model": model})
                print("the text, ended by Ctrl-D:", file=sys.stderr)
            # Whoever pipes a line does not mean its end to be read: a model would go on below it.
            prompt = (await loop.thread(sys.stdin.read)).removesuffix("\n")
        parameters = {"model": model, **{name: value for name, value in how.items() if value is not None}}
        if chat or system is not None:
            messages = [] if system is None else [{"role": "system", "content": system}]
            parameters["messages"] = [*messages, {"role": "user", "content": prompt}]
        else:
            parameters["prompt"] = prompt
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A character that the terminal's encoding does not have is no reason to lose the rest.
            sys.stdout.reconfigure(errors="replace")
        result: dict[str, Any] = {}
        async for reply in client.stream(f"{ENDPOINT}.Generate", parameters, timeout=TIMEOUT):
            if not as_json and (piece := reply.parameters.get("delta")):
                sys.stdout.write(piece)
                sys.stdout.flush()
            result = reply.parameters.get("result") or result
    finally:
        client.close()
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    elif not result["text"].endswith("\n"):
        print()
    if timing:
        seconds = result["duration_ms"] / 1000
        print(
            f"{result['prompt_tokens']} tokens read, {result['completion_tokens']} made in {seconds:.2f} s; "
            f"ended by {result['finish_reason']}; seed {result['seed']}",
            file=sys.stderr,
        )
    return 0


async def embed(model: str, texts: Sequence[str], *, pooling: str | None, as_json: bool) -> int:
    """The vectors of texts, or how near they are to the first one; texts are lines of standard input if none is
    given."""
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        if not texts:
            if sys.stdin.isatty():
                await client.call(f"{ENDPOINT}.GetModelStatus", {"model": model})
                print("texts, one a line, ended by Ctrl-D:", file=sys.stderr)
            lines = await loop.thread(sys.stdin.readlines)
            texts = [line.rstrip("\n") for line in lines if line.strip()]
        if not texts:
            return fail("no text to embed")
        rows: list[dict[str, Any]] = []
        for start in range(0, len(texts), TEXTS_MAX):
            parameters: dict[str, Any] = {"model": model, "texts": list(texts[start : start + TEXTS_MAX])}
            if pooling is not None:
                parameters["pooling"] = pooling
            with await client.call(f"{ENDPOINT}.Embed", parameters, timeout=TIMEOUT) as reply:
                rows += reply.parameters["embeddings"]
    finally:
        client.close()
    if as_json:
        told = [{"text": text, **row} for text, row in zip(texts, rows, strict=True)]
        print(json.dumps(told, ensure_ascii=False))
        return 0
    first = rows[0]["vector"]
    print(f"{len(first)} dimensions" + ("; cosine with the first text" if len(rows) > 1 else ""))
    for text, row in zip(texts, rows, strict=True):
        if len(rows) > 1:
            near = f"{sum(x * y for x, y in zip(first, row['vector'], strict=True)):7.4f}"
        else:
            near = "[" + ", ".join(f"{x:.4f}" for x in row["vector"][:6]) + ", …]"
        print(f"{near}  {row['tokens']:>5} tokens  {_short(text)}")
    return 0


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


async def loaded(as_json: bool) -> int:
    """List the models in memory."""
    models = (await _call("ListLoadedModels", {}))["models"]
    if as_json:
        print(json.dumps(models, indent=2))
        return 0
    if not models:
        print("no model is in memory; the first call that needs one loads it")
    for one in models:
        size = f"{one['memory_bytes'] / 2**20:.1f} MiB"
        parameters = f"{one['parameter_count'] / 1e6:.0f}M"
        print(
            f"{one['name']:<32} {size:>12}  {one['architecture']:<8} {parameters:>7}  "
            f"context {one['context_window']:<7} {one['compute_backend']}"
        )
    return 0


async def unload(model: str) -> int:
    """Take a model out of memory."""
    freed = (await _call("UnloadModel", {"model": model, "allowInteractiveAuthentication": True}))["freed_bytes"]
    print(f"{freed / 2**20:.1f} MiB given back" if freed else f"{model} is not in memory")
    return 0


async def _call(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    client = await varlink.connect(paths.endpoint(ENDPOINT))
    try:
        with await client.call(f"{ENDPOINT}.{method}", parameters) as reply:
            return reply.parameters
    finally:
        client.close()
