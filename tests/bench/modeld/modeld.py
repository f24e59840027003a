# SPDX-License-Identifier: Apache-2.0
"""What the store costs: importing against `sha256sum` and `cp`, opening, and listing ten thousand models.

Everything goes through the daemon's socket, by a client of a few lines, as a caller would see it. Rounds visit
every subject in turn, so that whatever else the machine does meets all of them alike; the best and the median of
each are printed, with the bar where one is promised. `--folder` chooses the file system.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from time import clock_gettime, perf_counter, sleep
from typing import Any

SOURCE = str(Path(__file__).parents[3] / "src")
MODEL1 = "io.syntrop.Model1."
LOOKS = (
    "ping",
    "Open",
    "List",
    "List, just woken",
    "List, after a change",
    "List, woken after one",
    "List, after an import",
    "List, woken after 60",
    "List, after a kill",
    "List, after a prune",
    "List, nothing kept",
    "pin",
    "import of a small one",
)
BARS = {"Open": 0.001} | {name: 0.050 for name in LOOKS if name.startswith("List") and "nothing" not in name}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(name: str, padding: bytes = b"") -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("general.name") + struct.pack("<I", 8) + text(name)
    head += text("w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(32) + padding


class Client:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)

    def ping(self) -> None:
        """A call that does nothing: what a call costs by itself."""
        self.socket.sendall(b'{"method":"org.varlink.service.GetInfo"}\0')
        data = b""
        while not data.endswith(b"\0"):
            data += self.socket.recv(1 << 16)

    def call(self, method: str, fds: tuple[int, ...] = (), **parameters: Any) -> tuple[dict[str, Any], list[int]]:
        message = json.dumps({"method": MODEL1 + method, "parameters": parameters}).encode() + b"\0"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
        self.socket.sendmsg([message], rights)
        data, passed = bytearray(), []
        while not data.endswith(b"\0"):
            piece, ancillary, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(16))
            data += piece
            for _, _, raw in ancillary:
                passed += struct.unpack(f"{len(raw) // 4}i", raw)
        reply = json.loads(data[:-1])
        if "error" in reply:
            raise SystemExit(reply)
        return reply["parameters"], passed


class Daemon:
    """modeld on a folder of its own."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "socket")
        environment = {
            **os.environ,
            "PYTHONPATH": SOURCE,
            "STATE_DIRECTORY": os.path.join(folder, "state"),
            "SYNTROP_CONFIG_ROOT": folder,
            "SYNTROP_IDLE_EXIT_SEC": "600",
        }
        command = [sys.executable, "-P", "-m", "syntrop.modeld", f"--listen={self.path}", "--free-floor-bytes=0"]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while True:
            try:
                self.client = Client(self.path)
                return
            except (FileNotFoundError, ConnectionRefusedError):
                sleep(0.01)

    def seconds(self) -> float:
        """What it had of the processors, in all its threads: whatever else the machine does is not in it."""
        return clock_gettime(~self.process.pid << 3 | 2)  # clock_getcpuclockid(3)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def timed(function: Any, *arguments: Any, **options: Any) -> float:
    begun = perf_counter()
    function(*arguments, **options)
    return perf_counter() - begun


def importing(folder: str, megabytes: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of an import, and of `sha256sum` and `cp` of the same file, synced as an import is."""
    source = os.path.join(folder, "source.gguf")
    with open(source, "wb") as file:
        file.write(gguf("bench"))
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    times: dict[str, list[float]] = {"import": [], "sha256sum + cp": [], "sha256sum + cp, synced": []}
    copy = os.path.join(folder, "copy.gguf")
    both = f"sha256sum {source} >/dev/null && cp --reflink=auto {source} {copy}"
    commands = {"sha256sum + cp": both, "sha256sum + cp, synced": f"{both} && sync {copy}"}
    for _ in range(rounds):
        place = tempfile.mkdtemp(dir=folder)
        daemon = Daemon(place)
        handle = os.open(source, os.O_RDONLY)
        times["import"].append(timed(daemon.client.call, "Register", (handle,), id="bench", fd=0))
        os.close(handle)
        daemon.stop()
        shutil.rmtree(place)
        for name, command in commands.items():
            os.sync()
            times[name].append(timed(subprocess.run, ["/bin/sh", "-c", command], check=True))
            os.unlink(copy)
    os.unlink(source)
    return times


def stock(root: Path, count: int) -> None:
    """A store of many small models, put there as the store would."""
    for name in ("blobs/sha256", "notes", "tags", "pins", "uses", "manifests", "incoming"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        data = gguf(f"model-{number}")
        digest = hashlib.sha256(data).hexdigest()
        (root / "blobs/sha256" / digest).write_bytes(data)
        note = {"format": "gguf", "metadata": {"architecture": "llama", "parameter_count": 8}}
        (root / "notes" / f"{digest}.json").write_text(json.dumps(note))
        (root / "tags" / f"model-{number}").mkdir()
        (root / "tags" / f"model-{number}" / "latest").symlink_to(f"../../blobs/sha256/{digest}")


def looking(folder: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of opening one model, and of listing them all: the first time, and after that.

    "Just woken" has the process's first call behind it, which is a ping: starting is not listing. The store is put
    there by hand, so that of the first list nothing is kept.
    """
    place = tempfile.mkdtemp(dir=folder)
    stock(Path(place, "state"), count)
    times: dict[str, list[float]] = {name: [] for name in LOOKS}
    times |= {f"{name}: of modeld": [] for name in LOOKS if name.startswith("List")}
    added = 0

    def add(daemon: Daemon) -> float:
        nonlocal added
        added += 1
        source = os.path.join(place, "source.gguf")
        Path(source).write_bytes(gguf(f"added-{added}"))
        return timed(daemon.client.call, "Register", id=f"added-{added}", path=source)

    def look(name: str, daemon: Daemon) -> None:
        before = daemon.seconds()
        times[name].append(timed(daemon.client.call, "List"))
        times[f"{name}: of modeld"].append(daemon.seconds() - before)

    def wake() -> Daemon:
        daemon = Daemon(place)
        daemon.client.ping()
        return daemon

    for first in ("List, nothing kept", "List, just woken", "List, just woken", "List, just woken"):
        daemon = wake()
        look(first, daemon)
        for number in range(rounds * 10):
            times["ping"].append(timed(daemon.client.ping))
            begun = perf_counter()
            _, (handle,) = daemon.client.call("Open", id=f"model-{number % count}:latest")
            times["Open"].append(perf_counter() - begun)
            os.close(handle)
        for _ in range(rounds):
            look("List", daemon)
        for number in range(5):
            times["pin"].append(timed(daemon.client.call, "Pin", id=f"model-{number}"))
            look("List, after a change", daemon)
            times["import of a small one"].append(add(daemon))
            look("List, after an import", daemon)
        daemon.stop()
        daemon = wake()
        daemon.client.call("Unpin", id="model-1")
        daemon.stop()
        daemon = wake()
        look("List, woken after one", daemon)
        for _ in range(60):
            times["import of a small one"].append(add(daemon))
        daemon.process.kill()
        daemon.stop()
        daemon = wake()
        look("List, woken after 60", daemon)
        daemon.client.call("Pin", id="model-2")
        daemon.process.kill()
        daemon.stop()
        daemon = wake()
        look("List, after a kill", daemon)
        total = daemon.client.call("GetStorageStats")[0]["total_bytes"]
        daemon.client.call("Prune", max_bytes=int(total * 0.99))
        look("List, after a prune", daemon)
        daemon.stop()
    shutil.rmtree(place)
    return times


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", default=tempfile.gettempdir())
    options.add_argument("--megabytes", type=int, default=512)
    options.add_argument("--models", type=int, default=10_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    folder = tempfile.mkdtemp(prefix="bench-modeld-", dir=given.folder)
    try:
        times = importing(folder, given.megabytes, given.rounds)
        times |= looking(folder, given.models, max(given.rounds, 20))
    finally:
        shutil.rmtree(folder)
    speed = statistics.median(times["sha256sum + cp"]) / statistics.median(times["import"])
    if given.json:
        print(json.dumps({"seconds": times, "import_speed": speed}))
        return
    print(f"{'':<34}{'best ms':>10}{'median ms':>11}{'bar ms':>8}")
    for name, values in times.items():
        bar = f"{BARS[name] * 1e3:8.0f}" if name in BARS else ""
        print(f"{name:<34}{min(values) * 1e3:10.2f}{statistics.median(values) * 1e3:11.2f}{bar}")
    print(f"Open is {statistics.median(times['Open']) / statistics.median(times['ping']):.1f} pings")
    print(f"import is {speed:.2f} times as fast as sha256sum and cp (bar 0.90)")


if __name__ == "__main__":
    main()
