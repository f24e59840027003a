# SPDX-License-Identifier: Apache-2.0
"""Where the file system can share blocks, an import takes none: on a real one, behind a loop device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = str(Path(__file__).parents[3] / "src")
MEGABYTES = 32

# Arguments: image, folder to mount it on, and a source on another file system. The mount is of this process's own
# namespace: whatever happens, it and its loop device go with it.
PROGRAM = r"""
import ctypes, fcntl, hashlib, json, os, struct, subprocess, sys
image, folder, elsewhere = sys.argv[1:]
subprocess.run(["mount", "-o", "loop", image, folder], check=True)
from syntrop.modeld import naming
from syntrop.modeld.store import Store

FIEMAP, SYNC, LAST, SHARED = 0xC020660B, 1, 1, 0x2000  # linux/fiemap.h

def shared(path):
    "How many bytes of a file lie in blocks that another file has too, and how many in blocks at all."
    with open(path, "rb") as file:
        buffer = bytearray(struct.pack("QQIIII", 0, 1 << 62, SYNC, 0, 512, 0) + bytes(56 * 512))
        fcntl.ioctl(file, FIEMAP, buffer)
    count = struct.unpack_from("I", buffer, 20)[0]
    rows = [struct.unpack_from("QQQQQIIII", buffer, 32 + 56 * row) for row in range(count)]
    assert rows and rows[-1][5] & LAST
    return [sum(row[2] for row in rows if row[5] & SHARED), sum(row[2] for row in rows)]

def register(path, name):
    handle = os.open(path, os.O_RDONLY)
    try:
        return store.register(handle, name, "latest", None, lambda: True)
    finally:
        os.close(handle)

def free():
    os.sync()
    return store.free()

source = os.path.join(folder, "source.gguf")
with open(elsewhere, "rb") as one, open(source, "wb") as other:
    other.write(one.read())
digest = hashlib.sha256(open(source, "rb").read()).hexdigest()
store = Store(os.path.join(folder, "store"))
told = {"size": os.path.getsize(source)}
before = free()
entry = register(source, "near")
blob = os.path.join(store.blobs, entry.digest)
told["right"] = entry.digest == digest
told["taken"] = before - free()
told["shared"] = shared(blob)
told["links"] = os.stat(blob).st_nlink
# Whoever writes to the source afterwards writes to blocks of their own.
with open(source, "r+b") as file:
    file.write(b"overwritten")
    file.flush()
    os.fsync(file.fileno())
told["kept"] = hashlib.sha256(open(blob, "rb").read()).hexdigest() == digest
# From another file system there is nothing to share: it is copied.
store.prune(0)
before = free()
entry = register(elsewhere, "far")
told["far"] = entry.digest == digest
told["far taken"] = before - free()
told["far shared"] = shared(os.path.join(store.blobs, entry.digest))[0]
print(json.dumps(told))
"""


def gguf(megabytes: int) -> bytes:
    def text(value: str) -> bytes:
        return len(value).to_bytes(8, "little") + value.encode()

    head = b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") * 2
    head += text("general.architecture") + (8).to_bytes(4, "little") + text("llama")
    head += text("w") + (2).to_bytes(4, "little") + (4).to_bytes(8, "little") + (2).to_bytes(8, "little")
    head += bytes(4) + bytes(8)
    return head + bytes(-len(head) % 32) + bytes(32) + os.urandom(megabytes << 20)


@pytest.mark.reflink
def test_an_import_shares_the_blocks_of_its_source(tmp_path: Path) -> None:
    image, folder, elsewhere = tmp_path / "image", tmp_path / "mount", tmp_path / "elsewhere.gguf"
    folder.mkdir()
    elsewhere.write_bytes(gguf(MEGABYTES))
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    command = ["unshare", "--mount", sys.executable, "-c", PROGRAM, str(image), str(folder), str(elsewhere)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    size = told["size"]
    assert told["right"] and told["kept"] and told["far"]
    assert told["links"] == 1
    assert told["shared"][0] >= size, told
    assert told["taken"] < size // 4, told
    assert told["far shared"] == 0
    assert told["far taken"] >= size, told
