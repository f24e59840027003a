# SPDX-License-Identifier: Apache-2.0
"""What toold costs: safe tools beside their bare commands, and a drop-in reverted with its record synced.

Rounds visit every subject in turn, so that whatever else the machine does meets all of them alike. A tool is
called over its socket, awake, as a client calls it. The reverts are the journal's own functions on a folder of the
disk that is given, without the service manager's part (a bare daemon-reload takes 100 ms of its own).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "src"))

from syntrop.common import loop  # noqa: E402
from syntrop.common.varlink import client  # noqa: E402
from syntrop.toold import audit, catalog, commands, undo  # noqa: E402
from syntrop.toold import image as images  # noqa: E402

TOOLS: dict[str, list[str]] = {"disk_usage": ["/"], "net_listeners": [], "journal_slice": ["20"]}
# What an administrator types, where that is not what toold runs.
BARE = {"net_listeners": ["ss", "-tuln"]}
BAR_TOOL, BAR_REVERT = 10.0, 15.0  # milliseconds


def started(folder: str, bubblewrap: str, *, netlink: bool) -> tuple[subprocess.Popen[bytes], str]:
    """toold with the sockets that its units give it, or without that by which it asks what listens."""
    path = os.path.join(folder, "run", "syntrop", "io.syntrop.Tool1")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sockets, names = [socket.socket(socket.AF_UNIX)], ["toold.socket"]
    sockets[0].bind(path)
    sockets[0].listen(128)
    if netlink:
        sockets.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4))
        sockets[1].bind((0, 0))
        names.append("toold-diag.socket")
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[2] / "src"),
        "STATE_DIRECTORY": f"{folder}/state",
        "SYNTROP_RUN_ROOT": f"{folder}/run",
        "LISTEN_FDS": str(len(sockets)),
        "LISTEN_FDNAMES": ":".join(names),
    }
    daemon = [sys.executable, "-m", "syntrop.toold", "--idle-exit-sec=0", "--log-level=err"]
    daemon.append(f"--bubblewrap={bubblewrap}")
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in sockets]
    moves = " ".join(f"{3 + index}<&{fd} {fd}<&-" for index, fd in enumerate(high))
    process = subprocess.Popen(
        ["/bin/bash", "-c", f'LISTEN_PID=$$ exec "$@" {moves}', "-", *daemon], env=environment, pass_fds=high
    )
    for fd in high:
        os.close(fd)
    for one in sockets:
        one.close()
    return process, path


def bare(name: str) -> float:
    command = commands.build(catalog.parse(catalog.find(name), TOOLS[name], None))
    assert command is not None
    argv, environment = (BARE[name], None) if name in BARE else (command.argv, command.environment)
    begun = perf_counter()
    subprocess.run(argv, check=False, capture_output=True, env=environment)
    return (perf_counter() - begun) * 1000


async def measure(path: str, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in TOOLS}
    peer = await client.connect(path)
    try:
        for turn in range(rounds + 1):
            for name, args in TOOLS.items():
                alone = bare(name)
                begun = perf_counter()
                with await peer.call("io.syntrop.Tool1.ExecuteTool", {"name": name, "args": args}) as reply:
                    assert reply.parameters["result"]["exit_code"] == 0
                through = (perf_counter() - begun) * 1000
                if turn:  # the first finds cold caches
                    times[name][0].append(alone)
                    times[name][1].append(through)
    finally:
        peer.close()
    return times


def revert(folder: str, rounds: int) -> list[float]:
    """Milliseconds from the plan to the point where the caller may be told."""
    root, drop_in = os.path.join(folder, "state"), os.path.join(folder, "victim.service.d", "bad.conf")
    os.makedirs(root, exist_ok=True)
    os.makedirs(os.path.dirname(drop_in), exist_ok=True)
    log = audit.Log(root)
    times = []
    for _ in range(rounds):
        with open(drop_in, "w") as file:
            file.write("[Service]\nExecStart=\nExecStart=/usr/bin/false\n")
        os.sync()
        begun = perf_counter()
        step = undo.Step(drop_in, images.capture(drop_in), images.Image())
        record = undo.prepare(root, undo.Record(tool="revert_dropin", summary="bench", steps=[step]))
        undo.carry_out(record)
        undo.commit(root, record)
        log.append("change", {"rollback": record.id}, sync=True)
        times.append((perf_counter() - begun) * 1000)
    log.close()
    return times


def fsync(folder: str, rounds: int) -> list[float]:
    """Milliseconds of one small write and fsync: what the disk itself asks."""
    path = os.path.join(folder, "probe")
    times = []
    for _ in range(rounds):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(handle, b"x" * 1000)
        begun = perf_counter()
        os.fsync(handle)
        times.append((perf_counter() - begun) * 1000)
        os.close(handle)
    return times


def spread(values: list[float]) -> str:
    tenths = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):8.2f} {tenths[0]:8.2f} {tenths[-1]:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--folder", default=None, help="where the journal lies (default: the temporary folder)")
    parser.add_argument("--bubblewrap", default="auto", help="toold's setting: auto, always, never")
    parser.add_argument("--tables", action="store_true", help="without the netlink socket of toold-diag.socket")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="toold-bench-", dir=options.folder)
    try:
        os.mkdir(f"{folder}/state")
        process, path = started(folder, options.bubblewrap, netlink=not options.tables)
        try:
            times = loop.run(measure(path, options.rounds))
        finally:
            process.terminate()
            process.wait()
        print(f"{'milliseconds':<34} {'median':>8} {'p10':>8} {'p90':>8}   bar")
        for name, (alone, through) in times.items():
            print(f"{name + ', bare command':<34} {spread(alone)}")
            bar = statistics.median(alone) + BAR_TOOL
            verdict = "holds" if statistics.median(through) <= bar else "missed"
            print(f"{name + ', through toold':<34} {spread(through)}   {bar:.1f} {verdict}")
        reverted = revert(f"{folder}/bench", options.rounds)
        verdict = "holds" if statistics.median(reverted) <= BAR_REVERT else "missed"
        print(f"{'one write and fsync':<34} {spread(fsync(folder, options.rounds))}")
        print(f"{'a drop-in reverted, record synced':<34} {spread(reverted)}   {BAR_REVERT:.1f} {verdict}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
