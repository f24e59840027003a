# SPDX-License-Identifier: Apache-2.0
"""toold as its own process, without a service manager: safe tools, files restored and taken back, crashes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syntrop.toold import audit, image, sockdiag, undo

TOOL1 = "io.syntrop.Tool1."
PATIENCE = 60.0


@pytest.fixture
def host() -> Iterator[Path]:
    """A folder whose files the settings let toold restore."""
    folder = tempfile.mkdtemp(prefix="toold-host-", dir="/var/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


class Toold:
    """The daemon, and a client."""

    def __init__(self, launch: Any, tmp_path: Path, host: Path, settings: str = "") -> None:
        config = tmp_path / "config"
        config.mkdir()
        (config / "toold.toml").write_text(f'[policy]\nfiles_allow = ["{host}/*"]\n{settings}')
        self.launch = launch
        self.unit = launch("toold", environment={"SYNTROP_CONFIG_ROOT": str(config)})
        self.root = str(self.unit.state)
        self.client = self.another()

    def another(self) -> Any:
        return self.launch.client(self.unit, "io.syntrop.Tool1")

    def execute(self, name: str, *args: str, unit: str | None = None) -> Any:
        return self.client.call(TOOL1 + "ExecuteTool", name=name, args=list(args), target_unit=unit)

    def roll_back(self, rollback_id: str) -> Any:
        return self.client.call(TOOL1 + "Rollback", rollback_id=rollback_id)

    def events(self) -> list[str]:
        return [entry["event"] for entry in audit.read(self.root)]


@pytest.fixture
def toold(launch: Any, tmp_path: Path, host: Path) -> Toold:
    return Toold(launch, tmp_path, host)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        select.select([], [], [], 0.01)


def test_the_tools_are_told_whole(toold: Toold) -> None:
    tools = {one["name"]: one for one in toold.client.call(TOOL1 + "ListTools").parameters["tools"]}
    assert len(tools) == 14
    assert tools["unit_restart"]["unit"] == "needed"
    assert tools["revert_dropin"]["undone"] == "the file is put back as it was"
    assert tools["journal_slice"]["parameters"][0] == {
        "name": "lines",
        "description": "Most entries to show. Default 100.",
        "kind": "int",
        "optional": True,
    }


def netlink(protocol: int = sockdiag.PROTOCOL) -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    made.bind((0, 0))
    return made


def test_what_listens_is_asked_over_the_socket_that_was_passed(launch: Any) -> None:
    """By its kind, whatever its number; nobody takes it for one that others connect to, and it holds nobody up."""
    handed = [(netlink(), "toold-diag.socket"), (netlink(0), "toold-diag.socket")]
    unit = launch("toold", idle=0.5, handed=handed, start=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = launch.client(unit, "io.syntrop.Tool1")
        client.send(TOOL1 + "ExecuteTool", name="net_listeners", args=["tcp"])
        unit.start()
        asked = client.receive()
        result = asked.parameters["result"]
        assert "sandbox" not in result
        assert f" 127.0.0.1:{server.getsockname()[1]} " in result["stdout"]
        assert (result["exit_code"], result["stderr"]) == (0, "")
    assert unit.wait() == 0
    assert [entry["event"] for entry in audit.read(str(unit.state))] == ["look"]


def test_what_cannot_be_asked_over_it_is_read_from_the_kernels_tables(launch: Any) -> None:
    """The kernel cuts each of its messages after 20 bytes here: a filter with one instruction says so."""
    spoilt = netlink()
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 20))
    spoilt.setsockopt(
        socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(code))
    )  # SO_ATTACH_FILTER
    unit = launch("toold", handed=[(spoilt, "toold-diag.socket")])
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = launch.client(unit, "io.syntrop.Tool1").call(
            TOOL1 + "ExecuteTool", name="net_listeners", args=["tcp"]
        )
        result = asked.parameters["result"]
        assert "net" in result["sandbox"]
        assert f" 127.0.0.1:{server.getsockname()[1]} " in result["stdout"]


def test_a_safe_tool_runs(toold: Toold) -> None:
    result = toold.execute("disk_usage", "/").parameters["result"]
    assert result["exit_code"] == 0
    assert result["stdout"].startswith("Mounted on")
    assert toold.execute("net_listeners", "tcp").parameters["result"]["exit_code"] == 0
    assert toold.events() == ["look", "look"]


@pytest.mark.parametrize(
    ("name", "args", "unit", "error", "parameter"),
    [
        ("sh", [], None, "ToolNotFound", "name"),
        ("disk_usage", ["relative"], None, "InvalidParameter", "path"),
        ("disk_usage", ["/", "/"], None, "InvalidParameter", "args"),
        ("journal_slice", ["-1"], None, "InvalidParameter", "lines"),
        ("journal_slice", ["a.service"], None, "InvalidParameter", "lines"),
        ("journal_slice", ["5", "--since"], None, "InvalidParameter", "since"),
        ("unit_restart", [], None, "InvalidParameter", "target_unit"),
        ("unit_restart", [], "a;b.service", "InvalidParameter", "target_unit"),
        ("unit_restart", ["now"], "a.service", "InvalidParameter", "args"),
        ("set_unit_property", ["Environment", "A=b"], "a.service", "InvalidParameter", "property"),
        ("set_unit_property", ["MemoryMax", "much"], "a.service", "InvalidParameter", "value"),
    ],
)
def test_what_is_unknown_or_ill_typed_is_refused(
    toold: Toold, name: str, args: list[str], unit: str | None, error: str, parameter: str
) -> None:
    reply = toold.execute(name, *args, unit=unit)
    assert reply.error == TOOL1 + error
    assert reply.parameters["name" if error == "ToolNotFound" else "parameter"] == (
        name if error == "ToolNotFound" else parameter
    )
    assert error == "ToolNotFound" or reply.parameters["reason"]
    assert not os.path.exists(os.path.join(toold.root, audit.NAME)), "nothing was begun"


def test_the_core_of_the_machine_is_refused_to_root(toold: Toold) -> None:
    for name, args, unit in (
        ("restore_file", ["/etc/shadow"], None),
        ("restore_file", ["/usr/bin/env"], None),
    ):
        reply = toold.execute(name, *args, unit=unit)
        assert reply.error == TOOL1 + "PermissionDenied"
    assert "refusal" in toold.events()


def test_without_a_manager_a_unit_tool_says_so(toold: Toold) -> None:
    reply = toold.execute("unit_restart", unit="a.service")
    assert reply.error == TOOL1 + "ExecutionFailed"
    assert "bus" in reply.parameters["reason"]
    assert toold.events() == ["begin", "failure"]


def test_a_file_is_restored_and_taken_back(toold: Toold, host: Path) -> None:
    (host / "a.conf").write_text("bad")
    (host / "a.conf").chmod(0o604)
    (host / "a.conf.dpkg-old").write_text("good")
    done = toold.execute("restore_file", str(host / "a.conf"), "a.conf.dpkg-old")
    assert done.error is None, done.parameters
    assert (host / "a.conf").read_text() == "good"
    assert (host / "a.conf").stat().st_mode & 0o777 == 0o604

    back = toold.roll_back(done.parameters["rollback_id"])
    assert back.error is None, back.parameters
    assert (host / "a.conf").read_text() == "bad"
    assert back.parameters["restored"]["target_path"] == str(host / "a.conf")
    again = toold.roll_back(back.parameters["rollback_id"])
    assert (host / "a.conf").read_text() == "good"

    # By default, what the newest change found there comes back.
    newest = toold.execute("restore_file", str(host / "a.conf"))
    assert (host / "a.conf").read_text() == "bad"
    named = toold.execute("restore_file", str(host / "a.conf"), done.parameters["rollback_id"])
    assert named.error == TOOL1 + "ExecutionFailed"  # it is that already
    listed = toold.client.call(TOOL1 + "ListRollbacks").parameters["records"]
    ids = [one.parameters["rollback_id"] for one in (newest, again, back, done)]
    assert [one["id"] for one in listed] == ids
    assert toold.client.call(TOOL1 + "ListRollbacks", limit=1).parameters["records"] == listed[:1]


def test_a_file_is_restored_only_over_what_its_caller_saw(toold: Toold, host: Path) -> None:
    path, copy = host / "a.conf", host / "a.conf.bak"
    path.write_text("bad")
    copy.write_text("good")
    seen = hashlib.sha256(b"bad").hexdigest()
    path.write_text("a person's")
    refused = toold.execute("restore_file", str(path), copy.name, seen)
    assert refused.error == TOOL1 + "ExecutionFailed"
    assert "a.conf was changed since" in refused.parameters["reason"]
    assert toold.execute("restore_file", str(path), copy.name, "absent").error == TOOL1 + "ExecutionFailed"
    assert path.read_text() == "a person's"
    assert toold.client.call(TOOL1 + "ListRollbacks").parameters["records"] == []
    path.write_text("bad")
    done = toold.execute("restore_file", str(path), copy.name, seen)
    assert done.error is None, done.parameters
    assert path.read_text() == "good"
    path.unlink()
    assert toold.execute("restore_file", str(path), copy.name, seen).error == TOOL1 + "ExecutionFailed"
    assert not path.exists()
    done = toold.execute("restore_file", str(path), copy.name, "absent")
    assert done.error is None, done.parameters
    assert path.read_text() == "good"
    assert toold.execute("restore_file", str(path), copy.name, "x").error == TOOL1 + "InvalidParameter"


def test_no_copy_from_elsewhere(toold: Toold, host: Path) -> None:
    (host / "a.conf").write_text("x")
    (host / "other").write_text("y")
    for source in ("other", "../../etc/shadow", "a.conf"):
        reply = toold.execute("restore_file", str(host / "a.conf"), source)
        assert reply.error in (TOOL1 + "ExecutionFailed", TOOL1 + "InvalidParameter"), source
    (host / "a.conf.bak").symlink_to("/etc/shadow")
    assert toold.execute("restore_file", str(host / "a.conf"), "a.conf.bak").error == TOOL1 + "ExecutionFailed"
    assert (host / "a.conf").read_text() == "x"


def test_no_such_change(toold: Toold) -> None:
    for rollback_id in ("rb-1-00000000", "../audit.log", ""):
        assert toold.roll_back(rollback_id).error == TOOL1 + "RollbackNotFound"


def test_a_change_that_was_cut_short_is_rolled_back_at_the_next_start(toold: Toold, host: Path) -> None:
    path = host / "a.conf"
    path.write_text("before")
    toold.execute("disk_usage")
    process = toold.unit.process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    after = image.of_content(b"after", image.capture(str(path)))
    step = undo.Step(str(path), image.capture(str(path)), after)
    undo.carry_out(undo.prepare(toold.root, undo.Record(tool="restore_file", summary="cut short", steps=[step])))
    assert path.read_text() == "after"
    toold.unit.start()
    # Nobody has called yet: it is put right because the daemon starts, whatever for.
    wait_for(lambda: path.read_text() == "before", "rolled back")
    toold.client = toold.another()
    assert toold.client.call(TOOL1 + "ListRollbacks").parameters["records"] == []
    wait_for(lambda: "recovery" in toold.events(), "told")


def test_a_log_that_was_changed_stops_everything(toold: Toold) -> None:
    toold.execute("daemon_reload")
    process = toold.unit.process
    assert process is not None
    process.terminate()
    process.wait()
    path = Path(toold.root, audit.NAME)
    first, *rest = path.read_text().splitlines(True)
    path.write_text(first.replace("daemon_reload", "daemon_unload") + "".join(rest))
    toold.unit.start()
    toold.client = toold.another()
    reply = toold.execute("disk_usage")
    assert reply.error == TOOL1 + "ExecutionFailed"
    assert "audit log" in reply.parameters["reason"]


def test_a_caller_who_hangs_up_ends_a_look(toold: Toold) -> None:
    client = toold.another()
    client.send(TOOL1 + "ExecuteTool", name="disk_usage", args=[])
    client.close()
    assert toold.execute("disk_usage").error is None


@pytest.mark.parametrize("name", ["disk_usage", "daemon_reload"])
def test_first_callers_who_hang_up_take_nothing_with_them(toold: Toold, name: str) -> None:
    """What is opened for the first caller is there for all: the lock of the state folder, the audit log."""
    process = toold.unit.process
    assert process is not None
    for _ in range(4):
        clients = [toold.another() for _ in range(8)]
        process.send_signal(signal.SIGSTOP)
        for client in clients:
            client.send(TOOL1 + "ExecuteTool", name=name, args=[])
            client.close()
        process.send_signal(signal.SIGCONT)
        assert toold.execute("disk_usage").error is None
        process.terminate()
        process.wait()
        toold.unit.start()
        process = toold.unit.process
        toold.client = toold.another()
    list(audit.read(toold.root))  # raises where the chain is broken


def test_changes_are_counted_over_restarts(launch: Any, tmp_path: Path, host: Path) -> None:
    toold = Toold(launch, tmp_path, host, "[rates]\nchanges_per_minute = 2\n")
    for _ in range(2):
        assert toold.execute("daemon_reload").error == TOOL1 + "ExecutionFailed"
    reply = toold.execute("daemon_reload")
    assert reply.error == TOOL1 + "PermissionDenied"
    process = toold.unit.process
    assert process is not None
    process.terminate()
    process.wait()
    toold.unit.start()
    toold.client = toold.another()
    reply = toold.execute("daemon_reload")
    assert reply.error == TOOL1 + "PermissionDenied"
    assert "try again" in reply.parameters["reason"]
