# SPDX-License-Identifier: Apache-2.0
"""contextd's figures, on a machine of its own below a folder: 50,000 files in /etc and a journal of 1 GB.

    python tests/bench/contextd/contextd.py [--remote PROGRAM] [--keep FOLDER] [--json]

The journal is written by systemd-journal-remote (Debian: the package of that name), given by --remote where it is
not installed. Each figure is of one process of contextd over its socket: the best, the median and the worst of
`--rounds` calls. With --keep the machine is made once and used again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import IO, Any

HERE = Path(__file__).resolve()
DAEMONS = HERE.parents[2] / "integration" / "daemons" / "conftest.py"
CONTEXT1 = "io.syntrop.Context1."
FILES, FOLDERS = 50_000, 1_000
JOURNAL_BYTES = 1_000_000_000
REMOTE = "/usr/lib/systemd/systemd-journal-remote"
FAILED = "d9b373ed55a64feb8242e02dbe79a49c"
BOOT = "0123456789abcdef0123456789abcdef"
UNITS = 200
COLD = 12  # starts of the daemon


def helpers() -> Any:
    """The tests' own way to start a daemon on passed sockets."""
    sys.path.insert(0, str(HERE.parents[2]))  # as the tests' own conftest.py does, for what theirs import
    spec = importlib.util.spec_from_file_location("daemons_conftest", DAEMONS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["daemons_conftest"] = module
    spec.loader.exec_module(module)
    return module


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_files(root: Path) -> None:
    random = Random(6)
    for number in range(FILES):
        lines = [
            f"option_{random.randrange(1000)} = {random.randrange(10**9)}" for _ in range(random.randrange(5, 60))
        ]
        write(root / f"etc/part{number % FOLDERS:04d}/file{number}.conf", "\n".join(lines) + "\n")
    for number in range(UNITS):
        write(
            root / f"usr/lib/systemd/system/unit{number}.service",
            f"[Unit]\nAfter=unit{(number + 1) % UNITS}.service\nRequires=unit{(number + 7) % UNITS}.service\n"
            f"[Service]\nExecStart=/usr/bin/unit{number} -c /etc/part{number:04d}/file{number}.conf\n",
        )
    change(root)
    (root / "usr/bin").mkdir(parents=True)
    for number in range(UNITS):
        shutil.copy("/bin/true", root / f"usr/bin/unit{number}")
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 600))
    write(
        root / "var/log/dpkg.log",
        "".join(f"{stamp} upgrade libthing{number}:amd64 1.{number}-1 1.{number}-2\n" for number in range(40)),
    )


def make_journal(root: Path, remote: str) -> None:
    folder = root / "var/log/journal" / BOOT
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [remote, "--split-mode=none", "--compress=no", f"--output={folder}/system.journal", "-"],
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    random = Random(6)
    size = count = 0
    start = int(time.time() * 1e6) - 3 * 86400 * 10**6
    while size < JOURNAL_BYTES:
        _feed(process.stdin, random, start, count)
        count += 1
        if count % 20000 == 0:
            size = sum(file.stat().st_size for file in folder.iterdir())
            print(f"\rjournal: {size / 1e6:.0f} MB, {count} entries", end="", file=sys.stderr)
    # What is asked about: a unit that fails at the end, among everybody's messages.
    now = int(time.time() * 1e6) - 30_000_000
    for number in range(400):
        _feed(process.stdin, random, now - count, count + number, unit=3 if number % 4 == 0 else None)
    fields = {
        "MESSAGE": "unit3.service: Failed with result 'exit-code'.",
        "MESSAGE_ID": FAILED,
        "UNIT": "unit3.service",
        "UNIT_RESULT": "exit-code",
        "_PID": "1",
        "INVOCATION_ID": f"{3:032x}",
        "PRIORITY": "4",
    }
    _entry(process.stdin, now, fields)
    process.stdin.close()
    assert process.wait() == 0
    print(file=sys.stderr)


def _feed(into: IO[bytes], random: Random, start: int, count: int, unit: int | None = None) -> None:
    unit = random.randrange(UNITS) if unit is None else unit
    noise = random.randbytes(random.randrange(60, 200)).hex()
    _entry(
        into,
        start + count,
        {
            "MESSAGE": f"request {count} took {random.randrange(10**6)} us: {noise}",
            "PRIORITY": "6",
            "SYSLOG_IDENTIFIER": f"unit{unit}",
            "_SYSTEMD_UNIT": f"unit{unit}.service",
            "_SYSTEMD_INVOCATION_ID": f"{unit:032x}",
            "_PID": str(1000 + unit),
            "_TRANSPORT": "stdout",
        },
    )


def _entry(into: IO[bytes], time_us: int, fields: dict[str, str]) -> None:
    head = f"__REALTIME_TIMESTAMP={time_us}\n__MONOTONIC_TIMESTAMP={time_us % 10**12}\n_BOOT_ID={BOOT}\n"
    into.write((head + "".join(f"{name}={value}\n" for name, value in fields.items()) + "\n").encode())


def resident(pid: int) -> dict[str, float]:
    """Memory of a process in MiB: all that is resident, and of it what is its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = dict(
        line.split(":\t") for line in status.splitlines() if line.startswith(("VmRSS", "RssAnon", "VmHWM"))
    )
    return {name: round(int(value.split()[0]) / 1024, 1) for name, value in found.items()}


def switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


def spread(times: list[float]) -> tuple[float, float, float]:
    return round(min(times), 2), round(statistics.median(times), 2), round(max(times), 2)


def timed(function: Any, rounds: int) -> tuple[float, float, float]:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        function()
        times.append((time.perf_counter() - started) * 1e3)
    return spread(times)


OWN_PATHS = """
import sys, time
import syntrop.common.service, syntrop.common.varlink.server
from syntrop.contextd import unitfiles
from syntrop.contextd.keeper import Keeper, Options
from syntrop.contextd.settings import TABLE
given = {one.name: one.default for one in TABLE}
keeper = Keeper(sys.argv[1], Options(given["watch_paths"], given["exclude"]))
keeper.open()
started, cpu = time.perf_counter(), time.process_time()
unit = unitfiles.load("unit3.service", keeper.index)
found = keeper.survey([*unit.files, *unit.named], unitfiles.drop_in_folders(unit), None)
print((time.perf_counter() - started) * 1e3, (time.process_time() - cpu) * 1e3)
keeper.close()
assert len(found) == 1, found
"""


def own_paths(root: Path, state: Path) -> tuple[float, float]:
    """Milliseconds, by the clock and of a processor, until what changed in a unit's own paths is on the disk."""
    change(root)
    environment = {"PYTHONPATH": str(HERE.parents[3] / "src"), "SYNTROP_HOST_ROOT": str(root)}
    command = [sys.executable, "-c", OWN_PATHS, str(state)]
    told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    wall, cpu = told.split()
    return float(wall), float(cpu)


def change(root: Path) -> None:
    """The drop-in of the unit that is asked about."""
    path = root / "etc/systemd/system/unit3.service.d/limits.conf"
    write(path, f"[Service]\nLimitNOFILE={time.time_ns()}\n")


def measure(root: Path, rounds: int) -> dict[str, Any]:
    conftest = helpers()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="syn-") as base:
        launcher = conftest.Launcher(Path(base))
        environment = {"SYNTROP_HOST_ROOT": str(root)}
        try:
            unit = launcher("contextd", idle=600.0, environment=environment)
            client = launcher.client(unit, "io.syntrop.Context1")
            started = time.perf_counter()
            client.socket.settimeout(600)
            while client.call(CONTEXT1 + "ListRecentDiffs").error is not None or _scanning(unit):
                time.sleep(0.05)
            figures["first look at everything, s"] = round(time.perf_counter() - started, 2)
            client.call(CONTEXT1 + "ListEvents")
            cold, own = [], []
            for _ in range(COLD):
                unit.process.terminate()
                unit.process.wait()
                own.append(own_paths(root, unit.state))
                change(root)
                unit.start()
                client = launcher.client(unit, "io.syntrop.Context1")
                client.socket.settimeout(600)
                client.call("org.varlink.service.GetInfo")
                started = time.perf_counter()
                reply = client.call(CONTEXT1 + "GetUnitContext", unit="unit3")
                cold.append(round((time.perf_counter() - started) * 1e3, 1))
            walls, cpus = zip(*own, strict=True)
            figures["a unit's own paths, fresh process, ms (best, median, worst)"] = spread(list(walls))
            figures["the same, of a processor's time, ms"] = spread(list(cpus))
            figures["context, first call after waking, ms (best, median, worst)"] = spread(cold)
            context = reply.parameters["context"]
            assert any(one["file_path"].endswith("unit3.service.d/limits.conf") for one in context["config_diffs"])
            assert context["failed_us"] and context["entries"][-1]["message"].startswith("unit3.service: Failed")
            started = time.perf_counter()
            client.call(CONTEXT1 + "ListRecentDiffs")
            figures["look at everything again, s"] = round(time.perf_counter() - started, 2)
            pid = unit.process.pid  # the shell that moved the sockets has become the daemon

            one = timed(lambda: client.call(CONTEXT1 + "GetUnitContext", unit="unit3"), rounds)
            figures["context, warm, ms (best, median, worst)"] = one
            figures["list of 50 events, ms (best, median, worst)"] = timed(
                lambda: client.call(CONTEXT1 + "ListEvents"), rounds
            )
            figures["event recorded, ms (best, median, worst)"] = timed(
                lambda: client.call(CONTEXT1 + "RecordEvent", source="bench", summary="an event"), rounds
            )
            figures["drop-in visible, ms (best, median, worst)"] = visible(launcher, unit, root, rounds)
            figures["resident, MiB"] = resident(pid)
            time.sleep(2)
            before = switches(pid)
            time.sleep(10)
            figures["context switches in 10 s of idleness"] = switches(pid) - before
            store = sum(file.stat().st_size for file in unit.state.rglob("*") if file.is_file())
            figures["store, MB"] = round(store / 1e6, 1)
        finally:
            launcher.close()
    return figures


def _scanning(unit: Any) -> bool:
    progress = unit.state / "progress.json"
    return not progress.exists() or not json.loads(progress.read_text())["scanned"]


def visible(launcher: Any, unit: Any, root: Path, rounds: int) -> tuple[float, float, float]:
    """From the return of close() to the event in the hands of a watcher."""
    watcher = launcher.client(unit, "io.syntrop.Context1")
    watcher.socket.sendall(json.dumps({"method": CONTEXT1 + "Watch", "more": True}).encode() + b"\0")
    watcher.receive()
    times = []
    for number in range(rounds):
        change(root)
        closed = time.perf_counter()
        data = b""
        while b"limits.conf" not in data:
            data = watcher.socket.recv(1 << 16)
        times.append((time.perf_counter() - closed) * 1e3)
        time.sleep(0.02 * (number % 3))
    return spread(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remote", default=REMOTE)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = options.keep or Path(tempfile.mkdtemp(prefix="syntrop-bench."))
    try:
        if not (root / "made").exists():
            make_files(root)
            make_journal(root, options.remote)
            (root / "made").touch()
        figures = measure(root, options.rounds)
    finally:
        if options.keep is None:
            shutil.rmtree(root)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<65} {value}")


if __name__ == "__main__":
    main()
