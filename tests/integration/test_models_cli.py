# SPDX-License-Identifier: Apache-2.0
"""`syntropctl models` against the suite under the embedded activator, downloads included."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


def fault(suite: Any, *words: str, status: int = 1) -> str:
    return run(suite, *words, status=status).stderr


def ctl(suite: Any, *words: str, status: int = 0) -> str:
    return run(suite, *words, status=status).stdout


def run(suite: Any, *words: str, status: int) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = suite.ctl("models", *words, status=status)
    return done


def safetensors(value: int) -> bytes:
    header = json.dumps({f"w{value}": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([value] * 8)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address and folder of a web server."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    server.server_close()


def test_pull_pin_prune(suite: Any, web: tuple[str, Path]) -> None:
    url, folder = web
    (folder / "small.safetensors").write_bytes(safetensors(1))
    assert ctl(suite, "pull", f"{url}/small.safetensors").startswith("small:latest  sha256:")
    (folder / "other.safetensors").write_bytes(safetensors(2))
    entry = json.loads(ctl(suite, "pull", f"{url}/other.safetensors", "--name", "other:v1", "--json"))
    assert (entry["id"], entry["format"]) == ("other:v1", "safetensors")
    ctl(suite, "pull", f"{url}/missing.safetensors", status=1)
    ctl(suite, "pin", "small")
    assert "small:latest" not in (told := ctl(suite, "prune", "--max-bytes", "0"))
    assert "removed other:v1" in told
    ctl(suite, "unpin", "small")
    assert "removed small:latest" in ctl(suite, "prune", "--max-bytes", "0K")
    suite.wait_asleep()


def test_what_cannot_be_is_said_in_words(suite: Any, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\x80\x02" * 100)
    (tmp_path / "good.safetensors").write_bytes(safetensors(3))
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "empty").mkdir()
    for words, said in (
        (("pin", "nobody"), "there is no model 'nobody'; `syntropctl models` lists"),
        (("import", str(tmp_path / "weights.bin")), "neither a GGUF nor a safetensors file"),
        (("import", str(tmp_path / "missing")), "missing: No such file or directory"),
        (("import", str(tmp_path / "fifo.gguf")), "not a regular file"),
        (("import", str(tmp_path / "empty")), "empty: no safetensors or GGUF file in it"),
        (("import", str(tmp_path / "good.safetensors"), "--name", ""), "'' cannot be the name of a model"),
        (("pull", "smol", "--name", ""), "'' cannot be the name of a model"),
        (("import", str(tmp_path / "good.safetensors"), "--name", "a/b"), "'a/b' cannot be the name of a model"),
        (("pull", "no//where"), "no//where was not fetched: none of name:tag"),
    ):
        err = fault(suite, *words)
        assert err.startswith("syntropctl: ")
        assert said in err
        assert "io.syntrop" not in err
    ctl(suite, "import", str(tmp_path / "good.safetensors"))
    ctl(suite, "pin", "good")
    assert "stay: 1 pinned model" in fault(suite, "prune", "--max-bytes", "0", status=0)


def test_a_folder_and_fsck(suite: Any, tmp_path: Path) -> None:
    folder = tmp_path / "Model"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"model-{number:05}-of-00002.safetensors").write_bytes(safetensors(number))
    index = {"weight_map": {f"w{number}": f"model-{number:05}-of-00002.safetensors" for number in (1, 2)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    for number in range(300):  # more than can be passed on, but none of them belongs to the model
        (folder / f"run-{number}.py").write_text("raise SystemExit")
    assert ctl(suite, "import", str(folder)).startswith("model:latest  sha256:")
    assert "0 models damaged" in ctl(suite, "fsck")
    blobs = Path(suite.state) / "syntrop/modeld/blobs/sha256"
    assert len(os.listdir(blobs)) == 5
    (folder / "model-00002-of-00002.safetensors").unlink()
    ctl(suite, "import", str(folder), status=1)
    victim = next(blob for blob in blobs.iterdir() if blob.read_bytes() == safetensors(2))
    victim.chmod(0o600)
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    assert "1 model damaged" in ctl(suite, "fsck", status=1)
    assert json.loads(ctl(suite, "list", "--json")) == json.loads(ctl(suite, "--json", "list")) == []
