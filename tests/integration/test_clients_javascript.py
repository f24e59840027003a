# SPDX-License-Identifier: Apache-2.0
"""OpenAI's JavaScript client under node, in front of the router."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("clients_double", Path(__file__).with_name("clients_double.py"))
assert _spec and _spec.loader
double: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(double)

SOURCE = Path(__file__).with_name("javascript")


@pytest.fixture(scope="module")
def router() -> Iterator[Any]:
    with double.routing() as router:
        yield router


@pytest.fixture(scope="session")
def packages() -> Path:
    """A folder with the client installed: once for what package.json says, then taken from the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "syntrop"
    cache.mkdir(parents=True, exist_ok=True)
    wanted = (SOURCE / "package.json").read_bytes()
    folder = cache / f"npm-{hashlib.sha256(wanted).hexdigest()[:16]}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            building = folder.with_suffix(".part")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            (building / "package.json").write_bytes(wanted)
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
            subprocess.run(command, cwd=building, check=True, timeout=600)
            building.rename(folder)
    return folder


def test_openais_javascript_client(router: Any, packages: Path, tmp_path: Path) -> None:
    # Node looks for packages beside the script.
    shutil.copy(SOURCE / "chats.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    url = f"http://127.0.0.1:{router.port}/v1"
    before = len(router.events("hang-up"))
    command = ["node", str(tmp_path / "chats.mjs"), url, double.ALPHA, double.FAR]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert double.ALPHA in told.pop("models")
    assert told == {
        "whole": ["Hello ü!", "stop", 9],
        "stream": ["Hello ü!", 9, 1],
        "tools": [["weather", '{"city": "Köln"}'], ["weather", '{"city": "Rom"}']],
        "response": "ok",
        "vectors": [[0.5, 1.0], [0.5, 3.0]],
        "floats": [0.5, 2.0],
        "refused": ["BadRequestError", 400, "response_format"],
        "failed": ["APIError", "provider_unavailable"],
    }
    double.wait_for(lambda: len(router.events("hang-up")) == before + 1)
