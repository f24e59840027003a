# SPDX-License-Identifier: Apache-2.0
"""contextd over its socket, on a small machine of its own below a folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONTEXT1 = "io.syntrop.Context1."
SOURCE = str(Path(__file__).parents[3] / "src")
PATIENCE = 60.0
WEB = """
[Unit]
Requires=db.service
[Service]
ExecStart=/usr/sbin/web -c /etc/web/web.conf
EnvironmentFile=-/etc/default/web
"""
DB = "[Service]\nExecStart=/usr/sbin/db --conf=/opt/db/db.ini\n"


class Machine:
    """A captured machine that can be changed, and the contextd that watches it."""

    def __init__(self, launch: Any, root: Path) -> None:
        self.root = root
        self._launch = launch
        self.write("/usr/lib/systemd/system/web.service", WEB)
        self.write("/usr/lib/systemd/system/db.service", DB)
        self.write("/etc/web/web.conf", "listen 80\nworkers 2\n")
        self.write("/etc/default/web", "API_TOKEN=hunter2hunter2\n")
        self.write("/etc/shadow", "root:$6$salt$hashhashhash:1::::::\n", 0o640)
        self.write("/opt/db/db.ini", "port=1\n")
        self.unit: Any = None

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def start(self, idle: float = 60.0) -> Any:
        if self.unit is None:
            self.unit = self._launch("contextd", idle=idle, environment={"SYNTROP_HOST_ROOT": str(self.root)})
        else:
            self.unit.start()
        return self._launch.client(self.unit, "io.syntrop.Context1")

    def stop(self) -> None:
        self.unit.process.terminate()
        assert self.unit.wait() == 0


@pytest.fixture
def machine(launch: Any, tmp_path: Path) -> Machine:
    return Machine(launch, tmp_path / "machine")


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def diffs(client: Any) -> dict[str, str]:
    found = client.call(CONTEXT1 + "ListRecentDiffs").parameters["diffs"]
    return {one["file_path"]: one["diff_content"] for one in found}


def test_what_changed_while_it_slept_is_found(machine: Machine) -> None:
    client = machine.start()
    first = client.call(CONTEXT1 + "ListRecentDiffs").parameters
    assert first["diffs"] == []
    assert abs(first["watched_since_us"] / 1e6 - time.time()) < 600
    machine.stop()
    machine.write("/etc/web/web.conf", "listen 80\nworkers 20\n")
    machine.write("/etc/systemd/system/web.service.d/memory.conf", "[Service]\nMemoryMax=1M\n")
    machine.write("/opt/db/db.ini", "port=2\n")
    machine.write("/etc/new/deep/er/file", "x\n")
    client = machine.start()
    found = diffs(client)
    assert found["/etc/web/web.conf"].endswith("@@ -1,2 +1,2 @@\n listen 80\n-workers 2\n+workers 20\n")
    assert found["/etc/systemd/system/web.service.d/memory.conf"].endswith("+[Service]\n+MemoryMax=1M\n")
    assert found["/opt/db/db.ini"].endswith("-port=1\n+port=2\n")
    assert "/etc/new/deep/er/file" in found
    again = client.call(CONTEXT1 + "ListRecentDiffs").parameters
    assert again["watched_since_us"] == first["watched_since_us"]


def summaries(client: Any) -> list[str]:
    context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
    return [one["summary"] for one in context["config_diffs"]]


def test_files_in_a_folder_that_a_unit_reads_from_are_its_own(machine: Machine) -> None:
    machine.write(
        "/etc/systemd/system/web.service.d/paths.conf",
        "[Service]\nReadOnlyPaths=-/opt/web/conf /srv/one.conf\nBindReadOnlyPaths=/opt/from:/opt/to:rbind\n",
    )
    for path in ("/opt/web/conf/a.conf", "/srv/one.conf", "/opt/from/file"):
        machine.write(path, "1\n")
    client = machine.start()
    assert diffs(client) == {}
    machine.stop()
    for path in ("/opt/web/conf/a.conf", "/srv/one.conf", "/opt/from/file"):
        machine.write(path, "2\n")
    machine.write("/opt/web/conf/new.conf", "1\n")
    client = machine.start()
    context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
    found = {one["file_path"]: one for one in context["config_diffs"]}
    for path in ("/opt/web/conf/a.conf", "/srv/one.conf", "/opt/from/file"):
        assert found[path]["diff_content"].endswith("-1\n+2\n")
        assert found[path]["reason"].startswith("configuration of web.service")
    # What is new there cannot be told from what has only now been named, and is told so from the next time on.
    until(lambda: "/opt/web/conf/new.conf changed before it was watched" in summaries(client))
    machine.write("/opt/web/conf/a.conf", "3\n")
    until(lambda: summaries(client).count("/opt/web/conf/a.conf changed") == 2)


def test_there_and_back_while_it_slept_is_no_change(machine: Machine) -> None:
    client = machine.start()
    assert diffs(client) == {}
    machine.stop()
    machine.write("/etc/web/web.conf", "other\n")
    machine.write("/etc/web/web.conf", "listen 80\nworkers 2\n")
    assert diffs(machine.start()) == {}


def test_the_context_of_a_unit_is_there_at_the_first_call(machine: Machine) -> None:
    client = machine.start()
    assert diffs(client) == {}
    machine.stop()
    machine.write("/etc/systemd/system/web.service.d/memory.conf", "[Service]\nMemoryMax=1M\n")
    machine.write("/etc/unrelated", "1\n")
    client = machine.start()
    context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
    assert context["unit_name"] == "web.service"
    first = context["config_diffs"][0]
    assert first["file_path"] == "/etc/systemd/system/web.service.d/memory.conf"
    assert first["reason"].startswith("drop-in of web.service, ")
    assert all(event["reason"] for event in context["events"])
    # What has nothing to do with the unit is looked at after the reply.
    assert until(lambda: "/etc/unrelated" in diffs(client))


def test_changes_are_seen_as_they_happen(machine: Machine) -> None:
    client = machine.start()
    assert diffs(client) == {}
    watcher = machine._launch.client(machine.unit, "io.syntrop.Context1")
    watcher.socket.sendall(json.dumps({"method": CONTEXT1 + "Watch", "more": True}).encode() + b"\0")
    assert watcher.receive().parameters.get("event") is None
    machine.write("/etc/web/new.conf", "1\n")
    machine.write("/etc/systemd/system/web.service.d/x.conf", "[Service]\n")
    os.rename(machine.path("/etc/default/web"), machine.path("/etc/default/web.old"))
    wanted = {"/etc/web/new.conf", "/etc/systemd/system/web.service.d/x.conf", "/etc/default/web.old"}
    seen: set[str] = set()
    pending = b""
    while not wanted <= seen:
        *messages, pending = (pending + watcher.socket.recv(65536)).split(b"\0")
        for message in messages:
            event = json.loads(message)["parameters"]["event"]
            assert event["source"] == "file"
            seen.add(event["summary"].split(" ")[0])
    found = until(lambda: have if "/etc/default/web" in (have := diffs(client)) else None)
    assert "hunter2" not in json.dumps(found)
    shutil.rmtree(machine.path("/etc/web"))
    until(lambda: "+++ /dev/null" in diffs(client).get("/etc/web/web.conf", ""))


def test_no_secret_is_kept_anywhere(machine: Machine) -> None:
    client = machine.start()
    assert diffs(client) == {}
    machine.write("/etc/default/web", "API_TOKEN=correcthorsebattery\n")
    machine.write("/etc/shadow", "root:$6$salt$otherother:1::::::\n", 0o640)
    machine.write("/etc/web/tls.key", "-----BEGIN PRIVATE KEY-----\nMIIEsecretsecret\n", 0o600)
    paths = {"/etc/default/web", "/etc/shadow", "/etc/web/tls.key"}
    found = until(lambda: have if paths <= (have := diffs(client)).keys() else None)
    assert "<secret:" in found["/etc/default/web"]
    machine.stop()
    kept = b"".join(path.read_bytes() for path in machine.unit.state.rglob("*") if path.is_file())
    import zlib

    for pack in machine.unit.state.rglob("*.pack"):
        data = pack.read_bytes()
        at = 0
        while (at := data.find(b"\x78\x9c", at)) >= 0:
            try:
                kept += zlib.decompressobj().decompress(data[at:])
            except zlib.error:
                pass
            at += 1
    for secret in (b"hunter2hunter2", b"correcthorse", b"hashhashhash", b"otherother", b"MIIEsecret"):
        assert secret not in kept
    assert b"workers 2" in kept
    assert (machine.unit.state / "key").stat().st_mode & 0o777 == 0o600


def test_an_acknowledged_event_outlives_sigkill(machine: Machine) -> None:
    client = machine.start()
    ids = []
    for number in range(20):
        event = {"source": "test", "unit": "web", "summary": f"number {number}", "details": "d"}
        reply = client.call(CONTEXT1 + "RecordEvent", **event)
        ids.append(reply.parameters["event_id"])
    machine.unit.process.send_signal(signal.SIGKILL)
    machine.unit.process.wait()
    client = machine.start()
    events = client.call(CONTEXT1 + "ListEvents", unit="web.service", limit=5).parameters["events"]
    assert [event["summary"] for event in events] == [f"number {number}" for number in (19, 18, 17, 16, 15)]
    assert [event["id"] for event in events] == ids[:-6:-1]
    assert events[0]["details"] == "d" and len(events[0]["boot_id"]) == 32
    assert abs(events[0]["timestamp_us"] / 1e6 - time.time()) < 600


def test_the_first_callers_may_come_at_once(machine: Machine) -> None:
    client = machine.start()
    told: list[tuple[str, str]] = []
    for turn in range(5):
        machine.unit.process.send_signal(signal.SIGKILL)
        machine.unit.process.wait()
        # The sockets are the activator's: who calls now waits until it has been started.
        callers = [machine._launch.client(machine.unit, "io.syntrop.Context1") for _ in range(16)]
        for number, caller in enumerate(callers):
            caller.send(CONTEXT1 + "RecordEvent", source="test", summary=f"{turn}, {number}")
        client = machine.start()
        for number, caller in enumerate(callers):
            told.append((caller.receive().parameters["event_id"], f"{turn}, {number}"))
    events = client.call(CONTEXT1 + "ListEvents", limit=1000).parameters["events"]
    assert {(event["id"], event["summary"]) for event in events if event["source"] == "test"} == set(told)
    assert len({event["id"] for event in events}) == len(events)


def test_another_one_on_the_same_store_is_refused(machine: Machine) -> None:
    client = machine.start()
    record = {"source": "test", "summary": "first"}
    assert client.call(CONTEXT1 + "RecordEvent", **record).parameters == {"event_id": "event-1"}
    environment = {"SYNTROP_HOST_ROOT": str(machine.root), "STATE_DIRECTORY": str(machine.unit.state)}
    other = type(machine._launch)(machine.root.parent / "other")
    try:
        unit = other("contextd", environment=environment)
        second = other.client(unit, "io.syntrop.Context1")
        for method, parameters in (
            ("RecordEvent", {"source": "test", "summary": "second"}),
            ("GetUnitContext", {"unit": "web"}),
            ("ListEvents", {}),
            ("ListRecentDiffs", {}),
        ):
            reply = second.call(CONTEXT1 + method, **parameters)
            assert reply.error == CONTEXT1 + "OperationFailed", method
            assert reply.parameters["reason"] == f"another contextd keeps {machine.unit.state}"
        events = client.call(CONTEXT1 + "ListEvents").parameters["events"]
        assert [(event["id"], event["summary"]) for event in events] == [("event-1", "first")]
        # Once the first is gone, the second has the store, with all that is in it, and looks at the machine.
        machine.stop()
        assert second.call(CONTEXT1 + "RecordEvent", **record).parameters == {"event_id": "event-2"}
        until(lambda: second.call(CONTEXT1 + "ListRecentDiffs").parameters.get("watched_since_us"))
    finally:
        other.close()


def test_folders_are_watched_however_deep(machine: Machine) -> None:
    deep = "/etc/deep" + "/folder" * 60
    machine.write(f"{deep}/file", "1\n")
    client = machine.start()
    reply = client.call(CONTEXT1 + "ListRecentDiffs").parameters
    assert (reply["diffs"], reply.get("coverage")) == ([], None)
    machine.write(f"{deep}/file", "2\n")
    until(lambda: f"{deep}/file" in diffs(client))
    machine.write(f"{deep}/more/and/more", "1\n")
    until(lambda: f"{deep}/more/and/more" in diffs(client))


def test_what_no_path_reaches_is_said_to_be_left_out(machine: Machine) -> None:
    """Below 4095 bytes of path the kernel opens nothing by its whole name."""
    here = os.open(machine.root / "etc", os.O_RDONLY | os.O_DIRECTORY)
    name = "d" * 250
    for _ in range(17):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        client = machine.start()
        [note] = client.call(CONTEXT1 + "ListRecentDiffs").parameters["coverage"]
        assert note.startswith("Not looked at: 1 path, /etc/ddd") and note.endswith("(File name too long).")
        assert len(note) < 300
        assert client.call(CONTEXT1 + "ListEvents").parameters["coverage"] == [note]
        context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
        assert context["coverage"] == [note]
    finally:
        subprocess.run(["rm", "-r", str(machine.root / "etc" / name)], check=True)  # it goes by descriptors


@pytest.mark.root
def test_on_a_full_disk_what_can_be_told_is_told(machine: Machine, tmp_path: Path) -> None:
    state = tmp_path / "contextd/state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", state], check=True)
    try:
        client = machine.start()
        assert diffs(client) == {}
        with open(state / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        # What is left of the last block takes some events more.
        before = 0
        while not (refused := client.call(CONTEXT1 + "RecordEvent", source="test", summary="before")).error:
            before += 1
        assert (refused.error, refused.parameters) == (
            CONTEXT1 + "OperationFailed",
            {"reason": "No space left on device"},
        )
        machine.write("/etc/systemd/system/web.service.d/memory.conf", "[Service]\nMemoryMax=1M\n")
        full = "Nothing new could be recorded (No space left on device); the next look that can finds it again."
        context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
        assert context["coverage"] == [full]
        first = context["config_diffs"][0]
        assert first["file_path"] == "/etc/systemd/system/web.service.d/memory.conf"
        assert first["diff_content"].endswith("+MemoryMax=1M\n")
        assert (first.get("event_id"), first["reason"].split(",")[0]) == (None, "drop-in of web.service")
        listed = until(lambda: _noted(client.call(CONTEXT1 + "ListEvents").parameters))
        assert [event["summary"] for event in listed["events"]] == ["before"] * before
        (state / "filler").unlink()
        # Found again by the next look, recorded once, and nothing more to note.
        path = "/etc/systemd/system/web.service.d/memory.conf"
        until(lambda: path in diffs(client))
        assert until(lambda: not client.call(CONTEXT1 + "ListEvents").parameters.get("coverage"))
        events = client.call(CONTEXT1 + "ListEvents").parameters["events"]
        assert [event["summary"].split()[0] for event in events].count(path) == 1
        machine.stop()
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)


def _noted(reply: dict[str, Any]) -> dict[str, Any] | None:
    return reply if reply.get("coverage") else None


def test_what_is_no_file_holds_nobody_up_and_is_complained_of_once(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    places = (
        "/var/log/dpkg.log",
        "/var/log/pacman.log",
        "/var/lib/dnf/history.sqlite",
        "/var/lib/snapd/state.json",
    )
    for place in places:
        path = machine.path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    os.mkfifo(machine.path("/etc/web/pipe"))
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(machine.path("/etc/web"), os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        client = machine.start()
        for _ in range(5):
            assert diffs(client) == {}
            assert client.call(CONTEXT1 + "ListEvents").parameters == {"events": []}
            context = client.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"]
            assert context.get("coverage") is None
        os.mkfifo(machine.path("/etc/web/later"))
        assert until(lambda: diffs(client)).keys() == {"/etc/web/later"}
        machine.stop()
    told = capfd.readouterr().err
    for place in places:
        assert told.count(f"{place} is no regular file") == 1, told
    assert "/etc/web/" not in told


@pytest.mark.parametrize(
    ("method", "parameters", "wrong"),
    [
        ("GetUnitContext", {"unit": "../etc"}, "unit"),
        ("GetUnitContext", {"unit": "a\nb"}, "unit"),
        ("GetUnitContext", {"unit": "web", "since_seconds": -1}, "since_seconds"),
        ("ListEvents", {"limit": 0}, "limit"),
        ("RecordEvent", {"source": "", "summary": "x"}, "source"),
        ("RecordEvent", {"source": "kernel", "summary": "x"}, "source"),
        ("RecordEvent", {"source": "me", "summary": ""}, "summary"),
        ("RecordEvent", {"source": "me", "summary": "x" * 2000}, "summary"),
        ("RecordEvent", {"source": "me", "summary": "x", "details": "x" * 100_000}, "details"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    machine: Machine, method: str, parameters: dict[str, Any], wrong: str
) -> None:
    reply = machine.start().call(CONTEXT1 + method, **parameters)
    assert (reply.error, reply.parameters) == (CONTEXT1 + "InvalidParameter", {"parameter": wrong})


def test_watch_wants_more(machine: Machine) -> None:
    assert machine.start().call(CONTEXT1 + "Watch").error == "org.varlink.service.ExpectedMore"


def test_the_command_line(machine: Machine) -> None:
    def syntropctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": SOURCE, "SYNTROP_RUN_ROOT": str(machine.unit.run)}
        command = [sys.executable, "-m", "syntrop.ctl", *arguments]
        return subprocess.run(command, check=False, env=environment, capture_output=True, text=True)

    client = machine.start()
    assert diffs(client) == {}
    shown = syntropctl("drift").stdout.splitlines()
    assert shown[0] == "no file changed in this time"
    assert shown[-1].startswith("Watched since ") and shown[-1].endswith(": what changed before is not known.")
    machine.write("/etc/web/web.conf", "listen 80\nworkers 20\n")
    until(lambda: diffs(client))
    [line] = [one for one in syntropctl("drift", "--since", "1h").stdout.splitlines() if "/etc" in one]
    assert line.endswith("  /etc/web/web.conf changed")
    shown = syntropctl("drift", "web", "--diff").stdout.splitlines()
    assert shown[0].startswith(
        "web.service has not failed in this time. Nearest change: /etc/web/web.conf changed"
    )
    assert [one for one in shown if "configuration of web.service, " in one and one.endswith(" ago")]
    assert "    -workers 2" in shown and "    +workers 20" in shown
    recorded = syntropctl("events", "--record", "replaced the disk", "--unit", "web", "--details", "sdb").stdout
    shown = syntropctl("events").stdout.splitlines()
    assert shown[-2].endswith("  file     /etc/web/web.conf changed")
    assert shown[-1].endswith("  operator replaced the disk [web.service]")
    [event] = json.loads(syntropctl("events", "--unit", "web", "--limit", "1", "--json").stdout)
    assert (event["id"], event["details"]) == (recorded.strip(), "sdb")
    assert syntropctl("events", "--unit", "none").stdout == "nothing was recorded in this time\n"
    assert syntropctl("drift", "none").stdout.startswith("There is no file of a unit none.service,")
    refused = syntropctl("drift", "a b")
    hint = "the name of a unit, such as ssh or ssh.service"
    assert (refused.returncode, refused.stderr) == (1, f"syntropctl: contextd does not take this unit: {hint}\n")
    for words, said in (
        (("--limit", "0"), "limit: 1 or more"),
        (("--record", ""), "summary: 1 to 1024 characters"),
        (("--record", "x" * 1025), "summary: 1 to 1024 characters"),
        (("--record", "x", "--details", "x" * ((32 << 10) + 1)), "details: at most 32 KiB"),
        (("--record", "x", "--source", "a\nb"), "source: 1 to 64 printable characters"),
    ):
        assert said in syntropctl("events", *words).stderr


@pytest.mark.root
def test_a_stranger_learns_that_and_not_how(machine: Machine, tmp_path: Path) -> None:
    client = machine.start()
    assert diffs(client) == {}
    machine.path("/etc/web/web.conf").chmod(0o600)  # first: what is public for a moment is public
    machine.write("/etc/web/web.conf", "listen 81\n", 0o600)
    machine.write("/etc/web/open.conf", "everybody\n")
    assert client.call(CONTEXT1 + "RecordEvent", source="test", summary="seen", details="inside").error is None
    wanted = {"/etc/web/web.conf", "/etc/web/open.conf"}
    until(lambda: wanted <= diffs(client).keys())
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        os.chmod(folder, 0o755)
    os.chmod(machine.unit.run / "syntrop/io.syntrop.Context1", 0o666)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        stranger = machine._launch.client(machine.unit, "io.syntrop.Context1")
        told = {
            "diffs": diffs(stranger),
            "events": stranger.call(CONTEXT1 + "ListEvents").parameters["events"],
            "context": stranger.call(CONTEXT1 + "GetUnitContext", unit="web").parameters["context"],
            "record": stranger.call(CONTEXT1 + "RecordEvent", source="me", summary="x").error,
        }
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    raw = b""
    while piece := os.read(read, 65536):
        raw += piece
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    told = json.loads(raw)
    assert "listen 81" not in raw.decode() and "inside" not in raw.decode()
    assert told["diffs"]["/etc/web/web.conf"] == "Only operators may see what is in this file."
    assert told["diffs"]["/etc/web/open.conf"].endswith("+everybody\n")
    assert told["context"].get("entries") is None
    assert told["record"] == "org.varlink.service.PermissionDenied"
