# SPDX-License-Identifier: Apache-2.0
"""A process that plays runtimed and modeld for routerd's tests, on our own Varlink server.

`Generate` does what the last message says: a JSON array of steps `["say", text]`, `["wait", seconds]`,
`["gate", name]`, `["repeat", text, seconds]`, `["error", name, parameters]`, `["die"]`, `["finish", reason]`. A
gate opens with a file of its name in the run root. Calls and hang-ups are written to `double.jsonl` there, with
their time on the monotonic clock. `["opened"]` begins within a thought, as some templates do; `["accept"]` tells
that the request is good.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from syntrop.common import loop, paths, service
from syntrop.common.varlink.errors import ConnectionLost, VarlinkError
from syntrop.common.varlink.server import Call

STEPS = ("accept", "opened", "say", "wait", "gate", "repeat", "error", "die", "finish")
MODELS = ("alpha:1", "beta:latest", "org/gamma:2")


def note(event: str, **fields: Any) -> None:
    with open(paths.run("double.jsonl"), "a", encoding="utf-8") as log:
        log.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")


def steps(script: str | None) -> list[list[Any]]:
    """What to do; of a text that is no script nothing but to say `ok`."""
    try:
        found = json.loads(script or "")
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(one, list) and one and one[0] in STEPS for one in found):
        return found
    return [["say", "ok"]]


class Runtime1:
    async def Generate(self, call: Call, **given: Any) -> dict[str, Any]:
        note("call", parameters=given)
        if given["model"] not in MODELS:
            raise VarlinkError("io.syntrop.Runtime1.ModelNotFound", model=given["model"])
        said: list[str] = []
        reason = "stop"
        told = given.get("top_logprobs") is not None
        start: dict[str, Any] | None = {"prompt_tokens": 7, "cached_tokens": 3, "thinking": False}
        try:
            # A prompt that is continued as it is says what to do in the place of a message.
            script = given["messages"][-1].get("content") if "messages" in given else given.get("prompt")
            for step, *values in steps(script):
                if step == "accept":
                    if given.get("announce"):
                        await call.send({})
                elif step == "opened" and start is not None:
                    start["thinking"] = True
                elif step == "say":
                    await self._say(call, said, values[0], told, start)
                    start = None
                elif step == "wait":
                    await loop.sleep(values[0])
                elif step == "gate":
                    while not os.path.exists(paths.run(values[0])):
                        await loop.sleep(0.01)
                elif step == "repeat":
                    while True:
                        await self._say(call, said, values[0], told, start)
                        start = None
                        await loop.sleep(values[1])
                elif step == "error":
                    raise VarlinkError(values[0], **values[1])
                elif step == "die":
                    os._exit(9)
                elif step == "finish":
                    reason = values[0]
        except (loop.Cancelled, ConnectionLost):
            note("hang-up", said=len(said))
            raise
        return {
            "result": {
                "text": "".join(said),
                "prompt_tokens": 7,
                "completion_tokens": len(said),
                "finish_reason": reason,
                "duration_ms": 1,
            }
        }

    async def ListLoadedModels(self, call: Call) -> dict[str, Any]:
        model = {"name": MODELS[0], "architecture": "llama", "parameter_count": 1, "memory_bytes": 2}
        return {"models": [{**model, "context_window": 3, "compute_backend": "scalar"}]}

    async def LoadModel(self, call: Call, **given: Any) -> dict[str, Any]:
        note("load", parameters=given)
        if given["model"] not in MODELS:
            raise VarlinkError("io.syntrop.Runtime1.ModelNotFound", model=given["model"])
        if given.get("keep_sec") == 0:
            return {}
        (model,) = (await self.ListLoadedModels(call))["models"]
        return {"model": {**model, "name": given["model"], "context_window": 4096}}

    async def _say(self, call: Call, said: list[str], text: str, told: bool, start: dict[str, Any] | None) -> None:
        said.append(text)
        reply: dict[str, Any] = {"delta": text, "completion_tokens": len(said)}
        if start is not None:
            reply["start"] = start
        if told:
            choice = {"token": 1, "text": text, "bytes": list(text.encode()), "logprob": -0.5}
            reply["logprobs"] = [{**choice, "top": [choice]}]
        await call.send(reply)

    async def CountTokens(self, call: Call, **given: Any) -> dict[str, Any]:
        note("count", parameters=given)
        return {"tokens": 11}

    async def Embed(self, call: Call, **given: Any) -> dict[str, Any]:
        note("embed", parameters=given)
        inputs = given.get("texts") or [one["ids"] for one in given["tokens"]]
        vectors = [{"vector": [float(len(one)), 0.25], "tokens": len(one)} for one in inputs]
        return {
            "embedding": vectors[0]["vector"],
            "embeddings": vectors,
            "prompt_tokens": sum(one["tokens"] for one in vectors),
        }


class Model1:
    async def List(self, call: Call) -> dict[str, Any]:
        return {"models": [self._entry(name) for name in MODELS]}

    async def Inspect(self, call: Call, id: str) -> dict[str, Any]:
        if id == "beta":
            id = "beta:latest"
        if id not in MODELS:
            raise VarlinkError("io.syntrop.Model1.NoSuchModel", id=id)
        return {"info": self._entry(id)}

    def _entry(self, id: str) -> dict[str, Any]:
        name, _, tag = id.partition(":")
        digest = "sha256:" + "0" * 64
        return {
            "id": id,
            "digest": digest,
            "name": name,
            "tag": tag,
            "size_bytes": 1,
            "pinned": False,
            "format": "gguf",
        }


def build(daemon: service.Daemon) -> None:
    daemon.serve_varlink("io.syntrop.Runtime1", {"io.syntrop.Runtime1": Runtime1()})
    daemon.serve_varlink("io.syntrop.Model1", {"io.syntrop.Model1": Model1()})


if __name__ == "__main__":
    service.run("runtimed", (), build)
