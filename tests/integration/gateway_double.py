# SPDX-License-Identifier: Apache-2.0
"""A process that plays runtimed and modeld for the gateway's tests: routerd's double, whose models take memory.

How many bytes a token of cache takes is read from the file `cache` in the run root, 1024 without it. The model
`beta:latest` is not in memory before it is loaded, or its tokens are counted; an `org/gamma:2` that is to be
unloaded is in use.
"""

from __future__ import annotations

import json
from typing import Any

import routerd_double as double

from syntrop.common import paths, service
from syntrop.common.varlink.errors import VarlinkError
from syntrop.common.varlink.server import Call

CONTEXT = 4096


def cache() -> int:
    try:
        with open(paths.run("cache"), encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 1024


class Runtime1(double.Runtime1):
    def __init__(self) -> None:
        self.loaded = {"alpha:1", "org/gamma:2"}

    async def Generate(self, call: Call, **given: Any) -> dict[str, Any]:
        if "prompt_ids" in given:
            given["prompt"] = json.dumps([["say", str(given["prompt_ids"])]])
        return await super().Generate(call, **given)

    async def LoadModel(self, call: Call, **given: Any) -> dict[str, Any]:
        answer = await super().LoadModel(call, **given)
        self.loaded.add(given["model"])
        return answer

    async def CountTokens(self, call: Call, **given: Any) -> dict[str, Any]:
        self._known(given["model"])
        self.loaded.add(given["model"])
        return await super().CountTokens(call, **given)

    async def GetModelStatus(self, call: Call, model: str) -> dict[str, Any]:
        self._known(model)
        if model not in self.loaded:
            return {"status": "not_loaded"}
        told = {"name": model, "architecture": "llama", "parameter_count": 1, "memory_bytes": 2}
        told |= {"context_window": CONTEXT, "compute_backend": "avx2", "cache_token_bytes": cache()}
        return {"status": "loaded", "model": told}

    async def UnloadModel(self, call: Call, model: str, **_: Any) -> dict[str, Any]:
        double.note("unload", model=model)
        self._known(model)
        if model == "org/gamma:2":
            raise VarlinkError("io.syntrop.Runtime1.Overloaded", reason=f"2 calls are using {model}")
        self.loaded.discard(model)
        return {"freed_bytes": 1}

    @staticmethod
    def _known(model: str) -> None:
        if model not in double.MODELS:
            raise VarlinkError("io.syntrop.Runtime1.ModelNotFound", model=model)


def build(daemon: service.Daemon) -> None:
    daemon.serve_varlink("io.syntrop.Runtime1", {"io.syntrop.Runtime1": Runtime1()})
    daemon.serve_varlink("io.syntrop.Model1", {"io.syntrop.Model1": double.Model1()})


if __name__ == "__main__":
    service.run("runtimed", (), build)
